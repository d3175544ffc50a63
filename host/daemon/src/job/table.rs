//! The table of jobs: what is known of each, which states follow, what is forgotten and when.
//!
//! State: one [`Entry`] per job that is queued, running, or remembered; the registry holds it behind its lock. Not known
//! here: tasks, the disk, the work.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use synapse_core::job::JobState;
use synapse_wire::client as wire;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{JobId, JobKind, JobResult};
use crate::config::JobsConfig;
use crate::rpc::error::ServiceError;

/// Whether a job is on the disk.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    /// It is being written.
    NotYet,
    /// It is.
    Yes,
    /// The disk did not take it.
    No(ServiceError),
}

/// The jobs, and the numbers of their names.
#[derive(Default)]
pub(super) struct Table {
    /// By sequence number, so the order is the order of acceptance.
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) next: u64,
    pub(super) closed: bool,
}

/// One job.
pub(super) struct Entry {
    pub(super) id: JobId,
    pub(super) kind: JobKind,
    pub(super) model: String,
    pub(super) state: JobState,
    pub(super) progress: wire::JobProgress,
    pub(super) waits_for: Option<wire::JobWait>,
    pub(super) estimated_ms: Option<u64>,
    pub(super) kept: watch::Receiver<Kept>,
    pub(super) created_ms: u64,
    pub(super) updated_ms: u64,
    pub(super) ended: Option<Instant>,
    pub(super) error: Option<ServiceError>,
    pub(super) result: Option<JobResult>,
    pub(super) cancel: CancellationToken,
}

/// A job to be put into the table.
pub(super) struct NewEntry {
    pub(super) id: JobId,
    pub(super) kind: JobKind,
    pub(super) model: String,
    pub(super) created_ms: u64,
    pub(super) progress: wire::JobProgress,
    pub(super) kept: watch::Receiver<Kept>,
}

impl Entry {
    pub(super) fn view(&self) -> wire::JobView {
        wire::JobView {
            job_id: self.id.to_string(),
            kind: self.kind,
            state: state_on_the_wire(self.state),
            model: Some(self.model.clone()),
            progress: self.progress.clone(),
            waits_for: self.waits_for,
            estimated_ms: self.estimated_ms,
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
    pub(super) fn live(&self) -> usize {
        self.entries.values().filter(|entry| !entry.state.is_terminal()).count()
    }

    pub(super) fn find(&self, id: &str) -> Option<&Entry> {
        self.entries.values().find(|entry| entry.id.as_str() == id)
    }

    pub(super) fn find_mut(&mut self, id: &str) -> Option<&mut Entry> {
        self.entries.values_mut().find(|entry| entry.id.as_str() == id)
    }

    /// The next number, never given before.
    pub(super) const fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Whether another job may be accepted; what is too old is forgotten first.
    pub(super) fn has_room(&mut self, limits: &JobsConfig) -> Result<(), ServiceError> {
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
    pub(super) fn forget(&mut self, limits: &JobsConfig) {
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
