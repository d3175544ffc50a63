//! The scripted worker's end of the connection, and the messages of an honest worker.
//!
//! State: the connection. Callers: `main.rs`. A daemon that is gone ends the process.

use std::path::Path;
use std::time::Duration;

use synapse_transport::Stream;
use synapse_wire::worker::frame::{Decoder, encode};
use synapse_wire::worker::message::{BatchItem, BundleHello, EngineHello, EngineKind, EngineState, Parsed};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage, raw};

use crate::script::{Script, Start};

/// The length of every vector, as the test models' records say.
pub const DIMS: u32 = 32;

/// The connection to the daemon.
pub struct Peer {
    stream: Stream,
    decoder: Decoder,
}

impl Peer {
    /// Connects; `None` when nobody listens.
    pub fn connect(socket: &Path) -> Option<Self> {
        Stream::connect(socket).ok().map(|stream| Self {
            stream,
            decoder: Decoder::new(DEFAULT_MAX_FRAME),
        })
    }

    /// Writes bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        if self.stream.write_all(bytes, None).is_err() {
            std::process::exit(1);
        }
    }

    /// Waits, unless the daemon closes the connection meanwhile.
    pub fn pause(&mut self, length: Duration) {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk, Some(length)) {
            Ok(None) => {}
            Ok(Some(0)) | Err(_) => std::process::exit(1),
            Ok(Some(count)) => self.decoder.feed(&chunk[..count]),
        }
    }

    /// The next request and its raw frame; `None` at the daemon's end.
    pub fn next(&mut self) -> Option<(HostMessage, Vec<u8>)> {
        let payload = self.payload()?;
        let Ok(Parsed::Message(message)) = HostMessage::parse(&payload) else {
            return None;
        };
        let raw = if message.raw_bytes() > 0 {
            self.payload()?
        } else {
            Vec::new()
        };
        Some((message, raw))
    }

    fn payload(&mut self) -> Option<Vec<u8>> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(payload) = self.decoder.next_payload().ok()? {
                return Some(payload);
            }
            match self.stream.read(&mut chunk, None) {
                Ok(Some(count)) if count > 0 => self.decoder.feed(&chunk[..count]),
                _ => return None,
            }
        }
    }
}

/// One frame.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Nothing here is longer than a frame can be.
    let _ = encode(payload, u32::MAX, &mut bytes);
    bytes
}

/// A control frame.
pub fn control(message: &WorkerMessage) -> Vec<u8> {
    frame(&message.to_payload())
}

/// An error as a control frame.
pub fn error(req_id: u64, code: &str, state: EngineState) -> Vec<u8> {
    control(&WorkerMessage::Err {
        req_id,
        code: code.to_owned(),
        state,
        msg: "as the script says".to_owned(),
    })
}

/// The right answer: each vector is its item's ids, then zeros.
pub fn vectors(req_id: u64, items: &[BatchItem], ids: &[u8]) -> (WorkerMessage, Vec<u8>) {
    let dims = DIMS as usize;
    let mut values = Vec::new();
    let mut rest = ids;
    for item in items {
        let (own, after) = rest.split_at(rest.len().min(item.n_tokens as usize * 4));
        rest = after;
        let ids = raw::get_i32(own, own.len() as u64 / 4).unwrap_or_default();
        let mut vector: Vec<f32> = ids
            .iter()
            .map(|id| f32::from(i16::try_from(*id).unwrap_or(-1)))
            .collect();
        vector.resize(dims, 0.0);
        values.append(&mut vector);
    }
    let mut bytes = Vec::new();
    raw::put_f32(&values, &mut bytes);
    let header = WorkerMessage::Vectors {
        req_id,
        dims: DIMS,
        n: u32::try_from(items.len()).unwrap_or(u32::MAX),
        raw_bytes: bytes.len() as u64,
    };
    (header, bytes)
}

/// The first bytes: an honest HELLO but for what the script says.
pub fn hello(script: Script, nonce: &str) -> Vec<u8> {
    let wrong = |start| script == Script::Start(start);
    if wrong(Start::Garbage) {
        return frame(b"no message at all");
    }
    if wrong(Start::HugeHello) {
        return u32::MAX.to_le_bytes().to_vec();
    }
    if wrong(Start::PongFirst) {
        return control(&WorkerMessage::Pong {
            req_id: 1,
            rss_mb: 1,
            models_loaded: 0,
            placement_share: None,
        });
    }
    let engine = |kind| EngineHello {
        kind,
        engine: "reference".to_owned(),
        version: if wrong(Start::WrongIdentity) { "2" } else { "1" }.to_owned(),
        build_flags: Vec::new(),
    };
    control(&WorkerMessage::Hello {
        v: if wrong(Start::OldVersion) { 2 } else { PROTOCOL_VERSION },
        nonce: if wrong(Start::StaleNonce) {
            "0".repeat(64)
        } else {
            nonce.to_owned()
        },
        bundle: BundleHello {
            id: if wrong(Start::WrongBundle) {
                "owned"
            } else {
                "reference"
            }
            .to_owned(),
            version: "0.1.0".to_owned(),
        },
        engines: vec![
            engine(EngineKind::Embed),
            engine(EngineKind::Rerank),
            engine(EngineKind::Generate),
        ],
        pid: if wrong(Start::WrongPid) { 1 } else { std::process::id() },
        max_frame: if wrong(Start::SmallFrame) {
            MIN_MAX_FRAME - 1
        } else {
            1 << 20
        },
    })
}
