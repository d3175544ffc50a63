//! `job.create`: opens a job for an input that is too large for one request.
//!
//! State: none. Everything that can be refused without the texts is refused here. Not known here: what is appended.

use std::sync::Arc;

use synapse_wire::client::{JobAccepted, JobCreateParams, JobKind, JobOperation};

use super::batch_job::on_disk;
use super::job_input::{check_key, check_work, limits, owner};
use super::{RequestContext, ServiceError};
use crate::job::now_ms;
use crate::state::Daemon;
use crate::store::{Created, NewJob};

/// Answers `job.create`.
///
/// # Errors
/// No lane could serve the job as asked, or the client has as many open jobs as may be.
pub async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: JobCreateParams,
) -> Result<JobAccepted, ServiceError> {
    check_key(params.request_key.as_deref())?;
    let JobOperation::EmbedBatch = params.operation;
    let options = params.options;
    check_work(daemon, ctx, &params.model, &options).await?;
    let id = daemon.jobs.reserve_id().to_string();
    let new = NewJob {
        id: id.clone(),
        uid: owner(),
        kind: JobKind::EmbedBatch.as_str().to_owned(),
        model: params.model,
        request: options.to_text(),
        request_key: params.request_key,
        now_ms: now_ms(),
    };
    let limits = limits(daemon);
    match on_disk(daemon, move |store| store.create_job(new, limits)).await? {
        Created::Open => Ok(JobAccepted { job_id: id }),
        Created::TooManyOpen => {
            let max = daemon.config.jobs.max_open;
            let refused = ServiceError::queue_full(format!("{max} jobs are open; seal or cancel one first"));
            Err(refused
                .retry_after(1_000)
                .detail(|detail| detail.limit = Some("jobs.max_open".to_owned())))
        }
    }
}
