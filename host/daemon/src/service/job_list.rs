//! `job.list`: the jobs that are remembered, the newest first.
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: what the jobs do.

use std::sync::Arc;

use synapse_wire::client::{JobListParams, JobListResult, JobView};

use super::batch_job::on_disk;
use super::job_input::view;
use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Answers `job.list`.
///
/// # Errors
/// The store cannot be read.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, _: JobListParams) -> Result<JobListResult, ServiceError> {
    let mut jobs = daemon.jobs.list();
    let kept = on_disk(daemon, |store| store.jobs()).await?;
    let earlier: Vec<JobView> = kept
        .iter()
        .filter(|row| !jobs.iter().any(|known| known.job_id == row.id))
        .map(|row| view(daemon, row))
        .collect();
    jobs.extend(earlier);
    jobs.sort_by_key(|job| std::cmp::Reverse(job.created_ms));
    Ok(JobListResult { jobs })
}
