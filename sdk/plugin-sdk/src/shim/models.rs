//! The loaded models of one engine, by the handle that the host has.
//!
//! Owns the models. A handle is never used twice; an unloaded model is dropped when its last call has returned.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, atomic::AtomicU64, atomic::Ordering},
};

use crate::{
    api::{KeyValue, LoadedModel, ModelRef},
    artifact::Loaded,
    error::Error,
};

/// One loaded model and the bounds that its calls are checked against.
#[derive(Debug)]
pub(super) struct Entry<M> {
    pub(super) model: M,
    pub(super) dims: u32,
    pub(super) max_tokens: u32,
    memory_bytes: u64,
}

/// All loaded models.
#[derive(Debug)]
pub(super) struct Models<M> {
    last: AtomicU64,
    loaded: RwLock<HashMap<u64, Arc<Entry<M>>>>,
}

impl<M> Default for Models<M> {
    fn default() -> Self {
        Self {
            last: AtomicU64::new(0),
            loaded: RwLock::default(),
        }
    }
}

impl<M> Models<M> {
    pub(super) fn insert(&self, loaded: Loaded<M>, configured_tokens: u32) -> LoadedModel {
        let max_tokens = loaded
            .max_tokens
            .unwrap_or(configured_tokens)
            .min(configured_tokens)
            .max(1);
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = LoadedModel {
            model: ModelRef(id),
            dims: loaded.dims,
            max_tokens,
            max_concurrency: loaded.max_concurrency.max(1),
            memory_bytes: loaded.memory_bytes,
            extra: loaded
                .extra
                .into_iter()
                .map(|(key, value)| KeyValue::new(key, value))
                .collect(),
        };
        let (dims, memory_bytes) = (loaded.dims, loaded.memory_bytes);
        let entry = Entry {
            model: loaded.model,
            dims,
            max_tokens,
            memory_bytes,
        };
        self.loaded
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, Arc::new(entry));
        answer
    }

    pub(super) fn get(&self, model: ModelRef) -> Result<Arc<Entry<M>>, Error> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&model.0).cloned().ok_or_else(|| unknown(model))
    }

    pub(super) fn remove(&self, model: ModelRef) -> Result<Arc<Entry<M>>, Error> {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        loaded.remove(&model.0).ok_or_else(|| unknown(model))
    }

    pub(super) fn bytes(&self) -> u64 {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded
            .values()
            .fold(0, |sum, entry| sum.saturating_add(entry.memory_bytes))
    }

    /// Empties the table; the models drop here unless a call still has one.
    pub(super) fn clear(&self) {
        let models = std::mem::take(&mut *self.loaded.write().unwrap_or_else(PoisonError::into_inner));
        drop(models);
    }

    /// Empties the table without running any model's destructor: the memory stays taken until the process ends.
    pub(super) fn abandon(&self) {
        std::mem::forget(std::mem::take(
            &mut *self.loaded.write().unwrap_or_else(PoisonError::into_inner),
        ));
    }
}

fn unknown(model: ModelRef) -> Error {
    Error::invalid_argument(format!("model {}: not loaded by this engine", model.0))
}
