//! The engine behind all three kinds: settings, files, handles, batches, checkpoints, and the modes that break them.
//!
//! State: the loaded models. A line that keeps a rule stands beside the mode that leaves it out.

use std::io::Write as _;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use synapse_plugin_api::abi_stable::std_types::{ROption, RResult, RSlice, RStr, RVec};
use synapse_plugin_api::{
    CallContext, EmbedEngine, EngineError, EngineIdentity, EngineKind, EngineState, ErrorCode, ExtensionRef, Flow,
    GenerateEngine, GenerateOptions, Generated, HostServices, LoadedModel, MemoryReport, ModelRef, PairBatch, Prompt,
    RerankEngine, RuntimeConfig, ScoresOut, TokenBatch, TokenSink, ValidatedArtifact, VectorsOut,
};

use super::arithmetic::{DIMS, score, seed, vector};
use super::{error, fault, generate, identity};

/// The bytes of the host that each model holds.
const BLOCK: (usize, usize) = (64, 16);

/// A loaded model.
pub(super) struct Model {
    handle: ModelRef,
    pub(super) seed: u64,
    bytes: u64,
    pub(super) max_tokens: usize,
    block: usize,
    loader: ThreadId,
}

/// The engine of one kind.
pub(super) struct Engine {
    host: HostServices,
    kind: EngineKind,
    models: Mutex<Vec<std::sync::Arc<Model>>>,
    next: AtomicU64,
    failed: AtomicU64,
    calls: AtomicU64,
    running: AtomicU32,
    open: Mutex<Vec<std::fs::File>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn new(host: HostServices, kind: EngineKind) -> Self {
        Self {
            host,
            kind,
            models: Mutex::default(),
            next: AtomicU64::new(1),
            failed: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            running: AtomicU32::new(0),
            open: Mutex::default(),
        }
    }

    fn extension_of_engine(&self, id: &str) -> ROption<ExtensionRef<'static>> {
        if id == "synapse.environment/1" {
            return ROption::RNone;
        }
        super::extension(id)
    }

    fn load_model(&self, artifact: &ValidatedArtifact, config: &RuntimeConfig) -> Result<LoadedModel, EngineError> {
        let loaded = self.load_whole(artifact, config);
        if loaded.is_err() {
            self.failed.fetch_add(1, Ordering::SeqCst);
        }
        loaded
    }

    fn load_whole(&self, artifact: &ValidatedArtifact, config: &RuntimeConfig) -> Result<LoadedModel, EngineError> {
        let numbers = [
            ("max_tokens", config.max_tokens),
            ("max_batch", config.max_batch),
            ("max_batch_tokens", config.max_batch_tokens),
            ("threads", config.threads),
        ];
        if let Some((key, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return error(ErrorCode::CONFIG_INVALID, format!("{key} is 0, expected at least 1"));
        }
        if let Some(pair) = config.extra.first()
            && !fault("any-extra")
        {
            return error(
                ErrorCode::CONFIG_INVALID,
                format!("the key {} of extra is unknown", pair.key),
            );
        }
        if (config.format != "bin" || config.dtype != "f32") && !fault("any-format") {
            return error(ErrorCode::UNSUPPORTED, "expected format bin and dtype f32");
        }
        let Some(file) = artifact.files.iter().find(|file| file.role == "weights") else {
            return error(ErrorCode::ARTIFACT_INVALID, "no file of role weights");
        };
        if fault("wants-name") && file.path.contains(' ') || fault("load-refuses") {
            return error(ErrorCode::ARTIFACT_INVALID, "not a file of mine");
        }
        let content = if fault("folder-ok") && file.path().is_dir() {
            Vec::new()
        } else {
            let bad = |cause| EngineError::new(ErrorCode::ARTIFACT_INVALID, format!("role weights: {cause}"));
            std::fs::read(file.path()).map_err(bad)?
        };
        if fault("damage-abort") && content.len() < 64 {
            std::process::abort();
        }
        let block = self.host.alloc(BLOCK.0, BLOCK.1).expose_provenance();
        if block == 0 {
            if fault("null-abort") {
                std::process::abort();
            }
            return error(ErrorCode::OUT_OF_MEMORY, "64 bytes of the host");
        }
        self.misbehave(file.path());
        let mut models = lock(&self.models);
        let handle = ModelRef(if fault("same-handle") {
            models.len() as u64 + 1
        } else {
            self.next.fetch_add(1, Ordering::SeqCst)
        });
        let model = Model {
            handle,
            seed: seed(&content),
            bytes: if fault("memory-lies") {
                1 << 30
            } else {
                content.len() as u64
            },
            max_tokens: config.max_tokens as usize,
            block,
            loader: std::thread::current().id(),
        };
        let loaded = LoadedModel {
            model: handle,
            dims: if self.kind == EngineKind::EMBED {
                u32::try_from(DIMS).unwrap_or(0)
            } else {
                0
            },
            max_tokens: config.max_tokens,
            max_concurrency: if fault("one-at-a-time") { 1 } else { 4 },
            memory_bytes: model.bytes,
            extra: RVec::new(),
        };
        models.push(std::sync::Arc::new(model));
        Ok(loaded)
    }

    /// What a plugin must not do to its process.
    fn misbehave(&self, file: &std::path::Path) {
        if fault("prints") {
            let _ = std::io::stdout().write_all(b"loaded a model\n");
        }
        if fault("writes-home")
            && let Some(home) = std::env::home_dir()
        {
            let _ = std::fs::write(home.join("stress.cache"), "x");
        }
        if fault("changes-directory") {
            let _ = std::env::set_current_dir("/");
        }
        if fault("sets-environment") {
            // SAFETY: none is claimed: this mode exists to do what a plugin must not.
            unsafe { std::env::set_var("STRESS", "1") };
        }
        if fault("flushes-subnormals") {
            flush_subnormals();
        }
        if fault("opens-socket")
            && self.next.load(Ordering::SeqCst) == 1
            && let Ok(socket) = std::net::UdpSocket::bind("127.0.0.1:0")
        {
            std::mem::forget(socket);
        }
        if fault("leaks-files") {
            lock(&self.open).extend(std::fs::File::open(file));
        }
    }

    fn unload_model(&self, model: ModelRef) -> Result<(), EngineError> {
        let mut models = lock(&self.models);
        let Some(at) = models.iter().position(|known| known.handle == model) else {
            return if fault("any-handle") { Ok(()) } else { unknown_handle() };
        };
        let gone = models.remove(at);
        if !fault("leaks-blocks") {
            let pointer = std::ptr::with_exposed_provenance_mut(gone.block);
            // SAFETY: the block came from `alloc` with this size and alignment, and its model is gone.
            unsafe { self.host.free(pointer, BLOCK.0, BLOCK.1) };
        }
        Ok(())
    }

    fn memory_report(&self) -> MemoryReport {
        let models = lock(&self.models).iter().map(|model| model.bytes).sum::<u64>();
        let kept = if fault("failed-load-leaks") {
            self.failed.load(Ordering::SeqCst)
        } else {
            0
        };
        MemoryReport {
            model_bytes: models + kept,
            scratch_bytes: 0,
            extra: RVec::new(),
        }
    }

    pub(super) fn model(&self, handle: ModelRef) -> Result<std::sync::Arc<Model>, EngineError> {
        let models = lock(&self.models);
        let found = models.iter().find(|model| model.handle == handle);
        let model = match found.or(models.first().filter(|_| fault("any-handle"))) {
            Some(model) => std::sync::Arc::clone(model),
            None => return unknown_handle(),
        };
        if fault("thread-bound") && model.loader != std::thread::current().id() {
            return error(ErrorCode::INTERNAL, "called on another thread than the one that loaded");
        }
        Ok(model)
    }

    /// Computes each item in order, with a checkpoint after each.
    fn compute(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &TokenBatch<'_>,
        width: usize,
        out: &mut [f32],
        one: impl Fn(&Model, usize, &[i32], &[i32]) -> Vec<f32>,
    ) -> Result<(), EngineError> {
        let model = self.model(model)?;
        let offsets = batch.offsets.as_slice();
        let ids = lent(batch.ids.as_slice());
        check_shape(offsets, ids, batch.type_ids.as_slice())?;
        let items = offsets.len().saturating_sub(1);
        if out.len() != items * width && !fault("any-length") {
            return error(
                ErrorCode::INVALID_ARGUMENT,
                format!("expected {} values of output", items * width),
            );
        }
        let call = Running::enter(self, ctx, ids.len());
        let total = offsets.last().copied().unwrap_or(0).into();
        let nth = self.calls.fetch_add(1, Ordering::SeqCst);
        let mut longest = 0;
        for (at, ends) in offsets.windows(2).enumerate() {
            let item = ids.get(ends[0] as usize..ends[1] as usize).unwrap_or(&[]);
            let type_ids = batch.type_ids.get(ends[0] as usize..ends[1] as usize).unwrap_or(&[]);
            let item = fits(item, &model)?;
            longest = longest.max(item.len());
            if item.iter().any(|id| *id < 0) && fault("negative-abort") {
                std::process::abort();
            }
            let mut row = one(&model, at, item, type_ids);
            self.spoil(&mut row, at, item.len(), ids.len(), nth, ctx.threads());
            let row_out = out.chunks_exact_mut(width).nth(at);
            for (to, from) in row_out.into_iter().flatten().zip(row) {
                if !(fault("half-written") && items == 5 && at % 2 == 1) {
                    *to = from;
                }
            }
            call.checkpoint(ends[1].into(), total)?;
        }
        if fault("sorts-scores") && self.kind == EngineKind::RERANK && longest == 30 {
            out.sort_by(f32::total_cmp);
        }
        Ok(())
    }

    /// What a mode makes of the row of item `at`.
    fn spoil(&self, row: &mut [f32], at: usize, tokens: usize, all: usize, nth: u64, threads: u32) {
        if fault("nan-thirteen") && tokens == 13 {
            row.fill(f32::NAN);
        }
        if fault("thread-sums") && threads > 1 {
            row.iter_mut()
                .for_each(|value| *value = f32::from_bits(value.to_bits() ^ 1));
        }
        if fault("place-counts") && self.kind == EngineKind::EMBED {
            let place = f32::from(u8::try_from(at).unwrap_or(u8::MAX));
            row.iter_mut().for_each(|value| *value += 0.01 * place);
        }
        if fault("wanders") && all == 23 && nth > 4 {
            row.iter_mut().for_each(|value| *value += 0.01);
        }
        if fault("models-mix") && lock(&self.models).len() > 1 {
            row.iter_mut().for_each(|value| *value += 0.01);
        }
        if fault("races") && self.running.load(Ordering::SeqCst) > 1 {
            row.iter_mut().for_each(|value| *value += 1.0);
        }
        if fault("normalizes") && self.kind == EngineKind::EMBED {
            let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            row.iter_mut().for_each(|value| *value /= norm);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if fault("drop-abort") && !lock(&self.models).is_empty() {
            std::process::abort();
        }
        let left: Vec<ModelRef> = lock(&self.models).iter().map(|model| model.handle).collect();
        for model in left {
            let _ = self.unload_model(model);
        }
    }
}

fn unknown_handle<T>() -> Result<T, EngineError> {
    let message = if fault("long-message") {
        "x".repeat(5000)
    } else {
        "no such model; load it first".to_owned()
    };
    let state = if fault("gives-up") {
        EngineState::ENGINE_BAD
    } else {
        EngineState::USABLE
    };
    Err(EngineError::new(ErrorCode::INVALID_ARGUMENT, message).with_state(state))
}

/// The ids that a call was lent; the mode reads those of an earlier call of the same length.
fn lent(ids: &[i32]) -> &[i32] {
    static KEPT: AtomicPtr<i32> = AtomicPtr::new(std::ptr::null_mut());
    static CALLS: AtomicU64 = AtomicU64::new(0);
    if !fault("keeps-input") || ids.len() != 19 {
        return ids;
    }
    match CALLS.fetch_add(1, Ordering::SeqCst) {
        1 => KEPT.store(ids.as_ptr().cast_mut(), Ordering::SeqCst),
        2 => {
            let kept = KEPT.load(Ordering::SeqCst);
            // SAFETY: none is claimed: this mode reads what it was lent once. The kit keeps those ids.
            return unsafe { std::slice::from_raw_parts(kept, ids.len()) };
        }
        _ => {}
    }
    ids
}

fn check_shape(offsets: &[u32], ids: &[i32], type_ids: &[i32]) -> Result<(), EngineError> {
    if fault("any-shape") {
        return Ok(());
    }
    let whole = offsets.first() == Some(&0) && offsets.last().is_some_and(|last| *last as usize == ids.len());
    if offsets.len() < 2 || !whole || !offsets.is_sorted_by(|a, b| a < b) {
        return error(
            ErrorCode::INVALID_ARGUMENT,
            "offsets: expected them to ascend from 0 to the number of ids",
        );
    }
    if !type_ids.is_empty() && type_ids.len() != ids.len() {
        return error(ErrorCode::INVALID_ARGUMENT, "type_ids: expected none, or one per id");
    }
    Ok(())
}

/// An item that is not too long.
fn fits<'a>(item: &'a [i32], model: &Model) -> Result<&'a [i32], EngineError> {
    if item.len() <= model.max_tokens {
        return Ok(item);
    }
    if fault("cuts-long") {
        return Ok(&item[..model.max_tokens]);
    }
    error(
        ErrorCode::INPUT_TOO_LONG,
        format!("{} tokens, at most {}", item.len(), model.max_tokens),
    )
}

/// One call while it runs: its checkpoints, and the modes that break their rules.
pub(super) struct Running<'a> {
    engine: &'a Engine,
    ctx: &'a CallContext<'a>,
    deadline: u64,
    reached: AtomicU32,
}

impl<'a> Running<'a> {
    pub(super) fn enter(engine: &'a Engine, ctx: &'a CallContext<'a>, tokens: usize) -> Self {
        engine.running.fetch_add(1, Ordering::SeqCst);
        let is_bulk = tokens > 2000 || tokens > 100 && engine.kind == EngineKind::GENERATE;
        if fault("extra-threads") && is_bulk {
            std::thread::scope(|scope| scope.spawn(spin).join()).unwrap_or_default();
        }
        if fault("slow-blocks") && is_bulk {
            spin();
        }
        if fault("late-watcher") {
            watch_for_ever(ctx);
        }
        Self {
            engine,
            ctx,
            deadline: ctx.deadline_ns(),
            reached: AtomicU32::new(0),
        }
    }

    /// Reports work and gives way.
    pub(super) fn checkpoint(&self, done: u64, total: u64) -> Result<(), EngineError> {
        if fault("no-checkpoint") {
            return Ok(());
        }
        if fault("backwards") && self.reached.fetch_add(1, Ordering::SeqCst) > 0 {
            let _ = self.ctx.checkpoint(0, total + 1);
        }
        let flow = if fault("helper-checkpoint") {
            std::thread::scope(|scope| scope.spawn(|| self.ctx.checkpoint(done, total)).join()).unwrap_or(Flow::CANCEL)
        } else {
            self.ctx.checkpoint(done, total)
        };
        let ends = match flow {
            Flow::CONTINUE => false,
            _ if fault("ignores-cancel") => false,
            flow if fault("one-flow-only") => flow == Flow::CANCEL,
            _ => true,
        };
        if ends {
            return error(ErrorCode::CANCELLED, "the host asked for it");
        }
        let deadline = if fault("keeps-deadline") {
            self.deadline
        } else {
            self.ctx.deadline_ns()
        };
        if self.engine.host.monotonic_ns() > deadline {
            return error(ErrorCode::DEADLINE_EXCEEDED, "the deadline passed");
        }
        Ok(())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.engine.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Keeps the processor for a tenth of a second at least: counted in steps, since a busy machine takes time away.
fn spin() {
    for step in 0..60_000_000 {
        std::hint::black_box(super::arithmetic::mix(step));
    }
}

/// Reads a call's context when the call is long over.
fn watch_for_ever(ctx: &CallContext<'_>) {
    // SAFETY: none is claimed: a copy of a context outlives its call. The kit's own state lives for ever.
    let copy: CallContext<'static> = unsafe { std::mem::transmute(std::ptr::read(ctx)) };
    std::thread::spawn(move || {
        // Nobody sends: the call is over by then.
        let (_keep, never) = std::sync::mpsc::channel::<()>();
        let _ = never.recv_timeout(Duration::from_millis(60));
        copy.cancelled()
    });
}

#[cfg(target_arch = "x86_64")]
fn flush_subnormals() {
    let mode: u32 = 0x9fc0;
    // SAFETY: sets the two flush bits beside the default masks; this mode exists to do so.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, readonly)) };
}

#[cfg(not(target_arch = "x86_64"))]
fn flush_subnormals() {}

macro_rules! lifecycle {
    () => {
        fn identity(&self) -> EngineIdentity {
            let mut identity = identity();
            if fault("other-identity") {
                identity.version = "2".into();
            }
            identity
        }

        fn load(
            &self,
            ctx: &CallContext<'_>,
            artifact: &ValidatedArtifact,
            config: &RuntimeConfig,
        ) -> RResult<LoadedModel, EngineError> {
            if ctx.checkpoint(0, 1) != Flow::CONTINUE {
                return error(ErrorCode::CANCELLED, "the host asked for it").into();
            }
            self.load_model(artifact, config).into()
        }

        fn unload(&self, model: ModelRef) -> RResult<(), EngineError> {
            self.unload_model(model).into()
        }

        fn memory(&self) -> MemoryReport {
            self.memory_report()
        }

        fn extension(&self, id: RStr<'_>) -> ROption<ExtensionRef<'_>> {
            self.extension_of_engine(id.as_str())
        }
    };
}

/// The segment of tokens that have none.
fn absent_segment() -> i32 {
    i32::from(fault("segments-differ"))
}

impl EmbedEngine for Engine {
    lifecycle!();

    fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &TokenBatch<'_>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError> {
        let out = out.values.into_mut_slice();
        let one =
            |model: &Model, _, ids: &[i32], types: &[i32]| vector(model.seed, ids, types, absent_segment()).to_vec();
        self.compute(ctx, model, batch, DIMS, out, one).into()
    }

    fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        ids: RSlice<'_, i32>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError> {
        let offsets = [0, u32::try_from(ids.len()).unwrap_or(u32::MAX)];
        let batch = TokenBatch::new(ids.as_slice(), &offsets, &[]);
        self.embed_batch(ctx, model, &batch, out)
    }
}

impl RerankEngine for Engine {
    lifecycle!();

    fn score_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &PairBatch<'_>,
        out: ScoresOut<'_>,
    ) -> RResult<(), EngineError> {
        let starts = batch.doc_starts.as_slice();
        let lengths = batch
            .tokens
            .offsets
            .windows(2)
            .map(|ends| ends[1].saturating_sub(ends[0]));
        let inside = lengths.zip(starts).all(|(length, start)| *start <= length);
        if (!inside || starts.len() + 1 != batch.tokens.offsets.len()) && !fault("any-shape") {
            return error(ErrorCode::INVALID_ARGUMENT, "doc_starts: expected one inside each item").into();
        }
        let one = |model: &Model, at: usize, ids: &[i32], _: &[i32]| {
            let start = starts.get(at).map_or(0, |start| *start as usize).min(ids.len());
            vec![score(model.seed, &ids[..start], &ids[start..])]
        };
        self.compute(ctx, model, &batch.tokens, 1, out.values.into_mut_slice(), one)
            .into()
    }
}

impl GenerateEngine for Engine {
    lifecycle!();

    fn generate(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        sink: TokenSink<'_>,
    ) -> RResult<Generated, EngineError> {
        generate::generate(self, ctx, model, prompt, options, sink).into()
    }
}
