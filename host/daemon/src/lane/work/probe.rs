//! The work of one step of a probe: one engine call, timed, with a thread budget of its own.
//!
//! State: the call, then its answer. Caller: `probe/`. Not known here: what is made of the numbers, and why this call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use synapse_core::engine::{CallContext, CallControl, EngineError, Flow, GenerateOptions, PairBatch};

use super::generate::{Written, generate};
use super::{Batch, ModelHandle};
use crate::lane::loaded::Loaded;
use crate::schedule::{Progress, Work};

/// One engine call.
#[derive(Clone, Debug)]
pub enum ProbeCall {
    /// Texts.
    Embed {
        /// Their tokens.
        batch: Batch,
        /// Through the query path, which takes one text.
        as_query: bool,
    },
    /// Pairs.
    Rerank {
        /// Their tokens.
        batch: Batch,
        /// Where the document begins in each.
        doc_starts: Vec<u32>,
    },
    /// A generation.
    Generate {
        /// The prompt's tokens.
        prompt: Vec<i32>,
        /// How to go on.
        options: GenerateOptions,
    },
}

/// What the engine gave.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeAnswer {
    /// One row a text, as the engine wrote it; NaN where it wrote nothing.
    Rows(Vec<Vec<f32>>),
    /// One raw score a pair; NaN where it wrote nothing.
    Scores(Vec<f32>),
    /// A text.
    Text(Written),
}

/// One step.
#[derive(Debug)]
pub struct ProbeWork {
    model: ModelHandle,
    dims: usize,
    threads: u32,
    tokens: u64,
    call: Option<ProbeCall>,
    answer: Option<(ProbeAnswer, Duration)>,
}

impl ProbeWork {
    /// The work of `call`, which may use `threads` threads.
    #[must_use]
    pub fn new(loaded: &Loaded, call: ProbeCall, threads: u32) -> Self {
        let tokens = match &call {
            ProbeCall::Embed { batch, .. } | ProbeCall::Rerank { batch, .. } => batch.tokens(),
            ProbeCall::Generate { prompt, options } => {
                let prompt = u64::try_from(prompt.len()).unwrap_or(u64::MAX);
                prompt.saturating_add(u64::from(options.max_tokens))
            }
        };
        Self {
            model: ModelHandle::of(loaded),
            dims: usize::try_from(loaded.model.dims).unwrap_or(usize::MAX),
            threads,
            tokens,
            call: Some(call),
            answer: None,
        }
    }

    fn run(&self, ctx: &CallContext<'_>, call: ProbeCall) -> Result<ProbeAnswer, EngineError> {
        match call {
            ProbeCall::Embed { batch, as_query } => {
                let mut out = vec![f32::NAN; batch.items.len() * self.dims];
                self.model
                    .call(|engine, model| match (as_query, batch.items.as_slice()) {
                        (true, [_]) => engine.embed_one(ctx, model, &batch.ids, &mut out),
                        _ => engine.embed_batch(ctx, model, &batch.view(), &mut out),
                    })?;
                let rows = out.chunks_exact(self.dims.max(1)).map(<[f32]>::to_vec);
                Ok(ProbeAnswer::Rows(rows.collect()))
            }
            ProbeCall::Rerank { batch, doc_starts } => {
                let mut out = vec![f32::NAN; batch.items.len()];
                let pairs = PairBatch {
                    tokens: batch.view(),
                    doc_starts: &doc_starts,
                };
                self.model
                    .call(|engine, model| engine.score_batch(ctx, model, &pairs, &mut out))?;
                Ok(ProbeAnswer::Scores(out))
            }
            ProbeCall::Generate { prompt, options } => {
                generate(&self.model, ctx, &prompt, &options).map(ProbeAnswer::Text)
            }
        }
    }
}

impl Work for ProbeWork {
    /// The answer, and the time in the engine without what the call was held for.
    type Output = Option<(ProbeAnswer, Duration)>;

    /// One call, whatever its size.
    fn next_quantum(&mut self, _: u64) -> u64 {
        self.tokens
    }

    fn units_left(&self) -> u64 {
        self.call.as_ref().map_or(0, |_| self.tokens)
    }

    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError> {
        if let Some(call) = self.call.take() {
            let watched = Watched {
                control: ctx.control,
                held_nanos: AtomicU64::new(0),
            };
            let ctx = CallContext {
                threads: self.threads,
                control: &watched,
                ..*ctx
            };
            let began = Instant::now();
            let answer = self.run(&ctx, call)?;
            let held = Duration::from_nanos(watched.held_nanos.load(Ordering::Relaxed));
            self.answer = Some((answer, began.elapsed().saturating_sub(held)));
        }
        Ok(Progress::Done)
    }

    fn finish(self) -> Self::Output {
        self.answer
    }
}

/// The host's side of the call, with a watch on the time that it keeps the engine waiting.
struct Watched<'a> {
    control: &'a dyn CallControl,
    held_nanos: AtomicU64,
}

impl CallControl for Watched<'_> {
    fn cancelled(&self) -> bool {
        self.control.cancelled()
    }

    fn checkpoint(&self, done: u64, total: u64) -> Flow {
        let began = Instant::now();
        let flow = self.control.checkpoint(done, total);
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.held_nanos.fetch_add(nanos, Ordering::Relaxed);
        flow
    }
}
