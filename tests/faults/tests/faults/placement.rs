//! One bundle's engine in this process and in a worker, through the same trait and the same checks: above the trait
//! nobody can tell them apart.

use std::sync::Arc;
use std::time::Duration;

use synapse_core::engine::{
    CallContext, CallControl, EmbedEngine, EngineError, EngineErrorCode, EngineState, Flow, ModelRef, RuntimeConfig,
    TokenBatch, ValidatedArtifact, VerifiedFile,
};
use synapse_daemon::task::Tasks;
use synapse_daemon::worker::engine::RemoteEngine;
use synapse_daemon::worker::launch::Plan;
use synapse_daemon::worker::room::hello_engines;
use synapse_daemon::worker::supervisor::{Limits, ModelKey, Quarantine, Supervisor};
use synapse_faults::Stage;
use synapse_loader::Plugin;
use synapse_wire::worker::DEFAULT_MAX_FRAME;
use synapse_wire::worker::message::{BundleHello, EngineKind};

use crate::{stage, worker};

/// A call that is cancelled from the start, or never.
struct Control {
    cancelled: bool,
}

impl CallControl for Control {
    fn cancelled(&self) -> bool {
        self.cancelled
    }

    fn checkpoint(&self, _done: u64, _total: u64) -> Flow {
        if self.cancelled { Flow::Cancel } else { Flow::Continue }
    }
}

/// Nothing is quarantined here.
struct NoQuarantine;

impl Quarantine for NoQuarantine {
    fn reason(&self, _key: &ModelKey) -> Option<String> {
        None
    }

    fn impose(&self, _key: &ModelKey, _reason: &str) {}

    fn set_aside(&self) -> bool {
        false
    }

    fn put_back(&self) {}

    fn lift(&self) -> Vec<ModelKey> {
        Vec::new()
    }
}

/// The stress bundle in one mode, opened here and served by a worker.
struct Both {
    stage: Stage,
    plugin: Arc<Plugin>,
    supervisor: Arc<Supervisor>,
    _runtime: tokio::runtime::Runtime,
}

impl Both {
    fn new(mode: &str) -> Self {
        let stage = stage();
        stage.add("stress", mode);
        let (loader, bundle) = stage.promote("stress");
        let plugin = loader.open(&bundle).expect("opens");
        let descriptor = bundle.descriptor.as_ref().expect("is described");
        let plan = Plan {
            program: worker().to_owned(),
            bundle: bundle.staged.clone().expect("is staged"),
            socket_dir: stage.path("run/workers"),
            expected_bundle: BundleHello {
                id: bundle.id.clone(),
                version: descriptor.package_version.to_string(),
            },
            expected_engines: hello_engines(descriptor),
            settings: Vec::new(),
            handshake: Duration::from_secs(60),
            max_frame: DEFAULT_MAX_FRAME,
            log_lines_per_second: 50,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        let supervisor = Supervisor::new(
            "both".to_owned(),
            plan,
            Limits::default(),
            Tasks::new(runtime.handle().clone()),
            Arc::new(NoQuarantine),
        );
        Self {
            stage,
            plugin,
            supervisor,
            _runtime: runtime,
        }
    }

    /// Runs the same check against both.
    fn check(&self, check: impl Fn(&str, &dyn EmbedEngine)) {
        let inside = self.plugin.embed(&[]).expect("an engine");
        let identity = self.plugin.descriptor().identity.clone();
        let remote = RemoteEngine::new(EngineKind::Embed, identity, Arc::clone(&self.supervisor));
        check("in process", &*inside);
        check("in a worker", &remote);
    }

    fn artifact(&self) -> ValidatedArtifact {
        let path = self.stage.path("weights");
        std::fs::write(&path, b"weights").expect("writes");
        let measured = (synapse_core::digest::sha256(b"weights"), 7);
        ValidatedArtifact::new(vec![
            VerifiedFile::check("weights", path, measured, measured).expect("as measured"),
        ])
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        self.supervisor.stop(Duration::from_secs(60));
    }
}

fn config() -> RuntimeConfig {
    RuntimeConfig {
        format: "bin".into(),
        dtype: "f32".into(),
        pooling: "mean".into(),
        max_tokens: 64,
        max_batch: 8,
        max_batch_tokens: 512,
        threads: 1,
        extra: Vec::new(),
    }
}

fn context(control: &Control) -> CallContext<'_> {
    CallContext {
        request_id: 1,
        remaining: None,
        threads: 1,
        control,
    }
}

const GO_ON: Control = Control { cancelled: false };

fn embed(engine: &dyn EmbedEngine, model: ModelRef, control: &Control) -> Result<Vec<f32>, EngineError> {
    let batch = TokenBatch {
        ids: &[5, 6, 7, 100, 1, 2],
        offsets: &[0, 3, 4, 6],
        type_ids: &[],
    };
    let mut out = vec![f32::NAN; 6];
    engine.embed_batch(&context(control), model, &batch, &mut out)?;
    Ok(out)
}

/// Proves WPROTO-01, ENG-06: load, batch, single item, an unknown model, unload, and use after it.
#[test]
fn an_engine_is_the_same_in_both_places() {
    let both = Both::new("good");
    let artifact = both.artifact();
    both.check(|place, engine| {
        let loaded = engine.load(&context(&GO_ON), &artifact, &config()).expect(place);
        assert_eq!(
            (loaded.dims, loaded.max_tokens, loaded.memory_bytes),
            (2, 64, 7),
            "{place}"
        );
        assert_eq!(
            embed(engine, loaded.model, &GO_ON).expect(place),
            [18.0, 3.0, 100.0, 1.0, 3.0, 2.0],
            "{place}"
        );
        let mut one = [f32::NAN; 2];
        engine
            .embed_one(&context(&GO_ON), loaded.model, &[5, 6, 7], &mut one)
            .expect(place);
        assert_eq!(one, [18.0, 3.0], "{place}");
        let error = embed(engine, ModelRef(99), &GO_ON).expect_err(place);
        assert_eq!(
            (error.code, error.state),
            (EngineErrorCode::InvalidArgument, EngineState::Usable),
            "{place}"
        );
        engine.unload(loaded.model).expect(place);
        let error = embed(engine, loaded.model, &GO_ON).expect_err(place);
        assert_eq!(error.code, EngineErrorCode::InvalidArgument, "{place}");
        assert!(engine.unload(loaded.model).is_err(), "{place}");
    });
}

/// Proves WPROTO-01, ERR-03: an engine's own errors cross the process unchanged.
#[test]
fn an_error_is_the_same_in_both_places() {
    for (mode, code, state) in [
        ("load-error", EngineErrorCode::ArtifactInvalid, EngineState::Usable),
        ("model-bad", EngineErrorCode::Device, EngineState::ModelBad),
        ("until-cancelled", EngineErrorCode::Cancelled, EngineState::Usable),
    ] {
        let both = Both::new(mode);
        let artifact = both.artifact();
        both.check(|place, engine| {
            let outcome = engine
                .load(&context(&GO_ON), &artifact, &config())
                .and_then(|loaded| embed(engine, loaded.model, &Control { cancelled: true }));
            let error = outcome.expect_err(place);
            assert_eq!((error.code, error.state), (code, state), "{mode} {place}: {error}");
        });
    }
}
