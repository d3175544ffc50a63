//! The embed engine over an author's [`Embedder`].
//!
//! Owns the author's engine. Called by the host through the trait object; each method checks, contains, delegates.

use std::mem::ManuallyDrop;

use crate::{
    api::{
        self, CallContext, EmbedEngine, EmbedEngine_TO, EmbedEngineObject, EngineError, EngineIdentity, ExtensionRef,
        LoadedModel, MemoryReport, ModelRef, ValidatedArtifact, VectorsOut,
        abi_stable::{
            sabi_trait::TD_Opaque,
            std_types::{ROption, RResult, RSlice, RStr},
        },
    },
    batch::TokenBatch,
    engine::Embedder,
    error::Error,
    host::Host,
    shim::{Core, Facts, guard::contain},
};

struct EmbedShim<E: Embedder> {
    engine: ManuallyDrop<E>,
    core: Core<E::Model>,
}

/// Makes the object that the host gets.
pub(crate) fn object<E: Embedder>(engine: E, host: Host, facts: Facts) -> EmbedEngineObject {
    EmbedEngine_TO::from_value(
        EmbedShim {
            engine: ManuallyDrop::new(engine),
            core: Core::new(host, facts),
        },
        TD_Opaque,
    )
}

/// The host's rows, checked against the number of items and the model's dims.
fn rows<'a>(out: VectorsOut<'a>, items: usize, dims: u32) -> Result<&'a mut [f32], Error> {
    let expected = usize::try_from(dims).ok().and_then(|dims| dims.checked_mul(items));
    if out.dims != dims || expected != Some(out.values.len()) {
        let (found, found_dims) = (out.values.len(), out.dims);
        return Err(Error::invalid_argument(format!(
            "out: {found} values in rows of {found_dims}, expected {items} rows of {dims}"
        )));
    }
    Ok(out.values.into_mut_slice())
}

impl<E: Embedder> EmbedEngine for EmbedShim<E> {
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
                let loaded = self.engine.load(call, artifact, config)?;
                if loaded.dims == 0 {
                    return Err(Error::internal("load: dims is 0, an embed engine gives at least 1"));
                }
                Ok(loaded)
            })
    }

    fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &api::TokenBatch<'_>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError> {
        self.core.guard.run("embed_batch", || {
            let entry = self.core.models.get(model)?;
            let batch = TokenBatch::check(batch, entry.max_tokens)?;
            let out = rows(out, batch.len(), entry.dims)?;
            self.engine.embed(&self.core.call(ctx), &entry.model, batch, out)
        })
    }

    fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        ids: RSlice<'_, i32>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError> {
        self.core.guard.run("embed_one", || {
            let entry = self.core.models.get(model)?;
            let end = u32::try_from(ids.len()).map_err(|_| Error::input_too_long("more than 2^32 tokens"))?;
            TokenBatch::check(&api::TokenBatch::new(ids.as_slice(), &[0, end], &[]), entry.max_tokens)?;
            let out = rows(out, 1, entry.dims)?;
            self.engine
                .embed_one(&self.core.call(ctx), &entry.model, ids.as_slice(), out)
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

impl<E: Embedder> Drop for EmbedShim<E> {
    fn drop(&mut self) {
        // After a panic nothing of the engine is sound to run, destructors included: it is left where it is.
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
