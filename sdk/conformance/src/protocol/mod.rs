//! The checks of the worker protocol: the kit plays the daemon, and every byte that the worker gets is a check's.
//!
//! State: [`Peer`] owns one worker process and the connection to it. Callers: the checks beside this file. A library bundle
//! is served by `synapse-worker`, an executable one by its own program: both keep the same rules
//! (`docs/worker-protocol.md`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use synapse_core::digest::sha256;
use synapse_core::engine::EngineKind as CoreKind;
use synapse_loader::Descriptor;
use synapse_loader::process::{Child, Command, Finished, Output, spawner};
use synapse_transport::{Listener, Stream, name};
use synapse_wire::worker::frame::{Decoder, encode};
use synapse_wire::worker::message::{
    ArtifactFile, BatchItem, Budget, EngineKind, EngineState, Parsed, PromptHeader, RuntimeConfig,
};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage, raw};

use crate::bench::Draw;
use crate::catalogue::{Stop, Verdict, fail, skip};
use crate::json::{self, Job};
use crate::subject::{Kind, Model, ModelFile, Subject};

pub(crate) mod end;
pub(crate) mod exchange;
pub(crate) mod start;

/// What the worker is told in `--nonce`.
pub(crate) const NONCE: &str = "5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e";
/// Longer than anything here takes on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// No deadline, one thread.
pub(crate) const BUDGET: Budget = Budget {
    deadline_ms: None,
    threads: 1,
};

/// A request and its raw frame.
pub(crate) type Request = (HostMessage, Vec<u8>);

/// What a protocol check works with.
pub(crate) struct Desk {
    pub(crate) job: Job,
}

impl Desk {
    pub(crate) const fn new(job: Job) -> Self {
        Self { job }
    }

    /// The program that serves the bundle.
    pub(crate) fn program(&self) -> Result<&Path, Stop> {
        match &self.job.worker {
            Some(worker) => Ok(worker),
            None => skip("no program to serve the bundle"),
        }
    }

    /// The descriptor as discovery read it.
    pub(crate) fn descriptor(&self) -> Result<Descriptor, Stop> {
        Descriptor::from_json(&self.job.descriptor).or_else(|error| fail(error.to_string()))
    }

    /// The model of the first kind that the bundle serves and that there is a model for.
    pub(crate) fn first_model(&self) -> Result<Model, Stop> {
        let mut last = None;
        for kind in Kind::ALL {
            match self.model(kind) {
                Ok(model) => return Ok(model),
                Err(stop) => last = Some(stop),
            }
        }
        last.map_or_else(|| skip("no model"), Err)
    }

    /// The model of a kind: the author's, or drawn bytes for the first row of the descriptor.
    pub(crate) fn model(&self, kind: Kind) -> Result<Model, Stop> {
        let rows = self.descriptor()?.supports;
        let core = match kind {
            Kind::Embed => CoreKind::Embed,
            Kind::Rerank => CoreKind::Rerank,
            Kind::Generate => CoreKind::Generate,
        };
        let Some(row) = rows.iter().find(|row| row.kind == core) else {
            return skip(format!("no {} engine", kind.name()));
        };
        if let Some(path) = &self.job.subject {
            let models = Subject::read(path).or_else(fail)?.models;
            let found = models.into_iter().find(|model| model.kind == kind);
            return found.map_or_else(
                || skip(format!("conformance.toml names no model of kind {}", kind.name())),
                Ok,
            );
        }
        let path = self.job.work.join("weights");
        let mut draw = Draw(self.job.seed);
        let content: Vec<u8> = (0..4096).map(|_| draw.next().to_le_bytes()[0]).collect();
        if let Err(error) = std::fs::write(&path, content) {
            return fail(format!("the kit's own file {}: {error}", path.display()));
        }
        let role = "weights".to_owned();
        Ok(Model {
            kind,
            format: row.format.clone(),
            dtype: row.dtype.clone(),
            pooling: "mean".to_owned(),
            max_tokens: 128,
            vocabulary: 1000,
            output_normalized: false,
            extra: std::collections::BTreeMap::new(),
            files: vec![ModelFile { role, path }],
        })
    }

    /// Starts the worker with these settings and reads its HELLO. No HELLO_ACK yet.
    pub(crate) fn start_with(&self, settings: &str) -> Result<Peer, Stop> {
        let folder = self.job.work.join("run");
        if let Err(error) = std::fs::create_dir_all(&folder) {
            return fail(format!("the kit's own folder: {error}"));
        }
        let address = name::address(&folder, "w-1");
        let mut listener = Listener::bind(&address).or_else(|error| fail(format!("the kit's own socket: {error}")))?;
        let keep = Output::Capture { limit: 1 << 16 };
        let command = Command::new(self.program()?)
            .arg("--plugin")
            .arg(&self.job.bundle)
            .arg("--socket")
            .arg(listener.address())
            .args(["--nonce", NONCE, "--settings", settings])
            .env("SYNAPSE_WORKER_ID", "w-1")
            .inherit_env("LD_LIBRARY_PATH")
            .dir(self.job.work.join("cwd"))
            .stdout(keep)
            .stderr(keep);
        let child = match spawner().spawn(command) {
            Ok(child) => child,
            Err(error) => return fail(format!("the worker does not start: {error}")),
        };
        let stream = match listener.accept(BOUND) {
            Ok(Some(stream)) => stream,
            Ok(None) => {
                let words = child.wait_with_output(Duration::from_millis(10));
                return fail(format!(
                    "the worker did not connect within {BOUND:?}{}",
                    tail(words.ok().as_ref())
                ));
            }
            Err(error) => return fail(format!("the kit's own socket: {error}")),
        };
        let pid = child.pid();
        let mut peer = Peer {
            stream,
            decoder: Decoder::new(DEFAULT_MAX_FRAME),
            child,
            pid,
            hello: WorkerMessage::Unloaded { req_id: 0 },
            next: 0,
            progress: Vec::new(),
        };
        peer.hello = peer.message()?;
        Ok(peer)
    }

    pub(crate) fn start(&self) -> Result<Peer, Stop> {
        self.start_with(&json::settings(&self.job.settings))
    }

    /// A worker that was let in, with frames of at most `max_frame` bytes.
    pub(crate) fn ready_with(&self, max_frame: u32) -> Result<Peer, Stop> {
        let mut peer = self.start()?;
        peer.acknowledge(max_frame);
        Ok(peer)
    }

    pub(crate) fn ready(&self) -> Result<Peer, Stop> {
        self.ready_with(DEFAULT_MAX_FRAME)
    }

    /// A worker with a model of a kind loaded.
    pub(crate) fn loaded(&self, kind: Kind) -> Result<(Peer, Loaded), Stop> {
        let model = self.model(kind)?;
        let mut peer = self.ready()?;
        let loaded = peer.load(&model)?;
        Ok((peer, loaded))
    }

    /// A worker with the first model loaded that there is.
    pub(crate) fn any(&self) -> Result<(Peer, Loaded), Stop> {
        let kind = self.first_model()?.kind;
        self.loaded(kind)
    }
}

/// What a process said last, as the tail of a message.
pub(crate) fn tail(finished: Option<&Finished>) -> String {
    let text = finished.map(|finished| String::from_utf8_lossy(&finished.stderr).into_owned());
    let line = text
        .as_deref()
        .and_then(|text| text.lines().rfind(|line| !line.trim().is_empty()));
    line.map_or_else(String::new, |line| format!("; its last words: {line}"))
}

/// A loaded model as a worker named it.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) spec: Model,
    pub(crate) model_ref: u64,
    pub(crate) dims: u32,
    pub(crate) max_tokens: u32,
    pub(crate) memory_bytes: u64,
}

impl Loaded {
    /// Drawn items of these lengths.
    pub(crate) fn items(&self, salt: u64, lengths: &[usize]) -> Vec<Vec<i32>> {
        let mut draw = Draw(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut longest = self.max_tokens as usize;
        if self.spec.kind == Kind::Generate {
            longest = longest.saturating_sub(16).max(1);
        }
        let mut id = || i32::try_from(draw.below(u64::from(self.spec.vocabulary))).unwrap_or(0);
        lengths
            .iter()
            .map(|length| (0..(*length).clamp(1, longest)).map(|_| id()).collect())
            .collect()
    }

    /// A request to compute these items: a batch, or a short generation after the first.
    pub(crate) fn request(&self, req_id: u64, items: &[Vec<i32>]) -> Request {
        let mut bytes = Vec::new();
        let model_ref = self.model_ref;
        if self.spec.kind == Kind::Generate {
            let ids = items.first().map_or(&[][..], Vec::as_slice);
            raw::put_i32(ids, &mut bytes);
            let message = HostMessage::Generate {
                req_id,
                model_ref,
                budget: BUDGET,
                max_tokens: 8,
                temperature: 0.0,
                top_p: 1.0,
                seed: 0,
                stop: Vec::new(),
                grammar: None,
                prompt: PromptHeader::Ids(crate::bench::count(ids.len())),
                raw_bytes: bytes.len() as u64,
            };
            return (message, bytes);
        }
        items.iter().for_each(|item| raw::put_i32(item, &mut bytes));
        let raw_bytes = bytes.len() as u64;
        let pairs = self.spec.kind == Kind::Rerank;
        let rows = items.iter().zip(0..).map(|(item, id)| BatchItem {
            id,
            n_tokens: crate::bench::count(item.len()),
            doc_start: pairs.then(|| crate::bench::count(item.len() / 2)),
        });
        let (items, budget, type_ids) = (rows.collect(), BUDGET, false);
        let message = if pairs {
            HostMessage::Rerank {
                req_id,
                model_ref,
                budget,
                items,
                type_ids,
                raw_bytes,
            }
        } else {
            HostMessage::EmbedBatch {
                req_id,
                model_ref,
                budget,
                items,
                type_ids,
                raw_bytes,
            }
        };
        (message, bytes)
    }
}

/// A kind as the protocol names it.
pub(crate) const fn wire_kind(kind: Kind) -> EngineKind {
    match kind {
        Kind::Embed => EngineKind::Embed,
        Kind::Rerank => EngineKind::Rerank,
        Kind::Generate => EngineKind::Generate,
    }
}

/// A reply to a request, with the values of its raw frame.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) message: WorkerMessage,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    /// The raw frame as values.
    pub(crate) fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.bytes.len() / 4];
        let _ = raw::get_f32(&self.bytes, &mut values);
        values
    }

    /// Fails unless it is an error of one of these codes that leaves everything usable.
    pub(crate) fn refuses(&self, what: &str, codes: &[&str]) -> Verdict {
        match &self.message {
            WorkerMessage::Err { code, state, .. }
                if codes.contains(&code.as_str()) && *state == EngineState::Usable =>
            {
                Ok(())
            }
            WorkerMessage::Err { code, state, msg, .. } => fail(format!(
                "{what}: ERR {code}, {state:?}: {msg}; expected {} and usable",
                codes.join(" or ")
            )),
            other => fail(format!(
                "{what}: {}, expected ERR {}",
                type_of(other),
                codes.join(" or ")
            )),
        }
    }
}

/// The name of a message's type, for words.
pub(crate) fn type_of(message: &WorkerMessage) -> String {
    let text = format!("{message:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_uppercase()
}

/// One PROGRESS as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) req_id: u64,
    pub(crate) completed: u64,
    pub(crate) total: Option<u64>,
    pub(crate) setup: bool,
    pub(crate) at: std::time::Instant,
}

/// A worker and the connection to it.
pub(crate) struct Peer {
    stream: Stream,
    decoder: Decoder,
    child: Child,
    pub(crate) pid: u32,
    /// The HELLO that it said.
    pub(crate) hello: WorkerMessage,
    next: u64,
    /// Every PROGRESS so far.
    pub(crate) progress: Vec<Seen>,
}

impl Peer {
    /// Lets the worker in.
    pub(crate) fn acknowledge(&mut self, ours: u32) {
        let theirs = match &self.hello {
            WorkerMessage::Hello { max_frame, .. } => *max_frame,
            _ => MIN_MAX_FRAME,
        };
        let (v, max_frame) = (PROTOCOL_VERSION, ours.min(theirs));
        self.send(
            &HostMessage::HelloAck {
                v,
                accept: true,
                max_frame,
            },
            &[],
        );
        self.decoder.set_max(max_frame);
    }

    /// A fresh number.
    pub(crate) fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Writes a message and its raw frame, where there is one.
    pub(crate) fn send(&mut self, message: &HostMessage, raw: &[u8]) {
        self.send_payload(&message.to_payload(), raw);
    }

    pub(crate) fn send_payload(&mut self, payload: &[u8], raw: &[u8]) {
        let mut bytes = Vec::new();
        // The bound is this side's own, so it is never passed.
        let _ = encode(payload, u32::MAX, &mut bytes);
        if !raw.is_empty() {
            let _ = encode(raw, u32::MAX, &mut bytes);
        }
        self.send_bytes(&bytes);
    }

    /// Writes bytes as they are.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        // A worker that gave up is seen when its answer is read.
        let _ = self.stream.write_all(bytes, Some(BOUND));
    }

    /// The next payload; `None` at the worker's end.
    pub(crate) fn payload(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        self.payload_within(BOUND)?
            .map_or_else(|| fail(format!("the worker is silent for {BOUND:?}")), Ok)
    }

    /// The next payload; the outer `None`: nothing came within the bound.
    pub(crate) fn payload_within(&mut self, bound: Duration) -> Result<Option<Option<Vec<u8>>>, Stop> {
        let mut chunk = [0; 4096];
        loop {
            match self.decoder.next_payload() {
                Ok(Some(payload)) => return Ok(Some(Some(payload))),
                Ok(None) => {}
                Err(error) => return fail(error.to_string()),
            }
            match self.stream.read(&mut chunk, Some(bound)) {
                Ok(Some(0)) => {
                    return match self.decoder.finish() {
                        Ok(()) => Ok(Some(None)),
                        Err(error) => fail(error.to_string()),
                    };
                }
                Ok(Some(count)) => self.decoder.feed(&chunk[..count]),
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(Some(None)),
                Err(error) => return fail(format!("the connection: {error}")),
            }
        }
    }

    /// The next control message.
    pub(crate) fn message(&mut self) -> Result<WorkerMessage, Stop> {
        match self.payload()? {
            Some(payload) => parse(&payload),
            None => fail("the worker closed its connection"),
        }
    }

    /// The next message that is not PROGRESS, with its raw frame.
    pub(crate) fn reply(&mut self) -> Result<Reply, Stop> {
        loop {
            let message = self.message()?;
            if let WorkerMessage::Progress {
                req_id,
                phase,
                completed,
                total,
            } = message
            {
                self.progress.push(Seen {
                    req_id,
                    completed,
                    total,
                    setup: phase == synapse_wire::worker::message::Phase::Setup,
                    at: std::time::Instant::now(),
                });
                continue;
            }
            let declared = message.raw_bytes();
            let bytes = if declared == 0 {
                Vec::new()
            } else {
                match self.payload()? {
                    Some(bytes) if bytes.len() as u64 == declared => bytes,
                    Some(bytes) => {
                        return fail(format!(
                            "a raw frame of {} bytes, {declared} were declared",
                            bytes.len()
                        ));
                    }
                    None => return fail("the worker closed its connection instead of a raw frame"),
                }
            };
            return Ok(Reply { message, bytes });
        }
    }

    /// Sends a request and reads its reply, which must name it.
    pub(crate) fn ask(&mut self, req_id: u64, message: &HostMessage, raw: &[u8]) -> Result<Reply, Stop> {
        self.send(message, raw);
        let reply = self.reply()?;
        match number(&reply.message) {
            Some(found) if found == req_id => Ok(reply),
            found => fail(format!(
                "{} names request {found:?}, expected {req_id}",
                type_of(&reply.message)
            )),
        }
    }

    /// Computes items on a model.
    pub(crate) fn compute(&mut self, loaded: &Loaded, items: &[Vec<i32>]) -> Result<Reply, Stop> {
        let id = self.id();
        let (message, bytes) = loaded.request(id, items);
        self.ask(id, &message, &bytes)
    }

    /// Sends a LOAD of a model's files with these settings.
    pub(crate) fn ask_load(
        &mut self,
        model: &Model,
        files: Vec<ArtifactFile>,
        change: impl FnOnce(&mut RuntimeConfig),
    ) -> Result<Reply, Stop> {
        let req_id = self.id();
        let mut runtime_config = RuntimeConfig {
            format: model.format.clone(),
            dtype: model.dtype.clone(),
            pooling: model.pooling.clone(),
            max_tokens: model.max_tokens,
            max_batch: 64,
            max_batch_tokens: model.max_tokens.saturating_mul(32),
            threads: 2,
            extra: model.extra.clone(),
        };
        change(&mut runtime_config);
        let engine = wire_kind(model.kind);
        let message = HostMessage::Load {
            req_id,
            engine,
            files,
            runtime_config,
        };
        self.ask(req_id, &message, &[])
    }

    /// Loads a model.
    pub(crate) fn load(&mut self, model: &Model) -> Result<Loaded, Stop> {
        let reply = self.ask_load(model, files(model), |_| {})?;
        match reply.message {
            WorkerMessage::Loaded {
                model_ref,
                dims,
                max_tokens,
                memory_bytes,
                ..
            } => Ok(Loaded {
                spec: model.clone(),
                model_ref,
                dims,
                max_tokens,
                memory_bytes,
            }),
            WorkerMessage::Err { code, msg, .. } => skip(format!("the model does not load: {code}: {msg}")),
            other => fail(format!("{} to a LOAD, expected LOADED or ERR", type_of(&other))),
        }
    }

    /// Fails unless a PING gets its PONG, and nothing else; the models that it counts.
    pub(crate) fn in_order(&mut self) -> Result<u32, Stop> {
        let req_id = self.id();
        let reply = self.ask(req_id, &HostMessage::Ping { req_id }, &[])?;
        match reply.message {
            WorkerMessage::Pong { models_loaded, .. } => Ok(models_loaded),
            other => fail(format!("{} to a PING, expected PONG", type_of(&other))),
        }
    }

    /// Fails when the worker sends something within a moment.
    pub(crate) fn is_quiet(&mut self) -> Verdict {
        match self.payload_within(Duration::from_millis(300))? {
            None => Ok(()),
            Some(None) => fail("the worker closed its connection"),
            Some(Some(payload)) => {
                let shown = String::from_utf8_lossy(&payload).chars().take(120).collect::<String>();
                fail(format!("the worker sent something that nobody asked for: {shown}"))
            }
        }
    }

    /// Closes the connection and waits for the process.
    pub(crate) fn close(self, bound: Duration) -> Result<Finished, Stop> {
        let Self { stream, child, .. } = self;
        drop(stream);
        ended(child, bound, "after its connection was closed")
    }

    /// Waits for the process with the connection open.
    pub(crate) fn wait(self) -> Result<Finished, Stop> {
        let Self { stream, child, .. } = self;
        let finished = ended(child, BOUND, "by itself");
        drop(stream);
        finished
    }
}

fn ended(child: Child, bound: Duration, when: &str) -> Result<Finished, Stop> {
    child
        .wait_with_output(bound)
        .or_else(|_| fail(format!("the worker did not end {when} within {bound:?}")))
}

/// A payload as a message that a worker may send.
pub(crate) fn parse(payload: &[u8]) -> Result<WorkerMessage, Stop> {
    if !json::is_control_frame(payload) {
        let shown: String = String::from_utf8_lossy(payload).chars().take(120).collect();
        return fail(format!(
            "a frame that is no JSON object with a type, or has a number of 2^53 or more: {shown}"
        ));
    }
    match WorkerMessage::parse(payload) {
        Ok(Parsed::Message(message)) => Ok(message),
        Ok(Parsed::UnknownType { name, .. }) => {
            fail(format!("the worker sent a {name}, which version 3 does not have"))
        }
        Err(error) => fail(error.to_string()),
    }
}

/// The request that a message answers.
pub(crate) const fn number(message: &WorkerMessage) -> Option<u64> {
    match message {
        WorkerMessage::Hello { .. } => None,
        WorkerMessage::Loaded { req_id, .. }
        | WorkerMessage::Vectors { req_id, .. }
        | WorkerMessage::Scores { req_id, .. }
        | WorkerMessage::Text { req_id, .. }
        | WorkerMessage::Unloaded { req_id }
        | WorkerMessage::Pong { req_id, .. }
        | WorkerMessage::Progress { req_id, .. }
        | WorkerMessage::Err { req_id, .. } => Some(*req_id),
    }
}

/// A model's files as LOAD names them: measured now.
pub(crate) fn files(model: &Model) -> Vec<ArtifactFile> {
    let measured = model.files.iter().map(|file| {
        let bytes = std::fs::read(&file.path).unwrap_or_default();
        ArtifactFile {
            role: file.role.clone(),
            path: absolute(&file.path).to_string_lossy().into_owned(),
            sha256: sha256(&bytes).to_string(),
            size: bytes.len() as u64,
        }
    });
    measured.collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Runs a body for each kind that the bundle serves; skips when there is none.
pub(crate) fn each_kind(kinds: &[Kind], body: impl Fn(Kind) -> Verdict) -> Verdict {
    use crate::catalogue::Outcome;
    let mut ran = false;
    let mut skipped = Vec::new();
    for kind in kinds {
        match body(*kind) {
            Ok(()) => ran = true,
            Err(stop) if stop.outcome == Outcome::Skip => skipped.push(stop.message),
            Err(stop) => {
                let (outcome, message) = (stop.outcome, format!("{}: {}", kind.name(), stop.message));
                return Err(Stop { outcome, message });
            }
        }
    }
    if ran { Ok(()) } else { skip(skipped.join("; ")) }
}
