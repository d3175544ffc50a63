//! What the operations on kept jobs share: bounds, the owner, how a seal and a refusal are answered, a job as shown.
//!
//! State: none. Callers: `job.*`, `embed.batch` and `rerank.score` over their caps. Not known here: what the jobs do.

use std::future::Future;
use std::sync::Arc;

use synapse_core::engine::EngineKind;
use synapse_wire::client::{
    BatchItem, EmbedBatchParams, EmbedJobOptions, ErrorCode, Failure, JobKind, JobResult, JobView, RerankJobOptions,
    RerankScoreParams,
};

use super::admission::{self, Demand};
use super::batch_job::{self, on_disk};
use super::{RequestContext, ServiceError, items, rerank_score};
use crate::job::{now_ms, owner, state_on_the_wire};
use crate::lane::profile;
use crate::state::Daemon;
use crate::store::{Appended, InputLimits, JobItem, JobRow, NewJob, Sealed};

/// The bounds of inputs, as configured.
pub(super) fn limits(daemon: &Daemon) -> InputLimits {
    let jobs = &daemon.config.jobs;
    InputLimits {
        open_jobs: items::wide(jobs.max_open),
        open_bytes: jobs.max_open_bytes,
        items: items::wide(jobs.max_items),
        bytes: jobs.max_bytes,
    }
}

/// A request key has 1 to 256 bytes.
///
/// # Errors
/// `invalid_request` names the field.
pub(super) fn check_key(key: Option<&str>) -> Result<(), ServiceError> {
    items::check_names("request_key", std::iter::once("-"), key)
}

/// The texts as they are kept. One that is no text is kept as bytes that are none either: it fails alone, when its turn
/// comes.
pub(super) fn kept(items: Vec<BatchItem>) -> Vec<JobItem> {
    let bytes = |item: BatchItem| JobItem {
        id: item.id,
        text: item.text.into_string().map_or_else(|_| vec![0xff], String::into_bytes),
    };
    items.into_iter().map(bytes).collect()
}

/// Whether a lane could do the work, once it is ready: what no lane could do becomes no job.
///
/// # Errors
/// The first demand that cannot be met.
pub(super) async fn check_work(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    model: &str,
    options: &EmbedJobOptions,
) -> Result<(), ServiceError> {
    let demand = Demand {
        model,
        kind: EngineKind::Embed,
        constraints: &options.constraints(),
        target_fingerprint: options.target_fingerprint.as_deref(),
        query: false,
    };
    admission::check(daemon, ctx, demand, |record| {
        profile::served_shape(record, options.dimensions, options.normalize)
    })
    .await
}

/// Whether a request as a whole is too much for an inline answer.
pub(super) fn is_over_a_cap(error: &ServiceError) -> bool {
    let limit = error.facts().and_then(|facts| facts.limit.as_deref());
    let is_a_cap = |limit: &str| limit.starts_with("inline.") || limit.starts_with("rerank.");
    *error.code() == ErrorCode::LimitExceeded && limit.is_some_and(is_a_cap)
}

/// Takes a whole batch as a job: the job that its key names.
///
/// # Errors
/// No lane could do it, or as for a seal.
pub(super) async fn accept_batch(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: EmbedBatchParams,
) -> Result<JobView, ServiceError> {
    let options = EmbedJobOptions::of(&params);
    check_work(daemon, ctx, &params.model, &options).await?;
    let new = NewJob {
        request: options.to_text(),
        request_key: params.request_key,
        ..fresh(daemon, JobKind::EmbedBatch, params.model)
    };
    accept(daemon, new, params.items).await
}

/// Takes a whole rerank as a job: the job that its key names. `query` is its query as text.
///
/// # Errors
/// No lane could do it, or as for a seal.
pub(super) async fn accept_rerank(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: RerankScoreParams,
    query: String,
) -> Result<JobView, ServiceError> {
    let options = RerankJobOptions::of(&params, query);
    let constraints = options.constraints();
    let demand = rerank_score::demand(&params.model, &constraints);
    admission::check(daemon, ctx, demand, rerank_score::shape).await?;
    let new = NewJob {
        request: options.to_text(),
        request_key: params.request_key,
        ..fresh(daemon, JobKind::RerankScore, params.model)
    };
    accept(daemon, new, params.candidates).await
}

/// A job with a name of its own, and nothing to do yet.
pub(super) fn fresh(daemon: &Daemon, kind: JobKind, model: String) -> NewJob {
    NewJob {
        id: daemon.jobs.reserve_id().to_string(),
        uid: owner(),
        kind: kind.as_str().to_owned(),
        request: String::new(),
        model,
        request_key: None,
        weight: 1,
        now_ms: now_ms(),
    }
}

async fn accept(daemon: &Arc<Daemon>, new: NewJob, items: Vec<BatchItem>) -> Result<JobView, ServiceError> {
    daemon.jobs.check_room()?;
    let (items, limits) = (kept(items), limits(daemon));
    to_the_end(daemon, move |daemon| async move {
        let outcome = on_disk(&daemon, move |store| store.accept_job(new, items, limits)).await?;
        sealed(&daemon, outcome).await
    })
    .await
}

/// Runs what must not stop half-way: a request that is cancelled once its job is queued leaves a job that runs.
///
/// # Errors
/// As for `work`.
pub(super) async fn to_the_end<F>(
    daemon: &Arc<Daemon>,
    work: impl FnOnce(Arc<Daemon>) -> F,
) -> Result<JobView, ServiceError>
where
    F: Future<Output = Result<JobView, ServiceError>> + Send + 'static,
{
    daemon.tasks.spawn("job-accept", work(Arc::clone(daemon))).await?
}

/// Starts the work of a job that was queued, and shows the job that does the work.
///
/// # Errors
/// There is none.
pub(super) async fn sealed(daemon: &Arc<Daemon>, outcome: Sealed) -> Result<JobView, ServiceError> {
    match outcome {
        Sealed::Queued(row) => {
            let shown = view(daemon, &row);
            batch_job::start(daemon, *row).await?;
            Ok(shown)
        }
        Sealed::Existing(row) | Sealed::NotOpen(row) => Ok(view(daemon, &row)),
        Sealed::Conflict { existing } => Err(ServiceError::idempotency_conflict(format!(
            "the request_key names the job {existing}, whose texts or options are others; use another key"
        ))
        .detail(|detail| detail.job_id = Some(existing))),
        Sealed::Empty => Err(ServiceError::invalid_params(
            "the job has no texts; append some before it is sealed",
        )),
        Sealed::Refused(refusal) => Err(refused(refusal)),
        Sealed::Unknown => Err(unknown_job()),
    }
}

/// Why texts were not taken.
pub(super) fn refused(refusal: Appended) -> ServiceError {
    match refusal {
        Appended::OtherItems => ServiceError::idempotency_conflict(
            "an append with this `seq` was kept with other texts; go on with the next",
        ),
        Appended::Repeated { id } => ServiceError::invalid_params(format!(
            "the item id {id:?} stands in the job already; each item needs one of its own"
        ))
        .detail(|detail| detail.field = Some("items".to_owned())),
        Appended::Beyond { limit, maximum, found } => ServiceError::limit_exceeded(format!(
            "{limit}: the job would have {found}, at most {maximum} are taken"
        ))
        .detail(|detail| {
            detail.limit = Some(limit.to_owned());
            detail.maximum = Some(maximum);
            detail.actual = Some(found);
        }),
        Appended::NotOpen(state) => {
            ServiceError::invalid_params(format!("the job is {}; only an open job takes texts", state.name()))
        }
        Appended::Unknown | Appended::Kept { .. } | Appended::Gap { .. } => unknown_job(),
    }
}

pub(super) fn unknown_job() -> ServiceError {
    ServiceError::unknown_job("no such job is kept; `synapse jobs list` shows those that are")
}

/// A kept job as `job.status` shows it.
pub(super) fn view(daemon: &Daemon, row: &JobRow) -> JobView {
    JobView {
        job_id: row.id.clone(),
        kind: JobKind::from_name(&row.kind),
        state: state_on_the_wire(row.state),
        model: Some(row.model.clone()),
        progress: batch_job::progress(row),
        waits_for: None,
        estimated_ms: batch_job::estimated_ms(daemon, row),
        created_ms: row.created_ms,
        updated_ms: row.updated_ms,
        error: row.error.as_deref().and_then(|text| Failure::from_text(text).ok()),
        result: row.result.as_deref().and_then(|text| JobResult::from_text(text).ok()),
    }
}
