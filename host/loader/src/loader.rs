//! [`Loader`]: discovery and opening, put together from the steps of this crate.
//!
//! State: the opened plugins by digest, the digests whose scan timed out in this process, and what was found in each
//! folder last. Callers: the daemon's plugin registry, tools. Not known here: what happens with an opened plugin, and
//! who watches the folders.
//!
//! The steps of discovery for one bundle, each able to refuse it (`examine.rs` has 3 to 6):
//! 1. its place: folder, links, writers (`search.rs`);
//! 2. an earlier bundle of the same id wins; one that the operator switched off is not looked into;
//! 3. the private copy and its digest (`staging.rs`); everything below looks at the copy only;
//! 4. the manifest (`manifest.rs`), its digests, ids and paths;
//! 5. the library's file and its magic (`note.rs`), or the program's file (`program.rs`);
//! 6. a quarantine, or the descriptor from memory or from a child process (`scan.rs`);
//! 7. placement (`placement.rs`).
//!
//! A second discovery skips 3 to 6 for a sound bundle whose folder looks as it did (`stamp.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::bundle::{Bundle, BundleDigest, BundleStatus, Refusal, RefusalReason};
use crate::error::LoaderError;
use crate::examine::{Examined, Sound};
use crate::memory::ScanMemory;
use crate::plugin::Plugin;
use crate::search::{Candidate, candidates};
use crate::staging::StagingFolder;
use crate::stamp::Stamp;
use crate::trust::{self, TrustRow};
use crate::{note, open, scan, v1};

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
    pub(crate) config: LoaderConfig,
    pub(crate) memory: Arc<dyn ScanMemory>,
    pub(crate) staging: StagingFolder,
    pub(crate) timed_out: Mutex<HashSet<BundleDigest>>,
    opened: Mutex<Opened>,
    known: Mutex<HashMap<PathBuf, Known>>,
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
    disabled: BTreeSet<String>,
    /// Private SONAMEs of the bundles that are ready so far.
    sonames: BTreeMap<String, String>,
}

/// A sound bundle as it was found in a folder that looked like this.
struct Known {
    stamp: Stamp,
    bundle: Bundle,
    sound: Sound,
}

/// How the search path looks, without reading a bundle: what a watcher compares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// The folders that are, or want to be, bundles.
    pub bundles: BTreeMap<PathBuf, Stamp>,
    /// The trust file.
    pub trust: Option<Stamp>,
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
            known: Mutex::default(),
        })
    }

    /// Looks at every bundle of the search path, in order. Blocks while children describe what is new; never runs a
    /// bundle's code in this process and never fails as a whole: what is wrong with a bundle is its status. Nothing of
    /// it is logged here. Copies that no bundle has any more are removed.
    #[must_use]
    pub fn discover(&self) -> Vec<Bundle> {
        self.rediscover(&HashSet::new(), &HashSet::new())
    }

    /// [`Self::discover`] while bundles of an earlier one are in use. A folder of `unsettled` is still being changed:
    /// what was found in it last counts, and nothing where nothing was. The copies of the digests in `keep` stay.
    #[must_use]
    pub fn rediscover(&self, unsettled: &HashSet<PathBuf>, keep: &HashSet<BundleDigest>) -> Vec<Bundle> {
        // Held for the whole discovery: two at once would collect each other's copies.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut round = self.round();
        let mut winners: HashMap<String, PathBuf> = HashMap::new();
        let mut bundles = Vec::new();
        for candidate in self.candidates(unsettled, &known) {
            // The folder's name is the id, so a later bundle is known to be shadowed without looking into it.
            let bundle = match winners.get(&candidate.name) {
                Some(by) => with_status(&candidate, BundleStatus::Shadowed { by: by.clone() }),
                None => {
                    winners.insert(candidate.name.clone(), candidate.dir.clone());
                    self.judge(candidate, unsettled, &mut known, &mut round)
                }
            };
            bundles.push(bundle);
        }
        known.retain(|dir, _| bundles.iter().any(|bundle| bundle.dir == *dir));
        let mut keep = keep.clone();
        keep.extend(bundles.iter().filter_map(|bundle| bundle.digest));
        keep.extend(self.opened().plugins.keys());
        self.staging.collect(&keep);
        bundles
    }

    /// What discovery says about the one folder `dir`, whatever lies beside it. No copy is removed.
    #[must_use]
    pub fn examine_one(&self, dir: &Path) -> Bundle {
        let beside = candidates(&[dir.parent().unwrap_or(dir).to_owned()]);
        let candidate = beside.into_iter().find(|candidate| candidate.dir == dir);
        let candidate = candidate.unwrap_or_else(|| Candidate {
            dir: dir.to_owned(),
            name: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            refusal: Some(Refusal::new(
                RefusalReason::NotABundle,
                format!("{} is no folder that may hold a bundle", dir.display()),
            )),
        });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.judge(candidate, &HashSet::new(), &mut known, &mut self.round())
    }

    fn round(&self) -> Round {
        Round {
            trusted: trust::read(&self.config.trust_file).map_err(|error| error.to_string()),
            // A file that is not believed switches nothing off; its words are in the status of every bundle.
            disabled: trust::disabled(&self.config.trust_file).unwrap_or_default(),
            sonames: self.opened().sonames.clone(),
        }
    }

    /// The candidates of the search path. An unsettled folder counts as it was, also when it is gone at this moment.
    fn candidates(&self, unsettled: &HashSet<PathBuf>, known: &HashMap<PathBuf, Known>) -> Vec<Candidate> {
        let mut list = candidates(&self.config.plugin_dirs);
        list.retain(|candidate| !unsettled.contains(&candidate.dir) || known.contains_key(&candidate.dir));
        for dir in unsettled.iter().filter(|dir| known.contains_key(*dir)) {
            if let (false, Some(name)) = (list.iter().any(|it| it.dir == *dir), dir.file_name()) {
                list.push(Candidate {
                    dir: dir.clone(),
                    name: name.to_string_lossy().into_owned(),
                    refusal: None,
                });
            }
        }
        list
    }

    /// How the search path looks now.
    #[must_use]
    pub fn glance(&self) -> Glance {
        let found = candidates(&self.config.plugin_dirs).into_iter();
        Glance {
            bundles: found
                .map(|candidate| (candidate.dir.clone(), Stamp::of(&candidate.dir)))
                .collect(),
            trust: self
                .config
                .trust_file
                .exists()
                .then(|| Stamp::of(&self.config.trust_file)),
        }
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
    fn judge(
        &self,
        candidate: Candidate,
        unsettled: &HashSet<PathBuf>,
        known: &mut HashMap<PathBuf, Known>,
        round: &mut Round,
    ) -> Bundle {
        if round.disabled.contains(&candidate.name) {
            return with_status(&candidate, BundleStatus::Disabled);
        }
        if let Some(refusal) = candidate.refusal.clone() {
            return with_status(&candidate, refusal.into());
        }
        // Before anything is read: a change meanwhile is another stamp.
        let stamp = Stamp::of(&candidate.dir);
        let as_before = known
            .get(&candidate.dir)
            .filter(|known| known.stamp == stamp || unsettled.contains(&candidate.dir));
        if let Some(known) = as_before {
            let mut bundle = known.bundle.clone();
            bundle.status = round.place(&bundle, &known.sound);
            return bundle;
        }
        known.remove(&candidate.dir);
        let mut bundle = with_status(&candidate, BundleStatus::Ready);
        match self.examine(&candidate.name, &mut bundle) {
            Ok(Examined::Sound(sound)) => {
                bundle.promotable = sound.promotable();
                bundle.status = round.place(&bundle, &sound);
                let row = Known {
                    stamp,
                    bundle: bundle.clone(),
                    sound,
                };
                known.insert(candidate.dir, row);
            }
            Ok(Examined::Quarantined(message)) => bundle.status = BundleStatus::Quarantined { message },
            Err(refusal) => bundle.status = refusal.into(),
        }
        bundle
    }
}

impl Round {
    /// Step 7: where a sound bundle may run.
    fn place(&mut self, bundle: &Bundle, sound: &Sound) -> BundleStatus {
        let shared = bundle.private_sonames.iter().find_map(|soname| {
            let other = self.sonames.get(soname).filter(|other| **other != bundle.id)?;
            Some((soname.clone(), other.clone()))
        });
        let is_ours = |row: &TrustRow| row.id == bundle.id && Some(row.digest) == bundle.digest;
        let status = sound.place(
            &bundle.id,
            self.trusted.clone().map(|rows| rows.iter().any(is_ours)),
            shared,
        );
        if status == BundleStatus::Ready {
            let names = bundle.private_sonames.iter().cloned();
            self.sonames.extend(names.map(|soname| (soname, bundle.id.clone())));
        }
        status
    }
}

/// A bundle of which only its place is known.
fn with_status(candidate: &Candidate, status: BundleStatus) -> Bundle {
    Bundle {
        id: candidate.name.clone(),
        dir: candidate.dir.clone(),
        version: None,
        digest: None,
        status,
        descriptor: None,
        records: Vec::new(),
        staged: None,
        library: None,
        program: None,
        config: Vec::new(),
        private_sonames: Vec::new(),
        promotable: false,
    }
}
