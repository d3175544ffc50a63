//! Tokenization, the host's own: text to token ids, for every engine (TOK-01).
//!
//! State: none here; a [`Tokenizer`] is immutable and shared. Callers: `models/ingest.rs` sanitises a published
//! tokenizer once, the operations encode texts. Not known here: engines, requests, where files lie.
//!
//! A text is text: strings that spell control tokens (`[SEP]`, `</s>`, `<|im_end|>`) never become control ids,
//! whatever the published tokenizer would do (DECISIONS "text is text").

mod control;
pub mod json_guard;
mod pattern;
pub mod sanitise;
pub mod template;
pub mod tokenizer;

pub use template::Template;
pub use tokenizer::{Encoded, Limits, MAX_TEXT_BYTES, Tokenizer};

/// Why a tokenizer was refused or a text could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The published tokenizer cannot be used. Permanent.
    #[error("{0}")]
    Refused(String),
    /// The record's template cannot be used. Permanent.
    #[error("template {template:?}: {reason}")]
    Template {
        /// The template.
        template: String,
        /// What is wrong.
        reason: String,
    },
    /// The text has too many bytes to be tokenized at all.
    #[error("the text has {found} bytes, at most {limit} are tokenized; split it")]
    TooManyBytes {
        /// Bytes found.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The text has more tokens than the model takes, and truncation is off.
    #[error(
        "the text has {found} tokens, the model takes {limit} (special tokens included); shorten it or allow truncation"
    )]
    TooManyTokens {
        /// Tokens found, special tokens included.
        found: u32,
        /// The limit.
        limit: u32,
    },
    /// The tokenizer failed on this text.
    #[error("the tokenizer failed on this text: {0}")]
    Failed(String),
}
