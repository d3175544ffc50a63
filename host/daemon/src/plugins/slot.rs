//! One engine of a bundle, of whichever kind, guarded: what the lanes call.
//!
//! State: per [`EngineSlot`] whether the engine is closed, and per [`Origin`] (an opened bundle) whether one of its engines
//! panicked in this process. Callers: the registry makes slots, `lane` calls them. Not known here: models, queues.
//!
//! The rules, for all three kinds alike:
//! 1. Control calls (identity, load, unload) are serialised; compute calls are not.
//! 2. After a panic, or when the engine says so, it is never called again in this process.
//! 3. A panic takes the whole bundle out of this process: its other engines finish what runs, and their lanes move to
//!    workers like the lane that met the panic.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use synapse_core::engine::{
    CallContext, EmbedEngine, Engine, EngineError, EngineErrorCode, EngineIdentity, EngineKind, EngineState,
    GenerateEngine, GenerateOptions, Generated, LoadedModel, ModelRef, PairBatch, Prompt, RerankEngine, RuntimeConfig,
    TokenBatch, TokenSink, ValidatedArtifact,
};
use synapse_loader::{Bundle, BundleDigest, LoaderError};

use super::{Inner, lock};
use crate::task::panic_message;
use crate::worker::engine::{RemoteEngine, wire_kind};
use crate::worker::supervisor::Supervisor;

/// An engine of any kind.
#[derive(Clone)]
pub enum AnyEngine {
    /// Token ids to vectors.
    Embed(Arc<dyn EmbedEngine>),
    /// Pairs to raw scores.
    Rerank(Arc<dyn RerankEngine>),
    /// A prompt to a continuation.
    Generate(Arc<dyn GenerateEngine>),
}

impl AnyEngine {
    /// Which kind it is.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        match self {
            Self::Embed(_) => EngineKind::Embed,
            Self::Rerank(_) => EngineKind::Rerank,
            Self::Generate(_) => EngineKind::Generate,
        }
    }

    /// What all kinds share.
    fn shared(&self) -> &dyn Engine {
        match self {
            Self::Embed(engine) => engine.as_ref(),
            Self::Rerank(engine) => engine.as_ref(),
            Self::Generate(engine) => engine.as_ref(),
        }
    }
}

/// The bundle that engines come from: what happens to one of them can concern them all.
pub(super) struct Origin {
    bundle: String,
    digest: BundleDigest,
    /// A worker can take its place.
    replaceable: bool,
    /// One of its engines panicked in this process, and the registry knows.
    panicked: AtomicBool,
    registry: Weak<Inner>,
}

impl Origin {
    pub(super) fn new(bundle: &Bundle, digest: BundleDigest, registry: Weak<Inner>) -> Self {
        Self {
            bundle: bundle.id.clone(),
            digest,
            replaceable: bundle.staged.is_some() && bundle.descriptor.is_some(),
            panicked: AtomicBool::new(false),
            registry,
        }
    }

    /// The bundle's id.
    pub(super) fn bundle(&self) -> &str {
        &self.bundle
    }
}

/// One engine, guarded.
pub struct EngineSlot {
    engine: AnyEngine,
    origin: Arc<Origin>,
    /// Who supervises it, where it runs in a worker.
    supervisor: Option<Arc<Supervisor>>,
    control: Mutex<()>,
    closed: OnceLock<EngineError>,
}

impl fmt::Debug for EngineSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineSlot")
            .field("bundle", &self.origin.bundle)
            .field("kind", &self.kind())
            .field("closed", &self.closed.get())
            .finish()
    }
}

impl EngineSlot {
    pub(super) const fn new(engine: AnyEngine, origin: Arc<Origin>) -> Self {
        Self {
            engine,
            origin,
            supervisor: None,
            control: Mutex::new(()),
            closed: OnceLock::new(),
        }
    }

    /// An engine in a worker. Its faults are its supervisor's business: nothing demotes its bundle further.
    pub(super) fn remote(kind: EngineKind, bundle: &Bundle, supervisor: Arc<Supervisor>) -> Result<Self, LoaderError> {
        let (Some(digest), Some(descriptor)) = (bundle.digest, &bundle.descriptor) else {
            return Err(LoaderError::NotReady {
                id: bundle.id.clone(),
                status: bundle.status.name().to_owned(),
            });
        };
        let remote = RemoteEngine::new(wire_kind(kind), descriptor.identity.clone(), Arc::clone(&supervisor));
        let engine = match kind {
            EngineKind::Embed => AnyEngine::Embed(Arc::new(remote)),
            EngineKind::Rerank => AnyEngine::Rerank(Arc::new(remote)),
            EngineKind::Generate => AnyEngine::Generate(Arc::new(remote)),
        };
        Ok(Self {
            supervisor: Some(supervisor),
            ..Self::new(engine, Arc::new(Origin::new(bundle, digest, Weak::new())))
        })
    }

    /// What the engine does.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        self.engine.kind()
    }

    /// Who supervises the engine, where it runs in a worker.
    #[must_use]
    pub const fn supervisor(&self) -> Option<&Arc<Supervisor>> {
        self.supervisor.as_ref()
    }

    /// Whether an engine of the bundle panicked in this process and a worker can take this one's place.
    #[must_use]
    pub fn moves_out(&self) -> bool {
        self.supervisor.is_none() && self.origin.replaceable && self.origin.panicked.load(Ordering::Acquire)
    }

    /// The bundle's id.
    #[must_use]
    pub fn bundle(&self) -> &str {
        self.origin.bundle()
    }

    /// Why the engine is never called again, if so.
    #[must_use]
    pub fn closed(&self) -> Option<&EngineError> {
        self.closed.get()
    }

    /// The engine's numeric identity.
    ///
    /// # Errors
    /// The engine is closed, or panicked.
    pub fn identity(&self) -> Result<EngineIdentity, EngineError> {
        let _serial = lock(&self.control);
        self.guarded("identity", || Ok(self.engine.shared().identity()))
    }

    /// Loads a model. One control call at a time.
    ///
    /// # Errors
    /// The engine's error; `engine_bad` closes it.
    pub fn load(
        &self,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> Result<LoadedModel, EngineError> {
        let _serial = lock(&self.control);
        self.guarded("load", || self.engine.shared().load(ctx, artifact, config))
    }

    /// Forgets a model. One control call at a time. A closed engine is left alone: its models are void already.
    ///
    /// # Errors
    /// The engine's error.
    pub fn unload(&self, model: ModelRef) -> Result<(), EngineError> {
        let _serial = lock(&self.control);
        if self.closed.get().is_some() {
            return Ok(());
        }
        self.guarded("unload", || self.engine.shared().unload(model))
    }

    /// Embeds a batch into `out` (`n × dims`). Any number of threads, up to the model's `max_concurrency`.
    ///
    /// # Errors
    /// The engine's error; `engine_bad` closes it. `InvalidArgument` where the engine does not embed.
    pub fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &TokenBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let AnyEngine::Embed(engine) = &self.engine else {
            return Err(self.other_kind(EngineKind::Embed));
        };
        self.guarded("embed_batch", || engine.embed_batch(ctx, model, batch, out))
    }

    /// Embeds one item without segments into `out` (`dims`).
    ///
    /// # Errors
    /// As [`Self::embed_batch`].
    pub fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        ids: &[i32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let AnyEngine::Embed(engine) = &self.engine else {
            return Err(self.other_kind(EngineKind::Embed));
        };
        self.guarded("embed_one", || engine.embed_one(ctx, model, ids, out))
    }

    /// Scores a batch of pairs into `out` (one raw score a pair). Threads as [`Self::embed_batch`].
    ///
    /// # Errors
    /// The engine's error; `engine_bad` closes it. `InvalidArgument` where the engine does not rerank.
    pub fn score_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &PairBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let AnyEngine::Rerank(engine) = &self.engine else {
            return Err(self.other_kind(EngineKind::Rerank));
        };
        self.guarded("score_batch", || engine.score_batch(ctx, model, batch, out))
    }

    /// Generates into `sink`. Threads as [`Self::embed_batch`].
    ///
    /// # Errors
    /// The engine's error; `engine_bad` closes it. `InvalidArgument` where the engine does not generate.
    pub fn generate(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        sink: &mut dyn TokenSink,
    ) -> Result<Generated, EngineError> {
        let AnyEngine::Generate(engine) = &self.engine else {
            return Err(self.other_kind(EngineKind::Generate));
        };
        self.guarded("generate", || engine.generate(ctx, model, prompt, options, sink))
    }

    fn other_kind(&self, wanted: EngineKind) -> EngineError {
        let message = format!("this engine is for {}, not for {}", self.kind().work(), wanted.work());
        EngineError::new(EngineErrorCode::InvalidArgument, EngineState::Usable, message)
    }

    /// Calls the engine unless it is closed, and closes it after a panic or its own word.
    fn guarded<T>(&self, what: &'static str, call: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        if let Some(closed) = self.closed.get() {
            return Err(closed.clone());
        }
        let error = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(payload) => EngineError::new(
                EngineErrorCode::Panic,
                EngineState::EngineBad,
                panic_message(payload.as_ref()),
            ),
        };
        let panicked = error.code == EngineErrorCode::Panic;
        if panicked || error.state == EngineState::EngineBad {
            let error = EngineError {
                state: EngineState::EngineBad,
                ..error
            };
            self.close(what, &error, panicked);
            return Err(error);
        }
        Err(error)
    }

    fn close(&self, what: &'static str, error: &EngineError, panicked: bool) {
        if self.closed.set(error.clone()).is_err() {
            return;
        }
        tracing::error!(
            target: "synapse.worker", plugin = self.origin.bundle, kind = ?self.kind(), call = what, %error,
            "the engine is not called again in this process",
        );
        if panicked && let Some(registry) = self.origin.registry.upgrade() {
            let reason = format!("{what}: {}", error.message);
            registry.demote(&self.origin.bundle, self.origin.digest, &reason);
            // Only now: a lane that moves out must find its bundle demoted.
            self.origin.panicked.store(true, Ordering::Release);
        }
    }
}
