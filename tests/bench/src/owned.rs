//! The owned engine as a benchmark peer: one JSON command a line on stdin, one JSON answer a line on stdout.
//!
//! Owns one engine and the loaded workloads. `run.py` starts it beside the other peers and alternates between them; the
//! protocol is the one of `peer_onnxruntime.py`:
//!
//! | command | answer |
//! |---|---|
//! | `{"op":"workload","name":N,"items":[[id,…],…]}` | `{}` |
//! | `{"op":"bulk","name":N,"threads":T}` | `{"seconds":S,"tokens":K}`: all items in calls of about 3,072 tokens |
//! | `{"op":"single","name":N,"threads":T}` | `{"milliseconds":[…]}`: one call per item |
//! | `{"op":"vector","ids":[…]}` | `{"vector":[…]}`, L2-normalised |
//! | `{"op":"socket","path":P,"request":R,"ids":[…],"threads":T,"count":C}` | `{"engine_ms":[…],"socket_ms":[…]}`: an engine call and the request R over the daemon's socket, in turn |
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use synapse_owned::artifact::ArtifactFiles;
use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Arithmetic, Batch, CallControl, Engine, LoadSettings, Model, Task};
use synapse_owned::error::OwnedError;
use synapse_owned::kernel::isa::{Isa, Kernels};

/// Tokens of one bulk call: the scheduler's first quantum.
const CALL_TOKENS: usize = 3_072;

/// Why the benchmark peer ended.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    /// The command line is not what is expected.
    #[error("usage: synapse-bench-owned CONFIG_JSON MODEL_SAFETENSORS [portable|avx2|avx512 [f32|s16]]")]
    Usage,
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] OwnedError),
    /// A line was no command.
    #[error("not a command: {0}")]
    Command(#[from] serde_json::Error),
    /// A pipe broke.
    #[error(transparent)]
    Pipe(#[from] std::io::Error),
    /// A workload was not sent before.
    #[error("workload {0:?} is unknown; send it first")]
    UnknownWorkload(String),
    /// The daemon did not answer with a vector.
    #[error("the daemon answered {0}")]
    Refused(String),
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    Workload {
        name: String,
        items: Vec<Vec<i32>>,
    },
    Bulk {
        name: String,
        threads: usize,
    },
    Single {
        name: String,
        threads: usize,
    },
    Vector {
        ids: Vec<i32>,
    },
    Socket {
        path: PathBuf,
        request: String,
        ids: Vec<i32>,
        threads: usize,
        count: usize,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Stored {},
    Bulk { seconds: f64, tokens: usize },
    Single { milliseconds: Vec<f64> },
    Vector { vector: Vec<f32> },
    Socket { engine_ms: Vec<f64>, socket_ms: Vec<f64> },
}

/// A host that never interrupts.
struct Unattended;

impl CallControl for Unattended {
    fn checkpoint(&self, _done: u64, _total: u64) -> bool {
        true
    }
}

struct Peer {
    engine: Engine,
    model: Model,
    workloads: HashMap<String, Vec<Vec<i32>>>,
}

impl Peer {
    fn embed(&self, items: &[Vec<i32>], threads: usize) -> Result<Vec<f32>, OwnedError> {
        let ids = items.concat();
        let mut offsets = vec![0_u32];
        let mut end = 0;
        for item in items {
            end += u32::try_from(item.len()).unwrap_or(u32::MAX);
            offsets.push(end);
        }
        let mut out = vec![0.0; items.len() * self.model.dims()];
        let batch = Batch {
            ids: &ids,
            offsets: &offsets,
            type_ids: &[],
        };
        self.engine.embed(&self.model, batch, threads, &Unattended, &mut out)?;
        Ok(out)
    }

    fn workload(&self, name: &str) -> Result<&[Vec<i32>], BenchError> {
        let items = self.workloads.get(name);
        items
            .map(Vec::as_slice)
            .ok_or_else(|| BenchError::UnknownWorkload(name.to_owned()))
    }

    fn answer(&mut self, command: Command) -> Result<Answer, BenchError> {
        Ok(match command {
            Command::Workload { name, items } => {
                self.workloads.insert(name, items);
                Answer::Stored {}
            }
            Command::Bulk { name, threads } => {
                let items = self.workload(&name)?;
                let start = Instant::now();
                let mut first = 0;
                while first < items.len() {
                    let mut tokens = 0;
                    let fits = items[first..].iter().take_while(|item| {
                        tokens += item.len();
                        tokens <= CALL_TOKENS
                    });
                    let end = first + fits.count().max(1);
                    self.embed(&items[first..end], threads)?;
                    first = end;
                }
                Answer::Bulk {
                    seconds: start.elapsed().as_secs_f64(),
                    tokens: items.iter().map(Vec::len).sum(),
                }
            }
            Command::Single { name, threads } => {
                let mut milliseconds = Vec::new();
                for item in self.workload(&name)? {
                    let start = Instant::now();
                    self.embed(std::slice::from_ref(item), threads)?;
                    milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
                }
                Answer::Single { milliseconds }
            }
            Command::Vector { ids } => {
                let mut vector = self.embed(&[ids], 1)?;
                let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
                vector.iter_mut().for_each(|value| *value /= norm);
                Answer::Vector { vector }
            }
            Command::Socket {
                path,
                request,
                ids,
                threads,
                count,
            } => {
                let mut daemon = BufReader::new(UnixStream::connect(path)?);
                let items = [ids];
                let (mut engine_ms, mut socket_ms) = (Vec::new(), Vec::new());
                for _ in 0..count {
                    let start = Instant::now();
                    self.embed(&items, threads)?;
                    engine_ms.push(start.elapsed().as_secs_f64() * 1e3);
                    let start = Instant::now();
                    let reply = ask(&mut daemon, &request)?;
                    socket_ms.push(start.elapsed().as_secs_f64() * 1e3);
                    if !reply.contains("\"vectors\"") {
                        return Err(BenchError::Refused(reply));
                    }
                }
                Answer::Socket { engine_ms, socket_ms }
            }
        })
    }
}

/// One request line to the daemon, one reply line back.
fn ask(daemon: &mut BufReader<UnixStream>, request: &str) -> Result<String, std::io::Error> {
    daemon.get_mut().write_all(format!("{request}\n").as_bytes())?;
    let mut reply = String::new();
    daemon.read_line(&mut reply)?;
    Ok(reply)
}

fn main() -> Result<(), BenchError> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(config), Some(weights)) = (arguments.next(), arguments.next()) else {
        return Err(BenchError::Usage);
    };
    let kernels = match arguments.next() {
        None => Kernels::preferred(),
        Some(name) => name
            .to_str()
            .and_then(Isa::by_name)
            .and_then(Kernels::of)
            .ok_or(BenchError::Usage)?,
    };
    let arithmetic = match arguments.next() {
        None => Arithmetic::F32,
        Some(name) => [Arithmetic::F32, Arithmetic::S16]
            .into_iter()
            .find(|arithmetic| name == arithmetic.name())
            .ok_or(BenchError::Usage)?,
    };
    let files = ArtifactFiles::new(PathBuf::from(config), PathBuf::from(weights));
    let settings = LoadSettings {
        task: Task::Embed(Pooling::Mean),
        arithmetic,
        max_tokens: 512,
        max_batch: 4_096,
        max_batch_tokens: 16_384,
    };
    let engine = Engine::new(kernels);
    let model = engine.load(&files, settings, &mut |_, _| true)?;
    let mut peer = Peer {
        engine,
        model,
        workloads: HashMap::new(),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{{\"isa\":\"{}\"}}", kernels.isa().name())?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let answer = peer.answer(serde_json::from_str(&line?)?)?;
        serde_json::to_writer(&mut out, &answer)?;
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}
