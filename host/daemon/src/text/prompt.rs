//! Prompts: pieces of a rendered chat template and of what people wrote, as one sequence of ids.
//!
//! State: what a tokenizer needs for prompts, built at its first prompt. Callers: `microllm.oneshot`. Not known here:
//! messages and roles, models, sampling.
//!
//! Control tokens are looked for in the template's pieces only; content goes through the tokenizer that cannot spell
//! them (DECISIONS "text is text"). Each piece, and in a template each part between two control tokens, is tokenized
//! apart, so that no token spans content and template. A vocabulary that writes a word's leading space as part of the
//! word puts such a space at the begin of a text: that happens at the begin of the prompt and after a control token,
//! as the published tokenizers have it, and not where a piece merely goes on.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::TextError;
use super::control::Marker;
use super::tokenizer::{MAX_TEXT_BYTES, Tokenizer, check_bytes, count, id_of};

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Written by the model's template: control tokens are recognised.
    Template(String),
    /// Written by somebody else: text, whatever it spells.
    Content(String),
}

impl Piece {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Template(text) | Self::Content(text) => text,
        }
    }
}

/// What a tokenizer needs for prompts.
#[derive(Default)]
pub(super) struct PromptParts(OnceLock<Result<Built, String>>);

struct Built {
    markers: AhoCorasick,
    middle: Middle,
}

/// How text is tokenized that neither begins the prompt nor follows a control token.
enum Middle {
    /// As any text: this vocabulary puts no space before a text.
    AsAny,
    /// Without the space that is put before a text.
    WithoutSpace {
        variant: Box<tokenizers::Tokenizer>,
        /// The space comes at the begin of the prompt only, not after a control token.
        first_only: bool,
    },
}

/// Where in the prompt a text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Begin,
    AfterMarker,
    Middle,
}

impl Tokenizer {
    /// Encodes a prompt for generation: the model's begin tokens (what its tokenizer puts before a text, such as
    /// `<bos>`) unless the first template piece wrote them itself, then the pieces. The end tokens of its frame are
    /// left out, because the model is to go on. Control tokens are recognised in template pieces only. Without a chat
    /// template a prompt is one content piece. The pieces together may have [`MAX_TEXT_BYTES`].
    ///
    /// # Errors
    /// [`TextError::TooManyBytes`], [`TextError::TooManyTokens`] when the prompt is longer than `max_tokens`,
    /// [`TextError::Failed`].
    pub fn encode_prompt(&self, pieces: &[Piece], max_tokens: u32) -> Result<Vec<i32>, TextError> {
        let bytes = pieces
            .iter()
            .fold(0_usize, |sum, piece| sum.saturating_add(piece.text().len()));
        check_bytes(bytes, MAX_TEXT_BYTES)?;
        let built = self
            .prompt_parts()
            .0
            .get_or_init(|| Built::new(self))
            .as_ref()
            .map_err(|reason| TextError::Failed(reason.clone()))?;
        let mut prompt = Prompt {
            tokenizer: self,
            built,
            ids: Vec::new(),
            place: Place::Begin,
        };
        for piece in pieces {
            match piece {
                Piece::Template(text) => prompt.template(text)?,
                Piece::Content(text) => prompt.text(text)?,
            }
        }
        let begin: Vec<i32> = self.frame().before.iter().map(|(id, _)| *id).collect();
        let ids = if prompt.ids.starts_with(&begin) {
            prompt.ids
        } else {
            [begin, prompt.ids].concat()
        };
        if count(ids.len()) > max_tokens {
            return Err(TextError::TooManyTokens {
                found: count(ids.len()),
                limit: max_tokens,
            });
        }
        Ok(ids)
    }
}

/// A prompt while it grows.
struct Prompt<'t> {
    tokenizer: &'t Tokenizer,
    built: &'t Built,
    ids: Vec<i32>,
    place: Place,
}

impl Prompt<'_> {
    fn template(&mut self, text: &str) -> Result<(), TextError> {
        let built = self.built;
        let mut rest = 0;
        for found in built.markers.find_iter(text) {
            let marker = &self.tokenizer.markers()[found.pattern().as_usize()];
            // A marker before may have swallowed white space up to here.
            let between = text.get(rest..found.start()).unwrap_or_default();
            self.text(if marker.lstrip { between.trim_end() } else { between })?;
            self.ids.push(id_of(marker.id)?);
            self.place = Place::AfterMarker;
            rest = found.end();
            if marker.rstrip {
                rest += text[rest..].len() - text[rest..].trim_start().len();
            }
        }
        self.text(text.get(rest..).unwrap_or_default())
    }

    fn text(&mut self, text: &str) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        let content = self.tokenizer.content_tokenizer();
        let variant = match &self.built.middle {
            Middle::WithoutSpace { variant, first_only }
                if self.place == Place::Middle || *first_only && self.place == Place::AfterMarker =>
            {
                variant
            }
            _ => content,
        };
        let encoding = self.tokenizer.content_with(variant, text)?;
        for &id in encoding.get_ids() {
            self.ids.push(id_of(id)?);
        }
        self.place = Place::Middle;
        Ok(())
    }
}

impl Built {
    fn new(tokenizer: &Tokenizer) -> Result<Self, String> {
        let surfaces = tokenizer.markers().iter().map(|Marker { surface, .. }| surface);
        let markers = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(surfaces)
            .map_err(|error| format!("the control tokens cannot be searched for: {error}"))?;
        let middle = Middle::of(tokenizer.content_tokenizer())?;
        Ok(Self { markers, middle })
    }
}

impl Middle {
    fn of(content: &tokenizers::Tokenizer) -> Result<Self, String> {
        let mut first_only = false;
        let mut changed = false;
        let normalizer = content
            .get_normalizer()
            .and_then(|normalizer| without_prepend(normalizer, &mut changed));
        let mut pre_tokenizer = content.get_pre_tokenizer().cloned();
        if let Some(pre_tokenizer) = &mut pre_tokenizer {
            never_prefix(pre_tokenizer, &mut changed, &mut first_only);
        }
        if !changed {
            return Ok(Self::AsAny);
        }
        let mut variant = content.clone();
        variant
            .with_normalizer(normalizer)
            .map_err(|error| format!("the tokenizer cannot go on in the middle of a text: {error}"))?
            .with_pre_tokenizer(pre_tokenizer);
        Ok(Self::WithoutSpace {
            variant: Box::new(variant),
            first_only,
        })
    }
}

/// A normalizer without what it puts before each text.
fn without_prepend(normalizer: &NormalizerWrapper, changed: &mut bool) -> Option<NormalizerWrapper> {
    match normalizer {
        NormalizerWrapper::Prepend(_) => {
            *changed = true;
            None
        }
        NormalizerWrapper::Sequence(sequence) => {
            let kept = sequence
                .as_ref()
                .iter()
                .filter_map(|inner| without_prepend(inner, changed))
                .collect();
            Some(NormalizerWrapper::Sequence(tokenizers::normalizers::Sequence::new(
                kept,
            )))
        }
        other => Some(other.clone()),
    }
}

/// Makes a pre-tokenizer put nothing before a text.
fn never_prefix(pre_tokenizer: &mut PreTokenizerWrapper, changed: &mut bool, first_only: &mut bool) {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) if metaspace.prepend_scheme != PrependScheme::Never => {
            *first_only |= metaspace.prepend_scheme == PrependScheme::First;
            metaspace.prepend_scheme = PrependScheme::Never;
            *changed = true;
        }
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.add_prefix_space => {
            bytes.add_prefix_space = false;
            *changed = true;
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            for inner in sequence.as_mut() {
                never_prefix(inner, changed, first_only);
            }
        }
        _ => {}
    }
}
