//! The engine as a plugin: settings in, errors out, in the contract's words.
//!
//! Owns the list of engines whose threads stop at shutdown. Everything else is in `engine`.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use synapse_plugin_sdk::prelude::*;

use crate::NUMERIC_VERSION;
use crate::artifact::ArtifactFiles;
use crate::artifact::modules::Pooling;
use crate::engine::{Arithmetic, Batch, CallControl, Engine, LoadSettings, MAX_CONCURRENCY, Model, Task};
use crate::error::OwnedError;
use crate::kernel::isa::{Isa, Kernels};

/// Engines that were made in this process.
static ENGINES: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());

/// What this library is.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new(Identity::new("owned", NUMERIC_VERSION))
        .supports(
            Support::embed("safetensors", "f32")
                .preempt(Preempt::CHECKPOINT)
                .thread_invariant()
                .f32_exact(),
        )
        .supports(
            Support::rerank("safetensors", "f32")
                .preempt(Preempt::CHECKPOINT)
                .thread_invariant()
                .f32_exact(),
        )
        .supports(
            Support::embed("safetensors", "s16")
                .preempt(Preempt::CHECKPOINT)
                .thread_invariant(),
        )
        .supports(
            Support::rerank("safetensors", "s16")
                .preempt(Preempt::CHECKPOINT)
                .thread_invariant(),
        )
        .config_keys(&["isa"])
        .fact("isa", Kernels::preferred().isa().name())
        .embedder(|setup| OwnedEngine::new(setup.config.get("isa"), std::env::var("SYNAPSE_OWNED_ISA").ok()))
        .reranker(|setup| OwnedEngine::new(setup.config.get("isa"), std::env::var("SYNAPSE_OWNED_ISA").ok()))
        .on_shutdown(|| {
            let engines = std::mem::take(&mut *ENGINES.lock().unwrap_or_else(PoisonError::into_inner));
            for engine in engines.iter().filter_map(Weak::upgrade) {
                engine.stop_threads();
            }
        })
}

synapse_plugin_sdk::export_plugin!(id: "owned", plugin: plugin);

/// The engine of the plugin, for either kind of work.
pub struct OwnedEngine {
    engine: Arc<Engine>,
}

impl OwnedEngine {
    /// An engine on the instruction set that the environment names, or the setting, or the CPU's best.
    ///
    /// # Errors
    /// CONFIG_INVALID for an instruction set that is unknown or that this CPU lacks.
    pub fn new(setting: Option<&str>, environment: Option<String>) -> Result<Self, Error> {
        let kernels = match environment.as_deref().or(setting) {
            None => Kernels::preferred(),
            Some(name) => Isa::by_name(name).and_then(Kernels::of).ok_or_else(|| {
                let here: Vec<_> = Kernels::available().iter().map(|table| table.isa().name()).collect();
                Error::config_invalid(format!("isa {name:?} is not one that this CPU has: {here:?}"))
            })?,
        };
        let engine = Arc::new(Engine::new(kernels));
        ENGINES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::downgrade(&engine));
        Ok(Self { engine })
    }
}

/// The host's side of a call, as the engine sees it.
struct HostCall<'a>(&'a Call<'a>);

impl CallControl for HostCall<'_> {
    fn checkpoint(&self, done: u64, total: u64) -> bool {
        self.0.checkpoint(done, total).is_ok()
    }
}

impl OwnedEngine {
    fn load_for(
        &self,
        task: Task,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Model>, Error> {
        let files = artifact
            .files()
            .iter()
            .map(|file| (file.role.as_str(), file.path().to_owned()));
        let files = ArtifactFiles::by_role(files)?;
        let settings = LoadSettings {
            task,
            arithmetic: match config.dtype {
                "f32" => Arithmetic::F32,
                "s16" => Arithmetic::S16,
                other => return Err(Error::config_invalid(format!("dtype {other:?}, expected f32 or s16"))),
            },
            max_tokens: size(config.max_tokens),
            max_batch: size(config.max_batch),
            max_batch_tokens: size(config.max_batch_tokens),
        };
        let mut progress = |done, total| call.checkpoint(done, total).is_ok();
        let model = self.engine.load(&files, settings, &mut progress)?;
        for name in model.unused_tensors() {
            warn!(
                call.host(),
                "{}: tensor {name:?} is not part of the encoder; ignored",
                files.weights.display()
            );
        }
        let (dims, bytes) = (model.dims(), model.weight_bytes());
        let dims = match task {
            Task::Embed(_) => u32::try_from(dims).map_err(|_| Error::internal(format!("{dims} dimensions")))?,
            Task::Score => 0,
        };
        Ok(Loaded::new(model, dims)
            .max_tokens(config.max_tokens)
            .max_concurrency(MAX_CONCURRENCY)
            .memory_bytes(bytes as u64))
    }

    fn run(&self, call: &Call<'_>, model: &Model, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        let batch = Batch {
            ids: batch.ids,
            offsets: batch.offsets,
            type_ids: batch.type_ids,
        };
        Ok(self.engine.embed(model, batch, call.threads(), &HostCall(call), out)?)
    }
}

impl Embedder for OwnedEngine {
    type Model = Model;

    fn load(&self, call: &Call<'_>, artifact: Artifact<'_>, config: RuntimeConfig<'_>) -> Result<Loaded<Model>, Error> {
        let pooling = Pooling::from_setting(config.pooling)?;
        self.load_for(Task::Embed(pooling), call, artifact, config)
    }

    fn embed(&self, call: &Call<'_>, model: &Model, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        self.run(call, model, batch, out)
    }

    fn scratch_bytes(&self) -> u64 {
        self.engine.scratch_bytes() as u64
    }
}

impl Reranker for OwnedEngine {
    type Model = Model;

    fn load(&self, call: &Call<'_>, artifact: Artifact<'_>, config: RuntimeConfig<'_>) -> Result<Loaded<Model>, Error> {
        self.load_for(Task::Score, call, artifact, config)
    }

    fn score(&self, call: &Call<'_>, model: &Model, batch: PairBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        self.run(call, model, batch.tokens, out)
    }

    fn scratch_bytes(&self) -> u64 {
        self.engine.scratch_bytes() as u64
    }
}

/// A contract's `u32` as a size.
fn size(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

impl From<OwnedError> for Error {
    fn from(error: OwnedError) -> Self {
        let message = error.to_string();
        match error {
            OwnedError::Read { .. } | OwnedError::File { .. } | OwnedError::Tensor { .. } => {
                Self::artifact_invalid(message)
            }
            OwnedError::Unsupported { .. } => Self::unsupported(message),
            OwnedError::Config { .. } => Self::config_invalid(message),
            OwnedError::OutOfMemory(_) => Self::out_of_memory(message),
            OwnedError::InvalidArgument(_) => Self::invalid_argument(message),
            OwnedError::InputTooLong { .. } => Self::input_too_long(message),
            OwnedError::Cancelled => Self::cancelled(),
            OwnedError::Panicked => Self::internal(message).engine_bad(),
        }
    }
}
