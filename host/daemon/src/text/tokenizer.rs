//! One model's tokenizer: text to ids, with the special tokens, the truncation and its disclosure.

use synapse_core::digest::{Sha256Digest, sha256};

use super::{Template, TextError};

/// How long an encoded text may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most tokens, special tokens and template included.
    pub max_tokens: u32,
    /// Cut a longer text (and say so) instead of refusing it.
    pub truncate: bool,
}

/// A text as token ids. All vectors have the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, special tokens included.
    pub ids: Vec<i32>,
    /// The segment of each token.
    pub type_ids: Vec<i32>,
    /// Where each token lies in the caller's text, in bytes; `None` for special and template tokens.
    pub offsets: Vec<Option<(u32, u32)>>,
    /// Tokens of the whole text, special tokens and template included (API-14).
    pub submitted_tokens: u32,
    /// Tokens that are left after truncation; the length of `ids` (TOK-04).
    pub effective_tokens: u32,
    /// Whether the text was cut.
    pub truncated: bool,
}

/// A loaded tokenizer. Immutable; any number of threads may encode with it.
#[derive(Debug)]
pub struct Tokenizer {
    digest: Sha256Digest,
}

impl Tokenizer {
    /// Loads a sanitised tokenizer.
    ///
    /// # Errors
    /// [`TextError::Refused`].
    pub fn from_sanitised(bytes: &[u8]) -> Result<Self, TextError> {
        Ok(Self { digest: sha256(bytes) })
    }

    /// The digest of the sanitised form; enters the numeric profile (TOK-03).
    #[must_use]
    pub const fn digest(&self) -> Sha256Digest {
        self.digest
    }

    /// Encodes a text. Takes time in proportion to the text, up to a few hundred milliseconds at the byte limit: run
    /// it off the socket's threads.
    ///
    /// # Errors
    /// [`TextError::TooManyBytes`], [`TextError::TooManyTokens`], [`TextError::Failed`], and [`TextError::Template`]
    /// when the template alone fills the limit.
    pub fn encode(&self, text: &str, template: Option<&Template>, limits: Limits) -> Result<Encoded, TextError> {
        let _ = (text, template, limits);
        Err(TextError::Failed(String::from("not loaded")))
    }
}
