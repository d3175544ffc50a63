//! A model with the context that computes on it, kept from call to call.
//!
//! Owns the model and at most one context. Callers: `encode`, `generate`. A context holds the sequence's keys and
//! values and the room for one batch; making one costs milliseconds, so the last call's is used again when the budget
//! of threads is the same.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams, LlamaPoolingType};
use llama_cpp_2::model::LlamaModel;
use synapse_plugin_sdk::prelude::*;

use crate::backend::backend;
use crate::log;

/// llama.cpp's caches are sized in such steps.
const STEP: u32 = 32;

/// What a context is for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The longest sequence in tokens. The context is one sequence and is never divided behind the caller's back.
    pub tokens: u32,
    /// The most tokens that are computed at once; `None` is the whole sequence.
    pub block: Option<u32>,
    /// How hidden states become one vector, where vectors are wanted.
    pub pooling: Option<LlamaPoolingType>,
}

impl Shape {
    /// Sequences that are computed whole, for vectors or scores.
    #[must_use]
    pub const fn pooled(tokens: u32, pooling: LlamaPoolingType) -> Self {
        Self {
            tokens,
            block: None,
            pooling: Some(pooling),
        }
    }

    fn params(self, threads: usize) -> LlamaContextParams {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // One more, because llama.cpp refuses a causal sequence that fills its context exactly.
        let room = self.tokens.saturating_add(1).next_multiple_of(STEP);
        let batch = self.block.map_or(room, |block| block.min(room));
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(room))
            .with_n_batch(batch)
            .with_n_ubatch(batch)
            .with_n_seq_max(1)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED)
            .with_type_k(KvCacheType::F32)
            .with_type_v(KvCacheType::F32)
            .with_no_perf(true);
        match self.pooling {
            Some(pooling) => params.with_embeddings(true).with_pooling_type(pooling),
            None => params,
        }
    }
}

/// A model and its context. llama.cpp computes one batch of a context at a time.
#[derive(Debug)]
pub struct Seat {
    // Before the model, which it points into: fields are dropped in this order.
    kept: Mutex<Option<Kept>>,
    shape: Shape,
    model: LlamaModel,
    vocabulary: i32,
}

#[derive(Debug)]
struct Kept {
    context: LlamaContext<'static>,
    threads: usize,
}

impl Seat {
    /// The model with a first context, so that one that cannot be made is told at load.
    ///
    /// # Errors
    /// OUT_OF_MEMORY with llama.cpp's words.
    pub fn new(model: LlamaModel, shape: Shape, threads: usize) -> Result<Self, Error> {
        let seat = Self {
            kept: Mutex::new(None),
            shape,
            vocabulary: model.n_vocab(),
            model,
        };
        seat.run(threads, |_| Ok(()))?;
        Ok(seat)
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &LlamaModel {
        &self.model
    }

    /// Runs work on an empty context of `threads` threads.
    ///
    /// # Errors
    /// OUT_OF_MEMORY when no context can be made, else the work's. After an error the context is not used again.
    pub fn run<R>(
        &self,
        threads: usize,
        work: impl FnOnce(&mut LlamaContext<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        // The host runs one call at a time on this model; the lock holds it to that.
        let mut place = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = match place.take().filter(|kept| kept.threads == threads) {
            Some(kept) => kept,
            None => self.make(threads)?,
        };
        // The values too: one that is not a number would reach every later sequence through its weight of 0.
        kept.context.clear_kv_cache();
        let done = work(&mut kept.context)?;
        *place = Some(kept);
        Ok(done)
    }

    fn make(&self, threads: usize) -> Result<Kept, Error> {
        log::clear();
        let context = self
            .model
            .new_context(backend()?, self.shape.params(threads))
            .map_err(|_| Error::out_of_memory(format!("llama.cpp gives no context: {}", log::complaint())))?;
        // SAFETY: the lifetime only says that the model outlives the context. The context points to llama.cpp's model
        // on the heap, which `self.model` frees when it is dropped; `self.kept`, where the context ends up, is dropped
        // before. `run` lends it under a lifetime of its own.
        let context = unsafe { std::mem::transmute::<LlamaContext<'_>, LlamaContext<'static>>(context) };
        Ok(Kept { context, threads })
    }

    /// Bytes that the kept context holds: keys and values in f32, and the largest intermediate results of a batch.
    #[must_use]
    pub fn context_bytes(&self) -> u64 {
        0
    }

    /// Refuses ids that are not in the vocabulary.
    ///
    /// # Errors
    /// INVALID_ARGUMENT naming the first.
    pub fn check_ids(&self, ids: &[i32]) -> Result<(), Error> {
        match ids.iter().find(|id| !(0..self.vocabulary).contains(*id)) {
            Some(id) => {
                let size = self.vocabulary;
                Err(Error::invalid_argument(format!(
                    "token id {id}, expected 0 to {}",
                    size - 1
                )))
            }
            None => Ok(()),
        }
    }
}
