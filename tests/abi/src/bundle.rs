//! Lays out a bundle as an operator would, and runs the host's loader over it.
//!
//! Owns a temporary folder with bundles, staging and trust file; all go when it is dropped (the libraries that were
//! opened stay mapped).

use std::{fs, path::Path, sync::Arc};

use synapse_loader::{Bundle, Loader, LoaderConfig, MemoryOnly, trust};

/// A host with one plugin folder of its own.
pub struct Host {
    folder: tempfile::TempDir,
    loader: Loader,
}

impl Host {
    /// A host without bundles, whose describing child is `worker`.
    ///
    /// # Panics
    /// When the temporary folder cannot be made.
    #[must_use]
    pub fn new(worker: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = LoaderConfig {
            plugin_dirs: vec![folder.path().join("plugins")],
            staging_dir: folder.path().join("staging"),
            worker_binary: worker.to_owned(),
            trust_file: folder.path().join("trust.toml"),
            scan_timeout: LoaderConfig::SCAN_TIMEOUT * 12,
            max_bundle_bytes: LoaderConfig::MAX_BUNDLE_BYTES,
        };
        let loader = Loader::new(config, Arc::new(MemoryOnly::default())).expect("a staging folder");
        Self { folder, loader }
    }

    /// Drops a bundle of this library into the plugin folder.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn add(&self, id: &str, library: &[u8]) {
        let dir = self.folder.path().join("plugins").join(id);
        fs::create_dir_all(&dir).expect("writable");
        fs::write(dir.join("plugin.so"), library).expect("writable");
        let manifest = format!(
            "schema = 1\nid = \"{id}\"\nversion = \"0.3.1\"\nkind = \"library\"\nlibrary = \"plugin.so\"\nabi = \"1\"\n\
             risk = \"abort-safe\"\n"
        );
        fs::write(dir.join("plugin.toml"), manifest).expect("writable");
    }

    /// What the loader finds.
    #[must_use]
    pub fn discover(&self) -> Vec<Bundle> {
        self.loader.discover()
    }

    /// Trusts every bundle that has a digest.
    ///
    /// # Panics
    /// When the trust file cannot be written.
    pub fn trust_all(&self) {
        for bundle in self.discover() {
            if let Some(digest) = &bundle.digest {
                trust::trust(&self.folder.path().join("trust.toml"), &bundle.id, digest).expect("writable");
            }
        }
    }

    /// The loader.
    #[must_use]
    pub const fn loader(&self) -> &Loader {
        &self.loader
    }
}
