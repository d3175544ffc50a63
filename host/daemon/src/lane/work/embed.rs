//! The work of an embedding request: quanta of texts to the engine's rows.
//!
//! State: the texts, what of them is left, and where their rows go. Callers: the embedding path, jobs. Not known here: what
//! is made of a row.

use std::sync::Arc;

use synapse_core::engine::{CallContext, EngineError};
use synapse_core::schedule::QuantumBounds;

use super::quanta::{Quanta, Results};
use super::{Batch, ModelHandle};
use crate::lane::loaded::Loaded;
use crate::schedule::{Progress, Work};
use crate::text::Encoded;

/// One request's engine calls, a quantum each.
#[derive(Debug)]
pub struct EmbedWork {
    model: ModelHandle,
    dims: usize,
    texts: Arc<[Encoded]>,
    quanta: Quanta,
    batch: Batch,
    rows: Results<Vec<f32>>,
}

impl EmbedWork {
    /// The work on `texts`, in engine calls within `envelope`.
    #[must_use]
    pub fn new(loaded: &Loaded, texts: Arc<[Encoded]>, envelope: QuantumBounds, rows: Results<Vec<f32>>) -> Self {
        let lengths: Vec<u32> = texts.iter().map(|text| text.effective_tokens).collect();
        Self {
            model: ModelHandle::of(loaded),
            dims: usize::try_from(loaded.model.dims).unwrap_or(usize::MAX),
            quanta: Quanta::new(&lengths, envelope),
            batch: Batch::default(),
            texts,
            rows,
        }
    }
}

impl Work for EmbedWork {
    /// The engine's rows, by the text's position, where they are kept together.
    type Output = Vec<Vec<f32>>;

    fn next_quantum(&mut self, max_units: u64) -> u64 {
        let texts = &self.texts;
        self.batch = Batch::gather(self.quanta.cut(max_units), |text| &texts[text]);
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
        let mut out = vec![f32::NAN; batch.items.len() * self.dims];
        self.model.call(|engine, model| {
            if let ([_], true) = (batch.items.as_slice(), batch.type_ids.is_empty()) {
                engine.embed_one(ctx, model, &batch.ids, &mut out)
            } else {
                engine.embed_batch(ctx, model, &batch.view(), &mut out)
            }
        })?;
        let rows = out.chunks_exact(self.dims.max(1)).map(<[f32]>::to_vec);
        self.rows.put(batch.items.into_iter().zip(rows).collect());
        Ok(if self.quanta.is_empty() {
            Progress::Done
        } else {
            Progress::More
        })
    }

    fn finish(self) -> Self::Output {
        self.rows.finish()
    }
}
