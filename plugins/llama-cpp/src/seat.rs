//! A model with the context that computes on it, kept from call to call.
//!
//! Owns the model and at most one context. Callers: `encode`, `generate`. A context holds the sequence's keys and
//! values and the room for one batch; making one costs milliseconds, so the last call's is used again when the budget
//! of threads is the same.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Mutex, PoisonError};

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams, LlamaPoolingType};
use llama_cpp_2::model::LlamaModel;
use synapse_plugin_sdk::prelude::*;

use crate::backend::backend;
use crate::log;

/// llama.cpp's caches are sized in such steps.
const STEP: u32 = 32;

/// The threads of a call: its budget, but at most half of the machine's processors.
///
/// ggml's threads wait for each other by spinning, hundreds of times a batch. Where one of them has lost its processor
/// the others burn theirs until it is back: two threads on two processors with other work were ten times slower than
/// one.
#[must_use]
pub fn threads(call: &Call<'_>) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    call.threads().min(processors / 2).max(1)
}

/// What a context is for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The longest sequence in tokens. The context is one sequence and is never divided behind the caller's back.
    pub tokens: u32,
    /// The most tokens that are computed at once; `None` is the whole sequence.
    pub block: Option<u32>,
    /// How hidden states become one vector, where vectors are wanted.
    pub pooling: Option<LlamaPoolingType>,
    /// Whether a text is generated with llama.cpp's flash attention. Never for vectors: it rounds keys and values to
    /// f16, which costs a vector three digits.
    pub flash_attention: bool,
}

impl Shape {
    /// Sequences that are computed whole, for vectors or scores.
    #[must_use]
    pub const fn pooled(tokens: u32, pooling: LlamaPoolingType) -> Self {
        Self {
            tokens,
            block: None,
            pooling: Some(pooling),
            flash_attention: false,
        }
    }

    /// The tokens of a context, and those of a batch.
    fn room(self) -> (u32, u32) {
        // One more, because llama.cpp refuses a causal sequence that fills its context exactly.
        let room = self.tokens.saturating_add(1).next_multiple_of(STEP);
        (room, self.block.map_or(room, |block| block.min(room)))
    }

    fn params(self, threads: usize) -> LlamaContextParams {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        let (room, batch) = self.room();
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(room))
            .with_n_batch(batch)
            .with_n_ubatch(batch)
            .with_n_seq_max(1)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_no_perf(true);
        let params = params.with_flash_attention_policy(if self.flash_attention {
            llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED
        } else {
            llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED
        });
        match self.pooling {
            Some(pooling) => params
                .with_embeddings(true)
                .with_pooling_type(pooling)
                .with_type_k(KvCacheType::F32)
                .with_type_v(KvCacheType::F32),
            // What llama.cpp does by itself, so that a text is the one that its other users see. Four-bit weights
            // round so much that f32 here is no nearer to the truth, only another text.
            None => params.with_type_k(KvCacheType::F16).with_type_v(KvCacheType::F16),
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

    /// Bytes that the kept context holds, as llama.cpp sizes it: keys and values, and the largest intermediate results
    /// of one batch, which are attention's scores for vectors and the logits for generation.
    #[must_use]
    pub fn context_bytes(&self) -> u64 {
        const F32: u64 = 4;
        let architecture = self.model.meta_val_str("general.architecture").unwrap_or_default();
        let number = |key: &str| -> Option<u64> {
            let text = self.model.meta_val_str(&format!("{architecture}.{key}")).ok()?;
            text.parse().ok()
        };
        let (room, batch) = self.shape.room();
        let (batch, heads) = (u64::from(batch), u64::from(self.model.n_head()).max(1));
        let width = u64::try_from(self.model.n_embd()).unwrap_or(0);
        let causal = self.model.meta_val_str(&format!("{architecture}.attention.causal"));
        let (cells, kept) = if causal.is_ok_and(|causal| causal == "false") {
            (u64::from(room), 0)
        } else {
            // llama.cpp rounds its cache up.
            let cells = u64::from(room).next_multiple_of(256);
            let head = number("attention.key_length").unwrap_or(width / heads)
                + number("attention.value_length").unwrap_or(width / heads);
            let layers = u64::from(self.model.n_layer()) * u64::from(self.model.n_head_kv());
            let stored = if self.shape.pooling.is_some() { F32 } else { F32 / 2 };
            (cells, product([cells, layers, head, stored]))
        };
        let inner = number("feed_forward_length").unwrap_or(4 * width) + 3 * width;
        let largest = match self.shape.pooling {
            Some(_) => product([heads, batch, cells, F32]),
            None => product([batch, u64::try_from(self.vocabulary).unwrap_or(0), F32, 1]),
        };
        kept.saturating_add(largest)
            .saturating_add(product([batch, inner, F32, 1]))
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

/// Sizes come from a file: a product that fits nothing is the largest number.
fn product(factors: [u64; 4]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_cpp_2::llama_batch::LlamaBatch;
    use llama_cpp_2::model::params::LlamaModelParams;
    use llama_cpp_2::token::LlamaToken;

    fn seat() -> Seat {
        log::tests::host();
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert-embed/model.gguf");
        let model = LlamaModel::load_from_file(backend().unwrap(), file, &LlamaModelParams::default()).unwrap();
        Seat::new(model, Shape::pooled(64, LlamaPoolingType::Mean), 1).unwrap()
    }

    fn embed(seat: &Seat, threads: usize) -> Result<Vec<u32>, Error> {
        let tokens: Vec<LlamaToken> = (10..60).map(LlamaToken).collect();
        seat.run(threads, |context| {
            let mut batch = LlamaBatch::new(tokens.len(), 1);
            batch.add_sequence(&tokens, 0, true).unwrap();
            context.decode(&mut batch).unwrap();
            let values = context.embeddings_seq_ith(0).unwrap();
            Ok(values.iter().map(|value| value.to_bits()).collect())
        })
    }

    /// The same bits from one to three threads, also from a context that another number left.
    #[test]
    fn threads_change_no_bit() {
        let seat = seat();
        let one = embed(&seat, 1).unwrap();
        for threads in [2, 3, 1] {
            assert_eq!(embed(&seat, threads).unwrap(), one, "{threads} threads");
        }
    }

    /// A context is kept for the next call of as many threads, and none is kept after an error.
    #[test]
    fn a_context_is_kept_until_an_error() {
        let seat = seat();
        let kept = || seat.kept.lock().unwrap().as_ref().map(|kept| kept.threads);
        assert_eq!(kept(), Some(1));
        let failed: Result<(), Error> = seat.run(1, |_| Err(Error::internal("a reason")));
        assert_eq!((failed.unwrap_err().message.as_str(), kept()), ("a reason", None));
        embed(&seat, 1).unwrap();
        assert_eq!(kept(), Some(1));
    }

    /// llama.cpp logs 0.70 MiB of compute buffer for this shape at 128 tokens, 20.3 MiB for MiniLM at 512 and 64 MiB with
    /// the cache for SmolLM2 at 2,048; the estimate is to stay near.
    #[test]
    fn the_estimate_is_of_the_right_size() {
        let seat = seat();
        let bytes = seat.context_bytes();
        assert!((100_000..1_000_000).contains(&bytes), "{bytes}");
        assert_eq!(product([u64::MAX, 2, 1, 1]), u64::MAX);
    }
}
