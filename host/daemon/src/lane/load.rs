//! Loading and unloading: the control work of a lane (API-19, SCHED-07..10).
//!
//! State: none; the lane's state moves as the work begins and ends. Callers: `model.load`, `model.unload`, admission
//! (which starts a load and never waits for it), residency. Files are measured and the tokenizer is
//! read before any engine lock is taken (SCHED-08); the engine serialises its own control calls. Not known here: what
//! a request wants.
//!
//! A load, step by step: its turn; the files measured again behind leases; the tokenizer; room made; the engine
//! opened and its identity compared; the engine's own load; what it gave compared with the record; threads started.
//! A failure at any step undoes the steps before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use synapse_core::engine::{
    CallContext, CallControl, EngineError, EngineErrorCode, EngineKind, EngineState, Flow, LoadedModel, Preempt,
};
use synapse_core::schedule::LaneLimits;
use synapse_wire::client::{ErrorCode, LoadOutcome};
use tokio_util::sync::CancellationToken;

use super::loaded::{Loaded, TextSeen};
use super::state::{LaneEvent, LaneState};
use super::{Lane, profile, residency};
use crate::job::{JobHandle, JobId, JobKind, JobResult};
use crate::plugins::EngineSlot;
use crate::rpc::convert::{self, Stage};
use crate::rpc::error::ServiceError;
use crate::schedule::{Executor, ExecutorConfig};
use crate::state::Daemon;
use crate::text::TextError;

/// A load without a caller who waits still ends: engines get this much time.
const LOAD_DEADLINE: Duration = Duration::from_secs(600);

/// Starts the load of a lane as a job, or returns the job that is already at it (one load per lane at a time). The job is on
/// the disk when this answers.
///
/// # Errors
/// The registry of jobs has no room, the disk takes nothing, or the daemon stops.
pub async fn start(daemon: &Arc<Daemon>, lane: &Arc<Lane>) -> Result<JobId, ServiceError> {
    let (work_daemon, work_lane) = (Arc::clone(daemon), Arc::clone(lane));
    let work = move |job| run(work_daemon, work_lane, job);
    daemon.jobs.start(JobKind::ModelLoad, &lane.name, work).await
}

/// [`start`], for a request that needs the lane: it does not depend on the disk.
///
/// # Errors
/// The registry of jobs has no room, or the daemon stops.
pub async fn start_implied(daemon: &Arc<Daemon>, lane: &Arc<Lane>) -> Result<JobId, ServiceError> {
    let (work_daemon, work_lane) = (Arc::clone(daemon), Arc::clone(lane));
    let work = move |job| run(work_daemon, work_lane, job);
    daemon.jobs.start_implied(JobKind::ModelLoad, &lane.name, work).await
}

/// The load, as the work of a job.
///
/// # Errors
/// What stopped the load; permanent, unless it was cancelled or may pass (ERR-06).
pub async fn run(daemon: Arc<Daemon>, lane: Arc<Lane>, job: JobHandle) -> Result<JobResult, ServiceError> {
    let lanes = daemon.lanes.clone();
    let _turn = tokio::select! {
        biased;
        () = job.cancel().cancelled() => return Err(ServiceError::cancelled()),
        turn = lanes.inner.turn.lock() => turn,
    };
    loop {
        tokio::select! {
            biased;
            () = job.cancel().cancelled() => return Err(ServiceError::cancelled()),
            () = lane.settled() => {}
        }
        if !unload_if(&daemon, &lane, Loaded::is_given_up).await? {
            break;
        }
    }
    match lane.held() {
        super::Standing::Ready(loaded) => return Ok(outcome(&lane, &loaded)),
        // An engine that is closed stays closed, whatever the lane says.
        super::Standing::Failed(failure) if lane.place().state == LaneState::Ready => return Err(failure),
        _ => {}
    }
    if !lane.on(LaneEvent::LoadBegins, None, None) {
        return Err(ServiceError::model_loading(format!(
            "{} is being unloaded; try again",
            lane.name
        )));
    }
    // Beside the measuring of the files, not after it: `load` finds what this read.
    drop(daemon.tasks.blocking("tokenizer", {
        let (daemon, lane) = (Arc::clone(&daemon), Arc::clone(&lane));
        move || drop(daemon.models.tokenizer(&lane.installed))
    }));
    let blocking = daemon.tasks.blocking("model-load", {
        let (daemon, lane, job) = (Arc::clone(&daemon), Arc::clone(&lane), job.clone());
        move || load(&daemon, &lane, &job)
    });
    let loaded = blocking.await.map_err(ServiceError::from).and_then(|loaded| loaded);
    match loaded {
        Ok(loaded) => {
            let loaded = Arc::new(loaded);
            lane.on(LaneEvent::LoadDone, Some(Arc::clone(&loaded)), None);
            lane.touch();
            tracing::info!(target: "synapse", lane = lane.name, "model loaded");
            Ok(outcome(&lane, &loaded))
        }
        Err(failure) => {
            let passing =
                failure.class() == synapse_wire::client::Class::Transient || *failure.code() == ErrorCode::Cancelled;
            if passing {
                lane.on(LaneEvent::LoadDropped, None, None);
            } else {
                lane.on(LaneEvent::LoadFailed, None, Some(failure.clone()));
            }
            Err(failure)
        }
    }
}

fn outcome(lane: &Lane, loaded: &Loaded) -> JobResult {
    JobResult::Load(LoadOutcome {
        model: lane.record.id.clone(),
        lane: lane.name.clone(),
        fingerprint: lane.fingerprint(lane.default_shape()).to_string(),
        memory_bytes: loaded.model.memory_bytes,
        load_ms: u64::try_from(loaded.load_time.as_millis()).unwrap_or(u64::MAX),
    })
}

/// The load itself. Blocks.
fn load(daemon: &Arc<Daemon>, lane: &Lane, job: &JobHandle) -> Result<Loaded, ServiceError> {
    let began = Instant::now();
    let size = lane.installed.size();
    job.progress("verify", 0, Some(size), "bytes");
    let artifact = daemon.models.verified(&lane.installed, job.cancel())?;
    let tokenizer = daemon.models.tokenizer(&lane.installed)?;
    if lane.kind() == EngineKind::Rerank && !tokenizer.has_pairs() {
        return Err(TextError::NoPairs.into());
    }
    let templates = profile::templates(&lane.record)?;
    let chat = daemon.models.chat(&lane.installed, &lane.record)?;
    job.progress("verify", size, Some(size), "bytes");
    if job.cancel().is_cancelled() {
        return Err(ServiceError::cancelled());
    }

    residency::make_room(daemon, lane, size)?;
    let engine = daemon.plugins.engine(lane.kind(), &lane.bundle, &lane.name)?;
    let failed = |error: EngineError| load_failure(lane, &error);
    let identity = engine.identity().map_err(failed)?;
    if identity != lane.profile.engine {
        return Err(ServiceError::plugin_refused(format!(
            "the bundle `{}` described its engine as {:?} and now says {identity:?}: its vectors would carry the wrong \
             fingerprint; install a repaired version",
            lane.bundle.id, lane.profile.engine,
        ))
        .detail(|detail| {
            detail.plugin = Some(lane.bundle.id.clone());
            detail.reason = Some("identity_changed".to_owned());
        }));
    }

    let config = lane.runtime_config(daemon.threads_per_call);
    job.progress("load", 0, None, "bytes");
    let control = LoadControl {
        job,
        cancel: job.cancel().clone(),
        deadline: began + LOAD_DEADLINE,
    };
    let ctx = CallContext {
        request_id: 0,
        remaining: Some(LOAD_DEADLINE),
        threads: daemon.threads_per_call,
        control: &control,
    };
    let model = engine.load(&ctx, artifact.artifact(), &config).map_err(failed)?;
    match start_lane(daemon, lane, &engine, &model) {
        Ok(executor) => Ok(Loaded {
            engine,
            model,
            executor,
            tokenizer,
            templates,
            chat,
            artifact,
            load_time: began.elapsed(),
            given_up: Arc::default(),
            seen: TextSeen::default(),
        }),
        Err(failure) => {
            // The lane does not come to be; what the engine holds for it goes.
            let _ = engine.unload(model.model);
            Err(failure)
        }
    }
}

/// Compares what the engine gave with what the catalog promises, and starts the lane's threads.
fn start_lane(
    daemon: &Daemon,
    lane: &Lane,
    engine: &EngineSlot,
    model: &LoadedModel,
) -> Result<Executor, ServiceError> {
    let bounds = lane.row.bounds;
    // Only vectors have a length.
    let other_dims = lane.kind() == EngineKind::Embed && model.dims != lane.record.dims;
    if other_dims || model.max_tokens < bounds.max_tokens {
        return Err(ServiceError::artifact_invalid(format!(
            "the engine `{}` loaded {} with {} dimensions and {} tokens; the record says {} and the catalog's row {}",
            engine.bundle(),
            lane.record.id,
            model.dims,
            model.max_tokens,
            lane.record.dims,
            bounds.max_tokens,
        ))
        .detail(|detail| detail.model = Some(lane.record.id.clone())));
    }
    let schedule = &daemon.config.schedule;
    let limits = LaneLimits {
        slots: slots(model.max_concurrency),
        threads: daemon.threads_per_call,
        preempt: preempt(lane, engine),
        interactive_depth: schedule.max_interactive_waiting,
        bulk_depth: schedule.max_bulk_waiting,
        bytes: schedule.lane_byte_budget,
        ..LaneLimits::default()
    };
    let config = ExecutorConfig {
        name: lane.name.clone(),
        limits,
    };
    Executor::start(&daemon.tasks, &daemon.compute, config)
        .map_err(|error| ServiceError::internal(format!("the lane's threads could not be started: {error}")))
}

/// How a call of the lane gives way. One in a worker goes on while its checkpoint is held here: it cannot.
pub(crate) fn preempt(lane: &Lane, engine: &EngineSlot) -> Preempt {
    match engine.supervisor() {
        Some(_) => Preempt::Quantum,
        None => lane.support.preempt,
    }
}

/// Calls that run at once: what the engine allows, as far as the machine has cores; two where it allows two, so that
/// one slot stays free for queries.
fn slots(max_concurrency: u32) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let most = u32::try_from(cores).unwrap_or(u32::MAX).max(2);
    max_concurrency.clamp(1, most)
}

/// A load's failure: permanent, unless it was cancelled (ERR-06).
fn load_failure(lane: &Lane, error: &EngineError) -> ServiceError {
    let failure = convert::engine(error, Stage::Load);
    if error.code == EngineErrorCode::Cancelled {
        return failure;
    }
    failure.permanent().detail(|detail| {
        detail.lane = Some(lane.name.clone());
        detail.plugin = Some(lane.bundle.id.clone());
    })
}

/// Unloads a lane: what runs is finished, what waits is answered, then the engine forgets the model. False when it was
/// not loaded.
///
/// # Errors
/// The daemon stops, or a defect; the model is gone in any case.
pub async fn unload(daemon: &Arc<Daemon>, lane: &Arc<Lane>) -> Result<bool, ServiceError> {
    unload_if(daemon, lane, |_| true).await
}

/// [`unload`], if the loaded model is one that `leaves`.
async fn unload_if(daemon: &Arc<Daemon>, lane: &Arc<Lane>, leaves: fn(&Loaded) -> bool) -> Result<bool, ServiceError> {
    let lane = Arc::clone(lane);
    Ok(daemon
        .tasks
        .blocking("model-unload", move || unload_now(&lane, leaves))
        .await?)
}

/// What an engine's error leaves behind: a model that must go is unloaded in the background, and the next request
/// starts a fresh load. A closed engine needs nothing: its slot refuses every call from here on.
pub fn after_failure(daemon: &Arc<Daemon>, lane: &Arc<Lane>, error: &EngineError) {
    if error.state != EngineState::ModelBad {
        return;
    }
    tracing::warn!(target: "synapse", lane = lane.name, %error, "the engine gave the model up; unloading it");
    let (daemon, lane) = (Arc::clone(daemon), Arc::clone(lane));
    let tasks = daemon.tasks.clone();
    drop(tasks.spawn("model-unload", async move {
        // A failure is a stopping daemon.
        let _ = unload_if(&daemon, &lane, Loaded::is_given_up).await;
    }));
}

/// Ends every lane and tells the bundles that the process ends. Blocks until running calls have seen their
/// cancellation; an engine that does not look leaves this thread behind.
pub fn end(daemon: &Daemon) {
    daemon.lanes.close();
    // Calls that were cancelled may end by themselves first; what does not must not hold up the lanes' ends.
    daemon
        .plugins
        .stop_workers(Duration::from_millis(daemon.config.shutdown.cancel_ms / 2));
    for lane in daemon.lanes.all() {
        unload_now(&lane, |_| true);
    }
    daemon.plugins.shutdown();
}

/// [`unload_if`] on this thread. Blocks until running calls have ended.
pub(super) fn unload_now(lane: &Lane, leaves: fn(&Loaded) -> bool) -> bool {
    let Some(loaded) = lane.begin_unload(leaves) else {
        return false;
    };
    loaded.executor.close("its model was unloaded", false);
    loaded.executor.join();
    if let Err(error) = loaded.engine.unload(loaded.model.model) {
        tracing::warn!(target: "synapse", lane = lane.name, %error, "the engine did not unload the model cleanly");
    }
    drop(loaded);
    lane.on(LaneEvent::UnloadDone, None, None);
    tracing::info!(target: "synapse", lane = lane.name, "model unloaded");
    true
}

/// The host's side of a load: progress into the job, its cancellation, its deadline.
struct LoadControl<'a> {
    job: &'a JobHandle,
    cancel: CancellationToken,
    deadline: Instant,
}

impl CallControl for LoadControl<'_> {
    fn cancelled(&self) -> bool {
        self.cancel.is_cancelled() || Instant::now() >= self.deadline
    }

    fn checkpoint(&self, done: u64, total: u64) -> Flow {
        self.job.progress("load", done, (total > 0).then_some(total), "bytes");
        if self.cancelled() { Flow::Cancel } else { Flow::Continue }
    }
}
