//! `job.create`: opens a job for an input that is too large for one request.
//!
//! State: none. Everything that can be refused without the texts is refused here. Not known here: what is appended.

use std::sync::Arc;

use synapse_core::engine::EngineKind;
use synapse_wire::client::{JobAccepted, JobCreateParams, JobKind, JobOperation};

use super::admission::{self, Demand};
use super::batch_job::on_disk;
use super::job_input::{check_key, limits, owner, too_many_open};
use super::{RequestContext, ServiceError};
use crate::job::now_ms;
use crate::lane::profile;
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
    let options = params.options;
    let demand = Demand {
        model: &params.model,
        kind: match params.operation {
            JobOperation::EmbedBatch => EngineKind::Embed,
        },
        constraints: &options.constraints(),
        target_fingerprint: options.target_fingerprint.as_deref(),
    };
    admission::check(daemon, ctx, demand, |record| {
        profile::served_shape(record, options.dimensions, options.normalize)
    })
    .await?;
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
        Created::TooManyOpen => Err(too_many_open(daemon)),
    }
}
