//! Every fault mode that leaves the process alive does what its name says, through the SDK's shims.
//!
//! The modes that end the process (abort, exit, segv) are tried in child processes by tests/faults.

use std::path::Path;

use synapse_plugin_sdk::{
    api::{EmbedEngineObject, EngineError, EngineState, ErrorCode, ModelRef, TokenBatch, VectorsOut},
    testing::{FakeCall, FakeHost, artifact, runtime_config},
};
use synapse_reference::fault::Fault;

const IDS: [i32; 12] = [101, 5, 102, 101, 5, 6, 7, 8, 9, 102, 101, 102];
const OFFSETS: [u32; 4] = [0, 3, 10, 12];

struct Rig {
    engine: EmbedEngineObject,
    host: FakeHost,
    dims: u32,
    model: ModelRef,
    _dir: tempfile::TempDir,
}

fn open(fault: &str, pooling: &str) -> Result<Rig, EngineError> {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("model");
    std::fs::write(&file, "model").expect("writable");
    let host = FakeHost::new();
    let engine = synapse_reference::plugin()
        .open_embed(host.host(), "{}")
        .expect("opens")
        .expect("offered");
    let mut config = runtime_config("bytes", "f32");
    config.pooling = pooling.into();
    config.extra = vec![synapse_plugin_sdk::api::KeyValue::new("fault", fault)].into();
    let files = artifact(&[("weights", Path::new(&file))]).expect("readable");
    let loaded = engine
        .load(&FakeCall::new(1).context(), &files, &config)
        .into_result()?;
    Ok(Rig {
        engine,
        host,
        dims: loaded.dims,
        model: loaded.model,
        _dir: dir,
    })
}

impl Rig {
    fn embed(&self, call: &FakeCall) -> Result<Vec<Vec<f32>>, EngineError> {
        let mut out = vec![f32::MAX; 3 * self.dims as usize];
        let batch = TokenBatch::new(&IDS, &OFFSETS, &[]);
        let vectors = VectorsOut::new(&mut out, self.dims);
        self.engine
            .embed_batch(&call.context(), self.model, &batch, vectors)
            .into_result()?;
        Ok(out.chunks_exact(self.dims as usize).map(<[f32]>::to_vec).collect())
    }
}

fn rows(fault: &str, threads: u32) -> Vec<Vec<f32>> {
    open(fault, "mean")
        .and_then(|rig| rig.embed(&FakeCall::new(threads)))
        .expect(fault)
}

fn far(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).any(|(a, b)| (a - b).abs() > 5e-4)
}

/// A panic gives PANIC and engine_bad, names its text, is logged, and the engine then refuses everything.
#[test]
fn a_panic_is_contained_and_ends_the_engine() {
    for fault in ["panic", "panic_twice"] {
        let rig = open(fault, "mean").expect("loads");
        let error = rig.embed(&FakeCall::new(1)).unwrap_err();
        assert_eq!(
            (error.code, error.state),
            (ErrorCode::PANIC, EngineState::ENGINE_BAD),
            "{error}"
        );
        assert!(error.message.starts_with("panic in embed_batch"), "{error}");
        let again = rig.embed(&FakeCall::new(1)).unwrap_err();
        assert_eq!((again.code, again.state), (ErrorCode::PANIC, EngineState::ENGINE_BAD));
        assert_eq!(rig.engine.unload(rig.model).unwrap_err().code, ErrorCode::PANIC);
        assert!(
            rig.host
                .logs()
                .iter()
                .any(|(_, line)| line.contains("panic in embed_batch"))
        );
    }
    let error = open("panic_load", "mean").err().expect("fails");
    assert_eq!(error.code, ErrorCode::PANIC);
    assert!(error.message.contains("fault: panic_load"), "{error}");
}

/// Errors cross with code, state and message.
#[test]
fn errors_cross_whole() {
    for (fault, code, state) in [
        ("error", ErrorCode::INTERNAL, EngineState::USABLE),
        ("error_model_bad", ErrorCode::INTERNAL, EngineState::MODEL_BAD),
        ("error_engine_bad", ErrorCode::DEVICE, EngineState::ENGINE_BAD),
        ("error_unknown", ErrorCode(0x8000_0007), EngineState::USABLE),
    ] {
        let error = open(fault, "mean")
            .expect("loads")
            .embed(&FakeCall::new(1))
            .unwrap_err();
        assert_eq!((error.code, error.state), (code, state));
        assert_eq!(error.message.as_str(), format!("fault: {fault}"));
    }
    for (fault, code) in [
        ("error_load", ErrorCode::ARTIFACT_INVALID),
        ("out_of_memory", ErrorCode::OUT_OF_MEMORY),
    ] {
        assert_eq!(open(fault, "mean").err().expect("fails").code, code);
    }
    let error = open("no_such_fault", "mean").err().expect("fails");
    assert_eq!(error.code, ErrorCode::CONFIG_INVALID);
    assert!(error.message.contains("no_such_fault") && error.message.contains("panic_load"));
    assert!(Fault::NAMES.len() > 30, "the message lists the modes");
}

/// Each fault of numbers changes what its gate looks at.
#[test]
fn numbers_are_spoilt_where_the_mode_says() {
    let good = rows("none", 1);
    assert!(
        good.iter()
            .flatten()
            .all(|value| value.is_finite() && value.abs() <= 1.0)
    );
    assert!(rows("nan", 1).iter().flatten().all(|value| value.is_nan()));
    assert!(rows("infinite", 1).iter().flatten().all(|value| value.is_infinite()));
    let nan = rows("nan_shape", 1);
    assert!(
        nan[1][0].is_nan() && nan[0] == good[0] && nan[2] == good[2],
        "only the item of 7 tokens"
    );
    let half = rows("half_written", 1);
    assert!(
        half[1].iter().all(|&value| value == f32::MAX) && half[0] == good[0],
        "odd rows are untouched"
    );
    for fault in ["mask_ignored", "padding_leaked"] {
        let rows = rows(fault, 1);
        assert!(
            far(&rows[0], &good[0]) && !far(&rows[1], &good[1]),
            "{fault}: only the longest is right"
        );
    }
    for fault in ["cls_for_mean", "last_off_by_one", "drift"] {
        assert!(
            rows(fault, 1).iter().zip(&good).all(|(bad, good)| far(bad, good)),
            "{fault}"
        );
    }
    let ordered = rows("order_dependent", 1);
    assert!(!far(&ordered[0], &good[0]) && far(&ordered[2], &good[2]));
    assert!(far(&rows("thread_dependent", 1)[0], &rows("thread_dependent", 4)[0]));
}

/// A cancelled call ends with CANCELLED, unless the mode ignores it.
#[test]
fn cancellation_is_seen_or_ignored() {
    let slow = open("slow", "mean").expect("loads");
    let call = FakeCall::new(1).cancel_at(1);
    assert_eq!(slow.embed(&call).unwrap_err().code, ErrorCode::CANCELLED);
    assert_eq!((call.checkpoints(), call.violations()), (1, Vec::new()));
    let good = rows("none", 1);
    let call = FakeCall::new(1).cancel_at(1);
    assert_eq!(
        open("ignore_cancel", "mean").expect("loads").embed(&call),
        Ok(good.clone())
    );
    assert_eq!(call.checkpoints(), 3);
    let call = FakeCall::new(1).cancel_at(1);
    assert_eq!(open("no_checkpoint", "mean").expect("loads").embed(&call), Ok(good));
    assert_eq!(call.checkpoints(), 0);
    let call = FakeCall::new(1);
    open("backwards", "mean").expect("loads").embed(&call).expect("goes on");
    assert!(!call.violations().is_empty());
    let error = {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("model");
        std::fs::write(&file, "model").expect("writable");
        let engine = synapse_reference::plugin()
            .open_embed(FakeHost::new().host(), r#"{"fault":"slow_load"}"#)
            .expect("opens")
            .expect("offered");
        let files = artifact(&[("weights", &file)]).expect("readable");
        let call = FakeCall::new(1).cancel_at(5);
        engine
            .load(&call.context(), &files, &runtime_config("bytes", "f32"))
            .unwrap_err()
    };
    assert_eq!(error.code, ErrorCode::CANCELLED);
}
