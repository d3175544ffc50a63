//! Tokenization, the host's own: text to token ids, for every engine (TOK-01).
//!
//! State: none here; a [`Tokenizer`] is immutable and shared. Callers: `models/ingest.rs` sanitises a published
//! tokenizer once (or has it made of a GGUF vocabulary), the operations encode texts, pairs and prompts. Not known
//! here: engines, requests, where files lie.
//!
//! A text is text: strings that spell control tokens (`[SEP]`, `</s>`, `<|im_end|>`) never become control ids,
//! whatever the published tokenizer would do (DECISIONS "text is text").

pub mod chat;
mod control;
mod frame;
pub mod json_guard;
pub mod pair;
mod pattern;
pub mod prompt;
pub mod sanitise;
pub mod template;
pub mod tokenizer;
pub mod vocabulary;

pub use chat::{ChatMessage, ChatRole, ChatTemplate};
pub use pair::EncodedPair;
pub use prompt::Piece;
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
    /// The query alone leaves no room for a document.
    #[error(
        "the query and the special tokens are {found} tokens, and the model takes {limit} with the document; shorten \
         the query"
    )]
    QueryTooLong {
        /// Tokens of the query, special tokens included.
        found: u32,
        /// The limit of query and document together.
        limit: u32,
    },
    /// The tokenizer knows no pairs, so its model cannot rerank. Permanent.
    #[error("the model's tokenizer has no frame for a query with a document, so the model cannot rerank")]
    NoPairs,
    /// The chat template cannot be used, or not with these messages: it does not compile, costs too much, or does not
    /// show each message once and unaltered. The words name what, and where.
    #[error("the model's chat template cannot be used: {0}")]
    ChatTemplate(String),
    /// The chat template itself refuses these messages, in its own words.
    #[error("the model's chat template refuses these messages: {0}")]
    ChatRefused(String),
    /// The tokenizer failed on this text.
    #[error("the tokenizer failed on this text: {0}")]
    Failed(String),
}
