//! `microllm.oneshot`: one prompt, one text, from a small model (API-16..18).
//!
//! No state. There is no conversation and no stream: the reply holds the whole text. How a prompt becomes tokens, and
//! what a grammar may hold, is decided by the daemon and its engines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::constraints::engine_params;
use super::method::operation;
use super::served::ServedBy;
use super::text::Text;

/// The most texts of `stop`.
pub const MAX_STOPS: usize = 8;
/// The longest text of `stop`, in bytes of UTF-8.
pub const MAX_STOP_BYTES: usize = 256;
/// The longest grammar, in bytes of UTF-8.
pub const MAX_GRAMMAR_BYTES: usize = 256 * 1024;

engine_params! {
    /// Params of `microllm.oneshot`: one prompt.
    pub struct MicrollmOneshotParams {
        /// A model id, or `MODEL@ENGINE[:VARIANT]` for one of its lanes.
        pub model: String,
        /// The prompt. Strings in it that spell control tokens stay text. It is never cut: together with `max_tokens`
        /// (without it, with one token) it must fit the model's length, or it is refused with `input_too_long`.
        pub prompt: Text,
        /// An instruction that stands before the prompt, in the template's own place for it; only with `chat`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub system: Option<Text>,
        /// Put the prompt into the model's chat template, as the user's message, or continue it as it is; default:
        /// true for a model that has a template. Without a template `true` is refused with `unsupported`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub chat: Option<bool>,
        /// The most tokens to generate, at least 1. More than the daemon's `microllm_max_tokens` (512) is refused, not
        /// clamped (API-17). Default: as many as fit behind the prompt, at most `microllm_max_tokens`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_tokens: Option<u32>,
        /// 0 to 2; default 0: the likeliest token each time, so that the same request gives the same text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub temperature: Option<f32>,
        /// Sample from the likeliest tokens that together have this probability: above 0, at most 1; default 1, which
        /// keeps every token. Without effect at temperature 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub top_p: Option<f32>,
        /// The sampler's seed; default 0. The same seed and request give the same text. Without effect at temperature 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub seed: Option<u64>,
        /// Texts that end the generation and are not part of it: at most 8, each of 1 to 256 bytes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub stop: Vec<String>,
        /// A grammar in GBNF that the text must match, at most 256 KiB. Refused with `grammar_disabled` unless the
        /// daemon's `grammar_enabled` is set, with `grammar_invalid` where it does not parse, and with
        /// `grammar_unavailable_in_build` by an engine without grammars; never ignored (API-18).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub grammar: Option<String>,
    }
}

impl MicrollmOneshotParams {
    /// A prompt for one model, everything else by default.
    #[must_use]
    pub fn new(model: impl Into<String>, prompt: impl Into<Text>) -> Self {
        Self {
            model: model.into(),
            prompt: prompt.into(),
            system: None,
            chat: None,
            max_tokens: None,
            temperature: None,
            top_p: None,
            seed: None,
            stop: Vec::new(),
            grammar: None,
            deadline_ms: None,
            max_queue_ms: None,
            fail_if_not_ready: false,
            required_fingerprint: None,
            allow_equivalent: false,
            required_epoch: None,
            require_device: None,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// By itself: an end token, a text of `stop`, or the end of the grammar.
    Stop,
    /// At `max_tokens`: the text may end in the middle.
    Length,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl FinishReason {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Unknown => "unknown",
        }
    }
}

/// Result of `microllm.oneshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MicrollmOneshotResult {
    /// The catalog id of the model.
    pub model: String,
    /// What was generated, without the prompt and without the text that stopped it.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt as the engine saw it, template and special tokens included.
    pub prompt_tokens: u32,
    /// Tokens generated, among them one that ended the text.
    pub generated_tokens: u32,
    /// Whether the prompt stood in the model's chat template.
    pub chat: bool,
    /// The numeric space that served.
    pub fingerprint: String,
    /// The numeric profile that served.
    pub numeric_profile_id: String,
    /// The alias table's epoch under which the request was accepted.
    pub table_epoch: u64,
    /// Which lane served, and what is behind it.
    pub provenance: ServedBy,
}

operation!(
    /// `microllm.oneshot`.
    MicrollmOneshot(MicrollmOneshotParams) -> MicrollmOneshotResult
);
