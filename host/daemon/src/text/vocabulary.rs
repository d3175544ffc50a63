//! GGUF vocabularies: the tokenizer that a model file carries instead of a `tokenizer.json`.
//!
//! State: none. Callers: `models`, with what `models/gguf/vocabulary.rs` read from a header; the result goes the same
//! way as a published tokenizer (`text/sanitise.rs`). Not known here: files, headers, models.

use super::TextError;

/// A vocabulary as a GGUF header has it. Nothing in it is checked yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// The family: `tokenizer.ggml.model`.
    pub model: String,
    /// The rule that cuts a text into words: `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// The entries; an entry's place is its id.
    pub entries: Vec<Entry>,
    /// The merges of a BPE, the first one first: `left right`.
    pub merges: Vec<String>,
    /// The begin token.
    pub bos: Option<u32>,
    /// The end token.
    pub eos: Option<u32>,
    /// The token for what the vocabulary lacks.
    pub unknown: Option<u32>,
    /// Whether a text begins with the begin token.
    pub add_bos: Option<bool>,
    /// Whether a text ends with the end token.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
}

/// One entry of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its text.
    pub text: String,
    /// Its score; the higher, the sooner it is merged.
    pub score: f32,
    /// What it is for.
    pub kind: EntryKind,
}

/// What an entry is for: `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A piece of text.
    Normal,
    /// Stands for what the vocabulary lacks.
    Unknown,
    /// Steers the model.
    Control,
    /// A piece of text that is found before all others.
    UserDefined,
    /// A place without a meaning.
    Unused,
    /// One byte.
    Byte,
}

/// Writes a vocabulary as a `tokenizer.json`.
///
/// # Errors
/// [`TextError::Refused`] says what is wrong or not supported.
pub fn tokenizer_json(vocabulary: &Vocabulary) -> Result<Vec<u8>, TextError> {
    Err(TextError::Refused(format!(
        "the vocabulary family {:?} is not supported",
        vocabulary.model
    )))
}
