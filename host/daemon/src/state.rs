//! What the running daemon holds, shared by every operation.
//!
//! State: [`Daemon`], made once by [`Daemon::open`], lives until the process ends. Callers: `lib.rs` opens it, every
//! operation in `service` works on it. Not known here: sockets and requests.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use synapse_catalog::{Catalog, ModelSelector};
use synapse_certify::machine::MachineFacts;
use synapse_core::schedule::{Order, Policy};
use synapse_loader::{Bundle, Loader, LoaderConfig, LoaderError};
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::job::Jobs;
use crate::job::kept as batch_jobs;
use crate::lane::certification::{Certificates, declared_drivers};
use crate::lane::equivalence::{self, Aliases};
use crate::lane::{Lane, Lanes, residency, select};
use crate::models::{Installed, ModelStore, ModelStoreConfig, ModelsError};
use crate::paths::DataDir;
use crate::pickup;
use crate::plugins::PluginRegistry;
use crate::probe::Probes;
use crate::rpc::error::ServiceError;
use crate::schedule::Compute;
use crate::store::{Store, StoreError};
use crate::task::Tasks;
use crate::worker::room::{WorkerSettings, Workers};

/// Why the daemon's state could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The folder for copies of bundles.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The model store.
    #[error(transparent)]
    Models(#[from] ModelsError),
}

/// What [`Daemon::open`] is given.
#[derive(Debug)]
pub struct OpenOptions {
    /// The settings.
    pub config: Config,
    /// The data directory, held by this process.
    pub data: DataDir,
    /// Folders that hold bundles, in the order of search.
    pub plugin_dirs: Vec<PathBuf>,
    /// The trust file.
    pub trust_file: PathBuf,
    /// The `synapse-worker` binary.
    pub worker_binary: PathBuf,
    /// How models are fetched.
    pub models: ModelStoreConfig,
    /// The socket that is served.
    pub socket: PathBuf,
    /// The order of calls; anything but the default is for benchmarks.
    pub order: Order,
}

/// The running daemon.
#[derive(Debug)]
pub struct Daemon {
    /// The settings, sampled once at start (CONF-12).
    pub config: Arc<Config>,
    /// The data directory.
    pub data: DataDir,
    /// The socket that is served.
    pub socket: PathBuf,
    /// This start's number; rides on every reply (API-13).
    pub generation: u64,
    /// When the daemon started, for ages and times.
    pub started: Instant,
    /// When the daemon started, by the clock.
    pub started_at: SystemTime,
    /// The database.
    pub store: Store,
    /// The bundles and their engines.
    pub plugins: PluginRegistry,
    /// The model files of this machine.
    pub models: ModelStore,
    /// The lanes: models on engines.
    pub lanes: Lanes,
    /// What the lanes are certified for.
    pub certificates: Certificates,
    /// Which numeric spaces are equivalent.
    pub aliases: Aliases,
    /// Slow work that clients poll.
    pub jobs: Jobs,
    /// What the probes of this run have come to.
    pub probes: Probes,
    /// The only spawner of tasks and threads.
    pub tasks: Tasks,
    /// One permit for each text that may be tokenized at once: tokenization cannot be interrupted, so it is bounded.
    pub tokenizing: Arc<Semaphore>,
    /// The scheduler of every lane's calls.
    pub compute: Compute,
    /// Threads that one engine call may use.
    pub threads_per_call: u32,
    /// Threads that a call of this daemon may have at most, whatever the knob.
    pub most_threads: u32,
    /// The catalog without the records of bundles.
    own_catalog: Catalog,
    catalog: RwLock<Arc<Catalog>>,
    installed: RwLock<Arc<[Installed]>>,
}

impl Daemon {
    /// Opens the database, the model store and the catalog, and starts looking for bundles in the background. Blocks
    /// on files; must be called within the runtime that `tasks` uses.
    ///
    /// # Errors
    /// [`OpenError`]: what the operator must repair first.
    pub fn open(options: OpenOptions, tasks: &Tasks) -> Result<Arc<Self>, OpenError> {
        let OpenOptions {
            config,
            data,
            plugin_dirs,
            trust_file,
            worker_binary,
            models,
            socket,
            order,
        } = options;
        let started_at = SystemTime::now();
        let store = Store::open(&data.store(), tasks, started_at)?;
        batch_jobs::end_interrupted(&store)?;
        let workers = WorkerSettings::new(&config, worker_binary.clone(), &data);
        let workers = Workers::new(workers, tasks.clone(), store.clone());
        let loader = LoaderConfig {
            plugin_dirs,
            staging_dir: data.staging(),
            worker_binary,
            trust_file,
            scan_timeout: Duration::from_millis(config.plugins.scan_timeout_ms),
            max_bundle_bytes: LoaderConfig::MAX_BUNDLE_BYTES,
        };
        let loader = Loader::new(loader, Arc::new(store.scans()))?;
        let machine = MachineFacts::read(Path::new("/"));
        let drivers = declared_drivers(&config.probe.drivers);
        let aliases = Aliases::open(&store, &machine, &drivers)?;
        let certificates = Certificates::open(&store, machine, drivers, config.knob.as_str())?;
        let models = ModelStore::open(models)?;
        let installed = models.list()?;
        let (catalog, refused) = Catalog::builtin().with_dir(&data.catalog());
        report(&refused);

        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = match config.schedule.compute_threads {
            0 => config.knob.threads(cores),
            threads => threads,
        };
        let threads = u32::try_from(threads).unwrap_or(u32::MAX).max(1);
        let daemon = Arc::new(Self {
            generation: store.generation(),
            started: Instant::now(),
            started_at,
            jobs: Jobs::new(tasks.clone(), store.clone(), &config.jobs),
            plugins: PluginRegistry::new(
                loader,
                store.clone(),
                workers,
                residency::policy(&config.residency).budget_bytes,
            ),
            store,
            models,
            lanes: Lanes::new(),
            certificates,
            aliases,
            probes: Probes::default(),
            tasks: tasks.clone(),
            tokenizing: Arc::new(Semaphore::new(cores)),
            compute: Compute::new(Policy {
                order,
                permits: threads,
                first_quantum: u64::try_from(config.schedule.bulk_quantum_tokens).unwrap_or(u64::MAX),
                ..Policy::default()
            }),
            threads_per_call: threads,
            most_threads: u32::try_from(cores).unwrap_or(u32::MAX).max(threads),
            catalog: RwLock::new(Arc::new(catalog.clone())),
            own_catalog: catalog,
            installed: RwLock::new(installed.into()),
            config: Arc::new(config),
            data,
            socket,
        });
        let found = Arc::downgrade(&daemon);
        daemon.plugins.discover(tasks, move |bundles| {
            if let Some(daemon) = found.upgrade() {
                daemon.set_records(bundles);
            }
        });
        declare_when_scanned(&daemon);
        batch_jobs::watch(&daemon);
        residency::watch(&daemon);
        pickup::watch(&daemon);
        refresh_workers(&daemon);
        Ok(daemon)
    }

    /// Every known model and lane, as a snapshot: it changes with the bundles.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The installed models as they were last read: from memory (API-20).
    #[must_use]
    pub fn installed(&self) -> Arc<[Installed]> {
        Arc::clone(&self.installed.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads anew which models are installed. Every operation that changes them ends with this.
    ///
    /// # Errors
    /// The model store cannot be read; what was known before stays.
    pub async fn refresh_installed(&self) -> Result<(), ServiceError> {
        let models = self.models.clone();
        let list = self.tasks.blocking("models-list", move || models.list()).await??;
        *self.installed.write().unwrap_or_else(PoisonError::into_inner) = list.into();
        self.declare_builtin_aliases().await
    }

    /// Every lane of a model that could serve here, in the catalog's order; none of them is used by that.
    #[must_use]
    pub fn lanes_of(&self, model: &str) -> Vec<Arc<Lane>> {
        let (catalog, bundles, installed) = (self.catalog(), self.plugins.bundles(), self.installed());
        let selector = ModelSelector {
            model: model.to_owned(),
            pin: None,
        };
        let choices = select::select_all(&catalog, &selector, None, &bundles, &installed).unwrap_or_default();
        choices
            .iter()
            .map(|choice| self.lanes.peek(choice, self.threads_per_call))
            .collect()
    }

    /// Sees to it that the pairs which Synapse itself declares stand in the alias table, for the lanes that are here now.
    ///
    /// # Errors
    /// The store; or the daemon stops.
    pub async fn declare_builtin_aliases(&self) -> Result<(), ServiceError> {
        let pairs = equivalence::undeclared_builtin(self);
        if pairs.is_empty() {
            return Ok(());
        }
        let (aliases, store) = (self.aliases.clone(), self.store.clone());
        let declared = self
            .tasks
            .blocking("aliases-declare", move || aliases.declare(&store, pairs));
        Ok(declared.await??)
    }

    /// Lays the records that usable bundles carry over the daemon's own.
    pub fn set_records(&self, bundles: &[Bundle]) {
        let mut catalog = self.own_catalog.clone();
        for bundle in bundles.iter().filter(|bundle| bundle.descriptor.is_some()) {
            report(&catalog.add_bundle(&bundle.id, &bundle.records));
        }
        *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalog);
    }
}

/// Declares the builtin aliases once the bundles of this start are known.
fn declare_when_scanned(daemon: &Arc<Daemon>) {
    let waiting = Arc::clone(daemon);
    drop(daemon.tasks.spawn("aliases-builtin", async move {
        waiting.plugins.scanned().await;
        if let Err(error) = waiting.declare_builtin_aliases().await {
            tracing::warn!(target: "synapse", %error, "the builtin aliases were not declared");
        }
    }));
}

/// Asks idle workers now and then how they are, until the daemon stops (HEALTH-06).
fn refresh_workers(daemon: &Arc<Daemon>) {
    let every = Duration::from_millis(daemon.config.worker.refresh_ms);
    let weak = Arc::downgrade(daemon);
    let stop = daemon.tasks.stopping().clone();
    drop(daemon.tasks.spawn("workers-refresh", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let Some(daemon) = weak.upgrade() else { return };
            daemon.plugins.refresh_workers();
        }
    }));
}

/// Logs catalog files that were not taken.
fn report(refused: &[synapse_catalog::RefusedFile]) {
    for file in refused {
        for problem in &file.problems {
            tracing::warn!(
                target: "synapse.config", file = %file.file.display(), field = problem.field,
                "catalog file refused: {}", problem.message,
            );
        }
    }
}
