//! The generate engine over an author's [`Generator`].
//!
//! Owns the author's engine. Called by the host through the trait object; each method checks, contains, delegates.

use std::mem::ManuallyDrop;

use crate::{
    api::{
        self, CallContext, EngineError, EngineIdentity, ExtensionRef, GenerateEngine, GenerateEngine_TO,
        GenerateEngineObject, LoadedModel, MemoryReport, ModelRef, TokenSink, ValidatedArtifact,
        abi_stable::{
            sabi_trait::TD_Opaque,
            std_types::{ROption, RResult, RStr},
        },
    },
    engine::Generator,
    generate::{GenerateOptions, Prompt, Sink},
    host::Host,
    shim::{Core, Facts, guard::contain},
};

struct GenerateShim<E: Generator> {
    engine: ManuallyDrop<E>,
    core: Core<E::Model>,
}

/// Makes the object that the host gets.
pub(crate) fn object<E: Generator>(engine: E, host: Host, facts: Facts) -> GenerateEngineObject {
    let shim = GenerateShim {
        engine: ManuallyDrop::new(engine),
        core: Core::new(host, facts),
    };
    GenerateEngine_TO::from_value(shim, TD_Opaque)
}

impl<E: Generator> GenerateEngine for GenerateShim<E> {
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

    fn generate(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        prompt: api::Prompt<'_>,
        options: &api::GenerateOptions,
        sink: TokenSink<'_>,
    ) -> RResult<api::Generated, EngineError> {
        self.core.guard.run("generate", || {
            let entry = self.core.models.get(model)?;
            let prompt = Prompt::check(prompt, entry.max_tokens)?;
            let options = GenerateOptions::check(options, E::OPTION_KEYS)?;
            let call = self.core.call(ctx);
            let done = self
                .engine
                .generate(&call, &entry.model, prompt, options, &mut Sink::new(sink))?;
            Ok(api::Generated {
                prompt_tokens: done.prompt_tokens,
                generated_tokens: done.generated_tokens,
                finish: done.finish,
            })
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

impl<E: Generator> Drop for GenerateShim<E> {
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
