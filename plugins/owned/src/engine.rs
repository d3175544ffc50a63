//! The engine: what loads models and runs calls on them.
//!
//! An [`Engine`] owns the helper threads, a [`Model`] its weights and spare workspaces. Every public function may be
//! called from any thread; no lock is held while a call computes or is held in a checkpoint, so calls on one model run
//! side by side. Knows nothing of the plugin ABI; `plugin` wraps it.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::artifact::ArtifactFiles;
use crate::artifact::config::BertConfig;
use crate::artifact::modules::{self, Pooling};
use crate::error::{OwnedError, Result};
use crate::kernel::isa::Kernels;
use crate::model::bert::{Bert, Tokens};
use crate::model::plan::{Item, Plan};
pub use crate::model::worker::CallControl;
use crate::model::worker::{Crew, Worker};
use crate::model::workspace::{Matrix, Workspace};
use crate::thread::barrier::Barrier;
use crate::thread::gate::Gate;
use crate::thread::pool::Pool;

/// Calls that may run on one model at once.
pub const MAX_CONCURRENCY: u32 = 4;
/// The most threads of one call.
pub const MAX_THREADS: usize = 64;
/// Spare workspaces kept per model.
const SPARE_WORKSPACES: usize = 8;
/// Calls that run on one thread after a call met a busy machine.
const QUIET_CALLS: u32 = 32;

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSettings {
    /// How token vectors become one.
    pub pooling: Pooling,
    /// The longest item in tokens.
    pub max_tokens: usize,
    /// The most items of a call.
    pub max_batch: usize,
    /// The most tokens of a call.
    pub max_batch_tokens: usize,
}

/// A ragged batch; see the contract's `TokenBatch`.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'b> {
    /// Every item's ids, back to back.
    pub ids: &'b [i32],
    /// `n + 1` ascending offsets.
    pub offsets: &'b [u32],
    /// Segment ids, or empty when all are 0.
    pub type_ids: &'b [i32],
}

/// A loaded model.
pub struct Model {
    bert: Bert,
    settings: LoadSettings,
    unused_tensors: Vec<String>,
    spare: Mutex<Vec<Workspace>>,
    /// Bytes of the spare workspaces of all models of the engine.
    scratch: Arc<AtomicUsize>,
}

/// The engine.
pub struct Engine {
    kernels: &'static Kernels,
    pool: Pool,
    scratch: Arc<AtomicUsize>,
    quiet: AtomicU32,
    cpus: usize,
}

impl Engine {
    /// An engine on these kernels, with no thread yet.
    #[must_use]
    pub fn new(kernels: &'static Kernels) -> Self {
        Self {
            kernels,
            pool: Pool::new(MAX_CONCURRENCY as usize * (MAX_THREADS - 1)),
            scratch: Arc::default(),
            quiet: AtomicU32::new(0),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Loads a model. `progress` is told values read and values in all, and says `false` to stop.
    ///
    /// # Errors
    /// [`OwnedError`]; nothing is left behind.
    pub fn load(
        &self,
        files: &ArtifactFiles,
        settings: LoadSettings,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Model> {
        let config = BertConfig::read(&files.config)?;
        modules::check(files, settings.pooling, config.hidden)?;
        let setting = |key: &str, value: usize, limit: usize| {
            if (1..=limit).contains(&value) {
                return Ok(());
            }
            Err(OwnedError::Config {
                key: key.to_owned(),
                problem: format!("{value} is out of range; this model takes 1 to {limit}"),
            })
        };
        setting("max_tokens", settings.max_tokens, config.positions)?;
        setting("max_batch", settings.max_batch, u32::MAX as usize)?;
        setting("max_batch_tokens", settings.max_batch_tokens, u32::MAX as usize)?;
        let mut unused_tensors = Vec::new();
        let bert = Bert::load(config, &files.weights, progress, &mut unused_tensors)?;
        Ok(Model {
            bert,
            settings,
            unused_tensors,
            spare: Mutex::default(),
            scratch: Arc::clone(&self.scratch),
        })
    }

    /// Bytes of the workspaces kept between calls, over all models.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.load(Ordering::Relaxed)
    }

    /// Ends the helper threads. Later calls run on their own thread only.
    pub fn stop_threads(&self) {
        self.pool.close();
    }

    /// Embeds a batch into `out`: one row of the model's dims per item, before any L2 normalisation.
    ///
    /// # Errors
    /// [`OwnedError::InvalidArgument`], [`OwnedError::InputTooLong`], [`OwnedError::OutOfMemory`],
    /// [`OwnedError::Cancelled`], [`OwnedError::Panicked`].
    pub fn embed(
        &self,
        model: &Model,
        batch: Batch<'_>,
        threads: usize,
        control: &dyn CallControl,
        out: &mut [f32],
    ) -> Result<()> {
        let bert = &model.bert;
        let items = check_batch(&batch, &model.settings)?;
        let tokens = Tokens {
            ids: batch.ids,
            type_ids: batch.type_ids,
        };
        bert.check_ids(tokens)?;
        let dims = model.dims();
        if out.len() != items.len() * dims {
            return Err(OwnedError::InvalidArgument(format!(
                "output has {} values, expected {} items × {dims}",
                out.len(),
                items.len()
            )));
        }
        if items.is_empty() {
            return Ok(());
        }
        let count = items.len();
        let team = self.pool.team(threads.clamp(1, MAX_THREADS) - 1);
        let mut plan = Plan::new(items, team.ranks());
        if matches!(plan, Plan::Together(_)) && (team.ranks() > self.cpus || self.is_quiet()) {
            plan = plan.for_one_rank();
        }
        let ranks = match &plan {
            Plan::Together(_) => team.ranks(),
            Plan::Apart(groups) => team.ranks().min(groups.len()),
        };
        let mut workspaces = model.workspaces(&plan, ranks)?;
        let mut views: Vec<_> = workspaces
            .iter_mut()
            .map(|workspace| workspace.views(bert.shape()))
            .collect();
        let together = matches!(plan, Plan::Together(_));
        if together {
            let leader = views[0];
            for view in &mut views[1..] {
                *view = view.sharing_with(&leader);
            }
        }
        let crew = Crew {
            kernels: self.kernels,
            barrier: Barrier::new(ranks),
            gate: Gate::default(),
            control,
            total: bert.operations(&plan).max(1),
        };
        let rows = Matrix {
            first: out.as_mut_ptr(),
            stride: dims,
            rows: count,
        };
        let next = AtomicUsize::new(0);
        let work = |rank: usize| {
            let stop = StopOnPanic(&crew);
            let mut worker = Worker::new(&crew, rank, if together { ranks } else { 1 }, views[rank]);
            let groups = plan.groups();
            let mut turn = 0;
            loop {
                let index = if together {
                    turn
                } else {
                    next.fetch_add(1, Ordering::Relaxed)
                };
                turn += 1;
                let Some(group) = groups.get(index) else { break };
                // SAFETY: the ids were checked, the workspaces were made for the plan, ranks that share matrices
                // take the same groups in the same order, and each item's row of `out` belongs to one group.
                let outcome = unsafe { bert.forward(&mut worker, tokens, group, model.settings.pooling, rows) };
                if outcome.is_err() {
                    crew.stop();
                    break;
                }
            }
            std::mem::forget(stop);
        };
        let outcome = team.run(ranks, &work, || {
            // A stopped call is seen below, on every path.
            let _ = crew.checkpoint();
        });
        self.note_contention(&crew.barrier, ranks);
        let stopped = crew.gate.pass().is_err();
        model.keep(workspaces);
        outcome?;
        if stopped { Err(OwnedError::Cancelled) } else { Ok(()) }
    }

    /// Whether this call should stay on one thread because a recent one met a busy machine.
    fn is_quiet(&self) -> bool {
        self.quiet
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |calls| calls.checked_sub(1))
            .is_ok()
    }

    /// Two ranks that keep waiting for each other lose more than they gain: the next calls stay on one thread.
    fn note_contention(&self, barrier: &Barrier, ranks: usize) {
        if ranks > 1 && barrier.parked_waits() > 4 {
            self.quiet.store(QUIET_CALLS, Ordering::Relaxed);
        }
    }
}

/// Stops a call on every rank when one of them unwinds.
struct StopOnPanic<'c>(&'c Crew<'c>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Model {
    /// Values of a vector.
    #[must_use]
    pub const fn dims(&self) -> usize {
        self.bert.config().hidden
    }

    /// Tensors of the file that the architecture does not know.
    #[must_use]
    pub fn unused_tensors(&self) -> &[String] {
        &self.unused_tensors
    }

    /// Bytes of weights.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.bert.bytes()
    }

    fn workspaces(&self, plan: &Plan, ranks: usize) -> Result<Vec<Workspace>> {
        let mut workspaces: Vec<Workspace> = {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = spare.len().saturating_sub(ranks);
            spare.split_off(kept)
        };
        self.scratch.fetch_sub(bytes_of(&workspaces), Ordering::Relaxed);
        workspaces.resize_with(ranks, Workspace::default);
        let shape = self.bert.shape();
        let rows = plan.groups().iter().map(|group| group.rows).max().unwrap_or(0);
        let longest = plan.groups().iter().map(|group| group.longest).max().unwrap_or(0);
        let shares = |rank: usize| rank > 0 && matches!(plan, Plan::Together(_));
        for (rank, workspace) in workspaces.iter_mut().enumerate() {
            workspace.fit_private(shape, rows, longest)?;
            if !shares(rank) {
                workspace.fit_shared(shape, rows, Bert::block_rows(plan))?;
            }
        }
        Ok(workspaces)
    }

    fn keep(&self, mut workspaces: Vec<Workspace>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let room = SPARE_WORKSPACES.saturating_sub(spare.len());
        workspaces.truncate(room);
        self.scratch.fetch_add(bytes_of(&workspaces), Ordering::Relaxed);
        spare.append(&mut workspaces);
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let spare = self.spare.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.scratch.fetch_sub(bytes_of(spare), Ordering::Relaxed);
    }
}

fn bytes_of(workspaces: &[Workspace]) -> usize {
    workspaces.iter().map(Workspace::bytes).sum()
}

/// Checks a batch against the contract and the load's bounds.
fn check_batch(batch: &Batch<'_>, settings: &LoadSettings) -> Result<Vec<Item>> {
    let invalid = |problem: String| Err(OwnedError::InvalidArgument(problem));
    let Some(&first) = batch.offsets.first() else {
        return invalid("offsets are empty; a batch of n items has n + 1 of them".to_owned());
    };
    let count = batch.offsets.len() - 1;
    if count > settings.max_batch {
        return invalid(format!(
            "{count} items, the model was loaded for at most {}",
            settings.max_batch
        ));
    }
    if batch.ids.len() > settings.max_batch_tokens {
        return invalid(format!(
            "{} tokens, the model was loaded for at most {} a call",
            batch.ids.len(),
            settings.max_batch_tokens
        ));
    }
    if !batch.type_ids.is_empty() && batch.type_ids.len() != batch.ids.len() {
        return invalid(format!(
            "{} segment ids for {} tokens",
            batch.type_ids.len(),
            batch.ids.len()
        ));
    }
    if first != 0 || batch.offsets.last().map(|&last| last as usize) != Some(batch.ids.len()) {
        return invalid(format!(
            "offsets run from {first}, expected from 0 to the {} tokens",
            batch.ids.len()
        ));
    }
    let mut items = Vec::with_capacity(count);
    for (index, pair) in batch.offsets.windows(2).enumerate() {
        let (start, end) = (pair[0] as usize, pair[1] as usize);
        if start >= end {
            return invalid(format!(
                "item {index} spans [{start}, {end}]; every item needs at least one token"
            ));
        }
        if end - start > settings.max_tokens {
            return Err(OwnedError::InputTooLong {
                item: index,
                tokens: end - start,
                limit: settings.max_tokens,
            });
        }
        items.push(Item {
            index,
            tokens: start..end,
        });
    }
    Ok(items)
}
