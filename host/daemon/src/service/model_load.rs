//! `model.load`: starts a job that loads a model into memory (API-02, API-19).
//!
//! State: none. The work is `lane/load.rs`. A second request while the load runs gets the same job.

use std::sync::Arc;

use synapse_wire::client::{JobAccepted, ModelParams};

use super::admission::lane_of;
use super::{RequestContext, ServiceError};
use crate::job::{JobId, JobKind};
use crate::lane::load;
use crate::state::Daemon;

/// Starts the load. The answer comes at once, but not before the bundles of this start are known.
///
/// # Errors
/// No lane can serve the model, or there are too many jobs.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ModelParams,
) -> Result<JobAccepted, ServiceError> {
    daemon.plugins.scanned().await;
    let lane = lane_of(daemon, &params.model, None).await?;
    let job = load::start(daemon, &lane).await?;
    Ok(JobAccepted {
        job_id: job.to_string(),
    })
}

/// Starts the load of a model that the configuration names, before the bundles of this start are known (CONF-06). The
/// job fails where no lane can serve the model.
///
/// # Errors
/// There are too many jobs, or the daemon stops.
pub async fn start(daemon: &Arc<Daemon>, model: &str) -> Result<JobId, ServiceError> {
    let (work_daemon, name) = (Arc::clone(daemon), model.to_owned());
    let work = move |job| async move {
        work_daemon.plugins.scanned().await;
        let lane = lane_of(&work_daemon, &name, None).await?;
        load::run(work_daemon, lane, job).await
    };
    daemon.jobs.start_implied(JobKind::ModelLoad, model, work).await
}
