//! `job.list`: the jobs that are remembered, the newest first.
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: what the jobs do.

use std::sync::Arc;

use synapse_wire::client::{JobListParams, JobListResult};

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Answers `job.list`.
///
/// # Errors
/// None.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, _: JobListParams) -> Result<JobListResult, ServiceError> {
    Ok(JobListResult {
        jobs: daemon.jobs.list(),
    })
}
