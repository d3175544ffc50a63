//! The engine: what loads models and runs calls on them.
//!
//! An [`Engine`] owns the helper threads, a [`Model`] its weights and spare workspaces. Every public function may be
//! called from any thread; no lock is held while a call computes or is held in a checkpoint, so calls on one model run
//! side by side. Knows nothing of the plugin ABI; `plugin` wraps it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::artifact::ArtifactFiles;
use crate::artifact::config::Config;
use crate::artifact::modules::{self, Pooling};
use crate::error::{OwnedError, Result};
use crate::kernel::isa::Kernels;
pub use crate::kernel::packed::Arithmetic;
use crate::model::architecture;
use crate::model::encoder::{Encoder, Tokens};
use crate::model::load::{self, Output};
use crate::model::plan::{Item, Plan};
pub use crate::model::worker::CallControl;
use crate::model::worker::{Crew, Worker};
use crate::model::workspace::{Matrix, Workspace};
use crate::thread::barrier::Barrier;
use crate::thread::contention::Contention;
use crate::thread::gate::Gate;
use crate::thread::pool::Pool;

/// Calls that may run on one model at once.
pub const MAX_CONCURRENCY: u32 = 4;
/// The most threads of one call.
pub const MAX_THREADS: usize = 64;
/// Spare workspaces kept per model.
const SPARE_WORKSPACES: usize = 8;

/// What a model is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One vector an item, pooled so.
    Embed(Pooling),
    /// One score an item, by the model's own head.
    Score,
}

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSettings {
    /// What for.
    pub task: Task,
    /// How layers are computed.
    pub arithmetic: Arithmetic,
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
    encoder: Encoder,
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
    contention: Contention,
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
            contention: Contention::default(),
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
        let config = Config::read(&files.config)?;
        let blueprint = architecture::blueprint(&config)?;
        let output = match settings.task {
            Task::Score => architecture::scorer(&config, &blueprint)?,
            Task::Embed(pooling) => {
                modules::check(files, pooling, blueprint.hidden)?;
                let mut width = blueprint.hidden;
                let mut steps = Vec::with_capacity(files.dense.len());
                for dense in &files.dense {
                    let step = modules::dense(dense, width)?;
                    width = step.outputs;
                    steps.push((Some(dense.weights.clone()), step));
                }
                Output { pooling, steps }
            }
        };
        let setting = |key: &str, value: usize, limit: usize| {
            if (1..=limit).contains(&value) {
                return Ok(());
            }
            Err(OwnedError::Config {
                key: key.to_owned(),
                problem: format!("{value} is out of range; this model takes 1 to {limit}"),
            })
        };
        setting("max_tokens", settings.max_tokens, blueprint.longest)?;
        setting("max_batch", settings.max_batch, u32::MAX as usize)?;
        setting("max_batch_tokens", settings.max_batch_tokens, u32::MAX as usize)?;
        let loaded = load::load(
            &blueprint,
            &output,
            &files.weights,
            (settings.max_tokens, settings.arithmetic),
            progress,
        )?;
        Ok(Model {
            encoder: loaded.encoder,
            settings,
            unused_tensors: loaded.unused,
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

    /// Computes a batch into `out`: one row of the model's dims per item, a vector before any L2 normalisation or one
    /// raw score, as the model was loaded.
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
        let encoder = &model.encoder;
        let items = check_batch(&batch, &model.settings)?;
        let tokens = Tokens {
            ids: batch.ids,
            type_ids: batch.type_ids,
        };
        encoder.check_ids(tokens)?;
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
        if matches!(plan, Plan::Together(_)) && (team.ranks() > self.cpus || !self.contention.allows_sharing()) {
            plan = plan.for_one_rank();
        }
        let ranks = match &plan {
            Plan::Together(_) => team.ranks(),
            Plan::Apart(groups) => team.ranks().min(groups.len()),
        };
        let mut workspaces = model.workspaces(&plan, ranks)?;
        let mut views: Vec<_> = workspaces
            .iter_mut()
            .map(|workspace| workspace.views(encoder.shape()))
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
            total: encoder.operations(&plan).max(1),
        };
        let rows = Matrix {
            first: out.as_mut_ptr(),
            stride: dims,
            rows: count,
        };
        let next = AtomicUsize::new(0);
        let began = Instant::now();
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
                let outcome = unsafe { encoder.forward(&mut worker, tokens, group, rows) };
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
        if together && ranks > 1 && outcome.is_ok() {
            // Ranks that waited because the host held the call waited for nobody on this machine.
            let held = crew.gate.held();
            let others = u32::try_from(ranks - 1).unwrap_or(u32::MAX);
            let parked = crew.barrier.parked().saturating_sub(held.saturating_mul(others));
            self.contention.note(parked, began.elapsed().saturating_sub(held));
        }
        let stopped = crew.gate.pass().is_err();
        model.keep(workspaces);
        outcome?;
        if stopped { Err(OwnedError::Cancelled) } else { Ok(()) }
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
    /// Values that an item gives: a vector's, or 1 for a score.
    #[must_use]
    pub const fn dims(&self) -> usize {
        self.encoder.dims()
    }

    /// Tensors of the file that the architecture does not know.
    #[must_use]
    pub fn unused_tensors(&self) -> &[String] {
        &self.unused_tensors
    }

    /// Bytes of weights.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.encoder.bytes()
    }

    fn workspaces(&self, plan: &Plan, ranks: usize) -> Result<Vec<Workspace>> {
        let mut workspaces: Vec<Workspace> = {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = spare.len().saturating_sub(ranks);
            spare.split_off(kept)
        };
        self.scratch.fetch_sub(bytes_of(&workspaces), Ordering::Relaxed);
        workspaces.resize_with(ranks, Workspace::default);
        let shape = self.encoder.shape();
        let need = Encoder::need(plan);
        let shares = |rank: usize| rank > 0 && matches!(plan, Plan::Together(_));
        for (rank, workspace) in workspaces.iter_mut().enumerate() {
            workspace.fit_private(shape, need)?;
            if !shares(rank) {
                workspace.fit_shared(shape, need)?;
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
