//! The work of a job over texts: in windows, each one call of many quanta, whose results are kept as pages (API-11).
//!
//! State: none; the input, the pages and the state are in the store. Callers: `embed_batch`, `rerank_score`, `job.seal`. A
//! window is tokenized and packed by length; between its quanta go queries and other jobs, whose shares follow weight and
//! served time: a job is one flow. Its pages are written while the next quantum runs, so a restart loses what was not
//! written of a window. A window is about three seconds of work, so memory grows neither with the items of a job nor much
//! with the number of jobs. While the disk takes nothing, the job waits with what it has. Not known here: the order of
//! calls, SQL, JSON, what is made of a text (`batch_kind.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use synapse_core::job::{JobEvent, JobState};
use synapse_core::schedule::Class;
use synapse_wire::client::{
    Class as FailureClass, EmbedJobOptions, ErrorCode, ItemOutcome, JobKind, JobProgress, RerankJobOptions,
};
use tokio::sync::mpsc;

use super::admission::Admitted;
use super::batch_kind::{BatchKind, NotEncoded};
use super::items::{self, Sorted, wide};
use super::{RequestContext, ServiceError, call, tokenizing};
use crate::job::{JobHandle, JobResult, JobWait, now_ms};
use crate::lane::loaded::Loaded;
use crate::lane::work::{Made, Results};
use crate::rpc::context::{Holds, RequestId};
use crate::schedule::Flow;
use crate::state::Daemon;
use crate::store::{Committed, JobRow, NewPage, OpenItem, PageRead, Store, StoreError};
use crate::text::Limits;

/// Quanta of one window, about.
const WINDOW_QUANTA: u64 = 16;
/// Items of one window at most.
const WINDOW_ITEMS: u64 = 1_024;
/// Bytes of text of one window, after its first item: at least and at most.
const WINDOW_BYTES: (u64, u64) = (64 << 10, 4 << 20);
/// Bytes of text to a token, before anything was tokenized.
const BYTES_OF_TOKEN: u64 = 4;
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
    let (kind, progress) = (JobKind::from_name(&row.kind), progress(&row));
    let estimated_ms = estimated_ms(daemon, &row);
    let work_daemon = Arc::clone(daemon);
    let work = move |handle: JobHandle| async move {
        handle.expects(estimated_ms);
        match kind {
            JobKind::RerankScore => run::<RerankJobOptions>(work_daemon, row, handle).await,
            _ => run::<EmbedJobOptions>(work_daemon, row, handle).await,
        }
    };
    let started = daemon.jobs.start_kept(&id, kind, &model, created_ms, progress, work);
    if let Err(error) = &started {
        settle(daemon, id, event(error), Some(error)).await?;
    }
    started
}

/// How far a kept job is.
pub(super) fn progress(row: &JobRow) -> JobProgress {
    let phase = match JobKind::from_name(&row.kind) {
        kind if !kind.has_texts() => return JobProgress::default(),
        _ if row.state == JobState::Open => "append",
        JobKind::RerankScore => RerankJobOptions::PHASE,
        _ => EmbedJobOptions::PHASE,
    };
    let open = row.state == JobState::Open;
    JobProgress {
        phase: phase.to_owned(),
        done: if open { row.items } else { row.committed },
        total: (!open).then_some(row.items),
        unit: "items".to_owned(),
    }
}

/// About how long the rest of a job takes on its lane alone, in milliseconds, where the lane is there and was measured.
pub(super) fn estimated_ms(daemon: &Daemon, row: &JobRow) -> Option<u64> {
    if row.state.is_terminal() || row.items == 0 {
        return None;
    }
    let lanes = daemon.lanes.all();
    let mut lanes = lanes
        .iter()
        .filter(|lane| lane.record.id == row.model || lane.name.starts_with(&row.model));
    let loaded = lanes.find_map(|lane| lane.loaded())?;
    left_ms(&loaded, row, row.committed)
}

/// About how long the items of a job beyond the first `done` take on this lane alone.
fn left_ms(loaded: &Loaded, row: &JobRow, done: u64) -> Option<u64> {
    let left = row.items.saturating_sub(done);
    let share = u128::from(row.bytes) * u128::from(left) / u128::from(row.items.max(1));
    let tokens = loaded.tokens_in(u64::try_from(share).unwrap_or(u64::MAX), BYTES_OF_TOKEN);
    let nanos = loaded.executor.bulk_nanos(tokens)?;
    Some(nanos.div_ceil(1_000_000))
}

/// The work of a job from its turn to its end, which is kept before it is shown.
async fn run<K: BatchKind>(
    daemon: Arc<Daemon>,
    row: JobRow,
    handle: JobHandle,
) -> Result<Option<JobResult>, ServiceError> {
    if moved(&daemon, &handle, JobEvent::Start, None).await? != Some(JobState::Running) {
        return Err(ServiceError::cancelled());
    }
    let kind = K::read(&row.request).map_err(|error| ServiceError::internal(error.to_string()));
    let worked = match kind {
        Ok(kind) => {
            let job = Job {
                flow: Arc::new(daemon.compute.open_flow(row.weight)),
                done: row.committed,
                space: None,
                kind: Arc::new(kind),
                daemon: &daemon,
                handle: &handle,
                row: &row,
            };
            job.work_off().await
        }
        Err(error) => Err(error),
    };
    match worked {
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

/// Runs `work` on the store as soon as the disk takes it: a job waits for room, keeps what it has, says why it waits, and
/// can be cancelled meanwhile. Otherwise it would end unseen by the store, which its key would name as running for ever.
async fn in_the_end<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    handle: &JobHandle,
    work: impl Fn(&Store) -> Result<T, StoreError> + Clone + Send + 'static,
) -> Result<T, ServiceError> {
    let mut waits = false;
    loop {
        let (store, work) = (daemon.store.clone(), work.clone());
        match daemon.tasks.blocking("store", move || work(&store)).await? {
            Err(error) if error.may_pass() => {
                tracing::warn!(target: "synapse", job_id = %handle.id(), "the job waits for the disk: {error}");
                waits = true;
                handle.waits_for(Some(JobWait::Disk));
                pause(handle, DISK_PAUSE_MS).await?;
            }
            outcome => {
                if waits {
                    handle.waits_for(None);
                }
                return Ok(outcome?);
            }
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

async fn pause(handle: &JobHandle, milliseconds: u64) -> Result<(), ServiceError> {
    tokio::select! {
        biased;
        () = handle.cancel().cancelled() => Err(ServiceError::cancelled()),
        () = tokio::time::sleep(Duration::from_millis(milliseconds)) => Ok(()),
    }
}

/// Whether the lane may take the rest later.
fn may_pass(error: &ServiceError) -> bool {
    matches!(error.code(), ErrorCode::ModelLoading | ErrorCode::QueueFull)
}

/// One item with its outcome.
struct Item<S> {
    position: u64,
    outcome: ItemOutcome,
    served: Option<S>,
}

/// The texts of a window, tokenized.
struct Window<T> {
    /// Each item's place in the input.
    positions: Vec<u64>,
    /// How each item fared so far.
    outcomes: Vec<ItemOutcome>,
    /// `sound[n]` is the place in the window of the n-th of `texts`.
    sound: Vec<usize>,
    texts: Arc<[T]>,
    tokens: u64,
}

/// A job at work.
struct Job<'a, K> {
    daemon: &'a Arc<Daemon>,
    handle: &'a JobHandle,
    row: &'a JobRow,
    kind: Arc<K>,
    flow: Arc<Flow>,
    /// Items that are kept.
    done: u64,
    /// The numeric space of the pages, once there is one.
    space: Option<String>,
}

impl<K: BatchKind> Job<'_, K> {
    /// Works off what is open, window by window.
    async fn work_off(mut self) -> Result<(), ServiceError> {
        let mut turned_away = 0;
        self.report();
        while self.done < self.row.items {
            let admitted = self.lane().await?;
            self.same_space(&admitted).await?;
            let window = self.open_items(&admitted).await?;
            if window.is_empty() {
                break;
            }
            let before = self.done;
            match self.work_off_window(&admitted, window).await {
                // The model left memory under the job: what was kept stays, the rest waits for the lane again.
                Err(error) if may_pass(&error) && turned_away < 3 => {
                    turned_away = if self.done > before { 0 } else { turned_away + 1 };
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn report(&self) {
        self.handle.progress(K::PHASE, self.done, Some(self.row.items), "items");
    }

    /// A context for a call without a caller.
    fn context(&self) -> RequestContext {
        let received = Instant::now();
        RequestContext {
            request_id: RequestId::new(0, 0),
            received,
            deadline: received + CALL_DEADLINE,
            max_queue: CALL_DEADLINE,
            cancel: self.handle.cancel().child_token(),
            holds: Holds::default(),
        }
    }

    /// The job's lane, once it serves.
    async fn lane(&self) -> Result<Admitted, ServiceError> {
        let until = Instant::now() + LANE_PATIENCE;
        loop {
            match self.kind.admit(self.daemon, &self.context(), &self.row.model).await {
                Err(error) if *error.code() == ErrorCode::ModelLoading && Instant::now() < until => {
                    self.handle.waits_for(Some(JobWait::Model));
                    pause(self.handle, error.retry_after_ms().unwrap_or(500)).await?;
                }
                outcome => {
                    self.handle.waits_for(None);
                    return outcome;
                }
            }
        }
    }

    /// All pages of a job are of one numeric space: a job that goes on after the model has changed would mix two.
    async fn same_space(&mut self, admitted: &Admitted) -> Result<(), ServiceError> {
        if self.space.is_none() && self.done > 0 {
            let id = self.row.id.clone();
            let read = in_the_end(self.daemon, self.handle, move |store| store.job_page(&id, 0)).await?;
            if let PageRead::Body(first) = read {
                let space = K::space(&first).map_err(|error| ServiceError::storage_failed(error.to_string()))?;
                self.space = Some(space);
            }
        }
        let space = self.space.get_or_insert_with(|| admitted.fingerprint.clone());
        if *space == admitted.fingerprint {
            return Ok(());
        }
        let message = format!(
            "the job's first pages are in the numeric space {space}; the model now serves {}; submit the texts again \
             under another request_key",
            admitted.fingerprint,
        );
        Err(ServiceError::substitution_rejected(message).detail(|detail| {
            detail.reason = Some("fingerprint_mismatch".to_owned());
            detail.fingerprint = Some(admitted.fingerprint.clone());
        }))
    }

    /// The next texts: about as many as 16 quanta take, and no more than a part of the lane's bytes.
    async fn open_items(&self, admitted: &Admitted) -> Result<Vec<OpenItem>, ServiceError> {
        let budget = self.daemon.config.schedule.lane_byte_budget;
        let quanta = admitted
            .loaded
            .executor
            .quantum_units()
            .saturating_mul(WINDOW_QUANTA * BYTES_OF_TOKEN);
        let bytes = quanta.clamp(WINDOW_BYTES.0, WINDOW_BYTES.1).min(budget / 64);
        let each = K::result_bytes(admitted).max(1) * 2;
        let items = WINDOW_ITEMS.min(budget / 4 / each).max(1);
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let id = self.row.id.clone();
        let read = move |store: &Store| store.open_items(&id, items, bytes);
        in_the_end(self.daemon, self.handle, read).await
    }

    /// Tokenizes a window and gives it to the engine; what fails before that is kept first.
    async fn work_off_window(&mut self, admitted: &Admitted, window: Vec<OpenItem>) -> Result<(), ServiceError> {
        let window = self.tokenize(admitted, window).await?;
        let failed = window.outcomes.iter().zip(&window.positions);
        let failed = failed.filter(|(outcome, _)| outcome.error.is_some());
        let failed = failed.map(|(outcome, position)| Item {
            position: *position,
            outcome: outcome.clone(),
            served: None,
        });
        self.keep(admitted, failed.collect()).await?;
        let before = self.done;
        while !window.texts.is_empty() {
            match self.call(admitted, &window).await {
                Err(error) if *error.code() == ErrorCode::QueueFull && self.done == before => {
                    self.handle.waits_for(Some(JobWait::Lane));
                    pause(self.handle, error.retry_after_ms().unwrap_or(100)).await?;
                }
                outcome => {
                    self.handle.waits_for(None);
                    return outcome;
                }
            }
        }
        Ok(())
    }

    async fn tokenize(&self, admitted: &Admitted, window: Vec<OpenItem>) -> Result<Window<K::Text>, ServiceError> {
        let positions: Vec<u64> = window.iter().map(|open| open.position).collect();
        let names: Vec<String> = window.iter().map(|open| open.item.id.clone()).collect();
        let limits = Limits {
            max_tokens: admitted.lane.max_tokens(),
            truncate: self.kind.truncate().unwrap_or(admitted.lane.record.truncate_default),
            max_bytes: self.daemon.config.inline.max_item_bytes,
        };
        let (kind, loaded) = (Arc::clone(&self.kind), Arc::clone(&admitted.loaded));
        let tokenized = tokenizing::on_the_pool(self.daemon, &self.context(), move |caller| {
            let mut tokenized = Vec::with_capacity(window.len());
            for open in window {
                if caller.has_left() {
                    return Err(ServiceError::cancelled());
                }
                let encoded = match std::str::from_utf8(&open.item.text) {
                    Ok(text) => kind.encode(&loaded, text, limits),
                    Err(_) => Err(NotEncoded::Text(ServiceError::invalid_text(
                        "the text was no valid Unicode; send whole characters",
                    ))),
                };
                tokenized.push(match encoded {
                    Ok(text) => {
                        let tokens = u64::from(K::tokens(&text).effective_tokens);
                        loaded.tokenized(wide(open.item.text.len()), tokens);
                        Ok(text)
                    }
                    Err(NotEncoded::Text(error)) => Err(error),
                    Err(NotEncoded::Job(error)) => return Err(error),
                });
            }
            Ok(tokenized)
        })
        .await??;
        let Sorted {
            outcomes,
            encoded,
            sound,
        } = items::sort(names, tokenized, K::tokens);
        let tokens = encoded.iter().map(|text| u64::from(K::tokens(text).effective_tokens));
        Ok(Window {
            positions,
            outcomes,
            sound,
            tokens: tokens.sum(),
            texts: encoded.into(),
        })
    }

    /// One call of many quanta, whose results are kept while the next quantum runs.
    async fn call(&mut self, admitted: &Admitted, window: &Window<K::Text>) -> Result<(), ServiceError> {
        let results = wide(window.texts.len()).saturating_mul(K::result_bytes(admitted) * 2);
        let bytes = window.tokens.saturating_mul(8).saturating_add(results);
        let (job, made) = mpsc::unbounded_channel();
        let work = K::work(admitted, Arc::clone(&window.texts), Results::AsMade(job));
        // Holds the call's bytes until everything that it made is kept.
        let ctx = self.context();
        let (daemon, flow) = (self.daemon, Arc::clone(&self.flow));
        let call = call::run(daemon, &ctx, admitted, Class::Bulk, bytes, Some(&flow), work);
        let keeping = self.keep_as_made(admitted, window, made);
        tokio::pin!(call, keeping);
        tokio::select! {
            kept = &mut keeping => {
                kept?;
                call.await.map(drop)
            }
            // What was made is kept, however the call ended.
            called = &mut call => {
                keeping.await?;
                called.map(drop)
            }
        }
    }

    async fn keep_as_made(
        &mut self,
        admitted: &Admitted,
        window: &Window<K::Text>,
        mut made: mpsc::UnboundedReceiver<Made<K::Made>>,
    ) -> Result<(), ServiceError> {
        while let Some(quantum) = made.recv().await {
            let items = quantum.into_iter().map(|(text, made)| {
                let at = window.sound[text];
                let (outcome, served) = match K::serve(made, admitted) {
                    Ok(served) => (window.outcomes[at].clone(), Some(served)),
                    Err(error) => (items::failed(window.outcomes[at].id.clone(), &error), None),
                };
                Item {
                    position: window.positions[at],
                    outcome,
                    served,
                }
            });
            self.keep(admitted, items.collect()).await?;
        }
        Ok(())
    }

    /// Keeps items in pages of at most 512 KiB, each of at least one item.
    async fn keep(&mut self, admitted: &Admitted, items: Vec<Item<K::Served>>) -> Result<(), ServiceError> {
        let count = wide(items.len());
        let size = |item: &Item<K::Served>| {
            let result = item.served.as_ref().map_or(0, K::page_bytes);
            // Its id, and the words around it.
            result + item.outcome.id.len() + 256
        };
        let mut pages = Vec::new();
        let mut rest = items.into_iter().peekable();
        while let Some(first) = rest.next() {
            let mut bytes = size(&first);
            let mut page = vec![first];
            while let Some(next) = rest.next_if(|next| bytes + size(next) <= PAGE_BYTES) {
                bytes += size(&next);
                page.push(next);
            }
            pages.push(self.page(admitted, page));
        }
        if pages.is_empty() {
            return Ok(());
        }
        let id = self.row.id.clone();
        let commit = move |store: &Store| store.commit_pages(&id, pages.clone());
        match in_the_end(self.daemon, self.handle, commit).await? {
            Committed::Kept => {
                self.done += count;
                self.report();
                self.handle.expects(left_ms(&admitted.loaded, self.row, self.done));
                Ok(())
            }
            Committed::NotRunning => Err(ServiceError::cancelled()),
            Committed::Refused => Err(ServiceError::internal(
                "an item of the job was computed that is in a page already",
            )),
        }
    }

    fn page(&self, admitted: &Admitted, items: Vec<Item<K::Served>>) -> NewPage {
        let positions = items.iter().map(|item| item.position).collect();
        let (outcomes, served) = items.into_iter().map(|item| (item.outcome, item.served)).unzip();
        NewPage {
            positions,
            body: self.kind.page(admitted, outcomes, served),
        }
    }
}
