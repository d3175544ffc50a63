//! `job.create`: opens a job for an input that is too large for one request.
//!
//! State: none. Everything that can be refused without the texts is refused here. Not known here: what is appended.

use std::sync::Arc;

use synapse_wire::client::{JobAccepted, JobCreateParams, JobKind, JobOperation};

use super::batch_job::on_disk;
use super::job_input::{check_key, check_work, fresh, limits};
use super::{RequestContext, ServiceError};
use crate::state::Daemon;
use crate::store::{Created, NewJob};

/// The largest share that a job may ask for.
const MOST_WEIGHT: u32 = 100;

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
    let new = NewJob {
        request: options.to_text(),
        request_key: params.request_key,
        weight: weight(params.weight)?,
        ..fresh(daemon, JobKind::EmbedBatch, params.model)
    };
    let id = new.id.clone();
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

/// A job's share among those at work.
fn weight(asked: Option<u32>) -> Result<u32, ServiceError> {
    match asked.unwrap_or(1) {
        weight @ 1..=MOST_WEIGHT => Ok(weight),
        weight => Err(
            ServiceError::invalid_params(format!("`weight` is {weight}; expected 1 to {MOST_WEIGHT}"))
                .detail(|detail| detail.field = Some("weight".to_owned())),
        ),
    }
}
