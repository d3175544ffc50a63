//! The work of a job over a large input: its texts in windows, a quantum at a time, each kept as a page (API-11).
//!
//! State: none; the input, the pages and the state are in the store, so a restart loses at most the quantum in the engine.
//! Callers: `embed_batch`, `job.seal`. A window is tokenized and packed by length; each of its quanta is one bulk call of
//! the lane, so queries and other jobs go between them, and memory does not grow with the number of items. While the disk
//! takes nothing, the job waits with the quantum that it has. Not known here: the order of calls, SQL, JSON.

use std::sync::Arc;
use std::time::{Duration, Instant};

use synapse_catalog::Record;
use synapse_core::engine::EngineKind;
use synapse_core::job::{JobEvent, JobState};
use synapse_core::schedule::{Class, Packing};
use synapse_wire::client::{
    Class as FailureClass, EmbedJobOptions, Encoding, ErrorCode, ItemOutcome, JobKind, JobPage, Provenance, Role,
    Vector,
};

use super::admission::{Admitted, Demand, admit};
use super::items::{self, Sorted, wide};
use super::{RequestContext, ServiceError, call, tokenizing};
use crate::job::{JobHandle, JobResult, now_ms};
use crate::lane::work::{EmbedWork, Results};
use crate::lane::{output, profile};
use crate::rpc::context::RequestId;
use crate::state::Daemon;
use crate::store::{Committed, JobRow, NewPage, OpenItem, PageRead, Store, StoreError};
use crate::text::{Encoded, Limits};

/// Items that are tokenized at a time.
const WINDOW_ITEMS: u32 = 1_024;
/// Bytes of text that are tokenized at a time, after the first item.
const WINDOW_BYTES: u64 = 4 << 20;
/// Bytes of one page, after its first item (DECISIONS, jobs).
const PAGE_BYTES: usize = 512 << 10;
/// How long a job waits for its lane at most: a load takes no longer.
const LANE_PATIENCE: Duration = Duration::from_secs(600);
/// The time between two tries to write to a disk that takes nothing.
const DISK_PAUSE_MS: u64 = 500;
/// A quantum of a job has no caller who waits: this only ends what nothing else ends.
const CALL_DEADLINE: Duration = Duration::from_secs(3_600);

/// Starts the work of a queued job.
///
/// # Errors
/// The registry of jobs has no room, or the daemon stops; the job then has failed for now.
pub(super) async fn start(daemon: &Arc<Daemon>, row: JobRow) -> Result<(), ServiceError> {
    let (id, model, created_ms) = (row.id.clone(), row.model.clone(), row.created_ms);
    let work_daemon = Arc::clone(daemon);
    let work = move |handle| run(work_daemon, row, handle);
    let started = daemon
        .jobs
        .start_kept(&id, JobKind::EmbedBatch, &model, created_ms, work);
    if let Err(error) = &started {
        settle(daemon, id, event(error), Some(error)).await?;
    }
    started
}

/// The work of a job from its turn to its end, which is kept before it is shown.
async fn run(daemon: Arc<Daemon>, row: JobRow, handle: JobHandle) -> Result<Option<JobResult>, ServiceError> {
    if moved(&daemon, &handle, JobEvent::Start, None).await? != Some(JobState::Running) {
        return Err(ServiceError::cancelled());
    }
    match embed(&daemon, &row, &handle).await {
        // Cancelled after its last page was kept: both records say so.
        Ok(()) => match moved(&daemon, &handle, JobEvent::Finish, None).await? {
            Some(JobState::Done) => Ok(None),
            _ => Err(ServiceError::cancelled()),
        },
        // `job.cancel` has kept that itself; a daemon that stops leaves the job to its next start (JOB-04).
        Err(error) if *error.code() == ErrorCode::Cancelled => Err(error),
        Err(error) => {
            moved(&daemon, &handle, event(&error), Some(&error)).await?;
            Err(error)
        }
    }
}

/// Moves a job at work; the state that it has in the store then.
async fn moved(
    daemon: &Arc<Daemon>,
    handle: &JobHandle,
    event: JobEvent,
    error: Option<&ServiceError>,
) -> Result<Option<JobState>, ServiceError> {
    let (id, failure) = (handle.id().to_string(), error.map(|error| error.failure().to_text()));
    let step = move |store: &Store| store.move_job(&id, event, failure.clone(), now_ms());
    in_the_end(daemon, handle, step).await
}

/// Runs `work` on the store as soon as the disk takes it: a job waits for room, keeps what it has, and can be cancelled
/// meanwhile. Otherwise it would end unseen by the store, which its key would name as running for ever.
async fn in_the_end<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    handle: &JobHandle,
    work: impl Fn(&Store) -> Result<T, StoreError> + Clone + Send + 'static,
) -> Result<T, ServiceError> {
    loop {
        let (store, work) = (daemon.store.clone(), work.clone());
        match daemon.tasks.blocking("store", move || work(&store)).await? {
            Err(error) if error.may_pass() => {
                tracing::warn!(target: "synapse", job_id = %handle.id(), "the job waits for the disk: {error}");
                pause(handle, DISK_PAUSE_MS).await?;
            }
            outcome => return Ok(outcome?),
        }
    }
}

fn event(error: &ServiceError) -> JobEvent {
    match error.class() {
        FailureClass::Transient => JobEvent::FailTransient,
        _ => JobEvent::FailPermanent,
    }
}

/// Moves the job in the store; the state that it has then.
async fn settle(
    daemon: &Arc<Daemon>,
    id: String,
    event: JobEvent,
    error: Option<&ServiceError>,
) -> Result<Option<JobState>, ServiceError> {
    let failure = error.map(|error| error.failure().to_text());
    on_disk(daemon, move |store| store.move_job(&id, event, failure, now_ms())).await
}

/// Runs `work` on the store, off the runtime's threads.
pub(super) async fn on_disk<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ServiceError> {
    let store = daemon.store.clone();
    Ok(daemon.tasks.blocking("store", move || work(&store)).await??)
}

/// Embeds what is open, window by window.
async fn embed(daemon: &Arc<Daemon>, row: &JobRow, handle: &JobHandle) -> Result<(), ServiceError> {
    let options =
        EmbedJobOptions::from_text(&row.request).map_err(|error| ServiceError::internal(error.to_string()))?;
    let (mut done, mut turned_away) = (row.committed, 0);
    handle.progress("embed", done, Some(row.items), "items");
    loop {
        let id = row.id.clone();
        let window = in_the_end(daemon, handle, move |store| {
            store.open_items(&id, WINDOW_ITEMS, WINDOW_BYTES)
        })
        .await?;
        if window.is_empty() {
            return Ok(());
        }
        let admitted = lane(daemon, row, &options, handle).await?;
        same_space(daemon, row, handle, &admitted).await?;
        let before = done;
        match embed_window(daemon, row, &options, &admitted, handle, window, &mut done).await {
            // The model left memory under the job: what was kept stays, the rest waits for the lane again.
            Err(error) if *error.code() == ErrorCode::ModelLoading && turned_away < 3 => {
                turned_away = if done > before { 0 } else { turned_away + 1 };
            }
            outcome => outcome?,
        }
    }
}

/// A context for a call without a caller.
fn context(handle: &JobHandle) -> RequestContext {
    let received = Instant::now();
    RequestContext {
        request_id: RequestId::new(0, 0),
        received,
        deadline: received + CALL_DEADLINE,
        max_queue: CALL_DEADLINE,
        cancel: handle.cancel().child_token(),
    }
}

/// The job's lane, once it serves.
async fn lane(
    daemon: &Arc<Daemon>,
    row: &JobRow,
    options: &EmbedJobOptions,
    handle: &JobHandle,
) -> Result<Admitted, ServiceError> {
    let until = Instant::now() + LANE_PATIENCE;
    loop {
        let demand = Demand {
            model: &row.model,
            kind: EngineKind::Embed,
            constraints: &options.constraints(),
            target_fingerprint: options.target_fingerprint.as_deref(),
            query: false,
        };
        let shape = |record: &Record| profile::served_shape(record, options.dimensions, options.normalize);
        match admit(daemon, &context(handle), demand, shape).await {
            Err(error) if *error.code() == ErrorCode::ModelLoading && Instant::now() < until => {
                pause(handle, error.retry_after_ms().unwrap_or(500)).await?;
            }
            outcome => return outcome,
        }
    }
}

async fn pause(handle: &JobHandle, milliseconds: u64) -> Result<(), ServiceError> {
    tokio::select! {
        biased;
        () = handle.cancel().cancelled() => Err(ServiceError::cancelled()),
        () = tokio::time::sleep(Duration::from_millis(milliseconds)) => Ok(()),
    }
}

/// All pages of a job are of one numeric space: a job that goes on after the model has changed would mix two.
async fn same_space(
    daemon: &Arc<Daemon>,
    row: &JobRow,
    handle: &JobHandle,
    admitted: &Admitted,
) -> Result<(), ServiceError> {
    let id = row.id.clone();
    let PageRead::Body(first) = in_the_end(daemon, handle, move |store| store.job_page(&id, 0)).await? else {
        return Ok(());
    };
    let first = JobPage::from_bytes(&first).map_err(|error| ServiceError::storage_failed(error.to_string()))?;
    if first.fingerprint == admitted.fingerprint {
        return Ok(());
    }
    let message = format!(
        "the job's first pages are in the numeric space {}; the model now serves {}; submit the texts again under \
         another request_key",
        first.fingerprint, admitted.fingerprint,
    );
    Err(ServiceError::substitution_rejected(message).detail(|detail| {
        detail.reason = Some("fingerprint_mismatch".to_owned());
        detail.fingerprint = Some(admitted.fingerprint.clone());
    }))
}

/// Tokenizes a window and gives it to the engine, quantum by quantum.
async fn embed_window(
    daemon: &Arc<Daemon>,
    row: &JobRow,
    options: &EmbedJobOptions,
    admitted: &Admitted,
    handle: &JobHandle,
    window: Vec<OpenItem>,
    done: &mut u64,
) -> Result<(), ServiceError> {
    let positions: Vec<u64> = window.iter().map(|open| open.position).collect();
    let names: Vec<String> = window.iter().map(|open| open.item.id.clone()).collect();
    let tokenized = tokenize(daemon, options, admitted, handle, window).await?;
    let Sorted {
        outcomes,
        encoded,
        sound,
    } = items::sort(names, tokenized, |text| text);
    let page = Pages {
        daemon,
        handle,
        row,
        admitted,
        role: options.role.unwrap_or(Role::Document),
    };
    let failed: Vec<Item> = outcomes
        .iter()
        .zip(&positions)
        .filter(|(outcome, _)| outcome.error.is_some())
        .map(|(outcome, position)| Item {
            position: *position,
            outcome: outcome.clone(),
            vector: None,
        })
        .collect();
    page.keep(failed, done).await?;
    let lengths: Vec<u32> = encoded.iter().map(|text| text.effective_tokens).collect();
    let mut packing = Packing::new(&lengths, &[]);
    loop {
        let mut bounds = call::envelope(admitted);
        bounds.max_tokens = bounds.max_tokens.min(admitted.loaded.executor.quantum_units());
        let Some(quantum) = packing.next(bounds) else { break };
        let rows = call_lane(daemon, admitted, handle, &quantum, &encoded).await?;
        let kept = quantum.iter().zip(rows).map(|(&item, engine_row)| {
            let at = sound[item];
            let (outcome, vector) = match output::serve(&engine_row, admitted.shape) {
                Ok(vector) => (outcomes[at].clone(), Some(vector)),
                Err(error) => {
                    let error = ServiceError::non_finite_output(error.to_string());
                    (items::failed(outcomes[at].id.clone(), &error), None)
                }
            };
            Item {
                position: positions[at],
                outcome,
                vector,
            }
        });
        page.keep(kept.collect(), done).await?;
        handle.progress("embed", *done, Some(row.items), "items");
    }
    Ok(())
}

/// One engine call, as soon as the lane has room for it.
async fn call_lane(
    daemon: &Arc<Daemon>,
    admitted: &Admitted,
    handle: &JobHandle,
    quantum: &[usize],
    encoded: &[Encoded],
) -> Result<Vec<Vec<f32>>, ServiceError> {
    let tokens: u64 = quantum
        .iter()
        .map(|&item| u64::from(encoded[item].effective_tokens))
        .sum();
    let bytes = tokens
        .saturating_mul(8)
        .saturating_add(wide(quantum.len()) * u64::from(admitted.loaded.model.dims) * 8);
    loop {
        let texts = quantum.iter().map(|&item| encoded[item].clone()).collect();
        let rows = Results::together(quantum.len(), Vec::new());
        let work = EmbedWork::new(&admitted.loaded, texts, call::envelope(admitted), rows);
        match call::run(daemon, &context(handle), admitted, Class::Bulk, bytes, None, work).await {
            Err(error) if *error.code() == ErrorCode::QueueFull => {
                pause(handle, error.retry_after_ms().unwrap_or(100)).await?;
            }
            outcome => return outcome,
        }
    }
}

async fn tokenize(
    daemon: &Arc<Daemon>,
    options: &EmbedJobOptions,
    admitted: &Admitted,
    handle: &JobHandle,
    window: Vec<OpenItem>,
) -> Result<Vec<Result<Encoded, ServiceError>>, ServiceError> {
    let loaded = Arc::clone(&admitted.loaded);
    let limits = Limits {
        max_tokens: admitted.lane.max_tokens(),
        truncate: options.truncate.unwrap_or(admitted.lane.record.truncate_default),
        max_bytes: daemon.config.inline.max_item_bytes,
    };
    let role = options.role.unwrap_or(Role::Document);
    let expected = window.len();
    let tokenized = tokenizing::on_the_pool(daemon, &context(handle), move |caller| {
        let template = (role != Role::None)
            .then(|| loaded.templates.get(role.as_str()))
            .flatten();
        let encode = |open: OpenItem| -> Result<Encoded, ServiceError> {
            let text = std::str::from_utf8(&open.item.text)
                .map_err(|_| ServiceError::invalid_text("the text was no valid Unicode; send whole characters"))?;
            Ok(loaded.tokenizer.encode(text, template, limits)?)
        };
        window
            .into_iter()
            .map_while(|open| (!caller.has_left()).then(|| encode(open)))
            .collect::<Vec<_>>()
    })
    .await?;
    if tokenized.len() < expected {
        return Err(ServiceError::cancelled());
    }
    Ok(tokenized)
}

/// One item with its outcome.
struct Item {
    position: u64,
    outcome: ItemOutcome,
    vector: Option<Vec<f32>>,
}

/// Writes pages.
struct Pages<'a> {
    daemon: &'a Arc<Daemon>,
    handle: &'a JobHandle,
    row: &'a JobRow,
    admitted: &'a Admitted,
    role: Role,
}

impl Pages<'_> {
    /// Keeps items in pages of at most 512 KiB, each of at least one item.
    async fn keep(&self, items: Vec<Item>, done: &mut u64) -> Result<(), ServiceError> {
        let count = wide(items.len());
        let mut pages = Vec::new();
        let mut rest = items.into_iter().peekable();
        while let Some(first) = rest.next() {
            let mut bytes = size(&first);
            let mut page = vec![first];
            while let Some(next) = rest.next_if(|next| bytes + size(next) <= PAGE_BYTES) {
                bytes += size(&next);
                page.push(next);
            }
            pages.push(self.page(page));
        }
        if pages.is_empty() {
            return Ok(());
        }
        let id = self.row.id.clone();
        match in_the_end(self.daemon, self.handle, move |store| {
            store.commit_pages(&id, pages.clone())
        })
        .await?
        {
            Committed::Kept => {
                *done += count;
                Ok(())
            }
            Committed::NotRunning => Err(ServiceError::cancelled()),
            Committed::Refused => Err(ServiceError::internal(
                "an item of the job was computed that is in a page already",
            )),
        }
    }

    fn page(&self, items: Vec<Item>) -> NewPage {
        let record = &self.admitted.lane.record;
        let positions = items.iter().map(|item| item.position).collect();
        let (outcomes, vectors) = items
            .into_iter()
            .map(|item| {
                let vector = item.vector.map(|values| Vector::encode(&values, Encoding::Base64));
                (item.outcome, vector)
            })
            .unzip();
        let page = JobPage {
            fingerprint: self.admitted.fingerprint.clone(),
            numeric_profile_id: self.admitted.lane.profile_id.to_string(),
            table_epoch: self.admitted.table.epoch(),
            dims: self.admitted.shape.dims,
            provenance: Provenance {
                by: self.admitted.served_by(),
                role: self.role,
                template_id: profile::template_id(record, self.role),
                normalized: self.admitted.shape.normalized,
            },
            items: outcomes,
            vectors,
        };
        NewPage {
            positions,
            body: page.to_bytes(),
        }
    }
}

/// About what an item takes in a page: its vector in base64, its id, and the words around them.
fn size(item: &Item) -> usize {
    item.vector.as_ref().map_or(0, |vector| vector.len() * 16 / 3) + item.outcome.id.len() + 256
}
