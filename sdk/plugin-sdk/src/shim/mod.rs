//! What stands between the ABI and the author: checks, containment, model handles.
//!
//! Owns, per engine, the loaded models and the mark that a panic leaves. One file per kind of engine; what they share
//! is here. Every method runs inside [`guard`], so no panic of the author reaches the boundary.

pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod guard;
mod models;
pub(crate) mod rerank;

use crate::{
    api::{
        self, CallContext, EngineError, EngineIdentity, KeyValue, LoadedModel, MemoryReport, ModelRef,
        ValidatedArtifact,
        abi_stable::std_types::{RResult, RVec},
    },
    artifact::{Artifact, Loaded, RuntimeConfig},
    call::Call,
    error::Error,
    host::Host,
};
use guard::Guard;
use models::Models;

/// What the plugin says of an engine before it is made.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The numeric identity.
    pub(crate) identity: EngineIdentity,
    /// The formats and dtypes served by this kind.
    pub(crate) served: Vec<(String, String)>,
}

/// The state that every shim has.
#[derive(Debug)]
struct Core<M> {
    facts: Facts,
    host: Host,
    guard: Guard,
    models: Models<M>,
}

impl<M> Core<M> {
    fn new(host: Host, facts: Facts) -> Self {
        Self {
            facts,
            host,
            guard: Guard::new(host),
            models: Models::default(),
        }
    }

    fn call<'a>(&self, context: &'a CallContext<'a>) -> Call<'a> {
        Call::new(context, self.host)
    }

    fn load(
        &self,
        context: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &api::RuntimeConfig,
        known: &[&str],
        author: impl FnOnce(&Call<'_>, Artifact<'_>, RuntimeConfig<'_>) -> Result<Loaded<M>, Error>,
    ) -> RResult<LoadedModel, EngineError> {
        self.guard.run("load", || {
            let config = RuntimeConfig::check(config, known)?;
            if !self
                .facts
                .served
                .iter()
                .any(|(f, d)| f == config.format && d == config.dtype)
            {
                let (format, dtype) = (config.format.escape_debug(), config.dtype.escape_debug());
                let served = &self.facts.served;
                return Err(Error::unsupported(format!(
                    "format {format} in {dtype}, this engine serves {served:?}"
                )));
            }
            let loaded = author(&self.call(context), Artifact::new(artifact), config)?;
            Ok(self.models.insert(loaded, config.max_tokens))
        })
    }

    fn unload(&self, model: ModelRef) -> RResult<(), EngineError> {
        self.guard.run("unload", || self.models.remove(model).map(drop))
    }

    fn memory(&self, scratch: impl FnOnce() -> u64) -> MemoryReport {
        let report = self.guard.run("memory", || {
            Ok(MemoryReport {
                model_bytes: self.models.bytes(),
                scratch_bytes: scratch(),
                extra: RVec::new(),
            })
        });
        match report {
            RResult::ROk(report) => report,
            RResult::RErr(error) => MemoryReport {
                extra: vec![KeyValue::new("error", error.message)].into(),
                ..MemoryReport::default()
            },
        }
    }
}
