//! One lane's worker through all its generations.
//!
//! 1. Work goes through [`Supervisor::exchange`], one exchange at a time: the lane's lock is held from the request to
//!    its drained reply.
//! 2. A fault buries the generation: the process is killed, its exit confirmed, the death counted once, and only then
//!    may the next generation start. A process whose exit is not confirmed keeps the lane closed (WSUP-14).
//! 3. The exchange that met the fault is answered with `engine_crashed` and never run again (WSUP-15).
//! 4. The next generation starts after its back-off and loads the models of the last one, in the background or by the
//!    next call, whichever comes first; the lane's lock makes it one start (WSUP-13, WSUP-16).
//! 5. A pair of model and configuration that dies too often is quarantined: its calls are refused, others go on.
//! 6. What `health` shows is stamped here and read without the lane's lock (HEALTH-03, HEALTH-07).
//!
//! State: the lane and its status. Callers: [`super::engine`], the daemon's refresher and its shutdown. Not known here:
//! what the exchanges compute.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use synapse_core::engine::{
    CallContext, CallControl, Crash, EngineError, EngineErrorCode, EngineState, Flow, LoadedModel, ModelRef,
};
use synapse_core::schedule::Tick;
use synapse_core::supervision::crash::{CrashBudget, CrashLimits, Generation, Verdict};
use synapse_core::supervision::exchange::{Budgets, Phase};
use synapse_loader::process::Child;
use synapse_wire::worker::message::{ArtifactFile, EngineKind, RuntimeConfig};
use synapse_wire::worker::{HostMessage, WorkerMessage};

use super::exchange::{self, ExchangeError, Reply, Terms};
use super::fault::{Fault, Stage};
use super::launch::{self, LaunchError, Plan, Worker};
use super::output::LastWords;
use crate::task::Tasks;

/// The limits of one supervisor.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Silence and length of exchanges.
    pub budgets: Budgets,
    /// Deaths, their window and the back-off.
    pub crash: CrashLimits,
    /// How long a killed process may take to be gone, and a stopping one to stop.
    pub exit: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            budgets: Budgets::default(),
            crash: CrashLimits::default(),
            exit: Duration::from_secs(5),
        }
    }
}

/// Names a model in a configuration: a digest over both.
pub type ModelKey = String;

/// Where the quarantined pairs of one lane are kept across restarts (OQ-8).
pub trait Quarantine: Send + Sync {
    /// Why the pair is quarantined, if it is.
    fn reason(&self, key: &ModelKey) -> Option<String>;
    /// Quarantines the pair.
    fn impose(&self, key: &ModelKey, reason: &str);
    /// Lifts every quarantine of the lane, and names the pairs.
    fn lift(&self) -> Vec<ModelKey>;
}

/// What a lane's worker is, for `health`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The current or last generation; 0 before the first.
    pub generation: u64,
    /// The process, while one is believed to live.
    pub pid: Option<u32>,
    /// Generations that died.
    pub deaths: u64,
    /// The crash budget of the lane is used up.
    pub degraded: bool,
    /// Why the last generation ended.
    pub last_fault: Option<String>,
    /// Resident memory in MiB, as of the last PONG.
    pub rss_mb: Option<u64>,
    /// Since when this is known.
    pub stamped: Instant,
}

struct Shown {
    status: Status,
    words: Option<Arc<LastWords>>,
    child: Option<Arc<Mutex<Child>>>,
}

/// A model that the lane serves, in whatever generation.
struct Model {
    key: ModelKey,
    request: LoadRequest,
    loaded: LoadedModel,
    /// Its name in the running generation.
    remote: Option<u64>,
}

/// What LOAD carries.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// Which engine.
    pub engine: EngineKind,
    /// The artifact.
    pub files: Vec<ArtifactFile>,
    /// How to run it.
    pub runtime_config: RuntimeConfig,
}

/// Why a generation ends.
struct Lost {
    stage: Stage,
    reason: String,
}

impl Lost {
    fn by(fault: &Fault) -> Self {
        Self {
            stage: fault.stage(),
            reason: fault.to_string(),
        }
    }
}

struct Lane {
    worker: Option<Worker>,
    unconfirmed: Option<Arc<Mutex<Child>>>,
    generation: Generation,
    deaths: CrashBudget<ModelKey>,
    not_before: Tick,
    models: BTreeMap<u64, Model>,
    next_model: u64,
}

/// One lane's worker.
pub struct Supervisor {
    me: Weak<Self>,
    name: String,
    bundle: String,
    plan: Plan,
    limits: Limits,
    tasks: Tasks,
    quarantine: Arc<dyn Quarantine>,
    origin: Instant,
    lane: Mutex<Lane>,
    shown: Mutex<Shown>,
    stopping: Mutex<bool>,
    stopped: Condvar,
    next_request: AtomicU64,
}

/// A call that nobody cancels: loads after a restart, PING, UNLOAD.
struct Uncancelled;

impl CallControl for Uncancelled {
    fn cancelled(&self) -> bool {
        false
    }

    fn checkpoint(&self, _done: u64, _total: u64) -> Flow {
        Flow::Continue
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held is logged by its task; the state behind it is replaced by the next generation.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Supervisor {
    /// A supervisor without a process: the first load starts one. `name` begins the names of its workers and belongs to
    /// no other supervisor of this daemon.
    #[must_use]
    pub fn new(name: String, plan: Plan, limits: Limits, tasks: Tasks, quarantine: Arc<dyn Quarantine>) -> Arc<Self> {
        let status = Status {
            generation: 0,
            pid: None,
            deaths: 0,
            degraded: false,
            last_fault: None,
            rss_mb: None,
            stamped: Instant::now(),
        };
        let lane = Lane {
            worker: None,
            unconfirmed: None,
            generation: Generation(0),
            deaths: CrashBudget::new(limits.crash.clone()),
            not_before: Tick(0),
            models: BTreeMap::new(),
            next_model: 1,
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            name,
            bundle: plan.expected_bundle.id.clone(),
            plan,
            limits,
            tasks,
            quarantine,
            origin: Instant::now(),
            lane: Mutex::new(lane),
            shown: Mutex::new(Shown {
                status,
                words: None,
                child: None,
            }),
            stopping: Mutex::new(false),
            stopped: Condvar::new(),
            next_request: AtomicU64::new(1),
        })
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// What is known, without touching the worker.
    #[must_use]
    pub fn status(&self) -> Status {
        let shown = lock(&self.shown);
        let mut status = shown.status.clone();
        if shown.words.as_ref().is_some_and(|words| words.ended()) {
            status.pid = None;
        }
        status
    }

    /// Bytes that the lane's models hold.
    #[must_use]
    pub fn model_bytes(&self) -> u64 {
        match self.lane.try_lock() {
            Ok(lane) => lane.models.values().map(|model| model.loaded.memory_bytes).sum(),
            Err(_) => 0,
        }
    }

    /// Loads a model, starting the worker if there is none.
    ///
    /// # Errors
    /// The worker's refusal, [`EngineErrorCode::Crashed`], or [`EngineErrorCode::Quarantined`].
    pub fn load(&self, ctx: &CallContext<'_>, key: ModelKey, request: LoadRequest) -> Result<LoadedModel, EngineError> {
        self.refuse_quarantined(&key)?;
        let mut lane = lock(&self.lane);
        self.ensure_worker(&mut lane, ctx)?;
        let (remote, loaded) = self.load_remote(&mut lane, &key, &request, ctx.control)?;
        let model = ModelRef(lane.next_model);
        lane.next_model += 1;
        let loaded = LoadedModel { model, ..loaded };
        lane.models.insert(
            model.0,
            Model {
                key,
                request,
                loaded: loaded.clone(),
                remote: Some(remote),
            },
        );
        Ok(loaded)
    }

    /// Forgets a model; ends the worker when it was the last one.
    ///
    /// # Errors
    /// [`EngineErrorCode::InvalidArgument`] for an unknown model.
    pub fn unload(&self, model: ModelRef) -> Result<(), EngineError> {
        let mut lane = lock(&self.lane);
        let Some(gone) = lane.models.remove(&model.0) else {
            return Err(unknown_model(model));
        };
        if lane.models.is_empty() {
            self.end_worker(&mut lane);
        } else if let Some(model_ref) = gone.remote {
            let req_id = self.next_id();
            let request = HostMessage::Unload { req_id, model_ref };
            // Whether the worker agreed does not matter to the caller: the model is forgotten either way.
            let _ = self.run(&mut lane, &request, None, Phase::Inference, &gone.key, &Uncancelled);
        }
        Ok(())
    }

    /// Runs one compute exchange on a model. `make` builds the request from its number and the model's name in the
    /// running generation.
    ///
    /// # Errors
    /// The worker's own error; [`EngineErrorCode::Crashed`] when the generation was lost during this exchange or could
    /// not be started in time; [`EngineErrorCode::Quarantined`].
    pub fn exchange(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        make: impl FnOnce(u64, u64) -> (HostMessage, Vec<u8>),
    ) -> Result<Reply, EngineError> {
        let mut lane = lock(&self.lane);
        let key = lane
            .models
            .get(&model.0)
            .map(|known| known.key.clone())
            .ok_or_else(|| unknown_model(model))?;
        self.refuse_quarantined(&key)?;
        self.ensure_worker(&mut lane, ctx)?;
        let remote = self.ensure_loaded(&mut lane, model)?;
        let req_id = self.next_id();
        let (request, raw) = make(req_id, remote);
        let raw = (!raw.is_empty()).then_some(raw.as_slice());
        let reply = self.run(&mut lane, &request, raw, Phase::Inference, &key, ctx.control)?;
        let expected = lane.models.get(&model.0).map(|known| known.loaded.dims);
        match (&reply.message, expected) {
            (WorkerMessage::Vectors { dims: found, .. }, Some(expected)) if *found != expected => {
                let (what, expected, found) = ("values a vector", expected.into(), (*found).into());
                let fault = Fault::Contradiction { what, expected, found };
                Err(self.bury(&mut lane, Lost::by(&fault), Some(&key)))
            }
            _ => Ok(reply),
        }
    }

    /// Asks an idle worker how it is and stamps the answer; a busy one is left alone (HEALTH-06). A worker that died
    /// between requests is noticed here at the latest.
    pub fn refresh(&self) {
        let mut lane = match self.lane.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        lock(&self.shown).status.degraded = lane.deaths.degraded(self.now());
        if lane.worker.is_none() || *lock(&self.stopping) {
            return;
        }
        let request = HostMessage::Ping { req_id: self.next_id() };
        let reply = self.run(
            &mut lane,
            &request,
            None,
            Phase::Inference,
            &ModelKey::new(),
            &Uncancelled,
        );
        if let Ok(Reply {
            message: WorkerMessage::Pong { rss_mb, .. },
            ..
        }) = reply
        {
            let mut shown = lock(&self.shown);
            shown.status.rss_mb = Some(rss_mb);
            shown.status.stamped = Instant::now();
        }
    }

    /// Ends the worker: SHUTDOWN when it is idle or becomes idle within `patience`, the kill otherwise. Nothing starts
    /// after.
    pub fn stop(&self, patience: Duration) {
        *lock(&self.stopping) = true;
        self.stopped.notify_all();
        let end = Instant::now() + patience;
        loop {
            match self.lane.try_lock() {
                Ok(mut lane) => return self.end_worker(&mut lane),
                Err(TryLockError::Poisoned(poisoned)) => return self.end_worker(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => break,
            }
        }
        if let Some(child) = lock(&self.shown).child.clone() {
            lock(&child).kill();
        }
        self.end_worker(&mut lock(&self.lane));
    }

    fn next_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    fn refuse_quarantined(&self, key: &ModelKey) -> Result<(), EngineError> {
        self.quarantine.reason(key).map_or(Ok(()), |reason| {
            let message = format!("quarantined after too many deaths; load the model to try again. The last: {reason}");
            Err(EngineError::new(
                EngineErrorCode::Quarantined,
                EngineState::Usable,
                message,
            ))
        })
    }

    /// Lifts the quarantine of the lane's models and forgives their deaths. False when none was quarantined.
    pub fn pardon(&self) -> bool {
        let lifted = self.quarantine.lift();
        let mut lane = lock(&self.lane);
        for key in &lifted {
            lane.deaths.pardon(key);
        }
        !lifted.is_empty()
    }

    /// Runs one exchange; a fault buries the generation.
    fn run(
        &self,
        lane: &mut Lane,
        request: &HostMessage,
        raw: Option<&[u8]>,
        phase: Phase,
        key: &ModelKey,
        control: &dyn CallControl,
    ) -> Result<Reply, EngineError> {
        let Some(worker) = &mut lane.worker else {
            return Err(crashed(Stage::Exit, "the worker is gone".to_owned(), String::new()));
        };
        let req_id = request_id(request);
        let terms = Terms {
            req_id,
            phase,
            budgets: self.limits.budgets,
            control,
        };
        match exchange::run(&mut worker.connection, request, raw, terms) {
            Ok(reply) => Ok(reply),
            Err(ExchangeError::Engine(error)) if error.state == EngineState::EngineBad => {
                let stage = if error.code == EngineErrorCode::Panic {
                    Stage::Panic
                } else {
                    Stage::Engine
                };
                let reason = error.message;
                Err(self.bury(lane, Lost { stage, reason }, Some(key)))
            }
            Err(ExchangeError::Engine(error)) => Err(error),
            Err(ExchangeError::Fault(fault)) => Err(self.bury(lane, Lost::by(&fault), Some(key))),
        }
    }

    /// Ends a generation after a fault and says what the caller of its exchange is told.
    fn bury(&self, lane: &mut Lane, lost: Lost, key: Option<&ModelKey>) -> EngineError {
        let Lost { stage, reason } = lost;
        let Some(worker) = lane.worker.take() else {
            return crashed(stage, reason, String::new());
        };
        for model in lane.models.values_mut() {
            model.remote = None;
        }
        let ended = {
            let mut child = lock(&worker.child);
            // A worker that ends by itself says how; one that does not is killed.
            let by_itself = matches!(stage, Stage::Exit)
                .then(|| child.wait_for_exit(Duration::from_millis(200)).ok().flatten())
                .flatten();
            child.kill();
            by_itself.or_else(|| child.wait_for_exit(self.limits.exit).ok().flatten())
        };
        if ended.is_none() {
            lane.unconfirmed = Some(Arc::clone(&worker.child));
        }
        worker.words.settle(launch::SETTLE);
        let how = ended.map_or_else(|| "its exit is not confirmed".to_owned(), |status| status.to_string());
        let key = key.filter(|key| !key.is_empty());
        let verdict = lane.deaths.died(lane.generation, key, self.now());
        let message = format!("worker of {} lost: {reason} ({how})", self.bundle);
        tracing::warn!(
            target: "synapse.worker",
            bundle = self.bundle, generation = lane.generation.0, stage = stage.name(), "{message}"
        );
        match verdict {
            Verdict::Stale => {}
            Verdict::Restart { not_before } => lane.not_before = not_before,
            Verdict::Quarantine { not_before } => {
                lane.not_before = not_before;
                if let Some(key) = key {
                    tracing::error!(
                        target: "synapse.worker",
                        bundle = self.bundle, "the model is quarantined in this lane until it is loaded by hand"
                    );
                    self.quarantine.impose(key, &message);
                }
            }
        }
        self.show_death(lane, &message);
        self.restart_later(lane);
        crashed(stage, message, worker.words.text())
    }

    /// Whether a model wants a worker and may have one.
    fn wanted(&self, lane: &Lane) -> bool {
        let mut models = lane.models.values();
        models.any(|model| self.quarantine.reason(&model.key).is_none())
    }

    fn show_death(&self, lane: &Lane, message: &str) {
        let mut shown = lock(&self.shown);
        shown.status.pid = None;
        shown.status.deaths += 1;
        shown.status.degraded = lane.deaths.degraded(self.now());
        shown.status.last_fault = Some(message.to_owned());
        shown.status.stamped = Instant::now();
        shown.words = None;
        shown.child = None;
    }

    /// Starts the next generation in the background, unless a call does it first.
    fn restart_later(&self, lane: &Lane) {
        let Some(me) = self
            .me
            .upgrade()
            .filter(|_| self.wanted(lane) && !*lock(&self.stopping))
        else {
            return;
        };
        let wait = Duration::from_nanos(lane.not_before.since(self.now()));
        let restart = self.tasks.thread("worker-restart", move || {
            if me.wait_unless_stopping(wait) {
                let ctx = CallContext {
                    request_id: 0,
                    remaining: None,
                    threads: 1,
                    control: &Uncancelled,
                };
                let mut lane = lock(&me.lane);
                if lane.worker.is_none()
                    && me.wanted(&lane)
                    && let Err(error) = me.ensure_worker(&mut lane, &ctx)
                {
                    tracing::warn!(target: "synapse.worker", bundle = me.bundle, "restart failed: {error}");
                }
            }
        });
        if let Err(error) = restart {
            tracing::warn!(target: "synapse.worker", bundle = self.bundle, "no thread for the restart: {error}");
        }
    }

    /// Waits; false when the daemon stops meanwhile.
    fn wait_unless_stopping(&self, wait: Duration) -> bool {
        let stopping = lock(&self.stopping);
        let (stopping, _) = self
            .stopped
            .wait_timeout_while(stopping, wait, |stopping| !*stopping)
            .unwrap_or_else(PoisonError::into_inner);
        !*stopping
    }

    /// Makes sure that a worker runs and has the lane's models.
    fn ensure_worker(&self, lane: &mut Lane, ctx: &CallContext<'_>) -> Result<(), EngineError> {
        if *lock(&self.stopping) {
            return Err(crashed(
                Stage::Start,
                "the daemon is stopping".to_owned(),
                String::new(),
            ));
        }
        if let Some(worker) = &mut lane.worker {
            // Nothing was sent yet: the death is counted for nobody, and this call goes to the next generation.
            match worker.connection.expect_quiet() {
                Ok(()) => return Ok(()),
                Err(Fault::Closed) => {
                    let (stage, reason) = (Stage::Exit, "it ended between requests".to_owned());
                    self.bury(lane, Lost { stage, reason }, None);
                }
                Err(fault) => drop(self.bury(lane, Lost::by(&fault), None)),
            }
        }
        if let Some(child) = &lane.unconfirmed {
            let ended = lock(child).wait_for_exit(self.limits.exit).ok().flatten();
            if ended.is_none() {
                let message = format!("the exit of the last worker of {} is not confirmed", self.bundle);
                return Err(crashed(Stage::Exit, message, String::new()));
            }
            lane.unconfirmed = None;
        }
        self.wait_for_backoff(lane, ctx)?;
        lane.generation = Generation(lane.generation.0 + 1);
        let worker_id = format!("{}-{}", self.name, lane.generation.0);
        match launch::launch(&self.plan, &worker_id, &self.tasks) {
            Ok(worker) => {
                tracing::info!(
                    target: "synapse.worker",
                    bundle = self.bundle, generation = lane.generation.0, pid = worker.pid, "worker started"
                );
                let mut shown = lock(&self.shown);
                shown.status.generation = lane.generation.0;
                shown.status.pid = Some(worker.pid);
                shown.status.stamped = Instant::now();
                shown.words = Some(Arc::clone(&worker.words));
                shown.child = Some(Arc::clone(&worker.child));
                drop(shown);
                lane.worker = Some(worker);
            }
            Err(error) => return Err(self.launch_failed(lane, &error)),
        }
        let models: Vec<(ModelRef, ModelKey)> = lane
            .models
            .iter()
            .map(|(model, known)| (ModelRef(*model), known.key.clone()))
            .collect();
        for (model, key) in models {
            if self.quarantine.reason(&key).is_some() {
                continue;
            }
            // A model that does not load again is told to its own callers; a fault ends this generation.
            if self.ensure_loaded(lane, model).is_err() && lane.worker.is_none() {
                return Err(crashed(
                    Stage::Start,
                    "the worker was lost while it loaded again".to_owned(),
                    String::new(),
                ));
            }
        }
        Ok(())
    }

    fn launch_failed(&self, lane: &mut Lane, error: &LaunchError) -> EngineError {
        let words = match error {
            LaunchError::Ended { words, .. } => words.clone(),
            _ => String::new(),
        };
        let message = format!("worker of {} did not start: {error}", self.bundle);
        tracing::error!(target: "synapse.worker", bundle = self.bundle, "{message}");
        if let Verdict::Restart { not_before } | Verdict::Quarantine { not_before } =
            lane.deaths.died(lane.generation, None, self.now())
        {
            lane.not_before = not_before;
        }
        self.show_death(lane, &message);
        crashed(Stage::Start, message, words)
    }

    fn wait_for_backoff(&self, lane: &Lane, ctx: &CallContext<'_>) -> Result<(), EngineError> {
        let wait = Duration::from_nanos(lane.not_before.since(self.now()));
        if ctx.remaining.is_some_and(|remaining| remaining < wait) {
            let message = format!("the worker of {} starts again in {} ms", self.bundle, wait.as_millis());
            return Err(crashed(Stage::Start, message, String::new()));
        }
        if self.wait_unless_stopping(wait) {
            Ok(())
        } else {
            Err(crashed(
                Stage::Start,
                "the daemon is stopping".to_owned(),
                String::new(),
            ))
        }
    }

    /// Loads a model into the running generation. Not even its caller's cancellation ends that: the next one wants it.
    fn ensure_loaded(&self, lane: &mut Lane, model: ModelRef) -> Result<u64, EngineError> {
        let known = lane.models.get(&model.0).ok_or_else(|| unknown_model(model))?;
        if let Some(remote) = known.remote {
            return Ok(remote);
        }
        let (key, request) = (known.key.clone(), known.request.clone());
        let (remote, _) = self.load_remote(lane, &key, &request, &Uncancelled)?;
        if let Some(known) = lane.models.get_mut(&model.0) {
            known.remote = Some(remote);
        }
        Ok(remote)
    }

    fn load_remote(
        &self,
        lane: &mut Lane,
        key: &ModelKey,
        request: &LoadRequest,
        control: &dyn CallControl,
    ) -> Result<(u64, LoadedModel), EngineError> {
        let LoadRequest {
            engine,
            files,
            runtime_config,
        } = request.clone();
        let message = HostMessage::Load {
            req_id: self.next_id(),
            engine,
            files,
            runtime_config,
        };
        let reply = self.run(lane, &message, None, Phase::Setup, key, control)?;
        let WorkerMessage::Loaded {
            model_ref,
            dims,
            max_tokens,
            memory_bytes,
            ..
        } = reply.message
        else {
            return Err(crashed(
                Stage::Protocol,
                "LOAD was not answered by LOADED".to_owned(),
                String::new(),
            ));
        };
        let loaded = LoadedModel {
            model: ModelRef(0),
            dims,
            max_tokens,
            // One exchange at a time (WPROTO-16); more concurrency is more workers.
            max_concurrency: 1,
            memory_bytes,
            extra: Vec::new(),
        };
        Ok((model_ref, loaded))
    }

    /// Ends an idle worker in order, or by force after the bound.
    fn end_worker(&self, lane: &mut Lane) {
        let Some(mut worker) = lane.worker.take() else {
            return;
        };
        for model in lane.models.values_mut() {
            model.remote = None;
        }
        let asked = worker
            .connection
            .send(&HostMessage::Shutdown {}.to_payload(), None, self.limits.exit)
            .is_ok();
        let mut child = lock(&worker.child);
        let ended = asked
            .then(|| child.wait_for_exit(self.limits.exit).ok().flatten())
            .flatten();
        if ended.is_some() {
            tracing::info!(
                target: "synapse.worker",
                bundle = self.bundle, generation = lane.generation.0, "worker ended in order"
            );
        } else {
            child.kill();
            if child.wait_for_exit(self.limits.exit).ok().flatten().is_none() {
                lane.unconfirmed = Some(Arc::clone(&worker.child));
            }
        }
        let mut shown = lock(&self.shown);
        shown.status.pid = None;
        shown.status.stamped = Instant::now();
        shown.words = None;
        shown.child = None;
    }
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor")
            .field("bundle", &self.bundle)
            .field("status", &self.status())
            .finish()
    }
}

const fn request_id(message: &HostMessage) -> u64 {
    match message {
        HostMessage::HelloAck { .. } | HostMessage::Shutdown {} => 0,
        HostMessage::Load { req_id, .. }
        | HostMessage::EmbedBatch { req_id, .. }
        | HostMessage::Rerank { req_id, .. }
        | HostMessage::Generate { req_id, .. }
        | HostMessage::Cancel { req_id }
        | HostMessage::Unload { req_id, .. }
        | HostMessage::Ping { req_id } => *req_id,
    }
}

fn unknown_model(model: ModelRef) -> EngineError {
    let message = format!("model {} is not loaded in this worker", model.0);
    EngineError::new(EngineErrorCode::InvalidArgument, EngineState::Usable, message)
}

fn crashed(stage: Stage, message: String, last_words: String) -> EngineError {
    EngineError {
        crash: Some(Box::new(Crash {
            stage: stage.name(),
            last_words,
        })),
        ..EngineError::new(EngineErrorCode::Crashed, EngineState::Usable, message)
    }
}
