//! What a plugin is: identity, what it serves, and how its engines are made.
//!
//! Owns the author's factories. Built once per process by the function that `export_plugin!` names; the exported
//! functions ask it for engine objects.

use std::fmt;

use crate::{
    api::{
        EmbedEngineObject, EngineIdentity, EngineKind, EngineSupport, GenerateEngineObject, Preempt,
        RerankEngineObject, ext::environment::EnvironmentReport,
    },
    config::Config,
    engine::{Embedder, Generator, Reranker},
    error::Error,
    host::Host,
    shim::{self, Facts},
};

/// The numeric identity of the engine: it enters the numeric profile, so it changes exactly when bits can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) inner: EngineIdentity,
}

impl Identity {
    /// Name and numeric version, without build flags.
    #[must_use]
    pub fn new(engine: &str, version: &str) -> Self {
        Self {
            inner: EngineIdentity {
                engine: engine.into(),
                version: version.into(),
                build_flags: Vec::new().into(),
            },
        }
    }

    /// The same with one more numerically relevant build flag. Flags are kept sorted, without duplicates.
    #[must_use]
    pub fn build_flag(mut self, flag: &str) -> Self {
        let mut flags: Vec<_> = std::mem::take(&mut self.inner.build_flags).into_vec();
        flags.push(flag.into());
        flags.sort_unstable();
        flags.dedup();
        self.inner.build_flags = flags.into();
        self
    }
}

/// One combination of kind, format and arithmetic that the plugin serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support(pub(crate) EngineSupport);

impl Support {
    fn new(kind: EngineKind, format: &str, dtype: &str) -> Self {
        Self(EngineSupport {
            kind,
            preempt: Preempt::QUANTUM,
            format: format.into(),
            dtype: dtype.into(),
            thread_invariant: false,
            f32_exact: false,
        })
    }

    /// Embedding of this format and dtype, without any claim.
    #[must_use]
    pub fn embed(format: &str, dtype: &str) -> Self {
        Self::new(EngineKind::EMBED, format, dtype)
    }

    /// Reranking of this format and dtype, without any claim.
    #[must_use]
    pub fn rerank(format: &str, dtype: &str) -> Self {
        Self::new(EngineKind::RERANK, format, dtype)
    }

    /// Generation of this format and dtype, without any claim.
    #[must_use]
    pub fn generate(format: &str, dtype: &str) -> Self {
        Self::new(EngineKind::GENERATE, format, dtype)
    }

    /// How a bulk call gives way (default: quantum).
    #[must_use]
    pub const fn preempt(mut self, preempt: Preempt) -> Self {
        self.0.preempt = preempt;
        self
    }

    /// Claims that output bits do not depend on the thread budget.
    #[must_use]
    pub const fn thread_invariant(mut self) -> Self {
        self.0.thread_invariant = true;
        self
    }

    /// Claims exact f32 arithmetic.
    #[must_use]
    pub const fn f32_exact(mut self) -> Self {
        self.0.f32_exact = true;
        self
    }
}

/// What an engine is made from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The host.
    pub host: Host,
    /// The settings of `[engine.config]`; only keys that the plugin lists.
    pub config: Config,
}

type Factory<O> = Box<dyn Fn(Setup, Facts) -> Result<O, Error> + Send + Sync>;

/// A plugin: what it serves and how its engines are made.
pub struct Plugin {
    pub(crate) identity: Identity,
    pub(crate) supports: Vec<Support>,
    pub(crate) facts: Vec<(String, String)>,
    pub(crate) environment: Option<fn() -> Result<EnvironmentReport, Error>>,
    pub(crate) shutdown: Option<Box<dyn Fn() + Send + Sync>>,
    config_keys: Vec<String>,
    embed: Option<Factory<EmbedEngineObject>>,
    rerank: Option<Factory<RerankEngineObject>>,
    generate: Option<Factory<GenerateEngineObject>>,
}

impl Plugin {
    /// A plugin that offers nothing yet.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            supports: Vec::new(),
            facts: Vec::new(),
            environment: None,
            shutdown: None,
            config_keys: Vec::new(),
            embed: None,
            rerank: None,
            generate: None,
        }
    }

    /// Adds a combination that the plugin serves.
    #[must_use]
    pub fn supports(mut self, support: Support) -> Self {
        self.supports.push(support);
        self
    }

    /// Adds a fact to the descriptor's `extra`.
    #[must_use]
    pub fn fact(mut self, key: &str, value: &str) -> Self {
        self.facts.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Names the keys of `[engine.config]` that the plugin knows; others are refused before an engine is made.
    #[must_use]
    pub fn config_keys(mut self, keys: &[&str]) -> Self {
        self.config_keys = keys.iter().map(|&key| key.to_owned()).collect();
        self
    }

    /// Offers an embed engine.
    #[must_use]
    pub fn embedder<E: Embedder>(mut self, make: impl Fn(Setup) -> Result<E, Error> + Send + Sync + 'static) -> Self {
        self.embed = Some(Box::new(move |setup, facts| {
            let host = setup.host;
            Ok(shim::embed::object(make(setup)?, host, facts))
        }));
        self
    }

    /// Offers a rerank engine.
    #[must_use]
    pub fn reranker<E: Reranker>(mut self, make: impl Fn(Setup) -> Result<E, Error> + Send + Sync + 'static) -> Self {
        self.rerank = Some(Box::new(move |setup, facts| {
            let host = setup.host;
            Ok(shim::rerank::object(make(setup)?, host, facts))
        }));
        self
    }

    /// Offers a generate engine.
    #[must_use]
    pub fn generator<E: Generator>(mut self, make: impl Fn(Setup) -> Result<E, Error> + Send + Sync + 'static) -> Self {
        self.generate = Some(Box::new(move |setup, facts| {
            let host = setup.host;
            Ok(shim::generate::object(make(setup)?, host, facts))
        }));
        self
    }

    /// Offers `synapse.environment/1`: drivers, devices, hardware floor.
    #[must_use]
    pub const fn environment(mut self, report: fn() -> Result<EnvironmentReport, Error>) -> Self {
        self.environment = Some(report);
        self
    }

    /// Runs at the host's shutdown, after every call has returned: stops the plugin's own threads.
    #[must_use]
    pub fn on_shutdown(mut self, stop: impl Fn() + Send + Sync + 'static) -> Self {
        self.shutdown = Some(Box::new(stop));
        self
    }

    /// Makes the embed engine as the host would, or none when it is not offered. `config` is a JSON object.
    ///
    /// # Errors
    /// CONFIG_INVALID for the settings, or what the author's factory says. Panics are not contained here.
    pub fn open_embed(&self, host: Host, config: &str) -> Result<Option<EmbedEngineObject>, Error> {
        self.open(self.embed.as_ref(), EngineKind::EMBED, host, config)
    }

    /// Makes the rerank engine, as [`Plugin::open_embed`].
    ///
    /// # Errors
    /// As [`Plugin::open_embed`].
    pub fn open_rerank(&self, host: Host, config: &str) -> Result<Option<RerankEngineObject>, Error> {
        self.open(self.rerank.as_ref(), EngineKind::RERANK, host, config)
    }

    /// Makes the generate engine, as [`Plugin::open_embed`].
    ///
    /// # Errors
    /// As [`Plugin::open_embed`].
    pub fn open_generate(&self, host: Host, config: &str) -> Result<Option<GenerateEngineObject>, Error> {
        self.open(self.generate.as_ref(), EngineKind::GENERATE, host, config)
    }

    fn open<O>(
        &self,
        factory: Option<&Factory<O>>,
        kind: EngineKind,
        host: Host,
        config: &str,
    ) -> Result<Option<O>, Error> {
        let Some(factory) = factory else { return Ok(None) };
        let keys: Vec<&str> = self.config_keys.iter().map(String::as_str).collect();
        let setup = Setup {
            host,
            config: Config::parse(config, &keys)?,
        };
        let supports = self.supports.iter().filter(|support| support.0.kind == kind);
        let facts = Facts {
            identity: self.identity.inner.clone(),
            served: supports
                .map(|s| (s.0.format.to_string(), s.0.dtype.to_string()))
                .collect(),
        };
        factory(setup, facts).map(Some)
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("identity", &self.identity)
            .field("supports", &self.supports)
            .field("config_keys", &self.config_keys)
            .finish_non_exhaustive()
    }
}
