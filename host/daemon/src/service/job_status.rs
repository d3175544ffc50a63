//! `job.status`: shows one job, from the registry in memory or from the store.
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: what the job does.

use std::sync::Arc;

use synapse_wire::client::{JobParams, JobView};

use super::batch_job::on_disk;
use super::job_input::{unknown_job, view};
use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Answers `job.status`.
///
/// # Errors
/// `unknown_job` for a name that was never given or is forgotten.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, params: JobParams) -> Result<JobView, ServiceError> {
    if let Ok(known) = daemon.jobs.status(&params.job_id) {
        return Ok(known);
    }
    let kept = on_disk(daemon, move |store| store.job(&params.job_id)).await?;
    kept.map(|row| view(daemon, &row)).ok_or_else(unknown_job)
}
