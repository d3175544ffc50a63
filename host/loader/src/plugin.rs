//! [`Plugin`]: one opened bundle, from which engines are made.
//!
//! State: none of its own; the library behind it stays loaded until the process ends. Callers: the daemon's lanes.

use std::sync::Arc;

use synapse_core::engine::{EmbedEngine, GenerateEngine, RerankEngine};

use crate::bundle::BundleDigest;
use crate::descriptor::Descriptor;
use crate::error::LoaderError;

/// One opened bundle.
pub struct Plugin {
    descriptor: Descriptor,
    digest: BundleDigest,
}

impl Plugin {
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

    /// Makes an embedding engine. `config` is laid over the manifest's `[engine.config]`.
    ///
    /// # Errors
    /// [`LoaderError::NoEngine`], [`LoaderError::Engine`], [`LoaderError::EngineBad`].
    pub fn embed(&self, config: &[(String, String)]) -> Result<Arc<dyn EmbedEngine>, LoaderError> {
        let _ = config;
        Err(self.none("embed"))
    }

    /// Makes a reranking engine. `config` is laid over the manifest's `[engine.config]`.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn rerank(&self, config: &[(String, String)]) -> Result<Arc<dyn RerankEngine>, LoaderError> {
        let _ = config;
        Err(self.none("rerank"))
    }

    /// Makes a generating engine. `config` is laid over the manifest's `[engine.config]`.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn generate(&self, config: &[(String, String)]) -> Result<Arc<dyn GenerateEngine>, LoaderError> {
        let _ = config;
        Err(self.none("generate"))
    }

    fn none(&self, kind: &'static str) -> LoaderError {
        LoaderError::NoEngine {
            id: self.descriptor.id.clone(),
            kind,
        }
    }
}
