//! [`Plugin`]: one opened bundle, from which engines are made.
//!
//! State: the engines made so far, one per kind at most (the contract lets a host make each once per process); the
//! library behind them stays loaded until the process ends. Callers: the daemon's lanes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use synapse_core::engine::{EmbedEngine, EngineState, GenerateEngine, RerankEngine};
use synapse_plugin_api::abi_stable::std_types::{ROption, RResult, RStr};
use synapse_plugin_api::{EngineError, HostServices, SynapsePlugin_Ref};

use crate::bundle::BundleDigest;
use crate::descriptor::{Descriptor, settings_to_json};
use crate::error::LoaderError;
use crate::manifest::is_setting_key;
use crate::v1::{self, HostState};

/// What became of one kind of engine.
enum Slot<E: ?Sized> {
    /// Nobody asked for it.
    Empty,
    /// It was made with these settings.
    Made(BTreeMap<String, String>, Arc<E>),
    /// It failed for good while it was made.
    Bad(String),
}

type Made<E> = Mutex<Slot<E>>;

/// One opened bundle.
pub struct Plugin {
    descriptor: Descriptor,
    digest: BundleDigest,
    module: SynapsePlugin_Ref,
    host: &'static HostState,
    /// The manifest's `[engine.config]`.
    settings: BTreeMap<String, String>,
    embed: Made<dyn EmbedEngine>,
    rerank: Made<dyn RerankEngine>,
    generate: Made<dyn GenerateEngine>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("descriptor", &self.descriptor)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl Plugin {
    pub(crate) fn new(
        descriptor: Descriptor,
        digest: BundleDigest,
        module: SynapsePlugin_Ref,
        bundle_dir: &Path,
        scratch_dir: &Path,
        settings: &[(String, String)],
    ) -> Self {
        // Foreign code keeps this address for the life of the process.
        let host = Box::leak(Box::new(HostState::new(&descriptor.id, bundle_dir, scratch_dir)));
        Self {
            descriptor,
            digest,
            module,
            host,
            settings: settings.iter().cloned().collect(),
            embed: Mutex::new(Slot::Empty),
            rerank: Mutex::new(Slot::Empty),
            generate: Mutex::new(Slot::Empty),
        }
    }

    /// What the library says about itself.
    #[must_use]
    pub const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The digest of the bundle that was opened.
    #[must_use]
    pub const fn digest(&self) -> BundleDigest {
        self.digest
    }

    /// Bytes that the plugin holds through the host's allocator.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.host.allocated()
    }

    /// Bounds what the plugin may hold through the host's allocator; without a bound until the first call.
    pub fn set_memory_budget(&self, bytes: u64) {
        self.host.set_budget(bytes);
    }

    /// The embedding engine. Made at the first call, with `config` laid over the manifest's `[engine.config]`; later
    /// calls give the same engine and must ask for the same settings.
    ///
    /// # Errors
    /// [`LoaderError::NoEngine`] when the bundle offers none, [`LoaderError::Engine`] with the engine's words,
    /// [`LoaderError::EngineBad`] when it failed for good.
    pub fn embed(&self, config: &[(String, String)]) -> Result<Arc<dyn EmbedEngine>, LoaderError> {
        self.make("embed", config, &self.embed, self.module.embed(), |object| {
            Ok(Arc::new(v1::embed(object, &self.descriptor)?) as Arc<dyn EmbedEngine>)
        })
    }

    /// The reranking engine, as [`Self::embed`].
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn rerank(&self, config: &[(String, String)]) -> Result<Arc<dyn RerankEngine>, LoaderError> {
        self.make("rerank", config, &self.rerank, self.module.rerank(), |object| {
            Ok(Arc::new(v1::rerank(object, &self.descriptor)?) as Arc<dyn RerankEngine>)
        })
    }

    /// The generating engine, as [`Self::embed`].
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn generate(&self, config: &[(String, String)]) -> Result<Arc<dyn GenerateEngine>, LoaderError> {
        self.make("generate", config, &self.generate, self.module.generate(), |object| {
            Ok(Arc::new(v1::generate(object, &self.descriptor)?) as Arc<dyn GenerateEngine>)
        })
    }

    /// Tells the plugin that the process will end. No engine of it may be called afterwards, and no call may run.
    pub fn shutdown(&self) {
        self.module.shutdown()();
    }

    fn make<O, E: ?Sized>(
        &self,
        kind: &'static str,
        config: &[(String, String)],
        made: &Made<E>,
        constructor: extern "C" fn(HostServices, RStr<'_>) -> RResult<ROption<O>, EngineError>,
        wrap: impl FnOnce(O) -> Result<Arc<E>, String>,
    ) -> Result<Arc<E>, LoaderError> {
        let fail = |message: String| LoaderError::Engine {
            id: self.descriptor.id.clone(),
            message,
        };
        let mut settings = self.settings.clone();
        settings.extend(config.iter().cloned());
        if let Some(key) = settings.keys().find(|key| !is_setting_key(key)) {
            return Err(fail(format!("{key:?} is no name of a setting")));
        }
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        let bad = |message: &str| LoaderError::EngineBad {
            id: self.descriptor.id.clone(),
            message: message.to_owned(),
        };
        match &*made {
            Slot::Made(with, engine) if *with == settings => return Ok(Arc::clone(engine)),
            Slot::Made(..) => {
                return Err(fail(
                    "it runs with other settings; they can change at the next start".to_owned(),
                ));
            }
            Slot::Bad(message) => return Err(bad(message)),
            Slot::Empty => {}
        }
        let json = settings_to_json(&settings);
        let object = match constructor(self.host.services(), RStr::from_str(&json)).into_result() {
            Ok(object) => object.into_option(),
            Err(error) => {
                let error = v1::error(&error);
                if error.state != EngineState::EngineBad {
                    return Err(fail(error.to_string()));
                }
                let answer = bad(&error.message);
                *made = Slot::Bad(error.message);
                return Err(answer);
            }
        };
        let object = object.ok_or_else(|| LoaderError::NoEngine {
            id: self.descriptor.id.clone(),
            kind,
        })?;
        let engine = wrap(object).map_err(fail)?;
        *made = Slot::Made(settings, Arc::clone(&engine));
        Ok(engine)
    }
}
