//! `job.cancel`: asks a job to stop and shows it as it is now.
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: what the job does.

use std::sync::Arc;

use synapse_core::job::JobEvent;
use synapse_wire::client::{JobParams, JobView};

use super::batch_job::on_disk;
use super::job_input::{unknown_job, view};
use super::{RequestContext, ServiceError};
use crate::job::now_ms;
use crate::state::Daemon;

/// Answers `job.cancel`.
///
/// # Errors
/// `unknown_job` for a name that was never given or is forgotten.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, params: JobParams) -> Result<JobView, ServiceError> {
    // Kept before it is asked for: a job that finds itself cancelled keeps nothing more.
    let id = params.job_id.clone();
    let kept = on_disk(daemon, move |store| {
        store.move_job(&id, JobEvent::Cancel, None, now_ms())?;
        store.job(&id)
    })
    .await?;
    match (daemon.jobs.cancel(&params.job_id), kept) {
        (Ok(known), _) => Ok(known),
        (Err(_), Some(row)) => Ok(view(daemon, &row)),
        (Err(_), None) => Err(unknown_job()),
    }
}
