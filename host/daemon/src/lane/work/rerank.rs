//! The work of a reranking request: quanta of pairs to the engine's raw scores.
//!
//! State: the pairs, what of them is left, and where their scores go. Callers: `rerank.score`, jobs. Not known here: what a
//! score means.

use std::sync::Arc;

use synapse_core::engine::{CallContext, EngineError, PairBatch};
use synapse_core::schedule::QuantumBounds;

use super::quanta::{Quanta, Results};
use super::{Batch, ModelHandle};
use crate::lane::loaded::Loaded;
use crate::schedule::{Progress, Work};
use crate::text::EncodedPair;

/// One request's engine calls, a quantum each.
#[derive(Debug)]
pub struct RerankWork {
    model: ModelHandle,
    pairs: Arc<[EncodedPair]>,
    quanta: Quanta,
    batch: Batch,
    scores: Results<f32>,
}

impl RerankWork {
    /// The work on `pairs`, in engine calls within `envelope`.
    #[must_use]
    pub fn new(loaded: &Loaded, pairs: Arc<[EncodedPair]>, envelope: QuantumBounds, scores: Results<f32>) -> Self {
        let lengths: Vec<u32> = pairs.iter().map(|pair| pair.encoded.effective_tokens).collect();
        Self {
            model: ModelHandle::of(loaded),
            quanta: Quanta::new(&lengths, envelope),
            batch: Batch::default(),
            pairs,
            scores,
        }
    }
}

impl Work for RerankWork {
    /// The engine's scores, by the pair's position, where they are kept together.
    type Output = Vec<f32>;

    fn next_quantum(&mut self, max_units: u64) -> u64 {
        let pairs = &self.pairs;
        self.batch = Batch::gather(self.quanta.cut(max_units), |pair| &pairs[pair].encoded);
        self.batch.tokens()
    }

    fn units_left(&self) -> u64 {
        self.quanta.tokens_left()
    }

    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.items.is_empty() {
            return Ok(Progress::Done);
        }
        // What an engine leaves unwritten is caught by the finite check.
        let mut out = vec![f32::NAN; batch.items.len()];
        let doc_starts: Vec<u32> = batch.items.iter().map(|&pair| self.pairs[pair].doc_start).collect();
        let pairs = PairBatch {
            tokens: batch.view(),
            doc_starts: &doc_starts,
        };
        self.model
            .call(|engine, model| engine.score_batch(ctx, model, &pairs, &mut out))?;
        self.scores.put(batch.items.into_iter().zip(out).collect());
        Ok(if self.quanta.is_empty() {
            Progress::Done
        } else {
            Progress::More
        })
    }

    fn finish(self) -> Self::Output {
        self.scores.finish()
    }
}
