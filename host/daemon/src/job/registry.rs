//! The registry of jobs: who runs, who waits, who has ended and how.
//!
//! State: one entry per job that is queued, running, or remembered. Callers: `job/mod.rs`. Not known here: the work.
//! Bounds: so many live jobs, so many pulls and loads that run at once, so many finished ones for so long (config `jobs`).
//! Jobs over texts wait for no turn: their lane shares itself out between them, a quantum at a time.
//!
//! Work without texts is kept here (`record.rs`): its row is on the disk before it is accepted, and so is its end before it
//! is shown (JOB-01). Jobs over texts keep themselves.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use synapse_core::job::{JobEvent, JobState};
use synapse_wire::client as wire;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::table::{Entry, Kept, NewEntry, Table, now_ms};
use super::{JobHandle, JobId, JobKind, JobResult};
use crate::config::JobsConfig;
use crate::rpc::error::ServiceError;
use crate::store::Store;
use crate::task::{Tasks, observed};

/// The registry. Cheap to clone; every clone is the same registry.
#[derive(Clone)]
pub struct Jobs {
    inner: Arc<Inner>,
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

struct Inner {
    tasks: Tasks,
    limits: JobsConfig,
    store: Store,
    turns: Turns,
    table: Mutex<Table>,
    /// The number of live jobs, for those who wait for the end.
    live: watch::Sender<usize>,
}

/// One permit per job of a kind that may run at once. A kind waits for its own only: a probe waits for loads, and no pull
/// holds up a load.
struct Turns {
    pulls: Arc<Semaphore>,
    loads: Arc<Semaphore>,
    probes: Arc<Semaphore>,
}

impl Turns {
    fn new(most: usize) -> Self {
        Self {
            pulls: Arc::new(Semaphore::new(most)),
            loads: Arc::new(Semaphore::new(most)),
            // A probe measures time: beside another one it would measure that too.
            probes: Arc::new(Semaphore::new(1)),
        }
    }

    /// The turns that a job of this kind waits for.
    fn of(&self, kind: JobKind) -> Option<Arc<Semaphore>> {
        match kind {
            JobKind::ModelPull => Some(Arc::clone(&self.pulls)),
            JobKind::ModelLoad => Some(Arc::clone(&self.loads)),
            JobKind::Probe => Some(Arc::clone(&self.probes)),
            JobKind::EmbedBatch | JobKind::RerankScore | JobKind::Unknown => None,
        }
    }
}

/// How a job ended.
pub(super) struct End {
    pub(super) event: JobEvent,
    pub(super) error: Option<ServiceError>,
    pub(super) result: Option<JobResult>,
}

impl End {
    fn of(outcome: Result<Option<JobResult>, ServiceError>) -> Self {
        let (event, error, result) = match outcome {
            Ok(result) => (JobEvent::Finish, None, result),
            Err(error) if *error.code() == wire::ErrorCode::Cancelled => (JobEvent::Cancel, Some(error), None),
            Err(error) if error.class() == wire::Class::Transient => (JobEvent::FailTransient, Some(error), None),
            Err(error) => (JobEvent::FailPermanent, Some(error), None),
        };
        Self { event, error, result }
    }
}

impl Jobs {
    /// An empty registry that keeps its work in `store`.
    #[must_use]
    pub fn new(tasks: Tasks, store: Store, limits: &JobsConfig) -> Self {
        let limits = limits.clone();
        let (live, _) = watch::channel(0);
        Self {
            inner: Arc::new(Inner {
                tasks,
                turns: Turns::new(limits.max_running),
                limits,
                store,
                table: Mutex::default(),
                live,
            }),
        }
    }

    /// The table; a panic elsewhere never makes the registry useless, because every change under the lock is complete.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts `work` as a job, or returns the live job of the same kind and model when there is one. It is on the disk
    /// when this answers. `work` runs when its turn comes; it should end soon after [`JobHandle::cancel`] fires.
    ///
    /// # Errors
    /// `queue_full` when as many jobs are live as may be, `shutting_down` when the daemon stops, `storage_failed` when the
    /// disk takes nothing; nothing has begun then.
    pub async fn start<F, W>(&self, kind: JobKind, model: &str, work: W) -> Result<JobId, ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<JobResult, ServiceError>> + Send + 'static,
    {
        let (id, mut kept) = self.start_work(kind, model, true, work)?;
        match decided(&mut kept).await? {
            Kept::No(error) => Err(error),
            Kept::NotYet | Kept::Yes => Ok(id),
        }
    }

    /// As [`Self::start`], for work that nobody asked for by name: where the disk takes nothing it goes on all the same,
    /// and is not remembered after a restart.
    ///
    /// # Errors
    /// As [`Self::start`], except that a full disk is none, unless the live job of the same kind and model ended by it.
    pub async fn start_implied<F, W>(&self, kind: JobKind, model: &str, work: W) -> Result<JobId, ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<JobResult, ServiceError>> + Send + 'static,
    {
        let (id, mut kept) = self.start_work(kind, model, false, work)?;
        match decided(&mut kept).await? {
            Kept::No(error) if self.status(id.as_str()).is_err() => Err(error),
            _ => Ok(id),
        }
    }

    /// The live job of this kind and model, or a new one whose task keeps it first.
    fn start_work<F, W>(
        &self,
        kind: JobKind,
        model: &str,
        must_be_kept: bool,
        work: W,
    ) -> Result<(JobId, watch::Receiver<Kept>), ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<JobResult, ServiceError>> + Send + 'static,
    {
        let mut table = self.table();
        let same = |entry: &&Entry| entry.kind == kind && entry.model == model && !entry.state.is_terminal();
        if let Some(entry) = table.entries.values().find(same)
            && !entry.cancel.is_cancelled()
        {
            return match table.closed {
                true => Err(ServiceError::shutting_down()),
                false => Ok((entry.id.clone(), entry.kept.clone())),
            };
        }
        table.has_room(&self.inner.limits)?;
        let (keep, kept) = watch::channel(Kept::NotYet);
        let new = NewEntry {
            id: JobId::new(self.inner.store.generation(), table.next),
            kind,
            model: model.to_owned(),
            created_ms: now_ms(),
            progress: wire::JobProgress::default(),
            kept: kept.clone(),
        };
        let handle = self.accept(table, new);
        let (id, jobs) = (handle.id.clone(), self.clone());
        let kept_then_run = async move {
            if jobs.keep(&handle, must_be_kept, &keep).await {
                jobs.run(handle, true, |handle| async move { work(handle).await.map(Some) })
                    .await;
            }
        };
        drop(self.inner.tasks.spawn(format!("job {id}"), kept_then_run));
        Ok((id, kept))
    }

    /// Accepts the work of a job that the store keeps under `id`, and that records its own states there. `progress` is what
    /// it begins with. Its end has no result of its own.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_kept<F, W>(
        &self,
        id: &str,
        kind: JobKind,
        model: &str,
        created_ms: u64,
        progress: wire::JobProgress,
        work: W,
    ) -> Result<(), ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<Option<JobResult>, ServiceError>> + Send + 'static,
    {
        let mut table = self.table();
        table.has_room(&self.inner.limits)?;
        let new = NewEntry {
            id: JobId(id.to_owned()),
            kind,
            model: model.to_owned(),
            created_ms,
            progress,
            kept: watch::channel(Kept::Yes).1,
        };
        let handle = self.accept(table, new);
        let running = self.clone().run(handle, false, work);
        drop(self.inner.tasks.spawn(format!("job {id}"), running));
        Ok(())
    }

    /// A name for a job that the store will keep.
    #[must_use]
    pub fn reserve_id(&self) -> JobId {
        JobId::new(self.inner.store.generation(), self.table().number())
    }

    /// Whether another job would be accepted now.
    ///
    /// # Errors
    /// `queue_full` or `shutting_down`, as for [`Self::start`].
    pub fn check_room(&self) -> Result<(), ServiceError> {
        self.table().has_room(&self.inner.limits)
    }

    /// Puts a job into the table.
    fn accept(&self, table: MutexGuard<'_, Table>, new: NewEntry) -> JobHandle {
        let mut table = table;
        let sequence = table.number();
        let cancel = CancellationToken::new();
        tracing::info!(target: "synapse", job_id = %new.id, kind = new.kind.as_str(), model = new.model, "job accepted");
        let handle = JobHandle {
            id: new.id.clone(),
            kind: new.kind,
            model: new.model.clone(),
            created_ms: new.created_ms,
            cancel: cancel.clone(),
            jobs: self.clone(),
        };
        let entry = Entry {
            id: new.id,
            kind: new.kind,
            model: new.model,
            state: JobState::Queued,
            progress: new.progress,
            waits_for: None,
            estimated_ms: None,
            kept: new.kept,
            created_ms: new.created_ms,
            updated_ms: new.created_ms,
            ended: None,
            error: None,
            result: None,
            cancel,
        };
        table.entries.insert(sequence, entry);
        self.inner.live.send_replace(table.live());
        handle
    }

    /// Forgets a job that the disk did not take, as if it had never been.
    pub(super) fn forget_unkept(&self, id: &JobId) {
        let mut table = self.table();
        table.entries.retain(|_, entry| entry.id != *id);
        self.inner.live.send_replace(table.live());
    }

    /// Waits for the job's turn, does the work and records how it ended; on the disk too, if `recorded`.
    async fn run<F, W>(self, handle: JobHandle, recorded: bool, work: W)
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<Option<JobResult>, ServiceError>> + Send + 'static,
    {
        let id = handle.id.clone();
        let began = self.turn(&handle).await;
        let goes_on = began.is_ok()
            && self.move_on(&id, JobEvent::Start, None, None)
            && (!recorded || self.record_start(&handle).await);
        let outcome = if goes_on {
            // The work is made inside the future, so that a panic in making it is observed too.
            let (name, work_handle) = (format!("job {id}"), handle.clone());
            match observed(name, async move { work(work_handle).await }).await {
                Ok(outcome) => outcome,
                Err(failed) => Err(ServiceError::internal(format!("{failed}; the daemon's log has more"))),
            }
        } else {
            Err(ServiceError::cancelled())
        };
        drop(began);
        let end = End::of(outcome);
        match &end.error {
            None => tracing::info!(target: "synapse", job_id = %id, "job done"),
            Some(error) => {
                tracing::warn!(target: "synapse", job_id = %id, code = error.code().as_str(), "job ended: {error}")
            }
        }
        if recorded {
            self.record_end(&handle, end).await;
        } else {
            self.move_on(&id, end.event, end.error, end.result);
        }
    }

    /// Waits for a turn, where the job's kind has any.
    async fn turn(&self, handle: &JobHandle) -> Result<Option<OwnedSemaphorePermit>, ServiceError> {
        let Some(turns) = self.inner.turns.of(handle.kind) else {
            return Ok(None);
        };
        tokio::select! {
            biased;
            () = handle.cancel.cancelled() => Err(ServiceError::cancelled()),
            turn = turns.acquire_owned() => turn.map(Some).map_err(|_| ServiceError::shutting_down()),
        }
    }

    /// Moves the job to the state that follows `event`. False when the job had ended already.
    pub(super) fn move_on(
        &self,
        id: &JobId,
        event: JobEvent,
        error: Option<ServiceError>,
        result: Option<JobResult>,
    ) -> bool {
        let mut table = self.table();
        let Some(entry) = table.find_mut(id.as_str()) else {
            return false;
        };
        match entry.state.on(event) {
            Ok(next) if !entry.state.is_terminal() => {
                entry.state = next;
                entry.updated_ms = now_ms();
                if next.is_terminal() {
                    entry.waits_for = None;
                    entry.estimated_ms = None;
                    entry.ended = Some(Instant::now());
                    entry.error = error;
                    entry.result = result;
                }
            }
            Ok(_) => return false,
            Err(illegal) => {
                tracing::error!(target: "synapse", job_id = %id, "{illegal}");
                return false;
            }
        }
        table.forget(&self.inner.limits);
        self.inner.live.send_replace(table.live());
        true
    }

    /// Takes a progress report of a running job.
    pub(super) fn report(&self, id: &JobId, phase: &str, done: u64, total: Option<u64>, unit: &str) {
        let mut table = self.table();
        if let Some(entry) = table.find_mut(id.as_str())
            && entry.state == JobState::Running
        {
            entry.progress = wire::JobProgress {
                phase: phase.to_owned(),
                done,
                total,
                unit: unit.to_owned(),
            };
            entry.updated_ms = now_ms();
        }
    }

    /// Notes why a running job does no work, or that it works.
    pub(super) fn waits(&self, id: &JobId, why: Option<wire::JobWait>) {
        let mut table = self.table();
        if let Some(entry) = table.find_mut(id.as_str())
            && !entry.state.is_terminal()
            && entry.waits_for != why
        {
            entry.waits_for = why;
            entry.updated_ms = now_ms();
        }
    }

    /// Notes about how long the rest of a job takes.
    pub(super) fn expects(&self, id: &JobId, milliseconds: Option<u64>) {
        if let Some(entry) = self.table().find_mut(id.as_str()) {
            entry.estimated_ms = milliseconds;
        }
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.inner.tasks
    }

    pub(super) fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Whether the daemon stops: a job that is cancelled then is the next start's to end.
    pub(super) fn is_closed(&self) -> bool {
        self.table().closed
    }

    /// The live (queued or running) job of this kind and model.
    #[must_use]
    pub fn live(&self, kind: JobKind, model: &str) -> Option<JobId> {
        let table = self.table();
        let found = table
            .entries
            .values()
            .find(|entry| entry.kind == kind && entry.model == model && !entry.state.is_terminal());
        found.map(|entry| entry.id.clone())
    }

    /// The models that a live job of this kind works on, in the order of acceptance.
    #[must_use]
    pub fn live_models(&self, kind: JobKind) -> Vec<String> {
        let table = self.table();
        let live = table
            .entries
            .values()
            .filter(|entry| entry.kind == kind && !entry.state.is_terminal());
        live.map(|entry| entry.model.clone()).collect()
    }

    /// The job as clients see it.
    ///
    /// # Errors
    /// `unknown_job` for a name that was never given or is forgotten.
    pub fn status(&self, id: &str) -> Result<wire::JobView, ServiceError> {
        let mut table = self.table();
        table.forget(&self.inner.limits);
        table.find(id).map(Entry::view).ok_or_else(unknown_job)
    }

    /// Every job that is remembered, the newest first.
    #[must_use]
    pub fn list(&self) -> Vec<wire::JobView> {
        let mut table = self.table();
        table.forget(&self.inner.limits);
        table.entries.values().rev().map(Entry::view).collect()
    }

    /// How many jobs wait and run.
    #[must_use]
    pub fn counts(&self) -> wire::JobCounts {
        let table = self.table();
        let count = |state| {
            let found = table.entries.values().filter(|entry| entry.state == state).count();
            u32::try_from(found).unwrap_or(u32::MAX)
        };
        wire::JobCounts {
            queued: count(JobState::Queued),
            running: count(JobState::Running),
        }
    }

    /// Asks a job to stop. One that waits ends at once; one that runs ends when its work has noticed. Asking again, or
    /// too late, changes nothing.
    ///
    /// # Errors
    /// `unknown_job` for a name that was never given or is forgotten.
    pub fn cancel(&self, id: &str) -> Result<wire::JobView, ServiceError> {
        let queued = {
            let table = self.table();
            let entry = table.find(id).ok_or_else(unknown_job)?;
            entry.cancel.cancel();
            (entry.state == JobState::Queued).then(|| entry.id.clone())
        };
        if let Some(queued) = queued {
            self.move_on(&queued, JobEvent::Cancel, Some(ServiceError::cancelled()), None);
        }
        self.status(id)
    }

    /// Accepts no further job.
    pub fn close(&self) {
        self.table().closed = true;
    }

    /// Asks every live job to stop.
    pub fn cancel_all(&self) {
        for entry in self.table().entries.values() {
            if !entry.state.is_terminal() {
                entry.cancel.cancel();
            }
        }
    }

    /// Waits until no job is live.
    pub async fn idle(&self) {
        let mut live = self.inner.live.subscribe();
        // The sender lives as long as `self`, so this ends only when the count is zero.
        let _ = live.wait_for(|live| *live == 0).await;
    }
}

fn unknown_job() -> ServiceError {
    ServiceError::unknown_job("no such job is remembered; `synapse jobs list` shows those that are")
}

/// What became of the writing of a job.
async fn decided(kept: &mut watch::Receiver<Kept>) -> Result<Kept, ServiceError> {
    let decided = kept.wait_for(|kept| !matches!(kept, Kept::NotYet)).await;
    // The task that writes it was dropped: the daemon stops.
    decided
        .map(|kept| kept.clone())
        .map_err(|_| ServiceError::shutting_down())
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
