//! The work of one request on a loaded model: what a lane's thread gives to the engine, one engine call at a time.
//!
//! State: [`ModelHandle`] is what all kinds of work share: the engine, its model, and whether the engine gave the model up
//! meanwhile. Callers: operations make work of a kind and submit it. Not known here: the queue's order, requests, what is
//! made of the results.
//!
//! | kind | file | a step is | the result |
//! |---|---|---|---|
//! | embed | `embed.rs` | a quantum of texts | the engine's rows |
//! | rerank | `rerank.rs` | a quantum of pairs | raw scores |
//! | generate | `generate.rs` | the whole generation | a text |
//! | probe | `probe.rs` | one call of any kind, timed | what the engine gave |

mod embed;
mod generate;
mod probe;
mod quanta;
mod rerank;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use synapse_core::engine::{EngineError, EngineErrorCode, EngineState, ModelRef, TokenBatch};

pub use self::embed::EmbedWork;
pub use self::generate::{GenerateWork, MAX_TEXT_BYTES, Written};
pub use self::probe::{ProbeAnswer, ProbeCall, ProbeWork};
pub use self::quanta::{Made, Results};
pub use self::rerank::RerankWork;
use super::loaded::Loaded;
use crate::plugins::EngineSlot;
use crate::text::Encoded;

/// A loaded model as work calls it.
#[derive(Debug)]
struct ModelHandle {
    engine: Arc<EngineSlot>,
    model: ModelRef,
    given_up: Arc<AtomicBool>,
}

impl ModelHandle {
    fn of(loaded: &Loaded) -> Self {
        Self {
            engine: Arc::clone(&loaded.engine),
            model: loaded.model.model,
            given_up: Arc::clone(&loaded.given_up),
        }
    }

    /// Calls the engine, unless it gave the model up in an earlier call, and notes when it does now.
    fn call<T>(&self, call: impl FnOnce(&EngineSlot, ModelRef) -> Result<T, EngineError>) -> Result<T, EngineError> {
        if self.given_up.load(Ordering::Acquire) {
            let message = "the engine gave the model up in another call; it is loaded afresh";
            return Err(EngineError::new(
                EngineErrorCode::Internal,
                EngineState::ModelBad,
                message,
            ));
        }
        let outcome = call(&self.engine, self.model);
        if outcome
            .as_ref()
            .is_err_and(|error| error.state == EngineState::ModelBad)
        {
            self.given_up.store(true, Ordering::Release);
        }
        outcome
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
    /// Puts the items at these positions together; `encoded` gives the tokens of a position.
    #[must_use]
    pub fn gather<'e>(items: Vec<usize>, encoded: impl Fn(usize) -> &'e Encoded) -> Self {
        let mut batch = Self {
            offsets: vec![0],
            items,
            ..Self::default()
        };
        let segments = batch
            .items
            .iter()
            .any(|&item| encoded(item).type_ids.iter().any(|&id| id != 0));
        for &item in &batch.items {
            let item = encoded(item);
            batch.ids.extend_from_slice(&item.ids);
            if segments {
                batch.type_ids.extend_from_slice(&item.type_ids);
            }
            // Inline requests hold thousands of tokens, far below 2^32.
            batch.offsets.push(u32::try_from(batch.ids.len()).unwrap_or(u32::MAX));
        }
        batch
    }

    fn tokens(&self) -> u64 {
        u64::try_from(self.ids.len()).unwrap_or(u64::MAX)
    }

    const fn view(&self) -> TokenBatch<'_> {
        TokenBatch {
            ids: self.ids.as_slice(),
            offsets: self.offsets.as_slice(),
            type_ids: self.type_ids.as_slice(),
        }
    }
}
