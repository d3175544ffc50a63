//! The work of a reranking request: quanta of pairs to the engine's raw scores.
//!
//! State: the batches that are left and the scores so far. Caller: `rerank.score`. Not known here: what a score means.

use std::collections::VecDeque;

use synapse_core::engine::{CallContext, EngineError, PairBatch};

use super::{Batch, ModelHandle};
use crate::lane::loaded::Loaded;
use crate::schedule::{Progress, Work};
use crate::text::EncodedPair;

/// One engine call: the pairs, and where in each the document begins.
#[derive(Debug)]
struct Pairs {
    batch: Batch,
    doc_starts: Vec<u32>,
}

/// One request's engine calls, a quantum each.
#[derive(Debug)]
pub struct RerankWork {
    model: ModelHandle,
    calls: VecDeque<Pairs>,
    scores: Vec<f32>,
}

impl RerankWork {
    /// The work on `pairs`, cut into calls: each a list of positions in `pairs`. A position that is in no call keeps NaN,
    /// which no finite check lets pass.
    #[must_use]
    pub fn new(loaded: &Loaded, calls: Vec<Vec<usize>>, pairs: &[EncodedPair]) -> Self {
        let gather = |items: Vec<usize>| Pairs {
            doc_starts: items.iter().map(|&item| pairs[item].doc_start).collect(),
            batch: Batch::gather(items, |item| &pairs[item].encoded),
        };
        Self {
            model: ModelHandle::of(loaded),
            calls: calls.into_iter().map(gather).collect(),
            scores: vec![f32::NAN; pairs.len()],
        }
    }
}

impl Work for RerankWork {
    /// The engine's scores, by the pair's position.
    type Output = Vec<f32>;

    fn units(&self) -> u64 {
        self.calls.front().map_or(0, |call| call.batch.tokens())
    }

    fn units_left(&self) -> u64 {
        self.calls.iter().map(|call| call.batch.tokens()).sum()
    }

    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError> {
        let Some(Pairs { batch, doc_starts }) = self.calls.pop_front() else {
            return Ok(Progress::Done);
        };
        // What an engine leaves unwritten is caught by the finite check.
        let mut out = vec![f32::NAN; batch.items.len()];
        let pairs = PairBatch {
            tokens: batch.view(),
            doc_starts: &doc_starts,
        };
        self.model
            .call(|engine, model| engine.score_batch(ctx, model, &pairs, &mut out))?;
        for (&item, score) in batch.items.iter().zip(out) {
            self.scores[item] = score;
        }
        Ok(if self.calls.is_empty() {
            Progress::Done
        } else {
            Progress::More
        })
    }

    fn finish(self) -> Self::Output {
        self.scores
    }
}
