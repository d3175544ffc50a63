//! A loaded model on an engine, and the work of one embedding request on it.
//!
//! State: [`Loaded`] holds the engine's handle, the model's leased files, its tokenizer and its executor; it ends with
//! the lane's unload. Callers: `lane::load` makes it, the embedding path submits [`EmbedWork`]. Not known here: the
//! queue's order, requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use synapse_core::engine::{CallContext, EngineError, EngineErrorCode, EngineState, LoadedModel, ModelRef, TokenBatch};

use crate::models::VerifiedArtifact;
use crate::plugins::EngineSlot;
use crate::schedule::{Executor, Progress, Work};
use crate::text::{Encoded, Template, Tokenizer};

/// A model in memory.
#[derive(Debug)]
pub struct Loaded {
    /// The engine.
    pub engine: Arc<EngineSlot>,
    /// What its load gave.
    pub model: LoadedModel,
    /// The queue and threads of the lane.
    pub executor: Executor,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The record's templates by role.
    pub templates: BTreeMap<String, Template>,
    /// The files, which an engine may have mapped: leased until the unload (CACHE-02).
    pub artifact: VerifiedArtifact,
    /// How long the load took.
    pub load_time: Duration,
    /// The engine gave the model up: no call may reach it any more, and it must be unloaded.
    pub given_up: Arc<AtomicBool>,
}

impl Loaded {
    /// Whether the engine gave the model up, or will be replaced by a worker.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire) || self.engine.moves_out()
    }
}

/// One engine call's items, back to back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The items' positions in the request.
    pub items: Vec<usize>,
    /// Their token ids.
    pub ids: Vec<i32>,
    /// `items.len() + 1` offsets into `ids`.
    pub offsets: Vec<u32>,
    /// One segment id per token; empty when all are 0.
    pub type_ids: Vec<i32>,
}

impl Batch {
    /// Puts the encoded items at these positions together.
    #[must_use]
    pub fn gather(items: Vec<usize>, encoded: &[Encoded]) -> Self {
        let mut batch = Self {
            offsets: vec![0],
            items,
            ..Self::default()
        };
        let segments = batch
            .items
            .iter()
            .any(|&item| encoded[item].type_ids.iter().any(|&id| id != 0));
        for &item in &batch.items {
            batch.ids.extend_from_slice(&encoded[item].ids);
            if segments {
                batch.type_ids.extend_from_slice(&encoded[item].type_ids);
            }
            // Inline batches hold thousands of tokens, far below 2^32.
            batch.offsets.push(u32::try_from(batch.ids.len()).unwrap_or(u32::MAX));
        }
        batch
    }

    fn tokens(&self) -> u64 {
        u64::try_from(self.ids.len()).unwrap_or(u64::MAX)
    }
}

/// One request's engine calls, a quantum each.
#[derive(Debug)]
pub struct EmbedWork {
    engine: Arc<EngineSlot>,
    model: ModelRef,
    dims: usize,
    batches: VecDeque<Batch>,
    rows: Vec<Vec<f32>>,
    given_up: Arc<AtomicBool>,
}

impl EmbedWork {
    /// Work whose result has `items` rows; a position that is in no batch keeps an empty row.
    #[must_use]
    pub fn new(loaded: &Loaded, batches: Vec<Batch>, items: usize) -> Self {
        Self {
            engine: Arc::clone(&loaded.engine),
            model: loaded.model.model,
            dims: usize::try_from(loaded.model.dims).unwrap_or(usize::MAX),
            batches: batches.into(),
            rows: vec![Vec::new(); items],
            given_up: Arc::clone(&loaded.given_up),
        }
    }

    fn call(&self, ctx: &CallContext<'_>, batch: &Batch, out: &mut [f32]) -> Result<(), EngineError> {
        if self.given_up.load(Ordering::Acquire) {
            let message = "the engine gave the model up in another call; it is loaded afresh";
            return Err(EngineError::new(
                EngineErrorCode::Internal,
                EngineState::ModelBad,
                message,
            ));
        }
        let outcome = if let ([_], true) = (batch.items.as_slice(), batch.type_ids.is_empty()) {
            self.engine.embed_one(ctx, self.model, &batch.ids, out)
        } else {
            let tokens = TokenBatch {
                ids: &batch.ids,
                offsets: &batch.offsets,
                type_ids: &batch.type_ids,
            };
            self.engine.embed_batch(ctx, self.model, &tokens, out)
        };
        if outcome
            .as_ref()
            .is_err_and(|error| error.state == EngineState::ModelBad)
        {
            self.given_up.store(true, Ordering::Release);
        }
        outcome
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
        self.call(ctx, &batch, &mut out)?;
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
