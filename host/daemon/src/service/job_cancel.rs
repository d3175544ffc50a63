//! `job.cancel`: asks a job to stop and shows it as it is now.
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: what the job does.

use std::sync::Arc;

use synapse_wire::client::{JobParams, JobView};

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Answers `job.cancel`.
///
/// # Errors
/// `unknown_job` for a name that was never given or is forgotten.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, params: JobParams) -> Result<JobView, ServiceError> {
    daemon.jobs.cancel(&params.job_id)
}
