//! Prompt, options and sink of a generation as plain Rust.
//!
//! Owns no state: all is borrowed from the host for one call, except the counts that a sink keeps.

use crate::{
    api::{self, FinishReason, Flow, KeyValue, PromptKind, TokenSink},
    error::Error,
};

/// What a generation starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// Token ids made by the host, special tokens included; at least one.
    Ids(&'a [i32]),
    /// Text, for engines that own their tokenizer.
    Text(&'a str),
}

impl<'a> Prompt<'a> {
    /// Checks a prompt of the ABI and borrows it.
    pub(crate) fn check(prompt: api::Prompt<'a>, max_tokens: u32) -> Result<Self, Error> {
        match prompt.kind {
            PromptKind::IDS => {
                let ids = prompt.ids.as_slice();
                if ids.is_empty() {
                    return Err(Error::invalid_argument("prompt: no token, expected at least 1"));
                }
                if u32::try_from(ids.len()).is_ok_and(|len| len <= max_tokens) {
                    return Ok(Self::Ids(ids));
                }
                let len = ids.len();
                Err(Error::input_too_long(format!(
                    "the prompt has {len} tokens, the loaded model takes {max_tokens}"
                )))
            }
            PromptKind::TEXT => Ok(Self::Text(prompt.text.as_str())),
            PromptKind(kind) => Err(Error::unsupported(format!(
                "prompt kind {kind}, this SDK knows 1 and 2"
            ))),
        }
    }
}

/// How to generate. Checked: ranges, and the keys of `extra` against the engine's list.
#[derive(Clone, Debug)]
pub struct GenerateOptions<'a> {
    /// The most tokens to generate; at least 1.
    pub max_tokens: u32,
    /// 0 is greedy; finite and not negative.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 keeps everything.
    pub top_p: f32,
    /// The sampler's seed.
    pub seed: u64,
    /// Texts that end the generation and are not part of it; none is empty.
    pub stop: Vec<&'a str>,
    /// A GBNF grammar, if one is asked for.
    pub grammar: Option<&'a str>,
    extra: &'a [KeyValue],
}

impl<'a> GenerateOptions<'a> {
    /// A further setting by key.
    #[must_use]
    pub fn extra(&self, key: &str) -> Option<&'a str> {
        self.extra
            .iter()
            .find(|pair| pair.key == key)
            .map(|pair| pair.value.as_str())
    }

    /// Checks options of the ABI and borrows them.
    ///
    /// # Errors
    /// CONFIG_INVALID naming the field or the unknown key.
    pub fn check(options: &'a api::GenerateOptions, known: &[&str]) -> Result<Self, Error> {
        let bad = |text: String| Err(Error::config_invalid(text));
        if options.max_tokens == 0 {
            return bad("max_tokens: 0, expected at least 1".to_owned());
        }
        if !options.temperature.is_finite() || options.temperature < 0.0 {
            return bad(format!("temperature: {}, expected 0 or more", options.temperature));
        }
        if !(options.top_p > 0.0 && options.top_p <= 1.0) {
            return bad(format!("top_p: {}, expected more than 0 and at most 1", options.top_p));
        }
        if options.stop.iter().any(|stop| stop.is_empty()) {
            return bad("stop: an empty text, expected at least one byte each".to_owned());
        }
        if let Some(pair) = options.extra.iter().find(|pair| !known.contains(&pair.key.as_str())) {
            let key = pair.key.escape_debug();
            return bad(format!("unknown option `{key}`, this engine knows {known:?}"));
        }
        Ok(Self {
            max_tokens: options.max_tokens,
            temperature: options.temperature,
            top_p: options.top_p,
            seed: options.seed,
            stop: options.stop.iter().map(|stop| stop.as_str()).collect(),
            grammar: (!options.grammar.is_empty()).then_some(options.grammar.as_str()),
            extra: options.extra.as_slice(),
        })
    }
}

/// What a generation used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Generated tokens, the end token not counted.
    pub generated_tokens: u32,
    /// Why it ended.
    pub finish: FinishReason,
}

/// Where generated tokens go.
#[derive(Debug)]
pub struct Sink<'a> {
    inner: TokenSink<'a>,
}

impl<'a> Sink<'a> {
    /// Wraps a sink of the ABI.
    #[must_use]
    pub const fn new(inner: TokenSink<'a>) -> Self {
        Self { inner }
    }

    /// Gives token ids and the text that they spell. An unfinished UTF-8 sequence is the engine's to hold back, which
    /// the type of `text` sees to. Either may be empty.
    ///
    /// # Errors
    /// CANCELLED: return it at once with `?`.
    pub fn push(&mut self, ids: &[i32], text: &str) -> Result<(), Error> {
        match self.inner.push(ids, text.as_bytes()) {
            Flow::CONTINUE => Ok(()),
            _ => Err(Error::cancelled()),
        }
    }
}
