//! One bundle twice, in this process and in a worker, called in turn: one JSON command a line on stdin, one JSON answer
//! a line on stdout.
//!
//! Owns the two loaded models. `workers.py` starts it. Both sides are called through the trait that the scheduler calls,
//! so the difference is what a worker costs and nothing else: packing, the socket, two changes of process, unpacking.
//!
//! | command | answer |
//! |---|---|
//! | `{"items":[[id,…],…],"threads":T,"count":C}` | `{"in_process_us":[…],"worker_us":[…],"same_bits":B}`: C calls of each, in turn |
#![forbid(unsafe_code)]

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use synapse_core::digest::sha256;
use synapse_core::engine::{
    CallContext, CallControl, EmbedEngine, EngineError, Flow, LoadedModel, RuntimeConfig, TokenBatch,
    ValidatedArtifact, VerifiedFile,
};
use synapse_daemon::task::Tasks;
use synapse_daemon::worker::engine::RemoteEngine;
use synapse_daemon::worker::launch::Plan;
use synapse_daemon::worker::room::hello_engines;
use synapse_daemon::worker::supervisor::{Limits, ModelKey, Quarantine, Supervisor};
use synapse_loader::{Bundle, Loader, LoaderConfig, LoaderError, MemoryOnly};
use synapse_wire::worker::DEFAULT_MAX_FRAME;
use synapse_wire::worker::message::{self, BundleHello};

/// Why the benchmark ended.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    /// The command line is not what is expected.
    #[error("usage: synapse-bench-workers BUNDLES WORKER BUNDLE FORMAT ROLE=FILE…")]
    Usage,
    /// The bundle is missing or may not run in a process that is not its own.
    #[error("bundle {id}: {status}")]
    Bundle {
        /// Its id.
        id: String,
        /// What discovery says.
        status: String,
    },
    /// The bundle cannot be opened.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// A side refused.
    #[error("{side}: {error}")]
    Engine {
        /// Which side.
        side: &'static str,
        /// Why.
        error: EngineError,
    },
    /// A line was no command.
    #[error("not a command: {0}")]
    Command(#[from] serde_json::Error),
    /// A pipe or a file broke.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    items: Vec<Vec<i32>>,
    threads: u32,
    count: usize,
}

#[derive(Serialize)]
struct Answer {
    in_process_us: Vec<f64>,
    worker_us: Vec<f64>,
    same_bits: bool,
}

/// A host that never interrupts.
struct Unattended;

impl CallControl for Unattended {
    fn cancelled(&self) -> bool {
        false
    }

    fn checkpoint(&self, _done: u64, _total: u64) -> Flow {
        Flow::Continue
    }
}

/// Nothing is quarantined: a worker that dies ends the benchmark with its error.
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

const fn context(threads: u32) -> CallContext<'static> {
    CallContext {
        request_id: 1,
        remaining: None,
        threads,
        control: &Unattended,
    }
}

/// An engine with its model.
struct Side {
    name: &'static str,
    engine: Arc<dyn EmbedEngine>,
    loaded: LoadedModel,
}

impl Side {
    fn load(
        name: &'static str,
        engine: Arc<dyn EmbedEngine>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> Result<Self, BenchError> {
        let loaded = engine
            .load(&context(config.threads), artifact, config)
            .map_err(|error| BenchError::Engine { side: name, error })?;
        Ok(Self { name, engine, loaded })
    }

    /// One call; its microseconds.
    fn call(&self, batch: &TokenBatch<'_>, threads: u32, out: &mut [f32]) -> Result<f64, BenchError> {
        let start = Instant::now();
        let outcome = if batch.len() == 1 {
            self.engine
                .embed_one(&context(threads), self.loaded.model, batch.ids, out)
        } else {
            self.engine
                .embed_batch(&context(threads), self.loaded.model, batch, out)
        };
        let taken = start.elapsed().as_secs_f64() * 1e6;
        outcome
            .map(|()| taken)
            .map_err(|error| BenchError::Engine { side: self.name, error })
    }
}

fn discover(bundles: &Path, worker: &Path, id: &str, scratch: &Path) -> Result<(Loader, Bundle), BenchError> {
    let config = LoaderConfig {
        plugin_dirs: vec![bundles.to_owned()],
        staging_dir: scratch.join("staging"),
        worker_binary: worker.to_owned(),
        trust_file: bundles.join("trust.toml"),
        scan_timeout: Duration::from_secs(60),
        max_bundle_bytes: 1 << 30,
    };
    let loader = Loader::new(config, Arc::new(MemoryOnly::default()))?;
    let found = loader.discover().into_iter().find(|bundle| bundle.id == id);
    let bundle = found.ok_or_else(|| BenchError::Bundle {
        id: id.to_owned(),
        status: format!("is not in {}", bundles.display()),
    })?;
    Ok((loader, bundle))
}

fn supervisor(bundle: &Bundle, worker: &Path, scratch: &Path, tasks: &Tasks) -> Result<Arc<Supervisor>, BenchError> {
    let (Some(descriptor), Some(staged)) = (&bundle.descriptor, &bundle.staged) else {
        return Err(BenchError::Bundle {
            id: bundle.id.clone(),
            status: format!("{:?}", bundle.status),
        });
    };
    let plan = Plan {
        program: worker.to_owned(),
        bundle: staged.clone(),
        socket_dir: scratch.join("run/workers"),
        expected_bundle: BundleHello {
            id: bundle.id.clone(),
            version: descriptor.package_version.to_string(),
        },
        expected_engines: hello_engines(descriptor),
        settings: bundle.config.clone(),
        handshake: Duration::from_secs(60),
        max_frame: DEFAULT_MAX_FRAME,
        log_lines_per_second: 50,
    };
    let quarantine = Arc::new(NoQuarantine);
    Ok(Supervisor::new(
        "bench".to_owned(),
        plan,
        Limits::default(),
        tasks.clone(),
        quarantine,
    ))
}

/// The artifact of `ROLE=FILE` arguments.
fn artifact(files: &[String]) -> Result<ValidatedArtifact, BenchError> {
    let files = files.iter().map(|file| {
        let (role, path) = file.split_once('=').ok_or(BenchError::Usage)?;
        let bytes = std::fs::read(path)?;
        let measured = (sha256(&bytes), bytes.len() as u64);
        VerifiedFile::check(role, PathBuf::from(path), measured, measured).map_err(|_| BenchError::Usage)
    });
    files.collect::<Result<_, _>>().map(ValidatedArtifact::new)
}

fn answer(command: &Command, sides: &[Side; 2]) -> Result<Answer, BenchError> {
    let ids = command.items.concat();
    let mut offsets = vec![0_u32];
    let mut end = 0;
    for item in &command.items {
        end += u32::try_from(item.len()).unwrap_or(u32::MAX);
        offsets.push(end);
    }
    let batch = TokenBatch {
        ids: &ids,
        offsets: &offsets,
        type_ids: &[],
    };
    let values = command.items.len() * sides[0].loaded.dims as usize;
    let mut outs = [vec![0.0; values], vec![0.0; values]];
    let mut times = [Vec::new(), Vec::new()];
    let mut same_bits = true;
    for number in 0..command.count {
        // The first of a pair is the other side the next time.
        for place in if number.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
            outs[place].fill(f32::NAN);
            times[place].push(sides[place].call(&batch, command.threads, &mut outs[place])?);
        }
        same_bits &= outs[0]
            .iter()
            .map(|value| value.to_bits())
            .eq(outs[1].iter().map(|value| value.to_bits()));
    }
    let [in_process_us, worker_us] = times;
    Ok(Answer {
        in_process_us,
        worker_us,
        same_bits,
    })
}

fn main() -> Result<(), BenchError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bundles, worker, id, format, files @ ..] = arguments.as_slice() else {
        return Err(BenchError::Usage);
    };
    let scratch = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let tasks = Tasks::new(runtime.handle().clone());
    let worker = PathBuf::from(worker);
    let (loader, bundle) = discover(Path::new(bundles), &worker, id, scratch.path())?;
    let plugin = loader.open(&bundle)?;
    let supervisor = supervisor(&bundle, &worker, scratch.path(), &tasks)?;
    let identity = plugin.descriptor().identity.clone();
    let remote = RemoteEngine::new(message::EngineKind::Embed, identity, Arc::clone(&supervisor));
    let artifact = artifact(files)?;
    let threads = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
    let config = RuntimeConfig {
        format: format.clone(),
        dtype: "f32".to_owned(),
        pooling: "mean".to_owned(),
        max_tokens: 256,
        max_batch: 64,
        max_batch_tokens: 64 * 256,
        threads,
        extra: Vec::new(),
    };
    let sides = [
        Side::load("in process", plugin.embed(&bundle.config)?, &artifact, &config)?,
        Side::load("worker", Arc::new(remote), &artifact, &config)?,
    ];
    let mut out = std::io::stdout().lock();
    writeln!(out, "{{}}")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        serde_json::to_writer(&mut out, &answer(&serde_json::from_str(&line?)?, &sides)?)?;
        writeln!(out)?;
        out.flush()?;
    }
    supervisor.stop(Duration::from_secs(5));
    Ok(())
}
