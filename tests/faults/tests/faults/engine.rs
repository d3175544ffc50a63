//! Opened bundles whose engines break the contract: each answer is checked, and a failed engine is not called again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use synapse_core::digest::sha256;
use synapse_core::engine::{
    CallContext, CallControl, EmbedEngine, EngineError, EngineErrorCode, EngineState, Flow, LoadedModel, ModelRef,
    RuntimeConfig, TokenBatch, ValidatedArtifact, VerifiedFile,
};
use synapse_faults::Stage;
use synapse_loader::{Loader, LoaderError, Plugin};

use crate::stage;

/// Lets a call pass a number of checkpoints, then asks it to end.
struct Control {
    left: AtomicU64,
}

impl CallControl for Control {
    fn cancelled(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn checkpoint(&self, _done: u64, _total: u64) -> Flow {
        let step = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) {
            Ok(_) => Flow::Continue,
            Err(_) => Flow::Cancel,
        }
    }
}

/// An opened stress bundle in one mode.
struct Rig {
    stage: Stage,
    _loader: Loader,
    plugin: Arc<Plugin>,
}

impl Rig {
    fn new(mode: &str) -> Self {
        let stage = stage();
        stage.add("stress", mode);
        let (loader, bundle) = stage.promote("stress");
        let plugin = loader.open(&bundle).unwrap();
        Self {
            stage,
            _loader: loader,
            plugin,
        }
    }

    /// How often the engine's code ran.
    fn calls(&self) -> usize {
        let file: PathBuf = self.stage.path("staging/.scratch-stress/calls");
        std::fs::read(file).map_or(0, |bytes| bytes.len())
    }

    fn engine(&self) -> Arc<dyn EmbedEngine> {
        self.plugin.embed(&[]).unwrap()
    }
}

fn with_call<R>(call: impl FnOnce(&CallContext<'_>) -> R) -> R {
    let control = Control {
        left: AtomicU64::new(3),
    };
    call(&CallContext {
        request_id: 1,
        remaining: None,
        threads: 1,
        control: &control,
    })
}

fn load(engine: &dyn EmbedEngine) -> Result<LoadedModel, EngineError> {
    let measured = (sha256(b"weights"), 7);
    let file = VerifiedFile::check("weights", PathBuf::from("/weights"), measured, measured).unwrap();
    let config = RuntimeConfig {
        format: "bin".to_owned(),
        dtype: "f32".to_owned(),
        pooling: "mean".to_owned(),
        max_tokens: 16,
        max_batch: 4,
        max_batch_tokens: 64,
        threads: 1,
        extra: Vec::new(),
    };
    with_call(|ctx| engine.load(ctx, &ValidatedArtifact::new(vec![file]), &config))
}

const BATCH: TokenBatch<'_> = TokenBatch {
    ids: &[1, 2, 3],
    offsets: &[0, 2, 3],
    type_ids: &[],
};

fn embed(engine: &dyn EmbedEngine, model: ModelRef) -> Result<[f32; 4], EngineError> {
    let mut out = [-1.0; 4];
    with_call(|ctx| engine.embed_batch(ctx, model, &BATCH, &mut out)).map(|()| out)
}

/// Proves ENG-02: the whole life of an engine, through the library.
#[test]
fn a_well_behaved_bundle_serves() {
    let rig = Rig::new("good");
    let engine = rig.engine();
    assert_eq!(engine.identity(), rig.plugin.descriptor().identity);
    let loaded = load(&*engine).unwrap();
    assert_eq!((loaded.dims, loaded.max_tokens, loaded.memory_bytes), (2, 16, 7));
    assert_eq!(embed(&*engine, loaded.model).unwrap(), [3.0, 2.0, 3.0, 1.0]);
    let mut one = [0.0; 2];
    with_call(|ctx| engine.embed_one(ctx, loaded.model, &[1, 2], &mut one)).unwrap();
    assert_eq!(one, [3.0, 2.0]);
    engine.unload(loaded.model).unwrap();
    let gone = embed(&*engine, loaded.model).unwrap_err();
    assert_eq!(
        (gone.code, gone.state),
        (EngineErrorCode::InvalidArgument, EngineState::Usable)
    );
    assert_eq!(engine.memory().model_bytes, 0);
    assert_eq!(
        rig.calls(),
        5,
        "load, batch, one, unload, memory; never for an unknown model"
    );
}

/// Two bundles of the same types in one process each run their own code, and opening twice gives one plugin.
#[test]
fn many_bundles_live_in_one_process() {
    let good = Rig::new("good");
    let bad = Rig::new("nan");
    let values = |rig: &Rig| {
        let engine = rig.engine();
        let model = load(&*engine).unwrap().model;
        embed(&*engine, model).unwrap()
    };
    assert_eq!(values(&good), [3.0, 2.0, 3.0, 1.0]);
    assert!(
        values(&bad).iter().all(|value| value.is_nan()),
        "the finite check is the caller's"
    );
    let (loader, bundle) = good.stage.promote("stress");
    let (one, two) = (loader.open(&bundle).unwrap(), loader.open(&bundle).unwrap());
    assert!(Arc::ptr_eq(&one, &two));
    assert!(Arc::ptr_eq(&one.embed(&[]).unwrap(), &two.embed(&[]).unwrap()));
}

/// Shapes are checked before they cross: foreign code may index by them.
#[test]
fn bad_shapes_never_reach_the_engine() {
    let rig = Rig::new("good");
    let engine = rig.engine();
    let model = load(&*engine).unwrap().model;
    let before = rig.calls();
    let batch = |ids, offsets, type_ids| TokenBatch { ids, offsets, type_ids };
    let table: &[(TokenBatch<'_>, usize)] = &[
        (batch(&[1, 2], &[], &[]), 0),
        (batch(&[1, 2], &[0], &[]), 0),
        (batch(&[1, 2], &[1, 2], &[]), 2),
        (batch(&[1, 2], &[0, 3], &[]), 2),
        (batch(&[1, 2], &[0, 1], &[]), 2),
        (batch(&[1, 2], &[0, 0, 2], &[]), 4),
        (batch(&[1, 2], &[0, 2, 1, 2], &[]), 6),
        (batch(&[1, 2], &[0, 2], &[0]), 2),
        (batch(&[1, 2], &[0, 2], &[]), 1),
        (batch(&[1, 2], &[0, 2], &[]), 3),
    ];
    for (batch, out) in table {
        let mut out = vec![0.0; *out];
        let error = with_call(|ctx| engine.embed_batch(ctx, model, batch, &mut out)).unwrap_err();
        assert_eq!(error.code, EngineErrorCode::InvalidArgument, "{batch:?}: {error}");
    }
    let error = with_call(|ctx| engine.embed_one(ctx, model, &[], &mut [0.0; 2])).unwrap_err();
    assert_eq!(error.code, EngineErrorCode::InvalidArgument);
    assert_eq!(rig.calls(), before);
}

/// After a panic, or when an engine says that it is bad, it is never called again: not for another call, not for its
/// memory, and not to be dropped.
#[test]
fn a_failed_engine_is_never_called_again() {
    for mode in ["panic", "engine-bad", "unknown-state"] {
        let rig = Rig::new(mode);
        let engine = rig.engine();
        let model = load(&*engine).unwrap().model;
        let first = embed(&*engine, model).unwrap_err();
        assert_eq!(first.state, EngineState::EngineBad, "{mode}");
        let calls = rig.calls();
        assert_eq!(embed(&*engine, model).unwrap_err(), first, "{mode}");
        assert_eq!(load(&*engine).unwrap_err(), first, "{mode}");
        assert_eq!(engine.unload(model), Err(first), "{mode}");
        assert_eq!(engine.memory().model_bytes, 0);
        assert_eq!(rig.calls(), calls, "{mode}: it was called again");
        let Rig { stage, _loader, plugin } = rig;
        drop((engine, plugin, _loader));
        let file = std::fs::read(stage.path("staging/.scratch-stress/calls")).unwrap();
        assert_eq!(file.len(), calls, "{mode}: it was dropped");
    }
}

/// A healthy engine is dropped when nobody holds it any more.
#[test]
fn a_healthy_engine_is_dropped() {
    let Rig { stage, _loader, plugin } = Rig::new("good");
    let engine = plugin.embed(&[]).unwrap();
    drop((engine, plugin, _loader));
    assert_eq!(
        std::fs::read(stage.path("staging/.scratch-stress/calls"))
            .unwrap()
            .len(),
        1
    );
}

/// A bad model is refused until it is unloaded; the engine lives on.
#[test]
fn a_bad_model_is_refused_and_can_be_loaded_again() {
    let rig = Rig::new("model-bad");
    let engine = rig.engine();
    let model = load(&*engine).unwrap().model;
    assert_eq!(embed(&*engine, model).unwrap_err().state, EngineState::ModelBad);
    let calls = rig.calls();
    let again = embed(&*engine, model).unwrap_err();
    assert_eq!(
        (again.code, again.state),
        (EngineErrorCode::InvalidArgument, EngineState::ModelBad)
    );
    assert_eq!(rig.calls(), calls);
    engine.unload(model).unwrap();
    assert_ne!(load(&*engine).unwrap().model, model);
}

/// A load whose answer breaks the contract ends the engine: its handles cannot be trusted.
#[test]
fn a_load_that_breaks_the_contract_ends_the_engine() {
    for (mode, words) in [("no-concurrency", "max_concurrency"), ("huge-dims", "dims")] {
        let rig = Rig::new(mode);
        let engine = rig.engine();
        let error = load(&*engine).unwrap_err();
        assert_eq!(error.state, EngineState::EngineBad, "{mode}");
        assert!(error.message.contains(words), "{mode}: {error}");
    }
    let rig = Rig::new("same-handle");
    let engine = rig.engine();
    load(&*engine).unwrap();
    let error = load(&*engine).unwrap_err();
    assert!(error.message.contains("the handle of another loaded model"), "{error}");
}

/// Proves ERR-06: a failed load is the engine's typed error, tried once, and leaves the engine usable.
#[test]
fn a_failed_load_leaves_the_engine_usable() {
    let rig = Rig::new("load-error");
    let engine = rig.engine();
    let error = load(&*engine).unwrap_err();
    assert_eq!(
        (error.code, error.state),
        (EngineErrorCode::ArtifactInvalid, EngineState::Usable)
    );
    assert_eq!(rig.calls(), 1);
}

/// The host's cancellation reaches the engine at its checkpoint.
#[test]
fn a_call_ends_when_the_host_asks() {
    let rig = Rig::new("until-cancelled");
    let engine = rig.engine();
    let model = load(&*engine).unwrap().model;
    assert_eq!(embed(&*engine, model).unwrap_err().code, EngineErrorCode::Cancelled);
}

/// A message of 16 MiB with line breaks becomes 4 KiB on one line.
#[test]
fn messages_of_engines_are_cut() {
    let rig = Rig::new("huge-message");
    let engine = rig.engine();
    let model = load(&*engine).unwrap().model;
    let message = embed(&*engine, model).unwrap_err().message;
    assert!(message.len() <= 4096 && !message.contains('\n'), "{}", message.len());
}

/// What goes wrong when an engine is made is an error of that bundle.
#[test]
fn engines_that_cannot_be_made() {
    let fail = |mode: &str| Rig::new(mode).plugin.embed(&[]).err().unwrap();
    assert!(matches!(fail("make-none"), LoaderError::NoEngine { kind: "embed", .. }));
    assert!(matches!(fail("make-config"), LoaderError::Engine { message, .. } if message.contains("wings")));
    assert!(matches!(fail("other-identity"), LoaderError::Engine { message, .. } if message.contains("identity")));
    let rig = Rig::new("make-panic");
    for _ in 0..2 {
        assert!(matches!(rig.plugin.embed(&[]), Err(LoaderError::EngineBad { .. })));
    }
    // The engine that was made before the panic was dropped by the library itself.
    assert_eq!(rig.calls(), 2, "made once");
    assert!(matches!(
        Rig::new("good").plugin.rerank(&[]),
        Err(LoaderError::NoEngine { kind: "rerank", .. })
    ));
}

/// An engine keeps the settings that it was made with.
#[test]
fn settings_are_given_once() {
    let rig = Rig::new("good");
    let with = |value: &str| rig.plugin.embed(&[("key".to_owned(), value.to_owned())]);
    let first = with("a").unwrap();
    assert!(Arc::ptr_eq(&first, &with("a").unwrap()));
    assert!(matches!(with("b"), Err(LoaderError::Engine { message, .. }) if message.contains("other settings")));
    let bad = rig.plugin.embed(&[("No Key".to_owned(), String::new())]);
    assert!(matches!(bad, Err(LoaderError::Engine { .. })));
}

/// Only a ready bundle is opened.
#[test]
fn a_bundle_that_is_not_ready_is_not_opened() {
    let stage = stage();
    stage.add("dropped-in", "good");
    let loader = stage.loader(
        Arc::new(synapse_loader::MemoryOnly::default()),
        std::time::Duration::from_secs(60),
    );
    let bundle = loader.discover().remove(0);
    assert!(matches!(loader.open(&bundle), Err(LoaderError::NotReady { status, .. }) if status == "needs_worker"));
}
