//! `probe.status`: a probe's job with its lanes (API-21); from memory only.
//!
//! State: none.

use std::sync::Arc;

use synapse_wire::client::{JobKind, ProbeStatusParams, ProbeStatusResult};

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Shows one probe, or the newest of this run.
///
/// # Errors
/// The job is not remembered, or is no probe.
#[expect(clippy::unused_async, reason = "every operation has this form")]
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ProbeStatusParams,
) -> Result<ProbeStatusResult, ServiceError> {
    let Some(job) = params.job_id.clone().or_else(|| daemon.probes.newest()) else {
        return Ok(ProbeStatusResult::default());
    };
    let view = daemon.jobs.status(&job)?;
    if view.kind != JobKind::Probe {
        let message = format!("{job} is no probe; `job.status` shows every job");
        return Err(ServiceError::invalid_params(message).detail(|detail| detail.field = Some("job_id".to_owned())));
    }
    Ok(ProbeStatusResult {
        job: Some(view),
        lanes: daemon.probes.lanes(&job),
    })
}
