//! Work without texts on the disk: accepted, begun, ended (JOB-01, JOB-04).
//!
//! State: none; the rows are in the store. Caller: the registry, from the task of each job. A job is kept before it is
//! accepted, and its end before it is shown. A disk that takes nothing stops a job that was asked for by name before it
//! begins; the end of one that ran is shown at once and kept as soon as there is room. Not known here: the work.

use std::time::Duration;

use synapse_core::job::{JobEvent, JobState};
use tokio::sync::watch;

use super::registry::{End, Jobs};
use super::table::{Kept, now_ms};
use super::{JobHandle, JobId};
use crate::rpc::error::ServiceError;
use crate::store::{NewWork, Store, StoreError};

/// The time between two tries to write to a disk that takes nothing.
const DISK_PAUSE: Duration = Duration::from_millis(500);

/// The user that jobs belong to: the socket takes no other.
pub fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Jobs {
    /// Writes a job before anybody hears of it. False if it must not begin.
    pub(super) async fn keep(&self, job: &JobHandle, must_be_kept: bool, keep: &watch::Sender<Kept>) -> bool {
        let new = NewWork {
            id: job.id.to_string(),
            uid: owner(),
            kind: job.kind.as_str().to_owned(),
            model: job.model.clone(),
            now_ms: job.created_ms,
        };
        let Err(error) = self.write(move |store| store.accept_work(new)).await else {
            keep.send_replace(Kept::Yes);
            return true;
        };
        if must_be_kept {
            tracing::warn!(target: "synapse", job_id = %job.id, "the job is not taken: {error}");
            self.forget_unkept(&job.id);
        } else {
            tracing::warn!(target: "synapse", job_id = %job.id, "the job runs without a record: {error}");
        }
        keep.send_replace(Kept::No(error));
        !must_be_kept
    }

    /// Records that a job has begun. False if it was cancelled before.
    pub(super) async fn record_start(&self, job: &JobHandle) -> bool {
        let moved = self.record(&job.id, JobEvent::Start, None).await;
        !matches!(moved, Ok(Some(JobState::Cancelled)))
    }

    /// Records how a job has ended, and shows it.
    pub(super) async fn record_end(&self, job: &JobHandle, end: End) {
        // Nobody cancelled it: the daemon stops, and its next start ends it.
        if end.event == JobEvent::Cancel && self.is_closed() {
            self.move_on(&job.id, end.event, end.error, end.result);
            return;
        }
        let mut moved = self.record(&job.id, end.event, Some(&end)).await;
        match moved {
            // It was cancelled meanwhile: both records say so.
            Ok(Some(JobState::Cancelled)) => {
                self.move_on(&job.id, JobEvent::Cancel, Some(ServiceError::cancelled()), None);
            }
            _ => {
                let (error, result) = (end.error.clone(), end.result.clone());
                self.move_on(&job.id, end.event, error, result);
            }
        }
        while let Err(error) = &moved {
            if !error.may_pass() {
                tracing::warn!(target: "synapse", job_id = %job.id, "the job's end is not recorded: {error}");
                return;
            }
            tokio::select! {
                () = self.tasks().stopping().cancelled() => return,
                () = tokio::time::sleep(DISK_PAUSE) => {}
            }
            moved = self.record(&job.id, end.event, Some(&end)).await;
        }
    }

    /// Moves the row; the state that it has then.
    async fn record(&self, id: &JobId, event: JobEvent, end: Option<&End>) -> Result<Option<JobState>, StoreError> {
        let id = id.to_string();
        let error = end
            .and_then(|end| end.error.as_ref())
            .map(|error| error.failure().to_text());
        let result = end.and_then(|end| end.result.as_ref()).map(super::JobResult::to_text);
        let store = self.store().clone();
        let moving = move || {
            let moved = store.move_work(&id, event, error, result, now_ms())?;
            // An event that its state does not take: it has ended already.
            Ok(match moved {
                Some(state) => Some(state),
                None => store.job(&id)?.map(|row| row.state),
            })
        };
        let moved = self.tasks().blocking("store", moving).await;
        // Not run at all: the daemon stops.
        moved.unwrap_or(Ok(None))
    }

    /// Runs `work` on the store, off the runtime's threads.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let store = self.store().clone();
        Ok(self.tasks().blocking("store", move || work(&store)).await??)
    }
}
