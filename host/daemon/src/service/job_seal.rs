//! `job.seal`: closes a job's input and queues it, or queues a job again that failed for now.
//!
//! State: none. Which job a `request_key` names is decided by one transaction of the store. Not known here: what the job
//! does.

use std::sync::Arc;

use synapse_core::job::JobState;
use synapse_wire::client::{JobKind, JobParams, JobView};

use super::batch_job::on_disk;
use super::job_input::{sealed, to_the_end};
use super::{RequestContext, ServiceError};
use crate::job::{now_ms, owner};
use crate::state::Daemon;
use crate::store::Sealed;

/// Answers `job.seal` with the job that does the work. Asking again changes nothing.
///
/// # Errors
/// The job is unknown, has no texts or none of its kind, or its key names another payload.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, params: JobParams) -> Result<JobView, ServiceError> {
    daemon.jobs.check_room()?;
    to_the_end(daemon, move |daemon| async move {
        let id = params.job_id.clone();
        let mut outcome = on_disk(&daemon, move |store| store.seal_job(&id, owner(), now_ms())).await?;
        if let Sealed::NotOpen(row) = &outcome
            && row.state == JobState::FailedTransient
        {
            let kind = JobKind::from_name(&row.kind);
            if !kind.has_texts() {
                return Err(ServiceError::invalid_params(format!(
                    "the job is a {} and has no texts; send the request that started it again",
                    kind.as_str(),
                )));
            }
            let fresh = daemon.jobs.reserve_id().to_string();
            let id = params.job_id;
            outcome = on_disk(&daemon, move |store| store.retry_job(&id, owner(), fresh, now_ms())).await?;
        }
        sealed(&daemon, outcome).await
    })
    .await
}
