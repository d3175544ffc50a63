//! The models of one lane: what each was loaded with, and what the running generation calls it.
//!
//! State: the models by the number that the lane gave them, which outlives generations. Callers: [`super`] and
//! [`super::generation`]. Not known here: processes and the wire.

use std::collections::BTreeMap;

use synapse_core::engine::{EngineError, EngineErrorCode, EngineState, LoadedModel, ModelRef};
use synapse_wire::worker::message::{ArtifactFile, EngineKind, RuntimeConfig};

/// Names a model in a configuration: a digest over both.
pub type ModelKey = String;

/// What LOAD carries.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// Which engine.
    pub engine: EngineKind,
    /// The artifact.
    pub files: Vec<ArtifactFile>,
    /// How to run it.
    pub runtime_config: RuntimeConfig,
}

/// A model that the lane serves, in whatever generation.
pub(super) struct Model {
    pub(super) key: ModelKey,
    pub(super) request: LoadRequest,
    pub(super) loaded: LoadedModel,
    /// Its name in the running generation.
    pub(super) remote: Option<u64>,
}

/// The models of one lane.
#[derive(Default)]
pub(super) struct Models {
    known: BTreeMap<u64, Model>,
    /// Numbers given so far. None is given twice: a late call to a model that is gone must not meet another.
    given: u64,
}

impl Models {
    /// Keeps a model that the running generation loaded as `remote`, and gives it its number in this lane.
    pub(super) fn keep(
        &mut self,
        key: ModelKey,
        request: LoadRequest,
        (remote, loaded): (u64, LoadedModel),
    ) -> LoadedModel {
        self.given += 1;
        let loaded = LoadedModel {
            model: ModelRef(self.given),
            ..loaded
        };
        let model = Model {
            key,
            request,
            loaded: loaded.clone(),
            remote: Some(remote),
        };
        self.known.insert(self.given, model);
        loaded
    }

    /// A model by its number.
    ///
    /// # Errors
    /// [`EngineErrorCode::InvalidArgument`] for a number that was never given, or whose model is gone.
    pub(super) fn get(&self, model: ModelRef) -> Result<&Model, EngineError> {
        self.known.get(&model.0).ok_or_else(|| unknown(model))
    }

    /// Forgets a model.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn remove(&mut self, model: ModelRef) -> Result<Model, EngineError> {
        self.known.remove(&model.0).ok_or_else(|| unknown(model))
    }

    /// Notes what the running generation calls a model.
    pub(super) fn set_remote(&mut self, model: ModelRef, remote: u64) {
        if let Some(known) = self.known.get_mut(&model.0) {
            known.remote = Some(remote);
        }
    }

    /// Forgets what an ended generation called its models.
    pub(super) fn forget_remotes(&mut self) {
        for model in self.known.values_mut() {
            model.remote = None;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Every model with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ModelRef, &Model)> {
        self.known.iter().map(|(number, model)| (ModelRef(*number), model))
    }

    /// Bytes that the models hold.
    pub(super) fn bytes(&self) -> u64 {
        self.known.values().map(|model| model.loaded.memory_bytes).sum()
    }
}

fn unknown(model: ModelRef) -> EngineError {
    let message = format!("model {} is not loaded in this worker", model.0);
    EngineError::new(EngineErrorCode::InvalidArgument, EngineState::Usable, message)
}
