//! The engine: it answers every call as its mode says, and leaves a byte per call in its scratch folder, so that a
//! test can see whether it was called at all.
//!
//! State: a counter of handles. Callers: the host under test.
//!
//! A well-behaved call gives vectors of two values: the sum of the item's ids, and their number.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use synapse_plugin_api::abi_stable::std_types::{ROption, RResult, RSlice, RStr, RVec};
use synapse_plugin_api::{
    CallContext, EmbedEngine, EngineError, EngineIdentity, EngineState, ErrorCode, ExtensionRef, Flow, HostServices,
    LoadedModel, LogLevel, MemoryReport, ModelRef, RuntimeConfig, TokenBatch, ValidatedArtifact, VectorsOut,
};

use crate::mode;

/// The engine of this library.
pub(crate) struct Stress {
    host: HostServices,
    calls: PathBuf,
    next: AtomicU64,
}

impl Stress {
    pub(crate) fn new(host: HostServices, config: &str) -> Self {
        host.log(LogLevel::INFO, config);
        let calls = PathBuf::from(host.scratch_dir()).join("calls");
        Self {
            host,
            calls,
            next: AtomicU64::new(1),
        }
    }

    /// Leaves a trace of a call.
    pub(crate) fn count(&self) {
        let file = File::options().create(true).append(true).open(&self.calls);
        if file.and_then(|mut file| file.write_all(b".")).is_err() {
            self.host.log(LogLevel::ERROR, "the call could not be counted");
        }
    }

    fn compute(&self, ctx: &CallContext<'_>, items: &[&[i32]], out: VectorsOut<'_>) -> RResult<(), EngineError> {
        self.count();
        let values: &mut [f32] = out.values.into_mut_slice();
        let rows = values.chunks_exact_mut(2).zip(items);
        let fail =
            |code, state| RResult::RErr(EngineError::new(code, format!("told to: {}", mode())).with_state(state));
        match mode() {
            "nan" => values.fill(f32::NAN),
            "panic" => return fail(ErrorCode::PANIC, EngineState::USABLE),
            "engine-bad" => return fail(ErrorCode::INTERNAL, EngineState::ENGINE_BAD),
            "unknown-state" => return fail(ErrorCode::INTERNAL, EngineState(77)),
            "model-bad" => return fail(ErrorCode::DEVICE, EngineState::MODEL_BAD),
            "huge-message" => {
                let text = "\n".to_owned() + &"x".repeat(16 << 20);
                return RResult::RErr(EngineError::new(ErrorCode::INTERNAL, text));
            }
            "until-cancelled" => {
                while ctx.checkpoint(0, 1) == Flow::CONTINUE {}
                return fail(ErrorCode::CANCELLED, EngineState::USABLE);
            }
            _ => {
                for (row, ids) in rows {
                    row[0] = ids.iter().map(|id| f32::from(i16::try_from(*id).unwrap_or(0))).sum();
                    row[1] = f32::from(u16::try_from(ids.len()).unwrap_or(0));
                }
            }
        }
        RResult::ROk(())
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        self.count();
    }
}

impl EmbedEngine for Stress {
    fn identity(&self) -> EngineIdentity {
        let mut identity = crate::identity();
        if mode() == "other-identity" {
            identity.version = "2".into();
        }
        identity
    }

    fn load(
        &self,
        _ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> RResult<LoadedModel, EngineError> {
        self.count();
        let mut loaded = LoadedModel {
            model: ModelRef(self.next.fetch_add(1, Ordering::Relaxed)),
            dims: 2,
            max_tokens: config.max_tokens,
            max_concurrency: 2,
            memory_bytes: artifact.files.iter().map(|file| file.size).sum(),
            extra: RVec::new(),
        };
        match mode() {
            "load-error" => return RResult::RErr(EngineError::new(ErrorCode::ARTIFACT_INVALID, "not my format")),
            "no-concurrency" => loaded.max_concurrency = 0,
            "huge-dims" => loaded.dims = u32::MAX,
            "wide" => loaded.dims = 4096,
            "same-handle" => loaded.model = ModelRef(7),
            _ => {}
        }
        RResult::ROk(loaded)
    }

    fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        _model: ModelRef,
        batch: &TokenBatch<'_>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError> {
        let ids = batch.ids.as_slice();
        let range = |pair: &[u32]| pair[0] as usize..pair[1] as usize;
        let items: Vec<&[i32]> = batch.offsets.windows(2).map(|pair| &ids[range(pair)]).collect();
        self.compute(ctx, &items, out)
    }

    fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        _model: ModelRef,
        ids: RSlice<'_, i32>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError> {
        self.compute(ctx, &[ids.as_slice()], out)
    }

    fn unload(&self, _model: ModelRef) -> RResult<(), EngineError> {
        self.count();
        RResult::ROk(())
    }

    fn memory(&self) -> MemoryReport {
        self.count();
        MemoryReport::default()
    }

    fn extension(&self, _id: RStr<'_>) -> ROption<ExtensionRef<'static>> {
        ROption::RNone
    }
}
