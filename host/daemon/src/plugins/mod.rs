//! The bundles that were found, their states, and the engines made from them.
//!
//! State: what the last search found (a snapshot that is replaced as a whole), the files that wait, and one [`EngineSlot`] per engine opened in this
//! process, kept until it ends; a lane whose bundle runs in a worker has a slot of its own. Callers: `lane` selects among
//! the bundles and opens engines, `plugins.list` and `health` show them. Not known here: models, lanes, requests; how an
//! engine is guarded is `slot.rs`.
//!
//! Discovery runs in the background: the daemon answers while bundles are being described. A bundle that panicked in
//! this process once is demoted by digest, in the store, and from then on only a worker may run it; where the store
//! cannot say, no bundle may run here (fails closed).

pub mod renewal;
pub mod settling;
mod slot;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use synapse_core::engine::EngineKind;
use synapse_loader::{Bundle, BundleDigest, BundleStatus, Glance, Loader, LoaderError};
use tokio::sync::watch;

use self::renewal::{Change, Waiting, What};
use self::slot::Origin;
pub use self::slot::{AnyEngine, EngineSlot};
use crate::store::{Store, StoreError};
use crate::task::Tasks;
use crate::worker::room::Workers;
use crate::worker::supervisor::Supervisor;

/// What discovery found, as a snapshot.
pub type Bundles = Arc<[Bundle]>;

/// The bundles of this run. Cheap to clone.
#[derive(Clone)]
pub struct PluginRegistry {
    inner: Arc<Inner>,
}

struct Inner {
    loader: Loader,
    store: Store,
    bundles: RwLock<Bundles>,
    /// New files that are not taken, by bundle.
    waiting: RwLock<Arc<BTreeMap<String, Waiting>>>,
    /// How the search path looked when it was last searched. Held for a whole search: they take turns.
    looked: Mutex<Glance>,
    scanned: watch::Sender<bool>,
    opened: Mutex<HashMap<BundleDigest, Opened>>,
    workers: Workers,
    memory_budget: u64,
}

/// A bundle opened in this process, with the engines made of it so far.
struct Opened {
    origin: Arc<Origin>,
    slots: BTreeMap<EngineKind, Arc<EngineSlot>>,
}

/// Why no engine could be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineUnavailable {
    /// The bundle.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// Whether the model is quarantined cannot be known.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether a bundle that may not run in this process can run in a worker: it was copied and described.
#[must_use]
pub fn runs_in_worker(bundle: &Bundle) -> bool {
    let described = bundle.digest.is_some() && bundle.staged.is_some() && bundle.descriptor.is_some();
    described && matches!(bundle.status, BundleStatus::NeedsWorker { .. })
}

impl fmt::Debug for PluginRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginRegistry")
            .field("bundles", &self.bundles().len())
            .finish_non_exhaustive()
    }
}

impl PluginRegistry {
    /// An empty registry; [`Self::discover`] fills it. An engine inside the daemon may hold `memory_budget` bytes
    /// through the host's allocator.
    #[must_use]
    pub fn new(loader: Loader, store: Store, workers: Workers, memory_budget: u64) -> Self {
        let inner = Inner {
            loader,
            store,
            bundles: RwLock::new(Arc::from([])),
            waiting: RwLock::default(),
            looked: Mutex::default(),
            scanned: watch::Sender::new(false),
            opened: Mutex::new(HashMap::new()),
            workers,
            memory_budget,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Looks for bundles in the background. `found` gets them before anyone else sees that the search is over.
    pub fn discover(&self, tasks: &Tasks, found: impl FnOnce(&[Bundle]) + Send + 'static) {
        let registry = self.clone();
        let search = tasks.blocking("plugins", move || {
            let inner = &registry.inner;
            let mut looked = lock(&inner.looked);
            *looked = inner.loader.glance();
            let bundles = inner.search(&HashSet::new(), &HashSet::new());
            bundles.iter().for_each(log_verdict);
            found(&bundles);
            *write(&inner.bundles) = bundles.into();
        });
        let registry = self.clone();
        let over = tasks.spawn("plugins-found", async move {
            // A search that panicked was logged by the task; it found nothing, and nobody may wait for it for ever.
            let _ = search.await;
            registry.inner.scanned.send_replace(true);
        });
        drop(over);
    }

    /// Looks again at everything but the folders of `unsettled`, and says what changed. `publish` gets the bundles that
    /// count from now on before anyone else sees them. The copies of the digests that are `in_use` stay. Blocks.
    pub fn renew(
        &self,
        unsettled: &HashSet<PathBuf>,
        in_use: &HashSet<BundleDigest>,
        publish: impl FnOnce(&[Bundle]),
    ) -> Vec<Change> {
        let inner = &self.inner;
        let mut looked = lock(&inner.looked);
        let mut now = inner.loader.glance();
        for path in unsettled {
            match looked.bundles.get(path) {
                Some(stamp) => now.bundles.insert(path.clone(), *stamp),
                None => now.bundles.remove(path),
            };
        }
        let mut keep = in_use.clone();
        keep.extend(self.bundles().iter().filter_map(|bundle| bundle.digest));
        let found = inner.search(unsettled, &keep);
        *looked = now;
        // Held while the lists are compared: a demotion meanwhile must not be lost.
        let mut bundles = write(&inner.bundles);
        let renewal = renewal::renew(&bundles, &self.waiting(), found, |bundle| inner.other_is_open(bundle));
        for change in &renewal.changes {
            log_change(change, &renewal.bundles);
        }
        publish(&renewal.bundles);
        *bundles = renewal.bundles.into();
        *inner.waiting.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(renewal.waiting);
        renewal.changes
    }

    /// How the search path looked when it was last searched, and how it looks now. Blocks.
    #[must_use]
    pub fn glance(&self) -> (Glance, Glance) {
        let looked = lock(&self.inner.looked).clone();
        (looked, self.inner.loader.glance())
    }

    /// New files that are not taken, by bundle.
    #[must_use]
    pub fn waiting(&self) -> Arc<BTreeMap<String, Waiting>> {
        Arc::clone(&self.inner.waiting.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the worker that a lane had for a version of a bundle. Blocks until it has ended.
    pub fn retire(&self, bundle: &Bundle, lane: &str) {
        if let Some(digest) = bundle.digest {
            self.inner.workers.retire(lane, digest);
        }
    }

    /// Whether the search of this start is over.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        *self.inner.scanned.borrow()
    }

    /// Waits until the search of this start is over.
    pub async fn scanned(&self) {
        // The sender lives as long as `self`.
        let _ = self.inner.scanned.subscribe().wait_for(|scanned| *scanned).await;
    }

    /// Every bundle found, in the search order; empty until the search is over.
    #[must_use]
    pub fn bundles(&self) -> Bundles {
        Arc::clone(&self.inner.bundles.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A bundle's engine of one kind for a lane: in this process where the bundle may run here, in a worker of the lane's
    /// own otherwise. Made on the first call. Blocks; may load the library.
    ///
    /// # Errors
    /// [`EngineUnavailable`]: the bundle is not usable, cannot be loaded, or has no such engine.
    pub fn engine(&self, kind: EngineKind, bundle: &Bundle, lane: &str) -> Result<Arc<EngineSlot>, EngineUnavailable> {
        let bundle = self.current(bundle);
        if let Some(supervisor) = self.supervisor(&bundle, lane)? {
            return Ok(Arc::new(EngineSlot::remote(kind, &bundle, supervisor)?));
        }
        let digest = bundle
            .digest
            .filter(|_| bundle.status == BundleStatus::Ready)
            .ok_or_else(|| LoaderError::NotReady {
                id: bundle.id.clone(),
                status: bundle.status.name().to_owned(),
            })?;
        // Held while the library is loaded, so that each engine is made once.
        let mut opened = lock(&self.inner.opened);
        if let Some(slot) = opened.get(&digest).and_then(|opened| opened.slots.get(&kind)) {
            return Ok(Arc::clone(slot));
        }
        let plugin = self.inner.loader.open(&bundle)?;
        plugin.set_memory_budget(self.inner.memory_budget);
        let engine = match kind {
            EngineKind::Embed => AnyEngine::Embed(plugin.embed(&[])?),
            EngineKind::Rerank => AnyEngine::Rerank(plugin.rerank(&[])?),
            EngineKind::Generate => AnyEngine::Generate(plugin.generate(&[])?),
        };
        Ok(self.keep(&mut opened, &bundle, digest, engine))
    }

    /// Puts an engine of this process into its slot.
    fn keep(
        &self,
        opened: &mut HashMap<BundleDigest, Opened>,
        bundle: &Bundle,
        digest: BundleDigest,
        engine: AnyEngine,
    ) -> Arc<EngineSlot> {
        let opened = opened.entry(digest).or_insert_with(|| Opened {
            origin: Arc::new(Origin::new(bundle, digest, Arc::downgrade(&self.inner))),
            slots: BTreeMap::new(),
        });
        let kind = engine.kind();
        let slot = Arc::new(EngineSlot::new(engine, Arc::clone(&opened.origin)));
        opened.slots.insert(kind, Arc::clone(&slot));
        slot
    }

    /// The bundle as it is known now: a lane remembers what it was when the lane was made.
    fn current(&self, bundle: &Bundle) -> Bundle {
        let bundles = self.bundles();
        let found = bundles
            .iter()
            .find(|known| known.id == bundle.id && known.digest == bundle.digest);
        found.unwrap_or(bundle).clone()
    }

    /// The supervisor of a lane, where its bundle runs in a worker.
    fn supervisor(&self, bundle: &Bundle, lane: &str) -> Result<Option<Arc<Supervisor>>, StoreError> {
        match (bundle.digest, &bundle.descriptor, &bundle.staged) {
            (Some(digest), Some(descriptor), Some(staged)) if runs_in_worker(bundle) => self
                .inner
                .workers
                .supervisor(lane, bundle, digest, descriptor, staged.clone())
                .map(Some),
            _ => Ok(None),
        }
    }

    /// Sets the quarantine of a lane's models aside, so that a probe can try them (ERR-13). False where there is none.
    /// Blocks.
    ///
    /// # Errors
    /// [`StoreError`]: whether there is one cannot be known.
    pub fn begin_trial(&self, bundle: &Bundle, lane: &str) -> Result<bool, StoreError> {
        let supervisor = self.supervisor(&self.current(bundle), lane)?;
        Ok(supervisor.is_some_and(|supervisor| supervisor.begin_trial()))
    }

    /// Ends a trial: the quarantine is lifted where the lane has `passed`, and put back otherwise. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]: it is then as the store has it.
    pub fn end_trial(&self, bundle: &Bundle, lane: &str, passed: bool) -> Result<(), StoreError> {
        if let Some(supervisor) = self.supervisor(&self.current(bundle), lane)? {
            supervisor.end_trial(passed);
        }
        Ok(())
    }

    /// Asks every idle worker how it is. The answers come later, into what health shows.
    pub fn refresh_workers(&self) {
        self.inner.workers.refresh();
    }

    /// Ends every worker; what still runs in one after `patience` is cut short. Blocks until they have ended.
    pub fn stop_workers(&self, patience: std::time::Duration) {
        self.inner.workers.stop(patience);
    }
}

impl PluginRegistry {
    /// Tells every opened bundle that the process ends. Blocks; no engine may be called afterwards, so every lane is
    /// closed and its calls have ended.
    pub fn shutdown(&self) {
        self.inner.loader.shutdown();
    }
}

#[cfg(test)]
impl PluginRegistry {
    /// Says that bundles are still being described, or that the search is over.
    pub fn pretend_scanned(&self, scanned: bool) {
        self.inner.scanned.send_replace(scanned);
    }

    /// Puts a ready bundle with its engines into the registry, for tests of what calls engines.
    pub fn install(&self, bundle: Bundle, engines: impl IntoIterator<Item = AnyEngine>) {
        let digest = bundle.digest.unwrap();
        let mut opened = lock(&self.inner.opened);
        for engine in engines {
            self.keep(&mut opened, &bundle, digest, engine);
        }
        let mut bundles = write(&self.inner.bundles);
        *bundles = bundles.iter().cloned().chain([bundle]).collect();
    }
}

impl Inner {
    /// Discovery, with the demotions of earlier runs laid over it.
    fn search(&self, unsettled: &HashSet<PathBuf>, keep: &HashSet<BundleDigest>) -> Vec<Bundle> {
        let mut bundles = self.loader.rediscover(unsettled, keep);
        let demotions: Result<HashMap<String, String>, StoreError> = self
            .store
            .demotions()
            .map(|rows| rows.into_iter().map(|row| (row.digest, row.reason)).collect());
        for bundle in &mut bundles {
            let digest = bundle.digest.map(|digest| digest.to_string()).unwrap_or_default();
            let reason = match &demotions {
                Ok(demotions) => demotions.get(&digest).map(|reason| demoted_words(reason)),
                Err(error) => Some(format!("whether it panicked before cannot be known: {error}")),
            };
            if let (BundleStatus::Ready, Some(reason)) = (&bundle.status, reason) {
                bundle.status = BundleStatus::NeedsWorker { reason };
            }
        }
        bundles
    }

    /// Whether another version of the bundle was loaded into this process.
    fn other_is_open(&self, bundle: &Bundle) -> bool {
        let opened = lock(&self.opened);
        opened
            .iter()
            .any(|(digest, opened)| opened.origin.bundle() == bundle.id && Some(*digest) != bundle.digest)
    }

    /// Takes a bundle out of this process for good: in the store, and in what is shown.
    fn demote(&self, id: &str, digest: BundleDigest, reason: &str) {
        if let Err(error) = self.store.demote(id, &digest.to_string(), reason) {
            tracing::error!(
                target: "synapse.worker", plugin = id, %error,
                "the bundle panicked, and that cannot be kept: it may run in this process again after a restart",
            );
        }
        let mut bundles = write(&self.bundles);
        let mut list = bundles.to_vec();
        for bundle in &mut list {
            if bundle.digest == Some(digest) && bundle.status == BundleStatus::Ready {
                bundle.status = BundleStatus::NeedsWorker {
                    reason: demoted_words(reason),
                };
            }
        }
        *bundles = list.into();
    }
}

/// The status text of a demoted bundle.
fn demoted_words(reason: &str) -> String {
    format!("it panicked inside the daemon ({reason}); install a repaired version of the bundle")
}

/// One line per bundle and start: what was found, or why it is not used.
fn log_verdict(bundle: &Bundle) {
    let (id, status) = (bundle.id.as_str(), bundle.status.name());
    let version = bundle.version.as_ref().map(ToString::to_string).unwrap_or_default();
    match bundle.status.message() {
        Some(message) if runs_in_worker(bundle) => tracing::info!(
            target: "synapse.worker", plugin = id, version, status, "plugin found; it runs in a worker: {message}"
        ),
        None => tracing::info!(target: "synapse.worker", plugin = id, version, status, "plugin found"),
        Some(message) => tracing::warn!(target: "synapse.worker", plugin = id, status, "plugin not used: {message}"),
    }
}

/// One line for each change of a later search.
fn log_change(change: &Change, bundles: &[Bundle]) {
    let id = change.id.as_str();
    let digest = |digest: &Option<BundleDigest>| digest.map(|digest| digest.to_string()).unwrap_or_default();
    match change.what {
        What::Added | What::Replaced | What::Disabled => {
            tracing::info!(
                target: "synapse.worker", plugin = id, from = digest(&change.from), to = digest(&change.to),
                "plugin changed",
            );
            let winner = |bundle: &&Bundle| bundle.id == id && !matches!(bundle.status, BundleStatus::Shadowed { .. });
            bundles.iter().filter(winner).for_each(log_verdict);
        }
        What::Removed => tracing::info!(
            target: "synapse.worker", plugin = id, from = digest(&change.from),
            "plugin removed; its lanes end what they have begun",
        ),
        What::Waits => {
            let message = change.message.as_deref().unwrap_or_default();
            tracing::warn!(target: "synapse.worker", plugin = id, "plugin waits: {message}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(bundles: &RwLock<Bundles>) -> std::sync::RwLockWriteGuard<'_, Bundles> {
    bundles.write().unwrap_or_else(PoisonError::into_inner)
}
