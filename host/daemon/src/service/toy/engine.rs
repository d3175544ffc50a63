//! The toy engine: arithmetic that a test does by hand, and a script that makes it misbehave.
//!
//! State: [`Script`], shared by the engine objects of all kinds and by the test.
//!
//! | kind | result |
//! |---|---|
//! | embed | per item `[sum of ids, number of ids, first id, 0]` |
//! | rerank | per pair ten times the sum of the ids from the document's start on, less the sum of those before it |
//! | generate | as many words as asked: the first one's id is 3 plus the sum of the prompt's ids modulo 5, and so on round |

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use synapse_core::digest::sha256;
use synapse_core::engine::{
    CallContext, EmbedEngine, Engine, EngineError, EngineErrorCode, EngineIdentity, EngineKind, EngineState,
    EngineSupport, FinishReason, Flow, GenerateEngine, GenerateOptions, Generated, LoadedModel, MemoryReport, ModelRef,
    PairBatch, Preempt, Prompt, RerankEngine, RuntimeConfig, TokenBatch, TokenSink, ValidatedArtifact,
};
use synapse_loader::{Bundle, BundleDigest, BundleStatus, Descriptor};

use super::model::{WEIGHTS, WORDS};
use crate::plugins::AnyEngine;

/// What the engine does in its next call, beyond the usual.
type Act = Box<dyn FnOnce(&CallContext<'_>, &mut [f32]) -> Result<(), EngineError> + Send>;

/// What the engine does in its next generation, instead of the usual.
type GenerateAct = Box<dyn FnOnce(&CallContext<'_>, &mut dyn TokenSink) -> Result<Generated, EngineError> + Send>;

/// The engine's instructions and its diary.
#[derive(Default)]
pub struct Script {
    acts: Mutex<VecDeque<Act>>,
    generate_acts: Mutex<VecDeque<GenerateAct>>,
    load_failures: Mutex<VecDeque<EngineError>>,
    load_gates: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    calls: Mutex<Vec<Vec<usize>>>,
    generations: Mutex<Vec<(Vec<i32>, GenerateOptions)>>,
    pub loads: AtomicU32,
    pub unloads: AtomicU32,
}

/// Computes until it is cancelled: engines look at their control now and then, as nothing wakes them.
pub fn until_cancelled(ctx: &CallContext<'_>) -> EngineError {
    while !ctx.control.cancelled() {
        std::thread::yield_now();
    }
    EngineError::new(EngineErrorCode::Cancelled, EngineState::Usable, "stopped")
}

impl Script {
    /// The next call does this after its usual work.
    pub fn then(&self, act: impl FnOnce(&CallContext<'_>, &mut [f32]) -> Result<(), EngineError> + Send + 'static) {
        self.acts.lock().unwrap().push_back(Box::new(act));
    }

    /// The next generation does this instead of its usual work.
    pub fn generate(
        &self,
        act: impl FnOnce(&CallContext<'_>, &mut dyn TokenSink) -> Result<Generated, EngineError> + Send + 'static,
    ) {
        self.generate_acts.lock().unwrap().push_back(Box::new(act));
    }

    /// Forgets what no call has done yet: a call that ended before it reached the engine leaves it for the next one.
    pub fn forget(&self) {
        self.acts.lock().unwrap().clear();
        self.generate_acts.lock().unwrap().clear();
    }

    /// The next load runs this first.
    pub fn before_load(&self, gate: impl FnOnce() + Send + 'static) {
        self.load_gates.lock().unwrap().push_back(Box::new(gate));
    }

    /// The next load fails.
    pub fn fail_load(&self, code: EngineErrorCode) {
        let error = EngineError::new(code, EngineState::Usable, "scripted");
        self.load_failures.lock().unwrap().push_back(error);
    }

    /// The prompt and the options of each generation so far.
    pub fn generations(&self) -> Vec<(Vec<i32>, GenerateOptions)> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The token counts of each call's items so far.
    pub fn calls(&self) -> Vec<Vec<usize>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One engine object of a kind; all kinds share the script.
struct Toy {
    kind: EngineKind,
    script: Arc<Script>,
}

/// One engine of each kind.
pub fn engines(script: &Arc<Script>) -> [AnyEngine; 3] {
    let toy = |kind| {
        Arc::new(Toy {
            kind,
            script: Arc::clone(script),
        })
    };
    [
        AnyEngine::Embed(toy(EngineKind::Embed)),
        AnyEngine::Rerank(toy(EngineKind::Rerank)),
        AnyEngine::Generate(toy(EngineKind::Generate)),
    ]
}

impl Engine for Toy {
    fn identity(&self) -> EngineIdentity {
        identity()
    }

    fn load(
        &self,
        _: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> Result<LoadedModel, EngineError> {
        let gate = self.script.load_gates.lock().unwrap().pop_front();
        if let Some(gate) = gate {
            gate();
        }
        if let Some(error) = self.script.load_failures.lock().unwrap().pop_front() {
            return Err(error);
        }
        assert_eq!(std::fs::read(artifact.files()[0].path()).unwrap(), WEIGHTS);
        Ok(LoadedModel {
            model: ModelRef(u64::from(self.script.loads.fetch_add(1, Ordering::SeqCst))),
            // Without vectors the number means nothing.
            dims: if self.kind == EngineKind::Embed { 4 } else { 7 },
            max_tokens: config.max_tokens,
            max_concurrency: 2,
            memory_bytes: 1_000,
            extra: Vec::new(),
        })
    }

    fn unload(&self, _: ModelRef) -> Result<(), EngineError> {
        self.script.unloads.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }
}

impl EmbedEngine for Toy {
    fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        _: ModelRef,
        batch: &TokenBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut lengths = Vec::new();
        for (range, row) in batch.offsets.windows(2).zip(out.chunks_exact_mut(4)) {
            let ids = &batch.ids[range[0] as usize..range[1] as usize];
            lengths.push(ids.len());
            #[expect(clippy::cast_precision_loss, reason = "toy ids are small")]
            row.copy_from_slice(&[ids.iter().sum::<i32>() as f32, ids.len() as f32, ids[0] as f32, 0.0]);
        }
        self.script.calls.lock().unwrap().push(lengths);
        let act = self.script.acts.lock().unwrap().pop_front();
        act.map_or(Ok(()), |act| act(ctx, out))
    }

    fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        ids: &[i32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let offsets = [0, u32::try_from(ids.len()).unwrap()];
        self.embed_batch(
            ctx,
            model,
            &TokenBatch {
                ids,
                offsets: &offsets,
                type_ids: &[],
            },
            out,
        )
    }
}

impl RerankEngine for Toy {
    fn score_batch(
        &self,
        ctx: &CallContext<'_>,
        _: ModelRef,
        batch: &PairBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut lengths = Vec::new();
        for (item, score) in out.iter_mut().enumerate() {
            let (from, to) = (
                batch.tokens.offsets[item] as usize,
                batch.tokens.offsets[item + 1] as usize,
            );
            let (ids, segments) = (&batch.tokens.ids[from..to], &batch.tokens.type_ids[from..to]);
            let start = batch.doc_starts[item] as usize;
            // The frame of BERT: everything before the document is the query's segment.
            assert!(segments[..start].iter().all(|&segment| segment == 0));
            assert!(segments[start..].iter().all(|&segment| segment == 1));
            lengths.push(ids.len());
            let sum = |ids: &[i32]| ids.iter().sum::<i32>();
            #[expect(clippy::cast_precision_loss, reason = "toy ids are small")]
            let value = (10 * sum(&ids[start..]) - sum(&ids[..start])) as f32;
            *score = value;
        }
        self.script.calls.lock().unwrap().push(lengths);
        let act = self.script.acts.lock().unwrap().pop_front();
        act.map_or(Ok(()), |act| act(ctx, out))
    }
}

impl GenerateEngine for Toy {
    fn generate(
        &self,
        ctx: &CallContext<'_>,
        _: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        sink: &mut dyn TokenSink,
    ) -> Result<Generated, EngineError> {
        let Prompt::Ids(prompt) = prompt else {
            panic!("the host tokenizes")
        };
        let asked = (prompt.to_vec(), options.clone());
        self.script.generations.lock().unwrap().push(asked);
        let act = self.script.generate_acts.lock().unwrap().pop_front();
        if let Some(act) = act {
            return act(ctx, sink);
        }
        let error = |code| EngineError::new(code, EngineState::Usable, "no");
        if !options.grammar.is_empty() {
            return Err(error(EngineErrorCode::GrammarUnavailable));
        }
        let first = usize::try_from(prompt.iter().sum::<i32>()).unwrap();
        for (state, done) in (first..).zip(1..=options.max_tokens) {
            let id = 3 + state % 5;
            let word = format!("{} ", WORDS[id]);
            let told = sink.push(&[i32::try_from(id).unwrap()], word.as_bytes());
            let parked = ctx.control.checkpoint(u64::from(done), u64::from(options.max_tokens));
            if told == Flow::Cancel || parked == Flow::Cancel {
                return Err(error(EngineErrorCode::Cancelled));
            }
        }
        Ok(Generated {
            prompt_tokens: u32::try_from(prompt.len()).unwrap(),
            generated_tokens: options.max_tokens,
            finish: FinishReason::Length,
        })
    }
}

/// The toy engine's identity.
pub fn identity() -> EngineIdentity {
    EngineIdentity {
        engine: "toy".to_owned(),
        version: "3".to_owned(),
        build_flags: Vec::new(),
    }
}

/// The bundle that the toy engine pretends to come from.
pub fn bundle() -> Bundle {
    let version = semver::Version::new(1, 2, 3);
    Bundle {
        id: "toy".to_owned(),
        dir: "/plugins/toy".into(),
        version: Some(version.clone()),
        digest: Some(BundleDigest(sha256(b"toy bundle"))),
        status: BundleStatus::Ready,
        descriptor: Some(Descriptor {
            id: "toy".to_owned(),
            package_version: version,
            identity: identity(),
            // Of bf16 it only generates.
            supports: [
                (EngineKind::Embed, "f32"),
                (EngineKind::Rerank, "f32"),
                (EngineKind::Generate, "f32"),
                (EngineKind::Generate, "bf16"),
            ]
            .map(|(kind, dtype)| EngineSupport {
                kind,
                format: "bytes".to_owned(),
                dtype: dtype.to_owned(),
                preempt: Preempt::Quantum,
                thread_invariant: true,
                f32_exact: true,
            })
            .to_vec(),
        }),
        records: Vec::new(),
        staged: None,
        library: None,
        program: None,
        private_sonames: Default::default(),
        promotable: true,
        config: Vec::new(),
    }
}
