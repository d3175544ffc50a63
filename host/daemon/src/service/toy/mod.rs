//! A real daemon with a toy model on a toy engine, for tests of operations: everything but the engine is the real part.
//!
//! State: a temporary data directory. What the engine computes is in `engine.rs`, the models that it serves in `model.rs`;
//! a test computes what it expects by hand. [`Script`] makes the engine misbehave, and records what it was called with.

mod engine;
mod model;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use synapse_core::schedule::Order;
use synapse_wire::client::{
    BatchItem, EmbedBatchParams, EmbedBatchResult, EmbedQueryParams, EmbedReply, ErrorCode, MicrollmOneshotParams,
    MicrollmOneshotResult, ModelParams, RerankReply, RerankScoreParams, RerankScoreResult,
};
use tokio_util::sync::CancellationToken;

pub use self::engine::{Script, until_cancelled};
use super::{RequestContext, ServiceError, embed_batch, embed_query, microllm_oneshot, model_load, rerank_score};
use crate::config::Config;
use crate::models::{ModelStoreConfig, PullProgress, SourceChoice};
use crate::paths::DataDir;
use crate::rpc::context::{Holds, RequestId};
use crate::state::{Daemon, OpenOptions};
use crate::task::Tasks;

/// A bound that only a hang reaches.
pub const HANG: Duration = Duration::from_secs(60);

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
    /// Lanes without a certificate are closed, as they are for users; otherwise the configuration lets them serve, because
    /// certificates are not the subject.
    pub strict: bool,
}

impl Bench {
    /// The usual: the toy model is installed and its engine is there, but the model is not loaded.
    pub async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    /// A loaded toy model.
    pub async fn loaded() -> Self {
        Self::loaded_with(Config::default(), "toy").await
    }

    /// A loaded toy model under these settings.
    pub async fn loaded_with(config: Config, model: &str) -> Self {
        let bench = Self::with(Setup {
            config,
            ..Setup::default()
        })
        .await;
        bench.load(model).await.unwrap();
        bench
    }

    pub async fn with(setup: Setup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        model::write(dir.path());
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let mut config = setup.config;
        config.probe.allow_uncertified |= !setup.strict;
        let daemon = open(dir.path(), config, &tasks);
        daemon.plugins.scanned().await;
        let script = Arc::new(Script::default());
        if !setup.without_engine {
            daemon.plugins.install(engine::bundle(), engine::engines(&script));
        }
        if !setup.without_files {
            for id in ["toy", "toy-pair", "toy-two", "toy-rank", "toy-chat", "toy-raw"] {
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
        let mut config = Config::default();
        config.probe.allow_uncertified = true;
        (open(dir.path(), config, &tasks), dir)
    }

    /// As after a crash: every call and job stops where it is, and another daemon with the same engine comes up on the
    /// same data directory. The script is a fresh one.
    pub async fn restart_with_engine(self) -> Self {
        let tasks = self.tasks.clone();
        self.daemon.jobs.cancel_all();
        tokio::time::timeout(HANG, self.daemon.jobs.idle()).await.unwrap();
        let (daemon, dir) = self.restart().await;
        daemon.plugins.scanned().await;
        let script = Arc::new(Script::default());
        daemon.plugins.install(engine::bundle(), engine::engines(&script));
        daemon.refresh_installed().await.unwrap();
        Self {
            daemon,
            script,
            tasks,
            dir,
        }
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
        holds: Holds::default(),
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

/// A rerank of the candidates `c0`, `c1`, ….
pub fn rerank(query: &str, documents: &[&str]) -> RerankScoreParams {
    let candidates = documents
        .iter()
        .enumerate()
        .map(|(n, text)| BatchItem::new(format!("c{n}"), *text));
    RerankScoreParams::new("toy-rank", query, candidates.collect())
}

/// Asks `rerank.score`.
pub async fn ask_scores(
    bench: &Bench,
    ctx: &RequestContext,
    params: RerankScoreParams,
) -> Result<RerankReply, ServiceError> {
    let outcome = tokio::time::timeout(HANG, rerank_score::run(&bench.daemon, ctx, params))
        .await
        .unwrap();
    outcome.map(|result| match result {
        RerankScoreResult::Scores(reply) => *reply,
        RerankScoreResult::Accepted(job) => panic!("became {job:?}"),
    })
}

/// A generation on the model with a chat template.
pub fn generation(prompt: &str) -> MicrollmOneshotParams {
    MicrollmOneshotParams::new("toy-chat", prompt)
}

/// Asks `microllm.oneshot`.
pub async fn ask_text(
    bench: &Bench,
    ctx: &RequestContext,
    params: MicrollmOneshotParams,
) -> Result<MicrollmOneshotResult, ServiceError> {
    tokio::time::timeout(HANG, microllm_oneshot::run(&bench.daemon, ctx, params))
        .await
        .unwrap()
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
        order: Order::Fair,
        data,
    };
    Daemon::open(options, tasks).unwrap()
}
