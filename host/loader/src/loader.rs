//! [`Loader`]: discovery and opening, put together from the steps of this crate.
//!
//! State: the opened plugins by digest, and the digests whose scan timed out in this process. Callers: the daemon's
//! plugin registry, tools. Not known here: what happens with an opened plugin.
//!
//! The steps of discovery for one bundle, each able to refuse it:
//! 1. its place: folder, links, writers (`search.rs`);
//! 2. an earlier bundle of the same id wins;
//! 3. the private copy and its digest (`staging.rs`); everything below looks at the copy only;
//! 4. the manifest (`manifest.rs`), its digests, ids and paths;
//! 5. the library's file and its magic (`note.rs`);
//! 6. a quarantine, or the descriptor from memory or from a child process (`scan.rs`);
//! 7. placement (`placement.rs`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::bundle::{Bundle, BundleDigest, BundleStatus, Refusal, RefusalReason};
use crate::descriptor::Descriptor;
use crate::error::LoaderError;
use crate::manifest::{self, Manifest, Offer};
use crate::memory::{ScanMemory, ScanOutcome};
use crate::placement::{Facts, place};
use crate::plugin::Plugin;
use crate::scan::{self, Scan};
use crate::search::{Candidate, candidates};
use crate::staging::{Staged, StagingFolder};
use crate::trust::{self, TrustRow};
use crate::{note, open, v1};

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
    staging: StagingFolder,
    timed_out: Mutex<HashSet<BundleDigest>>,
    opened: Mutex<Opened>,
    /// Held for a whole discovery: two at once would collect each other's copies.
    discovery: Mutex<()>,
}

/// What this process holds; nothing is ever taken out.
#[derive(Default)]
struct Opened {
    plugins: HashMap<BundleDigest, Arc<Plugin>>,
    /// Private libraries' SONAMEs, and the bundle that brought each.
    sonames: BTreeMap<String, String>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What the steps of one discovery share.
struct Round {
    trusted: Result<Vec<TrustRow>, String>,
    /// Private SONAMEs of the bundles that are ready so far.
    sonames: BTreeMap<String, String>,
}

impl Loader {
    /// Makes the staging folder and checks that it may hold code.
    ///
    /// # Errors
    /// [`LoaderError::Io`] and [`LoaderError::NoExec`] for the staging folder.
    pub fn new(config: LoaderConfig, memory: Arc<dyn ScanMemory>) -> Result<Self, LoaderError> {
        let staging = StagingFolder::open(&config.staging_dir, config.max_bundle_bytes)?;
        Ok(Self {
            config,
            memory,
            staging,
            timed_out: Mutex::default(),
            opened: Mutex::default(),
            discovery: Mutex::default(),
        })
    }

    /// Looks at every bundle of the search path, in order. Blocks while children describe what is new; never runs a
    /// bundle's code in this process and never fails as a whole: what is wrong with a bundle is its status. Nothing of
    /// it is logged here. Copies that no bundle has any more are removed.
    #[must_use]
    pub fn discover(&self) -> Vec<Bundle> {
        let _alone = self.discovery.lock().unwrap_or_else(PoisonError::into_inner);
        let mut round = Round {
            trusted: trust::read(&self.config.trust_file).map_err(|error| error.to_string()),
            sonames: self.opened().sonames.clone(),
        };
        let mut winners: HashMap<String, PathBuf> = HashMap::new();
        let mut bundles = Vec::new();
        for candidate in candidates(&self.config.plugin_dirs) {
            // The folder's name is the id, so a later bundle is known to be shadowed without looking into it.
            let bundle = match winners.get(&candidate.name) {
                Some(by) => shadowed(candidate, by.clone()),
                None => {
                    winners.insert(candidate.name.clone(), candidate.dir.clone());
                    self.examine(candidate, &mut round)
                }
            };
            bundles.push(bundle);
        }
        let mut keep: HashSet<BundleDigest> = bundles.iter().filter_map(|bundle| bundle.digest).collect();
        keep.extend(self.opened().plugins.keys());
        self.staging.collect(&keep);
        bundles
    }

    /// Loads a ready bundle into this process, once per digest: a second call gives the same plugin. Never unloaded.
    ///
    /// # Errors
    /// [`LoaderError::NotReady`], [`LoaderError::Load`], [`LoaderError::SonameConflict`].
    pub fn open(&self, bundle: &Bundle) -> Result<Arc<Plugin>, LoaderError> {
        let parts = (bundle.digest, &bundle.staged, &bundle.library, &bundle.descriptor);
        let (BundleStatus::Ready, (Some(digest), Some(staged), Some(library), Some(described))) =
            (&bundle.status, parts)
        else {
            return Err(LoaderError::NotReady {
                id: bundle.id.clone(),
                status: bundle.status.name().to_owned(),
            });
        };
        // Held while loading: two threads that open the same bundle get one plugin.
        let mut opened = self.opened();
        if let Some(plugin) = opened.plugins.get(&digest) {
            return Ok(Arc::clone(plugin));
        }
        for soname in &bundle.private_sonames {
            if let Some(other) = opened.sonames.get(soname).filter(|other| **other != bundle.id) {
                return Err(LoaderError::SonameConflict {
                    id: bundle.id.clone(),
                    soname: soname.clone(),
                    other: other.clone(),
                });
            }
        }
        let fail = |refusal| scan::load_error(&bundle.id, refusal);
        let path = staged.join(library);
        let magic = note::read(&path).map_err(fail)?;
        let scratch = self.staging.scratch(&bundle.id)?;
        let module = open::open(&path, &magic).map_err(fail)?;
        let descriptor = v1::descriptor(&module.describe()())
            .map_err(|error| fail(Refusal::new(RefusalReason::DescriptorInvalid, error.to_string())))?;
        if descriptor != *described {
            let message = "the library describes itself differently than to the describing process";
            return Err(fail(Refusal::new(RefusalReason::DescriptorInvalid, message)));
        }
        let plugin = Plugin::new(descriptor, digest, module, staged, &scratch, &bundle.config);
        let plugin = Arc::new(plugin);
        opened.plugins.insert(digest, Arc::clone(&plugin));
        for soname in &bundle.private_sonames {
            opened.sonames.insert(soname.clone(), bundle.id.clone());
        }
        Ok(plugin)
    }

    /// Tells every opened plugin that the process will end. No engine may be called afterwards, and no call may run.
    pub fn shutdown(&self) {
        for plugin in self.opened().plugins.values() {
            plugin.shutdown();
        }
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps 3 to 7 for one candidate.
    fn examine(&self, candidate: Candidate, round: &mut Round) -> Bundle {
        let mut bundle = unread(&candidate);
        let result = match candidate.refusal {
            Some(refusal) => Err(refusal),
            None => self.examine_files(&candidate.name, &mut bundle, round),
        };
        bundle.status = result.unwrap_or_else(BundleStatus::from);
        bundle
    }

    fn examine_files(&self, name: &str, bundle: &mut Bundle, round: &mut Round) -> Result<BundleStatus, Refusal> {
        // A folder without a manifest is not worth a copy.
        if bundle.dir.join(manifest::FILE_NAME).symlink_metadata().is_err() {
            let message = format!("the folder has no {}", manifest::FILE_NAME);
            return Err(Refusal::new(RefusalReason::ManifestMissing, message));
        }
        let staged = self.staging.stage(&bundle.dir)?;
        bundle.digest = Some(staged.digest);
        bundle.staged = Some(staged.dir.clone());
        let manifest = scan::read_manifest(&staged.dir)?;
        bundle.version = Some(manifest.version.clone());
        bundle.config.clone_from(&manifest.config);
        if manifest.id != name {
            let message = format!(
                "the folder is named {name:?} and the manifest's id is {:?}: rename one",
                manifest.id
            );
            return Err(Refusal::new(RefusalReason::IdMismatch, message));
        }
        if manifest.abi_major != synapse_plugin_api::ABI_MAJOR {
            let (plugin, host) = (manifest.abi_major, synapse_plugin_api::ABI_MAJOR);
            let message = format!("{}: abi: plugin {plugin}, host supports {host}", manifest::FILE_NAME);
            return Err(Refusal::new(RefusalReason::AbiMajor, message));
        }
        check_files(&manifest, &staged)?;
        bundle.library = Some(manifest.library.clone());
        bundle.records = records(&staged);
        let magic = note::read(&staged.dir.join(&manifest.library))?;
        check_same(
            &manifest,
            magic.id().unwrap_or_default(),
            magic.version().unwrap_or_default(),
            "the library's magic",
        )?;
        for library in &manifest.private_libraries {
            note::check_private(&staged.dir.join(library))?;
        }
        let descriptor = match self.describe(&staged)? {
            Ok(descriptor) => descriptor,
            Err(message) => return Ok(BundleStatus::Quarantined { message }),
        };
        let version = descriptor.package_version.to_string();
        check_same(&manifest, &descriptor.id, &version, "the library's descriptor")?;
        check_offers(&manifest, &descriptor)?;
        bundle.descriptor = Some(descriptor);
        bundle.private_sonames = private_sonames(&staged, &manifest.library);
        let shared = bundle.private_sonames.iter().find_map(|soname| {
            let other = round.sonames.get(soname).filter(|other| **other != manifest.id)?;
            Some((soname.clone(), other.clone()))
        });
        let is_ours = |row: &TrustRow| row.id == manifest.id && row.digest == staged.digest;
        let facts = Facts {
            id: &manifest.id,
            risk: manifest.risk,
            aborts_on_panic: magic.aborts_on_panic(),
            trusted: round.trusted.clone().map(|rows| rows.iter().any(is_ours)),
            shared_soname: shared,
        };
        bundle.promotable = facts.promotable();
        let status = place(&facts);
        if status == BundleStatus::Ready {
            let names = bundle.private_sonames.iter().cloned();
            round.sonames.extend(names.map(|soname| (soname, manifest.id.clone())));
        }
        Ok(status)
    }

    /// The descriptor of a staged bundle, from memory or from a child; `Ok(Err(…))` is a quarantine.
    fn describe(&self, staged: &Staged) -> Result<Result<Descriptor, String>, Refusal> {
        let digest = staged.digest;
        let timed_out = || self.timed_out.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = self.config.scan_timeout;
        let late = || {
            let message =
                format!("the library did not describe itself within {bound:?}; it is tried again at the next start");
            Refusal::new(RefusalReason::ScanTimeout, message)
        };
        match self.memory.recall(&digest) {
            Some(ScanOutcome::Quarantined(message)) => return Ok(Err(message)),
            Some(ScanOutcome::Described(json)) => {
                // Another version of this host may have written it: then it is described again.
                if let Ok(descriptor) = Descriptor::from_json(&json) {
                    return Ok(Ok(descriptor));
                }
            }
            Some(ScanOutcome::TimedOut) if timed_out().contains(&digest) => return Err(late()),
            Some(ScanOutcome::TimedOut) | None => {}
        }
        match scan::scan(&self.config.worker_binary, &staged.dir, bound) {
            Scan::Described(descriptor) => {
                let outcome = ScanOutcome::Described(descriptor.to_json());
                self.memory.remember(&digest, &outcome);
                Ok(Ok(descriptor))
            }
            Scan::Crashed(message) => {
                self.memory
                    .remember(&digest, &ScanOutcome::Quarantined(message.clone()));
                Ok(Err(message))
            }
            Scan::TimedOut => {
                self.memory.remember(&digest, &ScanOutcome::TimedOut);
                timed_out().insert(digest);
                Err(late())
            }
            Scan::Refused(refusal) => Err(refusal),
        }
    }
}

/// A bundle of which only its place is known.
fn unread(candidate: &Candidate) -> Bundle {
    Bundle {
        id: candidate.name.clone(),
        dir: candidate.dir.clone(),
        version: None,
        digest: None,
        status: BundleStatus::Ready,
        descriptor: None,
        records: Vec::new(),
        staged: None,
        library: None,
        config: Vec::new(),
        private_sonames: Vec::new(),
        promotable: false,
    }
}

fn shadowed(candidate: Candidate, by: PathBuf) -> Bundle {
    Bundle {
        status: BundleStatus::Shadowed { by },
        ..unread(&candidate)
    }
}

/// Compares the manifest's paths and digests with what was staged.
fn check_files(manifest: &Manifest, staged: &Staged) -> Result<(), Refusal> {
    let key = |path: &Path| path.to_string_lossy().into_owned();
    let libraries = std::iter::once(&manifest.library).chain(&manifest.private_libraries);
    for library in libraries {
        if !staged.files.contains_key(&key(library)) {
            let message = format!(
                "{} names {}, which is not in the bundle",
                manifest::FILE_NAME,
                library.display()
            );
            return Err(Refusal::new(RefusalReason::LibraryMissing, message));
        }
    }
    let Some(listed) = &manifest.files else { return Ok(()) };
    let mismatch = |message: String| Err(Refusal::new(RefusalReason::DigestMismatch, message));
    for (path, found) in &staged.files {
        match listed.get(path) {
            _ if path == manifest::FILE_NAME => {}
            Some(expected) if expected == found => {}
            Some(expected) => return mismatch(format!("{path}: expected SHA-256 {expected}, found {found}")),
            None => return mismatch(format!("{path}: the manifest's list of files does not have it")),
        }
    }
    match listed.keys().find(|path| !staged.files.contains_key(*path)) {
        Some(path) => mismatch(format!("{path}: the manifest lists it and it is not in the bundle")),
        None => Ok(()),
    }
}

fn check_same(manifest: &Manifest, id: &str, version: &str, whose: &str) -> Result<(), Refusal> {
    if id != manifest.id {
        let message = format!("the manifest's id is {:?} and that of {whose} is {id:?}", manifest.id);
        return Err(Refusal::new(RefusalReason::IdMismatch, message));
    }
    if version != manifest.version.to_string() {
        let message = format!(
            "the manifest's version is {} and that of {whose} is {version}",
            manifest.version
        );
        return Err(Refusal::new(RefusalReason::VersionMismatch, message));
    }
    Ok(())
}

fn check_offers(manifest: &Manifest, descriptor: &Descriptor) -> Result<(), Refusal> {
    use synapse_core::engine::EngineKind;
    let Some(offers) = &manifest.engines else { return Ok(()) };
    let kinds = descriptor.supports.iter().map(|support| match support.kind {
        EngineKind::Embed => Offer::Embed,
        EngineKind::Rerank => Offer::Rerank,
        EngineKind::Generate => Offer::Generate,
    });
    let mut described: Vec<Offer> = kinds.collect();
    described.sort_unstable();
    described.dedup();
    if described == *offers {
        return Ok(());
    }
    let message = format!("the manifest's engines are {offers:?} and the library describes {described:?}");
    Err(Refusal::new(RefusalReason::DescriptorInvalid, message))
}

/// The bundle's own model records: `catalog/NAME.toml`, in the private copy.
fn records(staged: &Staged) -> Vec<PathBuf> {
    let is_record = |path: &&String| {
        path.strip_prefix("catalog/")
            .and_then(|name| name.strip_suffix(".toml"))
            .is_some_and(|name| !name.contains('/'))
    };
    staged
        .files
        .keys()
        .filter(is_record)
        .map(|path| staged.dir.join(path))
        .collect()
}

/// The SONAMEs of all libraries of the bundle except its main one, declared or not.
fn private_sonames(staged: &Staged, main: &Path) -> Vec<String> {
    let others = staged.files.keys().filter(|path| Path::new(path) != main);
    let mut names: Vec<String> = others.filter_map(|path| note::soname(&staged.dir.join(path))).collect();
    names.sort_unstable();
    names.dedup();
    names
}
