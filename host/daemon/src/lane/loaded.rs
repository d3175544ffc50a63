//! A loaded model: the engine's handle, the leased files, the tokenizer, the lane's threads.
//!
//! State: [`Loaded`]; it ends with the lane's unload. Callers: `lane::load` makes it, operations read it and make work of
//! it (`work/`). Not known here: requests, and whether the engine runs in this process or in a worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// What jobs have tokenized here: bytes of text, and the tokens that they became.
    pub seen: TextSeen,
}

/// Bytes of text and the tokens that they became.
#[derive(Debug, Default)]
pub struct TextSeen {
    bytes: AtomicU64,
    tokens: AtomicU64,
}

impl Loaded {
    /// Notes that so many bytes of text became so many tokens.
    pub fn tokenized(&self, bytes: u64, tokens: u64) {
        self.seen.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.seen.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// About how many tokens so many bytes of text become: as those before, or one to `bytes_of_token` bytes where there
    /// were none.
    #[must_use]
    pub fn tokens_in(&self, bytes: u64, bytes_of_token: u64) -> u64 {
        let (seen, tokens) = (
            self.seen.bytes.load(Ordering::Relaxed),
            self.seen.tokens.load(Ordering::Relaxed),
        );
        if seen == 0 {
            return bytes / bytes_of_token.max(1);
        }
        let share = u128::from(bytes) * u128::from(tokens) / u128::from(seen);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Whether the engine gave the model up, or will be replaced by a worker.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire) || self.engine.moves_out()
    }
}
