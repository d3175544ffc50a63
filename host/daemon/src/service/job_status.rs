//! `job.status`: shows one job from the registry in memory.
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: what the job does.

use std::sync::Arc;

use synapse_wire::client::{JobParams, JobView};

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Answers `job.status`.
///
/// # Errors
/// `unknown_job` for a name that was never given or is forgotten.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, params: JobParams) -> Result<JobView, ServiceError> {
    daemon.jobs.status(&params.job_id)
}
