//! A real daemon with a toy model on a toy engine, for tests of operations: everything but the engine is the real part.
//!
//! State: a temporary data directory. The engine's row for an item is `[sum of ids, number of ids, first id, 0]`, so a
//! test computes what it expects by hand; [`Script`] makes the engine misbehave, and records what it was called with.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use synapse_core::digest::sha256;
use synapse_core::engine::{
    CallContext, EmbedEngine, Engine, EngineError, EngineErrorCode, EngineIdentity, EngineKind, EngineState,
    EngineSupport, LoadedModel, MemoryReport, ModelRef, Preempt, RuntimeConfig, TokenBatch, ValidatedArtifact,
};
use synapse_loader::{Bundle, BundleDigest, BundleStatus, Descriptor};
use synapse_wire::client::{
    BatchItem, EmbedBatchParams, EmbedBatchResult, EmbedQueryParams, EmbedReply, ErrorCode, ModelParams,
};
use tokio_util::sync::CancellationToken;

use super::{RequestContext, ServiceError, embed_batch, embed_query, model_load};
use crate::config::Config;
use crate::models::{ModelStoreConfig, PullProgress, SourceChoice};
use crate::paths::DataDir;
use crate::rpc::context::RequestId;
use crate::state::{Daemon, OpenOptions};
use crate::task::Tasks;

/// A bound that only a hang reaches.
pub const HANG: Duration = Duration::from_secs(60);

/// Words of the toy tokenizer; a word's id is its place. `[CLS]` and `[SEP]` stand around every text.
pub const WORDS: [&str; 8] = ["[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "four", "five"];

const WEIGHTS: &[u8] = b"the toy has no weights";

/// What the engine does in its next call, beyond the usual.
pub type Act = Box<dyn FnOnce(&CallContext<'_>, &mut [f32]) -> Result<(), EngineError> + Send>;

/// The engine's instructions and its diary.
#[derive(Default)]
pub struct Script {
    acts: Mutex<VecDeque<Act>>,
    load_failures: Mutex<VecDeque<EngineError>>,
    load_gates: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    calls: Mutex<Vec<Vec<usize>>>,
    pub loads: AtomicU32,
    pub unloads: AtomicU32,
}

impl Script {
    /// The next call does this after its usual work.
    pub fn then(&self, act: impl FnOnce(&CallContext<'_>, &mut [f32]) -> Result<(), EngineError> + Send + 'static) {
        self.acts.lock().unwrap().push_back(Box::new(act));
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

    /// The token counts of each call's items so far.
    pub fn calls(&self) -> Vec<Vec<usize>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Toy(Arc<Script>);

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
        let gate = self.0.load_gates.lock().unwrap().pop_front();
        if let Some(gate) = gate {
            gate();
        }
        if let Some(error) = self.0.load_failures.lock().unwrap().pop_front() {
            return Err(error);
        }
        assert_eq!(std::fs::read(artifact.files()[0].path()).unwrap(), WEIGHTS);
        Ok(LoadedModel {
            model: ModelRef(u64::from(self.0.loads.fetch_add(1, Ordering::SeqCst))),
            dims: 4,
            max_tokens: config.max_tokens,
            max_concurrency: 2,
            memory_bytes: 1_000,
            extra: Vec::new(),
        })
    }

    fn unload(&self, _: ModelRef) -> Result<(), EngineError> {
        self.0.unloads.fetch_add(1, Ordering::SeqCst);
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
        self.0.calls.lock().unwrap().push(lengths);
        let act = self.0.acts.lock().unwrap().pop_front();
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

/// The toy engine's identity.
pub fn identity() -> EngineIdentity {
    EngineIdentity {
        engine: "toy".to_owned(),
        version: "3".to_owned(),
        build_flags: Vec::new(),
    }
}

/// The running daemon, and the hands on its engine.
pub struct Bench {
    pub daemon: Arc<Daemon>,
    pub script: Arc<Script>,
    pub tasks: Tasks,
    dir: tempfile::TempDir,
}

struct Silent;

impl PullProgress for Silent {
    fn report(&self, _: &'static str, _: u64, _: u64) {}
}

/// How a bench differs from the usual.
#[derive(Default)]
pub struct Setup {
    pub config: Config,
    /// `model` is in the catalog and the engine is there, but its files are not.
    pub without_files: bool,
    /// The engine is not there.
    pub without_engine: bool,
}

impl Bench {
    /// The usual: the toy model is installed and its engine is there, but the model is not loaded.
    pub async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    /// A loaded toy model.
    pub async fn loaded() -> Self {
        let bench = Self::new().await;
        bench.load("toy").await.unwrap();
        bench
    }

    pub async fn with(setup: Setup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path());
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let daemon = open(dir.path(), setup.config, &tasks);
        daemon.plugins.scanned().await;
        let script = Arc::new(Script::default());
        if !setup.without_engine {
            daemon.plugins.install(bundle(), Arc::new(Toy(Arc::clone(&script))));
        }
        if !setup.without_files {
            for id in ["toy", "toy-two"] {
                let record = daemon.catalog().record(id).unwrap().clone();
                let source = SourceChoice::Local(dir.path().join("source"));
                daemon
                    .models
                    .pull(&record, &record.formats[0], &source, &Silent, &CancellationToken::new())
                    .unwrap();
            }
            daemon.refresh_installed().await.unwrap();
        }
        Self {
            daemon,
            script,
            tasks,
            dir,
        }
    }

    /// Ends this daemon, and opens another one on the same data directory, without its engine.
    pub async fn restart(self) -> (Arc<Daemon>, tempfile::TempDir) {
        let Self {
            daemon,
            script,
            tasks,
            dir,
        } = self;
        daemon.lanes.close();
        drop((daemon, script));
        (open(dir.path(), Config::default(), &tasks), dir)
    }

    /// A request's context with the usual waits.
    pub fn ctx(&self) -> RequestContext {
        context(HANG, HANG)
    }

    /// Loads a model through its operation and waits for the job.
    pub async fn load(&self, model: &str) -> Result<(), ErrorCode> {
        let params = ModelParams {
            model: model.to_owned(),
        };
        let job = model_load::run(&self.daemon, &self.ctx(), params)
            .await
            .map_err(|error| error.code().clone())?;
        self.job(&job.job_id).await
    }

    /// Waits until a job has ended.
    pub async fn job(&self, id: &str) -> Result<(), ErrorCode> {
        let ended = async {
            loop {
                let view = self.daemon.jobs.status(id).unwrap();
                if view.state.is_final() {
                    return view;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let view = tokio::time::timeout(HANG, ended).await.unwrap();
        view.error.map_or(Ok(()), |failure| Err(failure.code))
    }
}

/// A context whose times count from now.
pub fn context(max_queue: Duration, deadline: Duration) -> RequestContext {
    let received = Instant::now();
    RequestContext {
        request_id: RequestId::new(1, 1),
        received,
        deadline: received + deadline,
        max_queue,
        cancel: CancellationToken::new(),
    }
}

/// A query of one text.
pub fn query(text: &str) -> EmbedQueryParams {
    EmbedQueryParams::new("toy", text)
}

/// A batch with the item ids `i0`, `i1`, ….
pub fn batch(texts: &[&str]) -> EmbedBatchParams {
    let items = texts
        .iter()
        .enumerate()
        .map(|(n, text)| BatchItem::new(format!("i{n}"), *text));
    EmbedBatchParams::new("toy", items.collect())
}

/// Asks `embed.query` with the usual waits.
pub async fn ask(bench: &Bench, params: EmbedQueryParams) -> Result<EmbedReply, ServiceError> {
    let ctx = bench.ctx();
    tokio::time::timeout(HANG, embed_query::run(&bench.daemon, &ctx, params))
        .await
        .unwrap()
}

/// Asks `embed.batch`.
pub async fn ask_all(
    bench: &Bench,
    ctx: &RequestContext,
    params: EmbedBatchParams,
) -> Result<EmbedReply, ServiceError> {
    let outcome = tokio::time::timeout(HANG, embed_batch::run(&bench.daemon, ctx, params))
        .await
        .unwrap();
    outcome.map(|result| match result {
        EmbedBatchResult::Vectors(reply) => *reply,
        EmbedBatchResult::Accepted(job) => panic!("became {job:?}"),
    })
}

/// The code of a refusal.
pub fn code<T>(outcome: Result<T, ServiceError>) -> Option<ErrorCode> {
    outcome.err().map(|error| error.code().clone())
}

fn open(dir: &Path, config: Config, tasks: &Tasks) -> Arc<Daemon> {
    let data = DataDir::new(dir.join("data"));
    let options = OpenOptions {
        config,
        plugin_dirs: Vec::new(),
        trust_file: data.trust_file(),
        worker_binary: dir.join("no-worker"),
        models: ModelStoreConfig {
            root: data.models(),
            hf_endpoint: String::new(),
            idle_timeout: HANG,
            wheel_cache_dir: None,
            python: "python3".into(),
        },
        socket: dir.join("socket"),
        data,
    };
    Daemon::open(options, tasks).unwrap()
}

/// The bundle that the toy engine pretends to come from.
fn bundle() -> Bundle {
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
            supports: vec![EngineSupport {
                kind: EngineKind::Embed,
                format: "bytes".to_owned(),
                dtype: "f32".to_owned(),
                preempt: Preempt::Quantum,
                thread_invariant: true,
                f32_exact: true,
            }],
        }),
        records: Vec::new(),
        staged: None,
        library: None,
        private_sonames: Default::default(),
        promotable: true,
        config: Vec::new(),
    }
}

/// The toy's files, records and rows: `toy` with templates and Matryoshka lengths, `toy-two` that normalises itself,
/// and models that nothing here can serve.
fn write_model(dir: &Path) {
    let vocabulary: Vec<String> = WORDS
        .iter()
        .enumerate()
        .map(|(id, word)| format!("\"{word}\":{id}"))
        .collect();
    let special = |word: &str, id: u32| {
        format!(
            r#"{{"id":{id},"content":"{word}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}"#
        )
    };
    let tokenizer = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{},{},{}],"normalizer":null,
            "pre_tokenizer":{{"type":"Whitespace"}},
            "post_processor":{{"type":"BertProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]}},"decoder":null,
            "model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"[UNK]"}}}}"#,
        special("[UNK]", 0),
        special("[CLS]", 1),
        special("[SEP]", 2),
        vocabulary.join(","),
    );
    let source = dir.join("source");
    let records = dir.join("data/catalog");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::create_dir_all(&records).unwrap();
    std::fs::write(source.join("toy.bin"), WEIGHTS).unwrap();
    std::fs::write(source.join("tokenizer.json"), &tokenizer).unwrap();
    let record = |id: &str, extra: &str, templates: &str| {
        format!(
            "schema = 1\nid = \"{id}\"\ntitle = \"Toy\"\nfamily = \"toy\"\nkind = \"embed\"\nlicence = \"MIT\"\n\
             dims = 4\ncontext = 10\nmax_tokens = 8\npooling = \"mean\"\nnormalize = true\ntruncate_default = true\n{extra}\n\
             {templates}\n[tokenizer]\npath = \"tokenizer.json\"\nsha256 = \"{}\"\nsize = {}\n\
             [[formats]]\nformat = \"bytes\"\nquant = \"f32\"\n[[formats.files]]\nrole = \"weights\"\npath = \"toy.bin\"\n\
             sha256 = \"{}\"\nsize = {}\n[[sources]]\nkind = \"local\"\n",
            sha256(tokenizer.as_bytes()),
            tokenizer.len(),
            sha256(WEIGHTS),
            WEIGHTS.len(),
        )
    };
    let row = |model: &str, engine: &str, variant: &str, version: &str, dtype: &str| {
        format!(
            "[[row]]\nmodel = \"{model}\"\nengine = \"{engine}\"\nengine_version = \"{version}\"\nvariant = \"{variant}\"\n\
             format = \"bytes\"\nquant = \"f32\"\ndtype = \"{dtype}\"\nmax_tokens = 9\nmax_batch = 3\n\
             max_batch_tokens = 12\nmax_sequences = 3\n"
        )
    };
    let files = [
        (
            "toy.toml",
            record("toy", "dimensions = [2]", "[templates]\nquery = \"one {text}\""),
        ),
        ("two.toml", record("toy-two", "output_normalized = true", "")),
        ("no-row.toml", record("no-row", "", "")),
        ("no-engine.toml", record("no-engine", "", "")),
        (
            "rows.toml",
            [
                "schema = 1\n".to_owned(),
                row("toy", "absent", "f32", ">=1", "f32"),
                row("toy", "toy", "f32", ">=1, <2", "f32"),
                row("toy-two", "toy", "f32", ">=1, <2", "f32"),
                row("no-engine", "absent", "f32", ">=1", "f32"),
                row("no-engine", "toy", "old", "<1", "f32"),
                row("no-engine", "toy", "f16", ">=1", "f16"),
            ]
            .concat(),
        ),
    ];
    for (name, text) in files {
        std::fs::write(records.join(name), text).unwrap();
    }
}
