//! The registry of jobs: who runs, who waits, who has ended and how.
//!
//! State: one entry per job that is queued, running, or remembered. Callers: `job/mod.rs`. Not known here: the work.
//! Bounds: so many live jobs, so many that run at once, so many finished ones for so long (config `jobs`).

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use synapse_core::job::{JobEvent, JobState};
use synapse_wire::client as wire;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{JobHandle, JobId, JobKind, JobResult};
use crate::config::JobsConfig;
use crate::rpc::error::ServiceError;
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
    generation: u64,
    /// One permit per job that may run at once.
    turns: Arc<Semaphore>,
    /// The same for batches, which wait for loads: had they the same turns, they could keep each other waiting.
    batch_turns: Arc<Semaphore>,
    table: Mutex<Table>,
    /// The number of live jobs, for those who wait for the end.
    live: watch::Sender<usize>,
}

#[derive(Default)]
struct Table {
    /// By sequence number, so the order is the order of acceptance.
    entries: BTreeMap<u64, Entry>,
    next: u64,
    closed: bool,
}

struct Entry {
    id: JobId,
    kind: JobKind,
    model: String,
    state: JobState,
    progress: wire::JobProgress,
    created_ms: u64,
    updated_ms: u64,
    ended: Option<Instant>,
    error: Option<ServiceError>,
    result: Option<JobResult>,
    cancel: CancellationToken,
}

impl Entry {
    fn view(&self) -> wire::JobView {
        wire::JobView {
            job_id: self.id.to_string(),
            kind: self.kind,
            state: state_on_the_wire(self.state),
            model: Some(self.model.clone()),
            progress: self.progress.clone(),
            created_ms: self.created_ms,
            updated_ms: self.updated_ms,
            error: self.error.as_ref().map(ServiceError::failure),
            result: self.result.clone(),
        }
    }
}

/// The state's name for clients.
pub(crate) const fn state_on_the_wire(state: JobState) -> wire::JobState {
    match state {
        JobState::Open => wire::JobState::Open,
        JobState::Queued => wire::JobState::Queued,
        JobState::Running => wire::JobState::Running,
        JobState::Done => wire::JobState::Done,
        JobState::FailedPermanent => wire::JobState::FailedPermanent,
        JobState::FailedTransient => wire::JobState::FailedTransient,
        JobState::Cancelled => wire::JobState::Cancelled,
    }
}

/// Milliseconds since 1970-01-01 UTC.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Table {
    fn live(&self) -> usize {
        self.entries.values().filter(|entry| !entry.state.is_terminal()).count()
    }

    fn find(&self, id: &str) -> Option<&Entry> {
        self.entries.values().find(|entry| entry.id.as_str() == id)
    }

    fn find_mut(&mut self, id: &str) -> Option<&mut Entry> {
        self.entries.values_mut().find(|entry| entry.id.as_str() == id)
    }

    /// The next number, never given before.
    const fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Whether another job may be accepted; what is too old is forgotten first.
    fn has_room(&mut self, limits: &JobsConfig) -> Result<(), ServiceError> {
        if self.closed {
            return Err(ServiceError::shutting_down());
        }
        self.forget(limits);
        let max = limits.max_live;
        if self.live() < max {
            return Ok(());
        }
        Err(ServiceError::queue_full(format!(
            "{max} jobs are queued or running; try again when one has ended"
        ))
        .retry_after(1_000)
        .detail(|detail| detail.limit = Some(String::from("jobs.max_live"))))
    }

    /// Forgets finished jobs that are too old or too many, the oldest first.
    fn forget(&mut self, limits: &JobsConfig) {
        let ttl = Duration::from_secs(limits.ttl_secs);
        self.entries
            .retain(|_, entry| entry.ended.is_none_or(|ended| ended.elapsed() < ttl));
        let mut ended: Vec<(Instant, u64)> = self
            .entries
            .iter()
            .filter_map(|(sequence, entry)| Some((entry.ended?, *sequence)))
            .collect();
        ended.sort_unstable();
        for (_, sequence) in ended.iter().take(ended.len().saturating_sub(limits.max_finished)) {
            self.entries.remove(sequence);
        }
    }
}

impl Jobs {
    /// An empty registry of the daemon's start number `generation`.
    #[must_use]
    pub fn new(tasks: Tasks, generation: u64, limits: &JobsConfig) -> Self {
        let limits = limits.clone();
        let turns = Arc::new(Semaphore::new(limits.max_running));
        let batch_turns = Arc::new(Semaphore::new(limits.max_running));
        let (live, _) = watch::channel(0);
        Self {
            inner: Arc::new(Inner {
                tasks,
                limits,
                generation,
                turns,
                batch_turns,
                table: Mutex::default(),
                live,
            }),
        }
    }

    /// The table; a panic elsewhere never makes the registry useless, because every change under the lock is complete.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts `work` as a job, or returns the live job of the same kind and model when there is one. `work` runs when
    /// its turn comes; it should end soon after [`JobHandle::cancel`] fires.
    ///
    /// # Errors
    /// `queue_full` when as many jobs are live as may be, `shutting_down` when the daemon stops.
    pub fn start<F, W>(&self, kind: JobKind, model: &str, work: W) -> Result<JobId, ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<JobResult, ServiceError>> + Send + 'static,
    {
        let table = self.table();
        let same = |entry: &&Entry| entry.kind == kind && entry.model == model && !entry.state.is_terminal();
        if let Some(entry) = table.entries.values().find(same)
            && !entry.cancel.is_cancelled()
        {
            return match table.closed {
                true => Err(ServiceError::shutting_down()),
                false => Ok(entry.id.clone()),
            };
        }
        let turns = Arc::clone(&self.inner.turns);
        let work = |handle| async move { work(handle).await.map(Some) };
        self.accept(table, None, kind, model, now_ms(), turns, work)
    }

    /// Accepts the work of a job that the store keeps under `id`. Its end has no result of its own.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_kept<F, W>(
        &self,
        id: &str,
        kind: JobKind,
        model: &str,
        created_ms: u64,
        work: W,
    ) -> Result<(), ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<Option<JobResult>, ServiceError>> + Send + 'static,
    {
        let turns = Arc::clone(&self.inner.batch_turns);
        let id = Some(JobId(id.to_owned()));
        self.accept(self.table(), id, kind, model, created_ms, turns, work)
            .map(drop)
    }

    /// A name for a job that the store will keep.
    #[must_use]
    pub fn reserve_id(&self) -> JobId {
        JobId::new(self.inner.generation, self.table().number())
    }

    /// Whether another job would be accepted now.
    ///
    /// # Errors
    /// `queue_full` or `shutting_down`, as for [`Self::start`].
    pub fn check_room(&self) -> Result<(), ServiceError> {
        self.table().has_room(&self.inner.limits)
    }

    /// Puts a job into the table and starts the task that does its work.
    #[expect(clippy::too_many_arguments, reason = "the parts of one entry, each used once")]
    fn accept<F, W>(
        &self,
        table: MutexGuard<'_, Table>,
        id: Option<JobId>,
        kind: JobKind,
        model: &str,
        created_ms: u64,
        turns: Arc<Semaphore>,
        work: W,
    ) -> Result<JobId, ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<Option<JobResult>, ServiceError>> + Send + 'static,
    {
        let mut table = table;
        table.has_room(&self.inner.limits)?;
        let sequence = table.number();
        let id = id.unwrap_or_else(|| JobId::new(self.inner.generation, sequence));
        let cancel = CancellationToken::new();
        table.entries.insert(
            sequence,
            Entry {
                id: id.clone(),
                kind,
                model: model.to_owned(),
                state: JobState::Queued,
                progress: wire::JobProgress::default(),
                created_ms,
                updated_ms: created_ms,
                ended: None,
                error: None,
                result: None,
                cancel: cancel.clone(),
            },
        );
        self.inner.live.send_replace(table.live());
        drop(table);
        tracing::info!(target: "synapse", job_id = %id, kind = kind.as_str(), model, "job accepted");
        let handle = JobHandle {
            id: id.clone(),
            cancel,
            jobs: self.clone(),
        };
        drop(
            self.inner
                .tasks
                .spawn(format!("job {id}"), self.clone().run(handle, turns, work)),
        );
        Ok(id)
    }

    /// Waits for the job's turn, does the work and records how it ended.
    async fn run<F, W>(self, handle: JobHandle, turns: Arc<Semaphore>, work: W)
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<Option<JobResult>, ServiceError>> + Send + 'static,
    {
        let id = handle.id.clone();
        let turn = tokio::select! {
            biased;
            () = handle.cancel.cancelled() => None,
            turn = turns.acquire_owned() => turn.ok(),
        };
        let outcome = if turn.is_some() && self.move_on(&id, JobEvent::Start, None, None) {
            // The work is made inside the future, so that a panic in making it is observed too.
            let name = format!("job {id}");
            match observed(name, async move { work(handle).await }).await {
                Ok(outcome) => outcome,
                Err(failed) => Err(ServiceError::internal(format!("{failed}; the daemon's log has more"))),
            }
        } else {
            Err(ServiceError::cancelled())
        };
        let (event, error, result) = match outcome {
            Ok(result) => (JobEvent::Finish, None, result),
            Err(error) if *error.code() == wire::ErrorCode::Cancelled => (JobEvent::Cancel, Some(error), None),
            Err(error) if error.class() == wire::Class::Transient => (JobEvent::FailTransient, Some(error), None),
            Err(error) => (JobEvent::FailPermanent, Some(error), None),
        };
        match &error {
            None => tracing::info!(target: "synapse", job_id = %id, "job done"),
            Some(error) => {
                tracing::warn!(target: "synapse", job_id = %id, code = error.code().as_str(), "job ended: {error}")
            }
        }
        self.move_on(&id, event, error, result);
    }

    /// Moves the job to the state that follows `event`. False when the job had ended already.
    fn move_on(&self, id: &JobId, event: JobEvent, error: Option<ServiceError>, result: Option<JobResult>) -> bool {
        let mut table = self.table();
        let Some(entry) = table.find_mut(id.as_str()) else {
            return false;
        };
        match entry.state.on(event) {
            Ok(next) if !entry.state.is_terminal() => {
                entry.state = next;
                entry.updated_ms = now_ms();
                if next.is_terminal() {
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
    ServiceError::unknown_job("no such job is remembered; `synapse call job.list '{}'` shows those that are")
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
