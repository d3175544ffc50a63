//! What the operations on kept jobs share: bounds, the owner, how a seal and a refusal are answered, a job as shown.
//!
//! State: none. Callers: `job.*`, `embed.batch` over its caps. Not known here: what the jobs do.

use std::future::Future;
use std::sync::Arc;

use synapse_core::engine::EngineKind;
use synapse_core::job::JobState;
use synapse_wire::client::{BatchItem, EmbedBatchParams, EmbedJobOptions, Failure, JobKind, JobProgress, JobView};

use super::admission::{self, Demand};
use super::batch_job::{self, on_disk};
use super::{RequestContext, ServiceError, items};
use crate::job::{now_ms, state_on_the_wire};
use crate::lane::profile;
use crate::state::Daemon;
use crate::store::{Appended, InputLimits, JobItem, JobRow, NewJob, Sealed};

/// The user that jobs belong to: the socket takes no other.
pub(super) fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

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

/// Takes a whole batch as a job: the job that its key names.
///
/// # Errors
/// No lane could do it, or as for a seal.
pub(super) async fn accept(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: EmbedBatchParams,
) -> Result<JobView, ServiceError> {
    let options = EmbedJobOptions::of(&params);
    check_work(daemon, ctx, &params.model, &options).await?;
    daemon.jobs.check_room()?;
    let new = NewJob {
        id: daemon.jobs.reserve_id().to_string(),
        uid: owner(),
        kind: JobKind::EmbedBatch.as_str().to_owned(),
        request: options.to_text(),
        model: params.model,
        request_key: params.request_key,
        now_ms: now_ms(),
    };
    let (items, limits) = (kept(params.items), limits(daemon));
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
            let shown = view(&row);
            batch_job::start(daemon, *row).await?;
            Ok(shown)
        }
        Sealed::Existing(row) | Sealed::NotOpen(row) => Ok(view(&row)),
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
    ServiceError::unknown_job("no such job is kept; `synapse call job.list '{}'` shows those that are")
}

/// A kept job as `job.status` shows it.
pub(super) fn view(row: &JobRow) -> JobView {
    let open = row.state == JobState::Open;
    JobView {
        job_id: row.id.clone(),
        kind: JobKind::EmbedBatch,
        state: state_on_the_wire(row.state),
        model: Some(row.model.clone()),
        progress: JobProgress {
            phase: if open { "append" } else { "embed" }.to_owned(),
            done: if open { row.items } else { row.committed },
            total: (!open).then_some(row.items),
            unit: "items".to_owned(),
        },
        created_ms: row.created_ms,
        updated_ms: row.updated_ms,
        error: row.error.as_deref().and_then(|text| Failure::from_text(text).ok()),
        result: None,
    }
}
