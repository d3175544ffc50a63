//! The daemon's end of the worker protocol, played by hand: a real worker process that serves a stress bundle, and every
//! byte that it gets is the test's.
//!
//! State: the connection and the process. Callers: `protocol.rs`. It checks nothing but the framing.

use std::path::PathBuf;
use std::time::Duration;

use synapse_core::digest::sha256;
use synapse_faults::Stage;
use synapse_loader::process::{Child, Command, Finished, Output, spawner};
use synapse_transport::{Listener, Stream, name};
use synapse_wire::worker::frame::{Decoder, encode};
use synapse_wire::worker::message::{ArtifactFile, BatchItem, Budget, EngineKind, Parsed, RuntimeConfig};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, PROTOCOL_VERSION, WorkerMessage, raw};

use crate::{stage, worker};

/// Ten times what anything here takes on a busy machine.
pub const BOUND: Duration = Duration::from_secs(120);

/// What the worker is told in `--nonce`.
pub const NONCE: &str = "00000000000000000000000000000001";

/// A worker and the connection to it.
pub struct Host {
    stream: Stream,
    decoder: Decoder,
    child: Child,
    stage: Stage,
    /// The HELLO that it said.
    pub hello: WorkerMessage,
}

impl Host {
    /// Starts a worker on the stress bundle in `mode` and reads its HELLO. No HELLO_ACK yet.
    pub fn start(mode: &str) -> Self {
        let stage = stage();
        let files = stage.add("stress", mode);
        let mut listener = Listener::bind(&name::address(&stage.path(""), "stress-1")).expect("listens");
        let keep = Output::Capture { limit: 1 << 16 };
        let command = Command::new(worker())
            .arg("--plugin")
            .arg(files.path(""))
            .arg("--socket")
            .arg(listener.address())
            .args(["--nonce", NONCE])
            .stdout(keep)
            .stderr(keep);
        let child = spawner().spawn(command).expect("the worker was built");
        let stream = listener.accept(BOUND).expect("listens").expect("the worker connects");
        let mut host = Self {
            stream,
            decoder: Decoder::new(DEFAULT_MAX_FRAME),
            child,
            stage,
            hello: WorkerMessage::Unloaded { req_id: 0 },
        };
        host.hello = host.message().expect("a HELLO");
        host
    }

    /// As [`Self::start`], with a HELLO_ACK that allows frames of `max_frame` bytes.
    pub fn ready(mode: &str, max_frame: u32) -> Self {
        let mut host = Self::start(mode);
        let v = PROTOCOL_VERSION;
        host.send(
            &HostMessage::HelloAck {
                v,
                accept: true,
                max_frame,
            },
            None,
        );
        host
    }

    /// A ready worker with a model loaded; its reference.
    pub fn loaded(mode: &str, max_frame: u32) -> (Self, u64) {
        let mut host = Self::ready(mode, max_frame);
        let file = host.file("weights", b"weights");
        host.send(&load(1, vec![file]), None);
        match host.message() {
            Some(WorkerMessage::Loaded {
                req_id: 1, model_ref, ..
            }) => (host, model_ref),
            other => panic!("{other:?}"),
        }
    }

    /// A file of an artifact with this content.
    pub fn file(&self, role: &str, content: &[u8]) -> ArtifactFile {
        let path = self.path(role);
        std::fs::write(&path, content).expect("writes");
        ArtifactFile {
            role: role.to_owned(),
            path: path.to_string_lossy().into_owned(),
            sha256: sha256(content).to_string(),
            size: content.len() as u64,
        }
    }

    /// A path of the place where the worker's bundle lies.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.stage.path(relative)
    }

    /// Writes a message and, where there is one, a raw frame.
    pub fn send(&mut self, message: &HostMessage, raw: Option<&[u8]>) {
        self.send_payload(&message.to_payload(), raw);
    }

    /// Writes a payload as a control frame and, where there is one, a raw frame.
    pub fn send_payload(&mut self, payload: &[u8], raw: Option<&[u8]>) {
        let mut bytes = Vec::new();
        for payload in [Some(payload), raw].into_iter().flatten() {
            encode(payload, u32::MAX, &mut bytes).expect("fits");
        }
        // A worker that gave up is what some tests want; they see its end when they read.
        let _ = self.stream.write_all(&bytes, Some(BOUND));
    }

    /// The next payload; `None` at the worker's end.
    pub fn payload(&mut self) -> Option<Vec<u8>> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(payload) = self.decoder.next_payload().expect("whole frames") {
                return Some(payload);
            }
            match self.stream.read(&mut chunk, Some(BOUND)) {
                Ok(Some(0)) => {
                    self.decoder.finish().expect("no half frame");
                    return None;
                }
                Ok(Some(count)) => self.decoder.feed(&chunk[..count]),
                Ok(None) => panic!("the worker is silent"),
                // Closed while bytes of ours were unread.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The next control message; `None` at the worker's end.
    pub fn message(&mut self) -> Option<WorkerMessage> {
        let payload = self.payload()?;
        match WorkerMessage::parse(&payload) {
            Ok(Parsed::Message(message)) => Some(message),
            other => panic!("{other:?}"),
        }
    }

    /// The next message with the values of its raw frame (none where it declares none).
    pub fn reply(&mut self) -> (WorkerMessage, Vec<f32>) {
        let message = self.message().expect("a reply");
        let bytes = message.raw_bytes();
        let mut values = vec![0.0; usize::try_from(bytes / 4).expect("fits")];
        if bytes > 0 {
            raw::get_f32(&self.payload().expect("a raw frame"), &mut values).expect("as declared");
        }
        (message, values)
    }

    /// Asserts that the stream is in order: a PING is answered by its PONG, and by nothing else.
    pub fn assert_in_order(&mut self, req_id: u64) {
        self.send(&HostMessage::Ping { req_id }, None);
        let pong = self.message().expect("a PONG");
        assert!(
            matches!(pong, WorkerMessage::Pong { req_id: found, .. } if found == req_id),
            "{pong:?}"
        );
    }

    /// Closes the connection and waits for the process.
    pub fn close(self) -> Finished {
        let Self { stream, child, .. } = self;
        drop(stream);
        child.wait_with_output(BOUND).expect("ends with its connection")
    }

    /// Waits for the process with the connection open.
    pub fn wait(self) -> Finished {
        let Self { stream, child, .. } = self;
        let finished = child.wait_with_output(BOUND).expect("ends by itself");
        drop(stream);
        finished
    }
}

/// A LOAD of the stress engine.
pub fn load(req_id: u64, files: Vec<ArtifactFile>) -> HostMessage {
    HostMessage::Load {
        req_id,
        engine: EngineKind::Embed,
        files,
        runtime_config: RuntimeConfig {
            format: "bin".into(),
            dtype: "f32".into(),
            pooling: "mean".into(),
            max_tokens: 512,
            max_batch: 4096,
            max_batch_tokens: 1 << 16,
            threads: 1,
            extra: [].into(),
        },
    }
}

/// An EMBED_BATCH of items of these lengths, and its raw frame of ascending ids.
pub fn embed(req_id: u64, model_ref: u64, lengths: &[u32]) -> (HostMessage, Vec<u8>) {
    let items = lengths.iter().zip(0..).map(|(n_tokens, id)| BatchItem {
        id,
        n_tokens: *n_tokens,
        doc_start: None,
    });
    let count = i32::try_from(lengths.iter().sum::<u32>()).expect("fits");
    let mut bytes = Vec::new();
    raw::put_i32(&(1..=count).collect::<Vec<_>>(), &mut bytes);
    let message = HostMessage::EmbedBatch {
        req_id,
        model_ref,
        budget: BUDGET,
        items: items.collect(),
        type_ids: false,
        raw_bytes: bytes.len() as u64,
    };
    (message, bytes)
}

/// No deadline, one thread.
pub const BUDGET: Budget = Budget {
    deadline_ms: None,
    threads: 1,
};
