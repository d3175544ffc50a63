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
//! This file runs the exchanges; [`generation`] starts and ends processes (2, 4); [`models`] is what a generation loads;
//! [`status`] is what `health` shows.
//!
//! State: the lane. Callers: [`super::engine`], the daemon's refresher and its shutdown. Not known here: what the
//! exchanges compute.

mod generation;
mod models;
mod status;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use synapse_core::engine::{
    CallContext, CallControl, Crash, EngineError, EngineErrorCode, EngineState, Flow, LoadedModel, ModelRef,
};
use synapse_core::schedule::Tick;
use synapse_core::supervision::crash::{CrashBudget, CrashLimits, Generation};
use synapse_core::supervision::exchange::{Budgets, Phase};
use synapse_loader::process::Child;
use synapse_wire::worker::{HostMessage, WorkerMessage};

use generation::Lost;
use models::Models;
use status::Shown;

use super::exchange::{self, ExchangeError, Reply, Terms};
use super::fault::{Fault, Stage};
use super::launch::{Plan, Worker};
use crate::task::Tasks;

pub use models::{LoadRequest, ModelKey};
pub use status::Status;

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

/// Where the quarantined pairs of one lane are kept across restarts (OQ-8).
pub trait Quarantine: Send + Sync {
    /// Why the pair is quarantined, if it is.
    fn reason(&self, key: &ModelKey) -> Option<String>;
    /// Quarantines the pair.
    fn impose(&self, key: &ModelKey, reason: &str);
    /// Sets every quarantine of the lane aside for a trial; a pair that is imposed meanwhile ends it. False where there
    /// is none.
    fn set_aside(&self) -> bool;
    /// Ends a trial: nothing is set aside any more.
    fn put_back(&self);
    /// Lifts every quarantine of the lane, and names the pairs.
    fn lift(&self) -> Vec<ModelKey>;
}

struct Lane {
    worker: Option<Worker>,
    /// A killed process whose exit was not seen yet.
    unconfirmed: Option<Arc<Mutex<Child>>>,
    generation: Generation,
    deaths: CrashBudget<ModelKey>,
    /// The earliest start of the next generation.
    not_before: Tick,
    models: Models,
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
    shown: Shown,
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
        let lane = Lane {
            worker: None,
            unconfirmed: None,
            generation: Generation(0),
            deaths: CrashBudget::new(limits.crash.clone()),
            not_before: Tick(0),
            models: Models::default(),
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
            shown: Shown::new(),
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
        self.shown.read()
    }

    /// Bytes that the lane's models hold.
    #[must_use]
    pub fn model_bytes(&self) -> u64 {
        match self.lane.try_lock() {
            Ok(lane) => lane.models.bytes(),
            Err(_) => 0,
        }
    }

    /// Whether a model is loaded, or a call runs.
    #[must_use]
    pub fn holds_models(&self) -> bool {
        self.lane.try_lock().map_or(true, |lane| !lane.models.is_empty())
    }

    /// Loads a model, starting the worker if there is none.
    ///
    /// # Errors
    /// The worker's refusal, [`EngineErrorCode::Crashed`], or [`EngineErrorCode::Quarantined`].
    pub fn load(&self, ctx: &CallContext<'_>, key: ModelKey, request: LoadRequest) -> Result<LoadedModel, EngineError> {
        self.refuse_quarantined(&key)?;
        let mut lane = lock(&self.lane);
        self.ensure_worker(&mut lane, ctx)?;
        let loaded = self.load_remote(&mut lane, &key, &request, ctx.control)?;
        Ok(lane.models.keep(key, request, loaded))
    }

    /// Forgets a model; ends the worker when it was the last one.
    ///
    /// # Errors
    /// [`EngineErrorCode::InvalidArgument`] for an unknown model.
    pub fn unload(&self, model: ModelRef) -> Result<(), EngineError> {
        let mut lane = lock(&self.lane);
        let gone = lane.models.remove(model)?;
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
        let (key, dims) = {
            let known = lane.models.get(model)?;
            (known.key.clone(), known.loaded.dims)
        };
        self.refuse_quarantined(&key)?;
        self.ensure_worker(&mut lane, ctx)?;
        let remote = self.ensure_loaded(&mut lane, model)?;
        let req_id = self.next_id();
        let (request, raw) = make(req_id, remote);
        let raw = (!raw.is_empty()).then_some(raw.as_slice());
        let reply = self.run(&mut lane, &request, raw, Phase::Inference, &key, ctx.control)?;
        match &reply.message {
            WorkerMessage::Vectors { dims: found, .. } if *found != dims => {
                let (what, expected, found) = ("values a vector", dims.into(), (*found).into());
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
        self.shown.set_degraded(lane.deaths.degraded(self.now()));
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
            self.shown.answered(rss_mb);
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
        if let Some(child) = self.shown.child() {
            lock(&child).kill();
        }
        self.end_worker(&mut lock(&self.lane));
    }

    fn next_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    fn refuse_quarantined(&self, key: &ModelKey) -> Result<(), EngineError> {
        self.quarantine.reason(key).map_or(Ok(()), |reason| {
            let message = format!(
                "quarantined after too many deaths; `synapse probe run` with the lane's name tries it again. The last: \
                 {reason}"
            );
            Err(EngineError::new(
                EngineErrorCode::Quarantined,
                EngineState::Usable,
                message,
            ))
        })
    }

    /// Lets the lane's quarantined models be tried by a probe (ERR-13). False when none is quarantined.
    pub fn begin_trial(&self) -> bool {
        self.quarantine.set_aside()
    }

    /// Ends the trial: lifts the quarantine and forgives the deaths where the models have `passed`, and puts it back
    /// otherwise.
    pub fn end_trial(&self, passed: bool) {
        if !passed {
            return self.quarantine.put_back();
        }
        let lifted = self.quarantine.lift();
        let mut lane = lock(&self.lane);
        for key in &lifted {
            lane.deaths.pardon(key);
        }
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
        let req_id = request.req_id().unwrap_or_default();
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

    /// Loads a model into the running generation. Not even its caller's cancellation ends that: the next one wants it.
    fn ensure_loaded(&self, lane: &mut Lane, model: ModelRef) -> Result<u64, EngineError> {
        let known = lane.models.get(model)?;
        if let Some(remote) = known.remote {
            return Ok(remote);
        }
        let (key, request) = (known.key.clone(), known.request.clone());
        let (remote, _) = self.load_remote(lane, &key, &request, &Uncancelled)?;
        lane.models.set_remote(model, remote);
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
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor")
            .field("bundle", &self.bundle)
            .field("status", &self.status())
            .finish()
    }
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
