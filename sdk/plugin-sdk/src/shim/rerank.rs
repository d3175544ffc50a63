//! The rerank engine over an author's [`Reranker`].
//!
//! Owns the author's engine. Called by the host through the trait object; each method checks, contains, delegates.

use std::mem::ManuallyDrop;

use crate::{
    api::{
        self, CallContext, EngineError, EngineIdentity, ExtensionRef, LoadedModel, MemoryReport, ModelRef,
        RerankEngine, RerankEngine_TO, RerankEngineObject, ScoresOut, ValidatedArtifact,
        abi_stable::{
            sabi_trait::TD_Opaque,
            std_types::{ROption, RResult, RStr},
        },
    },
    batch::PairBatch,
    engine::Reranker,
    error::Error,
    host::Host,
    shim::{Core, Facts, guard::contain},
};

struct RerankShim<E: Reranker> {
    engine: ManuallyDrop<E>,
    core: Core<E::Model>,
}

/// Makes the object that the host gets.
pub(crate) fn object<E: Reranker>(engine: E, host: Host, facts: Facts) -> RerankEngineObject {
    let shim = RerankShim {
        engine: ManuallyDrop::new(engine),
        core: Core::new(host, facts),
    };
    RerankEngine_TO::from_value(shim, TD_Opaque)
}

impl<E: Reranker> RerankEngine for RerankShim<E> {
    fn identity(&self) -> EngineIdentity {
        self.core.facts.identity.clone()
    }

    fn load(
        &self,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &api::RuntimeConfig,
    ) -> RResult<LoadedModel, EngineError> {
        self.core
            .load(ctx, artifact, config, E::EXTRA_KEYS, |call, artifact, config| {
                self.engine.load(call, artifact, config)
            })
    }

    fn score_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &api::PairBatch<'_>,
        out: ScoresOut<'_>,
    ) -> RResult<(), EngineError> {
        self.core.guard.run("score_batch", || {
            let entry = self.core.models.get(model)?;
            let batch = PairBatch::check(batch, entry.max_tokens)?;
            let (found, expected) = (out.values.len(), batch.tokens.len());
            if found != expected {
                return Err(Error::invalid_argument(format!(
                    "out: {found} values, expected {expected}"
                )));
            }
            self.engine
                .score(&self.core.call(ctx), &entry.model, batch, out.values.into_mut_slice())
        })
    }

    fn unload(&self, model: ModelRef) -> RResult<(), EngineError> {
        self.core.unload(model)
    }

    fn memory(&self) -> MemoryReport {
        self.core.memory(|| self.engine.scratch_bytes())
    }

    fn extension(&self, id: RStr<'_>) -> ROption<ExtensionRef<'_>> {
        self.core
            .guard
            .run("extension", || Ok(self.engine.extension(id.as_str())))
            .ok()
            .into_option()
            .flatten()
            .into()
    }
}

impl<E: Reranker> Drop for RerankShim<E> {
    fn drop(&mut self) {
        // As for embed engines: after a panic not even destructors run.
        if self.core.guard.is_bad() {
            self.core.models.abandon();
            return;
        }
        let _ = contain("drop", || {
            self.core.models.clear();
            // SAFETY: `drop` runs once and the engine is not used after it.
            unsafe { ManuallyDrop::drop(&mut self.engine) };
            Ok(())
        });
    }
}
