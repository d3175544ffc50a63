//! A loaded model: the engine's handle, the leased files, the tokenizer, the lane's threads.
//!
//! State: [`Loaded`]; it ends with the lane's unload. Callers: `lane::load` makes it, operations read it and make work of
//! it (`work/`). Not known here: requests, and whether the engine runs in this process or in a worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use synapse_core::engine::LoadedModel;

use crate::models::VerifiedArtifact;
use crate::plugins::EngineSlot;
use crate::schedule::Executor;
use crate::text::{ChatTemplate, Template, Tokenizer};

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
    /// The chat template, for generators that have one.
    pub chat: Option<ChatTemplate>,
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
