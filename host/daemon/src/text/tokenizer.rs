//! One model's tokenizer: text to ids, with the special tokens, the truncation and its disclosure.
//!
//! State: the loaded library tokenizer, immutable. Callers: the operations, through `models::ModelStore::tokenizer`.
//! Not known here: engines, roles, requests.
//!
//! Content and special tokens are made apart. The content tokenizer cannot spell a control token (`text/control.rs`);
//! what stands before and after the content is taken once from the file's post-processor and put around it. So
//! truncation cuts content only, and an empty text is its special tokens.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use synapse_core::canon::{self, Value};
use synapse_core::digest::{Sha256Digest, sha256};
use tokenizers::Encoding;
use uuid::Uuid;

use super::control::{self, Marker};
use super::frame::{Frame, PairFrame, Special};
use super::json_guard::{self, Fields};
use super::prompt::PromptParts;
use super::{Template, TextError, sanitise};

/// How long an encoded text may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most tokens, special tokens and template included.
    pub max_tokens: u32,
    /// Cut a longer text (and say so) instead of refusing it.
    pub truncate: bool,
    /// The most bytes of a text that are tokenized at all: a running tokenization cannot be stopped.
    pub max_bytes: usize,
}

/// The usual [`Limits::max_bytes`]: 1 MiB, the whole of a long book chapter many times over.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

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
pub struct Tokenizer {
    digest: Sha256Digest,
    content: tokenizers::Tokenizer,
    frame: Frame,
    pair_frame: Option<PairFrame>,
    /// Ids that no content may have.
    forbidden: BTreeSet<u32>,
    /// The renamed control tokens with their names in the content tokenizer.
    hidden: Vec<(String, String)>,
    /// The control tokens as templates may spell them.
    markers: Vec<Marker>,
    prompt_parts: PromptParts,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads a sanitised tokenizer.
    ///
    /// # Errors
    /// [`TextError::Refused`].
    pub fn from_sanitised(bytes: &[u8]) -> Result<Self, TextError> {
        let refuse = |reason: String| TextError::Refused(reason);
        let mut document = json_guard::parse(bytes, sanitise::CAPS).map_err(|error| refuse(error.to_string()))?;
        let marked = control::marked(&document);
        let names = control::hide(&mut document, &marked, &Uuid::new_v4().simple().to_string());
        let renamed = canon::to_bytes(&document).map_err(|error| refuse(error.to_string()))?;
        let content = guarded(|| tokenizers::Tokenizer::from_bytes(&renamed))
            .map_err(|reason| refuse(format!("the tokenizer does not load: {reason}")))?;
        let frame = Frame::learn(&content).map_err(refuse)?;
        let pair_frame = PairFrame::learn(&content);
        let unknown = unknown_id(&document, &content);
        let markers = control::markers(&document, &names);
        drop(document);
        let forbidden = names
            .iter()
            .filter_map(|(_, name)| content.token_to_id(name))
            .filter(|id| Some(*id) != unknown)
            .collect();
        let loaded = Self {
            digest: sha256(bytes),
            content,
            frame,
            pair_frame,
            forbidden,
            hidden: names,
            markers,
            prompt_parts: PromptParts::default(),
        };
        // A tokenizer that fails on these fails on everything: better now than at the first request.
        for probe in ["", " ", "a", "Hello world.", "\u{0}\u{feff}\u{1f680}"] {
            let limits = Limits {
                max_tokens: u32::MAX,
                truncate: false,
                max_bytes: MAX_TEXT_BYTES,
            };
            loaded
                .encode(probe, None, limits)
                .map_err(|error| refuse(format!("it cannot encode {probe:?}: {error}")))?;
        }
        Ok(loaded)
    }

    /// The digest of the sanitised form; enters the numeric profile (TOK-03).
    #[must_use]
    pub const fn digest(&self) -> Sha256Digest {
        self.digest
    }

    /// How many tokens an empty text has: what the post-processor puts around every content.
    #[must_use]
    pub fn special_tokens(&self) -> usize {
        self.frame.tokens()
    }

    /// What it puts around one text.
    pub(super) const fn frame(&self) -> &Frame {
        &self.frame
    }

    /// What it puts around two texts, where it knows pairs.
    pub(super) const fn pair_frame(&self) -> Option<&PairFrame> {
        self.pair_frame.as_ref()
    }

    /// The control tokens as templates may spell them.
    pub(super) fn markers(&self) -> &[Marker] {
        &self.markers
    }

    /// The library's tokenizer, which cannot spell a control token.
    pub(super) const fn content_tokenizer(&self) -> &tokenizers::Tokenizer {
        &self.content
    }

    /// What prompts need besides.
    pub(super) const fn prompt_parts(&self) -> &PromptParts {
        &self.prompt_parts
    }

    /// Encodes a text without anything around it, as content: no control token comes out.
    pub(super) fn content(&self, text: &str, max_bytes: usize) -> Result<Encoding, TextError> {
        check_bytes(text.len(), max_bytes)?;
        self.content_with(&self.content, text)
    }

    /// Encodes a text as content with a given variant of the tokenizer.
    pub(super) fn content_with(&self, variant: &tokenizers::Tokenizer, text: &str) -> Result<Encoding, TextError> {
        let encoding = guarded(|| variant.encode(text, false)).map_err(TextError::Failed)?;
        if encoding.get_ids().iter().any(|id| self.forbidden.contains(id)) {
            return Err(TextError::Failed(String::from(
                "the text became a control token, which this host does not allow",
            )));
        }
        Ok(encoding)
    }

    /// Encodes a text. Takes time in proportion to the text (measured at 1 MiB: half a second to two seconds for
    /// most texts, eight for one character that a normaliser turns into eighteen): run it off the socket's threads.
    ///
    /// # Errors
    /// [`TextError::TooManyBytes`], [`TextError::TooManyTokens`], [`TextError::Failed`], and [`TextError::Template`]
    /// when the template alone fills the limit.
    pub fn encode(&self, text: &str, template: Option<&Template>, limits: Limits) -> Result<Encoded, TextError> {
        check_bytes(text.len(), limits.max_bytes)?;
        let whole: Cow<'_, str> = match template {
            None => Cow::Borrowed(text),
            Some(template) => Cow::Owned([template.before(), text, template.after()].concat()),
        };
        let encoding = self.content_with(&self.content, whole.as_ref())?;
        let start = template.map_or(0, |template| template.before().len());
        let span = start..start + text.len();
        let (kept, submitted) = self.fit(&encoding, template, &span, limits)?;
        let mut encoded = Encoded {
            submitted_tokens: submitted,
            ..Encoded::default()
        };
        encoded.push_specials(&self.frame.before);
        for index in kept {
            encoded.push_content(&encoding, index, template.is_some(), &span)?;
        }
        encoded.push_specials(&self.frame.after);
        encoded.close();
        Ok(encoded)
    }

    /// Which content tokens stay, and how many tokens the whole text has. Only tokens of the caller's text are cut,
    /// from its end.
    fn fit(
        &self,
        encoding: &Encoding,
        template: Option<&Template>,
        span: &std::ops::Range<usize>,
        limits: Limits,
    ) -> Result<(Vec<usize>, u32), TextError> {
        let total = encoding.len();
        let submitted = count(total + self.special_tokens());
        if submitted <= limits.max_tokens {
            return Ok(((0..total).collect(), submitted));
        }
        if !limits.truncate {
            return Err(TextError::TooManyTokens {
                found: submitted,
                limit: limits.max_tokens,
            });
        }
        let offsets = encoding.get_offsets();
        let (head, tail) = if template.is_some() {
            let head = offsets.iter().take_while(|(begin, _)| *begin < span.start).count();
            let tail = offsets[head..]
                .iter()
                .rev()
                .take_while(|(begin, _)| *begin >= span.end)
                .count();
            (head, tail)
        } else {
            (0, 0)
        };
        let fixed = self.special_tokens() + head + tail;
        let room = usize::try_from(limits.max_tokens)
            .unwrap_or(usize::MAX)
            .checked_sub(fixed)
            .ok_or_else(|| TextError::Template {
                template: template.map_or_else(String::new, |template| {
                    format!("{}{{text}}{}", template.before(), template.after())
                }),
                reason: format!(
                    "it and the special tokens take {fixed} tokens, of {} that the model takes",
                    limits.max_tokens
                ),
            })?;
        Ok(((0..head + room).chain(total - tail..total).collect(), submitted))
    }

    /// Checks that the library gave an added token the id that its file declares; it counts for itself and only logs
    /// a difference.
    pub(super) fn expect_added(&self, surface: &str, id: i64) -> Result<(), TextError> {
        let name = self
            .hidden
            .iter()
            .find(|(hidden, _)| hidden == surface)
            .map_or(surface, |(_, name)| name.as_str());
        match self.content.token_to_id(name) {
            Some(found) if i64::from(found) == id => Ok(()),
            found => Err(TextError::Refused(format!(
                "the added token {:?} declares id {id}, but by its place in the file it gets {found:?}",
                surface.chars().take(40).collect::<String>()
            ))),
        }
    }
}

impl Encoded {
    /// Adds special tokens.
    pub(super) fn push_specials(&mut self, specials: &[Special]) {
        for &(id, segment) in specials {
            self.ids.push(id);
            self.type_ids.push(segment);
            self.offsets.push(None);
        }
    }

    /// Adds a token of a text.
    pub(super) fn push(&mut self, id: u32, segment: i32, offset: Option<(u32, u32)>) -> Result<(), TextError> {
        self.ids.push(id_of(id)?);
        self.type_ids.push(segment);
        self.offsets.push(offset);
        Ok(())
    }

    /// Counts what is there, which makes the truncation plain.
    pub(super) fn close(&mut self) {
        self.effective_tokens = count(self.ids.len());
        self.truncated = self.effective_tokens < self.submitted_tokens;
    }

    /// Adds a token of a text that may stand in a template.
    fn push_content(
        &mut self,
        encoding: &Encoding,
        index: usize,
        templated: bool,
        span: &std::ops::Range<usize>,
    ) -> Result<(), TextError> {
        let segment = i32::try_from(encoding.get_type_ids()[index])
            .map_err(|_| TextError::Failed(String::from("a segment is outside 0..2^31")))?;
        let (begin, end) = encoding.get_offsets()[index];
        let outside = templated && (end <= span.start && begin < span.start || begin >= span.end && end > span.end);
        let offset = if outside {
            None
        } else {
            let place = |at: usize| u32::try_from(at.clamp(span.start, span.end) - span.start).ok();
            place(begin).zip(place(end))
        };
        self.push(encoding.get_ids()[index], segment, offset)
    }
}

/// The id that stands for what the vocabulary lacks, after the control tokens were renamed. Content may have it.
fn unknown_id(document: &Value, content: &tokenizers::Tokenizer) -> Option<u32> {
    let model = document.member("model")?;
    match model.member("unk_token").and_then(Fields::as_text) {
        Some(name) => content.token_to_id(name),
        None => model.member("unk_id")?.as_int().and_then(|id| u32::try_from(id).ok()),
    }
}

/// Runs library code. A panic there is a failure like any other: a stranger's file or text must not end a thread.
pub(super) fn guarded<T, E: fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string().chars().take(300).collect()),
        Err(_) => Err(String::from("the tokenizer library panicked")),
    }
}

/// A number of tokens; one that no counter holds is above every limit.
pub(super) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A token id as engines take it.
pub(super) fn id_of(id: u32) -> Result<i32, TextError> {
    i32::try_from(id).map_err(|_| TextError::Failed(String::from("a token id is outside 0..2^31")))
}

/// Refuses a text that has too many bytes to be tokenized at all.
pub(super) fn check_bytes(found: usize, limit: usize) -> Result<(), TextError> {
    let bytes = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    if found <= limit {
        return Ok(());
    }
    Err(TextError::TooManyBytes {
        found: bytes(found),
        limit: bytes(limit),
    })
}
