//! A worker process and the connection to it: requests go out, replies come in, and every wait has a bound.
//!
//! State: the process, the connection, the reports of progress so far. Callers: the checks of this folder.

use std::time::{Duration, Instant};

use synapse_loader::process::{Child, Finished};
use synapse_transport::Stream;
use synapse_wire::worker::frame::{Decoder, encode};
use synapse_wire::worker::message::{ArtifactFile, EngineState, Parsed, Phase, RuntimeConfig};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage, raw};

use super::{BOUND, Loaded, files, wire_kind};
use crate::catalogue::{Stop, Verdict, fail, skip};
use crate::json;
use crate::subject::Model;

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
    pub(crate) at: Instant,
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
    /// A process that connected, after its HELLO.
    pub(super) fn greet(stream: Stream, child: Child) -> Result<Self, Stop> {
        let mut peer = Self {
            stream,
            decoder: Decoder::new(DEFAULT_MAX_FRAME),
            pid: child.pid(),
            child,
            hello: WorkerMessage::Unloaded { req_id: 0 },
            next: 0,
            progress: Vec::new(),
        };
        peer.hello = peer.message()?;
        Ok(peer)
    }

    /// Lets the worker in.
    pub(crate) fn acknowledge(&mut self, ours: u32) {
        let theirs = match &self.hello {
            WorkerMessage::Hello { max_frame, .. } => *max_frame,
            _ => MIN_MAX_FRAME,
        };
        let (v, max_frame) = (PROTOCOL_VERSION, ours.min(theirs).max(MIN_MAX_FRAME));
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
                    setup: phase == Phase::Setup,
                    at: Instant::now(),
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
        match reply.message.req_id() {
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
