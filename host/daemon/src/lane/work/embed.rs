//! The work of an embedding request: quanta of texts to the engine's rows.
//!
//! State: the batches that are left and the rows so far. Caller: the embedding path. Not known here: what is made of a row.

use std::collections::VecDeque;

use synapse_core::engine::{CallContext, EngineError};

use super::{Batch, ModelHandle};
use crate::lane::loaded::Loaded;
use crate::schedule::{Progress, Work};

/// One request's engine calls, a quantum each.
#[derive(Debug)]
pub struct EmbedWork {
    model: ModelHandle,
    dims: usize,
    batches: VecDeque<Batch>,
    rows: Vec<Vec<f32>>,
}

impl EmbedWork {
    /// Work whose result has `items` rows; a position that is in no batch keeps an empty row.
    #[must_use]
    pub fn new(loaded: &Loaded, batches: Vec<Batch>, items: usize) -> Self {
        Self {
            model: ModelHandle::of(loaded),
            dims: usize::try_from(loaded.model.dims).unwrap_or(usize::MAX),
            batches: batches.into(),
            rows: vec![Vec::new(); items],
        }
    }
}

impl Work for EmbedWork {
    /// The engine's rows, by the item's position.
    type Output = Vec<Vec<f32>>;

    fn units(&self) -> u64 {
        self.batches.front().map_or(0, Batch::tokens)
    }

    fn units_left(&self) -> u64 {
        self.batches.iter().map(Batch::tokens).sum()
    }

    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError> {
        let Some(batch) = self.batches.pop_front() else {
            return Ok(Progress::Done);
        };
        // What an engine leaves unwritten is caught by the finite check.
        let mut out = vec![f32::NAN; batch.items.len() * self.dims];
        self.model.call(|engine, model| {
            if let ([_], true) = (batch.items.as_slice(), batch.type_ids.is_empty()) {
                engine.embed_one(ctx, model, &batch.ids, &mut out)
            } else {
                engine.embed_batch(ctx, model, &batch.view(), &mut out)
            }
        })?;
        for (&item, row) in batch.items.iter().zip(out.chunks_exact(self.dims.max(1))) {
            self.rows[item] = row.to_vec();
        }
        Ok(if self.batches.is_empty() {
            Progress::Done
        } else {
            Progress::More
        })
    }

    fn finish(self) -> Self::Output {
        self.rows
    }
}
