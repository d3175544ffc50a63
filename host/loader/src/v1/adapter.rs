//! The plugin's engine objects behind the core's engine traits.
//!
//! State: per engine, whether it failed for good, and its loaded models with their vector lengths. Callers: the
//! daemon's threads. Every call into foreign code goes through [`Guarded::call`].

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{OnceLock, PoisonError, RwLock};

use synapse_core::engine as core;
use synapse_plugin_api as api;
use synapse_plugin_api::abi_stable::std_types::{RResult, RSlice};

use super::call::{with_context, with_sink};
use super::convert;
use crate::descriptor::Descriptor;

/// An engine object that is called only while it may be.
struct Guarded<T> {
    /// The bundle's id, for messages.
    id: String,
    object: ManuallyDrop<T>,
    identity: core::EngineIdentity,
    supports: Vec<core::EngineSupport>,
    /// Why the engine is never called again.
    bad: OnceLock<core::EngineError>,
    models: RwLock<HashMap<core::ModelRef, Model>>,
}

/// What the host knows about a loaded model.
#[derive(Clone, Copy)]
struct Model {
    dims: u32,
    /// The engine said that the model must be unloaded.
    bad: bool,
}

impl<T> Guarded<T> {
    fn new(object: T, identity: &api::EngineIdentity, descriptor: &Descriptor) -> Result<Self, String> {
        let id = descriptor.id.clone();
        let identity = convert::identity(identity).map_err(|error| error.to_string())?;
        if identity != descriptor.identity {
            return Err("the engine's identity is not the one that the bundle describes".to_owned());
        }
        Ok(Self {
            id,
            object: ManuallyDrop::new(object),
            identity,
            supports: descriptor.supports.clone(),
            bad: OnceLock::new(),
            models: RwLock::default(),
        })
    }

    /// Calls the object, unless it failed for good; remembers when it does.
    fn call<R>(&self, call: impl FnOnce(&T) -> RResult<R, api::EngineError>) -> Result<R, core::EngineError> {
        if let Some(bad) = self.bad.get() {
            return Err(bad.clone());
        }
        call(&self.object).into_result().map_err(|error| {
            let error = convert::error(&error);
            if error.state == core::EngineState::EngineBad {
                self.fail(error.code, &error.message);
            }
            error
        })
    }

    /// A compute call on one model.
    fn compute<R>(
        &self,
        model: core::ModelRef,
        call: impl FnOnce(&T, Model) -> RResult<R, api::EngineError>,
    ) -> Result<R, core::EngineError> {
        let known = self
            .models
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&model)
            .copied();
        let Some(known) = known else {
            // After a failure for good every handle is void: the failure is the better answer.
            return Err(self.bad.get().cloned().unwrap_or_else(unknown_model));
        };
        if known.bad {
            return Err(core::EngineError::new(
                core::EngineErrorCode::InvalidArgument,
                core::EngineState::ModelBad,
                "the model failed earlier and must be loaded again".to_owned(),
            ));
        }
        let result = self.call(|object| call(object, known));
        if let Err(error) = &result
            && error.state == core::EngineState::ModelBad
            && let Some(entry) = self
                .models
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .get_mut(&model)
        {
            entry.bad = true;
        }
        result
    }

    /// Ends the use of the engine in this process.
    fn fail(&self, code: core::EngineErrorCode, message: &str) -> core::EngineError {
        let error = core::EngineError::new(code, core::EngineState::EngineBad, message.to_owned());
        if self.bad.set(error.clone()).is_ok() {
            tracing::error!(
                target: "synapse.worker",
                plugin = self.id.as_str(),
                "the engine failed and is not called again in this process: {message}"
            );
        }
        error
    }

    fn load(
        &self,
        ctx: &core::CallContext<'_>,
        artifact: &core::ValidatedArtifact,
        config: &core::RuntimeConfig,
        kind: core::EngineKind,
        call: impl FnOnce(
            &T,
            &api::CallContext<'_>,
            &api::ValidatedArtifact,
            &api::RuntimeConfig,
        ) -> RResult<api::LoadedModel, api::EngineError>,
    ) -> Result<core::LoadedModel, core::EngineError> {
        let support = self
            .supports
            .iter()
            .find(|support| (support.kind, &support.format, &support.dtype) == (kind, &config.format, &config.dtype));
        let Some(support) = support else {
            return Err(core::EngineError::new(
                core::EngineErrorCode::Unsupported,
                core::EngineState::Usable,
                format!(
                    "the engine describes no {kind:?} for {} in {}",
                    config.format, config.dtype
                ),
            ));
        };
        let artifact = convert::artifact(artifact)?;
        let settings = convert::runtime_config(config);
        let loaded = self.call(|object| with_context(ctx, |ctx| call(object, ctx, &artifact, &settings)))?;
        let vectors = kind == core::EngineKind::Embed;
        // A handle that cannot be trusted cannot be given back either: such an engine is of no further use.
        let broken = |what: String| {
            self.fail(
                core::EngineErrorCode::Internal,
                &format!("load broke the contract: {what}"),
            )
        };
        let loaded = convert::loaded_model(&loaded, vectors, Some(support.preempt)).map_err(broken)?;
        let model = Model {
            dims: loaded.dims,
            bad: false,
        };
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        if models.insert(loaded.model, model).is_some() {
            return Err(broken("model: the handle of another loaded model".to_owned()));
        }
        Ok(loaded)
    }

    fn unload(
        &self,
        model: core::ModelRef,
        call: impl FnOnce(&T, api::ModelRef) -> RResult<(), api::EngineError>,
    ) -> Result<(), core::EngineError> {
        let known = self
            .models
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&model);
        if known.is_none() {
            return Err(self.bad.get().cloned().unwrap_or_else(unknown_model));
        }
        self.call(|object| call(object, api::ModelRef(model.0)))
    }

    fn memory(&self, call: impl FnOnce(&T) -> api::MemoryReport) -> core::MemoryReport {
        if self.bad.get().is_some() {
            return core::MemoryReport::default();
        }
        convert::memory(&call(&self.object))
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if self.bad.get().is_none() {
            // SAFETY: dropped once, here, and not used after. A failed engine is leaked: its code is not run again.
            unsafe { ManuallyDrop::drop(&mut self.object) }
        }
    }
}

fn unknown_model() -> core::EngineError {
    invalid("the model is not loaded in this engine")
}

fn invalid(message: impl Into<String>) -> core::EngineError {
    core::EngineError::new(
        core::EngineErrorCode::InvalidArgument,
        core::EngineState::Usable,
        message.into(),
    )
}

/// Checks the shape of a batch before it crosses: foreign code may index by it.
fn check_batch(batch: &core::TokenBatch<'_>) -> Result<(), core::EngineError> {
    let ends = batch.offsets.first().zip(batch.offsets.last());
    let whole = ends.is_some_and(|(first, last)| *first == 0 && usize::try_from(*last) == Ok(batch.ids.len()));
    if batch.is_empty() || !whole || !batch.offsets.is_sorted_by(|a, b| a < b) {
        return Err(invalid(format!(
            "offsets: expected at least two, strictly ascending from 0 to the {} tokens of the batch",
            batch.ids.len()
        )));
    }
    if !batch.type_ids.is_empty() && batch.type_ids.len() != batch.ids.len() {
        return Err(invalid("type_ids: expected none, or one per token"));
    }
    Ok(())
}

fn check_len(what: &str, found: usize, expected: Option<usize>) -> Result<(), core::EngineError> {
    if Some(found) == expected {
        return Ok(());
    }
    Err(invalid(format!("{what}: expected {expected:?} values, found {found}")))
}

fn token_batch<'a>(batch: &core::TokenBatch<'a>) -> api::TokenBatch<'a> {
    api::TokenBatch::new(batch.ids, batch.offsets, batch.type_ids)
}

/// The length of the output of `items` vectors.
fn vectors_len(items: usize, dims: u32) -> Option<usize> {
    items.checked_mul(usize::try_from(dims).ok()?)
}

macro_rules! lifecycle {
    ($name:ident, $object:ty, $kind:expr, $make:ident, $doc:literal) => {
        #[doc = $doc]
        struct $name(Guarded<$object>);

        /// Wraps a new engine object.
        ///
        /// # Errors
        /// What about its identity breaks the contract.
        pub(crate) fn $make(object: $object, descriptor: &Descriptor) -> Result<impl core::$name + 'static, String> {
            let identity = object.identity();
            Guarded::new(object, &identity, descriptor).map($name)
        }

        impl core::Engine for $name {
            fn identity(&self) -> core::EngineIdentity {
                self.0.identity.clone()
            }

            fn load(
                &self,
                ctx: &core::CallContext<'_>,
                artifact: &core::ValidatedArtifact,
                config: &core::RuntimeConfig,
            ) -> Result<core::LoadedModel, core::EngineError> {
                self.0
                    .load(ctx, artifact, config, $kind, |object, ctx, artifact, config| {
                        object.load(ctx, artifact, config)
                    })
            }

            fn unload(&self, model: core::ModelRef) -> Result<(), core::EngineError> {
                self.0.unload(model, |object, model| object.unload(model))
            }

            fn memory(&self) -> core::MemoryReport {
                self.0.memory(|object| object.memory())
            }
        }
    };
}

lifecycle!(
    EmbedEngine,
    api::EmbedEngineObject,
    core::EngineKind::Embed,
    embed,
    "An embedding engine of a plugin."
);
lifecycle!(
    RerankEngine,
    api::RerankEngineObject,
    core::EngineKind::Rerank,
    rerank,
    "A reranking engine of a plugin."
);
lifecycle!(
    GenerateEngine,
    api::GenerateEngineObject,
    core::EngineKind::Generate,
    generate,
    "A generating engine of a plugin."
);

impl core::EmbedEngine for EmbedEngine {
    fn embed_batch(
        &self,
        ctx: &core::CallContext<'_>,
        model: core::ModelRef,
        batch: &core::TokenBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), core::EngineError> {
        check_batch(batch)?;
        let items = batch.len();
        let dims = self.0.dims(model)?;
        check_len("out", out.len(), vectors_len(items, dims))?;
        self.0.compute(model, |object, known| {
            let out = api::VectorsOut::new(out, known.dims);
            with_context(ctx, |ctx| {
                object.embed_batch(ctx, api::ModelRef(model.0), &token_batch(batch), out)
            })
        })
    }

    fn embed_one(
        &self,
        ctx: &core::CallContext<'_>,
        model: core::ModelRef,
        ids: &[i32],
        out: &mut [f32],
    ) -> Result<(), core::EngineError> {
        if ids.is_empty() {
            return Err(invalid("ids: expected at least one token"));
        }
        let dims = self.0.dims(model)?;
        check_len("out", out.len(), vectors_len(1, dims))?;
        self.0.compute(model, |object, known| {
            let out = api::VectorsOut::new(out, known.dims);
            let ids = RSlice::from_slice(ids);
            with_context(ctx, |ctx| object.embed_one(ctx, api::ModelRef(model.0), ids, out))
        })
    }
}

impl<T> Guarded<T> {
    /// The vector length of a loaded model.
    fn dims(&self, model: core::ModelRef) -> Result<u32, core::EngineError> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let known = models.get(&model).map(|model| model.dims);
        known.ok_or_else(|| self.bad.get().cloned().unwrap_or_else(unknown_model))
    }
}

impl core::RerankEngine for RerankEngine {
    fn score_batch(
        &self,
        ctx: &core::CallContext<'_>,
        model: core::ModelRef,
        batch: &core::PairBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), core::EngineError> {
        check_batch(&batch.tokens)?;
        let items = batch.tokens.len();
        check_len("out", out.len(), Some(items))?;
        check_len("doc_starts", batch.doc_starts.len(), Some(items))?;
        let lengths = batch.tokens.offsets.windows(2).map(|pair| pair[1] - pair[0]);
        if lengths.zip(batch.doc_starts).any(|(length, start)| *start > length) {
            return Err(invalid("doc_starts: expected positions inside their items"));
        }
        self.0.compute(model, |object, _| {
            let pairs = api::PairBatch::new(token_batch(&batch.tokens), batch.doc_starts);
            let out = api::ScoresOut::new(out);
            with_context(ctx, |ctx| object.score_batch(ctx, api::ModelRef(model.0), &pairs, out))
        })
    }
}

impl core::GenerateEngine for GenerateEngine {
    fn generate(
        &self,
        ctx: &core::CallContext<'_>,
        model: core::ModelRef,
        prompt: core::Prompt<'_>,
        options: &core::GenerateOptions,
        sink: &mut dyn core::TokenSink,
    ) -> Result<core::Generated, core::EngineError> {
        let prompt = match prompt {
            core::Prompt::Ids(ids) => api::Prompt::ids(ids),
            core::Prompt::Text(text) => api::Prompt::text(text),
        };
        let options = convert::generate_options(options);
        let generated = self.0.compute(model, |object, _| {
            with_context(ctx, |ctx| {
                with_sink(sink, |sink| {
                    object.generate(ctx, api::ModelRef(model.0), prompt, &options, sink)
                })
            })
        })?;
        Ok(core::Generated {
            prompt_tokens: generated.prompt_tokens,
            generated_tokens: generated.generated_tokens,
            finish: match generated.finish {
                api::FinishReason::LENGTH => core::FinishReason::Length,
                _ => core::FinishReason::Stop,
            },
        })
    }
}
