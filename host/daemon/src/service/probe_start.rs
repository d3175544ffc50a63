//! `probe.start`: starts a job that measures lanes on this machine (API-21).
//!
//! State: none. The work is `crate::probe`. A second request for the same while the probe runs gets the same job.

use std::sync::Arc;

use synapse_wire::client::{JobAccepted, ProbeStartParams};

use super::{RequestContext, ServiceError};
use crate::probe::{self, subjects};
use crate::state::Daemon;

/// Starts the probe. The answer comes at once, but not before the bundles of this start are known.
///
/// # Errors
/// A name is wrong, no lane can serve here, or there are too many jobs.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ProbeStartParams,
) -> Result<JobAccepted, ServiceError> {
    let lanes = subjects::lanes(daemon, &params.models).await?;
    let names: Vec<&str> = match params.models.is_empty() {
        false => params.models.iter().map(String::as_str).collect(),
        true => lanes.iter().map(|lane| lane.name.as_str()).collect(),
    };
    let job = probe::start(daemon, &names.join(", "), lanes.clone()).await?;
    Ok(JobAccepted {
        job_id: job.to_string(),
    })
}
