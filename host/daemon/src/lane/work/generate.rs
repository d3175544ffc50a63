//! The work of a generation: one engine call that writes a text.
//!
//! State: the prompt and what was written so far. Caller: `microllm.oneshot`. Not known here: templates, tokenizers.
//!
//! A generation is one step: the engine keeps its cache between two tokens, so it cannot be cut into quanta. It asks at
//! every token whether to go on, and what it writes is bounded here, whatever it writes.

use synapse_core::engine::{
    CallContext, EngineError, EngineErrorCode, EngineState, FinishReason, Flow, GenerateOptions, Generated, Prompt,
    TokenSink,
};

use super::ModelHandle;
use crate::lane::loaded::Loaded;
use crate::schedule::{Progress, Work};

/// The most bytes of a generated text: written as JSON it must fit into one line of the wire, where a byte may take six.
pub const MAX_TEXT_BYTES: usize = 2 << 20;

/// What a generation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text; whole characters.
    pub text: String,
    /// Tokens generated.
    pub tokens: u32,
    /// Why it ended.
    pub finish: FinishReason,
    /// The text reached [`MAX_TEXT_BYTES`] and was stopped there.
    pub overlong: bool,
}

/// One request's engine call.
#[derive(Debug)]
pub struct GenerateWork {
    model: ModelHandle,
    prompt: Vec<i32>,
    options: GenerateOptions,
    written: Written,
}

impl GenerateWork {
    /// The work of continuing `prompt`.
    #[must_use]
    pub fn new(loaded: &Loaded, prompt: Vec<i32>, options: GenerateOptions) -> Self {
        Self {
            model: ModelHandle::of(loaded),
            prompt,
            options,
            written: Written {
                text: String::new(),
                tokens: 0,
                finish: FinishReason::Length,
                overlong: false,
            },
        }
    }
}

impl Work for GenerateWork {
    type Output = Written;

    /// Every token of the prompt, and as many as may be generated: most generations end earlier, so the measured speed is
    /// on the fast side, and so is the advice made of it.
    fn units_left(&self) -> u64 {
        let prompt = u64::try_from(self.prompt.len()).unwrap_or(u64::MAX);
        prompt.saturating_add(u64::from(self.options.max_tokens))
    }

    fn next_quantum(&mut self, _: u64) -> u64 {
        self.units_left()
    }

    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError> {
        self.written = generate(&self.model, ctx, &self.prompt, &self.options)?;
        Ok(Progress::Done)
    }

    fn finish(self) -> Self::Output {
        self.written
    }
}

/// One generation: what the engine writes after `prompt`, held to the contract.
pub(super) fn generate(
    model: &ModelHandle,
    ctx: &CallContext<'_>,
    prompt: &[i32],
    options: &GenerateOptions,
) -> Result<Written, EngineError> {
    let mut sink = Sink {
        bytes: Vec::new(),
        ids: 0,
        control: ctx,
        overlong: false,
    };
    let generated = model.call(|engine, model| engine.generate(ctx, model, Prompt::Ids(prompt), options, &mut sink));
    sink.finish(generated, options)
}

/// Collects what the engine writes.
struct Sink<'a> {
    bytes: Vec<u8>,
    ids: usize,
    control: &'a CallContext<'a>,
    overlong: bool,
}

impl TokenSink for Sink<'_> {
    fn push(&mut self, ids: &[i32], bytes: &[u8]) -> Flow {
        self.ids = self.ids.saturating_add(ids.len());
        if self.overlong || bytes.len() > MAX_TEXT_BYTES - self.bytes.len() {
            self.overlong = true;
            return Flow::Cancel;
        }
        self.bytes.extend_from_slice(bytes);
        if self.control.control.cancelled() {
            Flow::Cancel
        } else {
            Flow::Continue
        }
    }
}

impl Sink<'_> {
    /// The text, where the engine kept to the contract.
    fn finish(
        self,
        generated: Result<Generated, EngineError>,
        options: &GenerateOptions,
    ) -> Result<Written, EngineError> {
        let broken = |message: &str| EngineError::new(EngineErrorCode::Internal, EngineState::Usable, message);
        let generated = match generated {
            Ok(generated) => generated,
            // It was stopped by this sink, not by its caller.
            Err(error) if self.overlong && error.code == EngineErrorCode::Cancelled => Generated {
                prompt_tokens: 0,
                generated_tokens: u32::try_from(self.ids).unwrap_or(u32::MAX),
                finish: FinishReason::Length,
            },
            Err(error) => return Err(error),
        };
        let most = options.max_tokens;
        if generated.generated_tokens > most || u32::try_from(self.ids).is_ok_and(|ids| ids > most) {
            return Err(broken("the engine generated more tokens than it was asked for"));
        }
        let text = String::from_utf8(self.bytes)
            .map_err(|_| broken("the engine's text is not UTF-8: it must hold back what is no whole character"))?;
        Ok(Written {
            text,
            tokens: generated.generated_tokens,
            finish: generated.finish,
            overlong: self.overlong,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use synapse_core::engine::CallControl;

    use super::*;

    struct Never;

    impl CallControl for Never {
        fn cancelled(&self) -> bool {
            false
        }

        fn checkpoint(&self, _: u64, _: u64) -> Flow {
            Flow::Continue
        }
    }

    fn written(pushes: &[(usize, &[u8])], tokens: u32, max_tokens: u32) -> Result<Written, EngineError> {
        let ctx = CallContext {
            request_id: 1,
            remaining: Some(Duration::from_secs(1)),
            threads: 1,
            control: &Never,
        };
        let mut sink = Sink {
            bytes: Vec::new(),
            ids: 0,
            control: &ctx,
            overlong: false,
        };
        let mut outcome = Ok(Generated {
            prompt_tokens: 1,
            generated_tokens: tokens,
            finish: FinishReason::Stop,
        });
        for (ids, bytes) in pushes {
            if sink.push(&vec![7; *ids], bytes) == Flow::Cancel {
                outcome = Err(EngineError::new(
                    EngineErrorCode::Cancelled,
                    EngineState::Usable,
                    "stopped",
                ));
                break;
            }
        }
        let options = GenerateOptions {
            max_tokens,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            stop: Vec::new(),
            grammar: String::new(),
            extra: Vec::new(),
        };
        sink.finish(outcome, &options)
    }

    #[test]
    fn pieces_are_joined_and_an_engine_is_held_to_its_contract() {
        let whole = written(&[(1, b"sm\xc3\xb8r"), (2, b"!")], 3, 3).unwrap();
        assert_eq!(
            (whole.text.as_str(), whole.tokens, whole.overlong),
            ("sm\u{f8}r!", 3, false)
        );
        for (pushes, tokens, most) in [
            (&[(1, &b"\xc3"[..])][..], 1, 3),
            (&[(1, b"a")], 4, 3),
            (&[(4, b"a")], 1, 3),
        ] {
            let error = written(pushes, tokens, most).unwrap_err();
            assert_eq!(
                (error.code, error.state),
                (EngineErrorCode::Internal, EngineState::Usable)
            );
        }
    }

    #[test]
    fn a_text_ends_at_its_cap() {
        let half = vec![b'x'; MAX_TEXT_BYTES / 2];
        let full = written(&[(1, &half), (1, &half)], 2, 9).unwrap();
        assert_eq!((full.text.len(), full.overlong), (MAX_TEXT_BYTES, false));
        let over = written(&[(1, &half), (1, &half), (1, b"x")], 3, 9).unwrap();
        assert_eq!((over.text.len(), over.overlong), (MAX_TEXT_BYTES, true));
    }
}
