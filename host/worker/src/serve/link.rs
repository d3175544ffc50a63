//! The worker's end of the socket: whole requests in, whole replies out.
//!
//! State: the socket and the reading thread's queue. Callers: [`super`]. Not known here: engines.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use synapse_transport::Stream;
use synapse_wire::worker::frame::{Decoder, encode};
use synapse_wire::worker::message::Parsed;
use synapse_wire::worker::{HostMessage, MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage};

use super::control::Cancelled;
use super::{ORPHAN_GRACE, ServeError};

/// The exit code of a process whose daemon went away while an engine did not stop.
const EXIT_ORPHANED: i32 = 5;

/// What came in.
#[derive(Debug)]
pub enum Incoming {
    /// A request and its raw frame (empty where none follows).
    Request(HostMessage, Vec<u8>),
    /// A request of a type that this worker does not know; its raw frame was skipped.
    Unknown {
        /// The type.
        name: String,
        /// The request's number.
        req_id: u64,
    },
    /// The daemon closed the socket.
    Gone,
    /// The stream broke the protocol.
    Fault(String),
}

/// The connected socket after the handshake.
#[derive(Debug)]
pub struct Link {
    writer: Mutex<Stream>,
    max_frame: Arc<AtomicU32>,
}

impl Link {
    /// Connects, says HELLO and waits for HELLO_ACK. From then on the reading thread fills the queue.
    ///
    /// # Errors
    /// The socket's failure, or anything but a proper HELLO_ACK.
    pub fn connect(
        socket: &Path,
        hello: &WorkerMessage,
        cancelled: Arc<Cancelled>,
    ) -> Result<(Self, Receiver<Incoming>), ServeError> {
        let stream = Stream::connect(socket)?;
        let reader = stream.try_clone()?;
        let max_frame = Arc::new(AtomicU32::new(MIN_MAX_FRAME));
        let (fill, queue) = channel();
        let link = Self {
            writer: Mutex::new(stream),
            max_frame: Arc::clone(&max_frame),
        };
        link.send(hello, None)?;
        std::thread::Builder::new()
            .name("worker-reader".to_owned())
            .spawn(move || read_all(reader, &fill, &max_frame, &cancelled))?;
        match next(&queue) {
            Incoming::Request(
                HostMessage::HelloAck {
                    v: PROTOCOL_VERSION,
                    accept: true,
                    ..
                },
                _,
            ) => Ok((link, queue)),
            Incoming::Gone => Err(ServeError::Protocol("the daemon refused this worker".to_owned())),
            other => Err(ServeError::Protocol(format!("expected HELLO_ACK, found {other:?}"))),
        }
    }

    /// Writes a message and, where there is one, its raw frame.
    ///
    /// # Errors
    /// The daemon is gone, or the message is larger than agreed.
    pub fn send(&self, message: &WorkerMessage, raw: Option<&[u8]>) -> io::Result<()> {
        let max = self.max_frame.load(Ordering::Acquire);
        let mut bytes = Vec::new();
        encode(&message.to_payload(), max, &mut bytes).map_err(io::Error::other)?;
        if let Some(raw) = raw {
            encode(raw, max, &mut bytes).map_err(io::Error::other)?;
        }
        self.writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&bytes, None)
    }

    /// The largest raw frame that may be sent, in bytes.
    #[must_use]
    pub fn max_frame(&self) -> u32 {
        self.max_frame.load(Ordering::Acquire)
    }
}

/// The next request. Blocks.
pub fn next(queue: &Receiver<Incoming>) -> Incoming {
    queue.recv().unwrap_or(Incoming::Gone)
}

/// Reads the socket to its end.
fn read_all(mut reader: Stream, queue: &Sender<Incoming>, max_frame: &AtomicU32, cancelled: &Cancelled) {
    let mut source = Source {
        reader: &mut reader,
        decoder: Decoder::new(MIN_MAX_FRAME),
        chunk: vec![0; 256 * 1024],
    };
    loop {
        let incoming = match source.request() {
            Ok(Some(Incoming::Request(HostMessage::Cancel { req_id }, _))) => {
                cancelled.cancel(req_id);
                continue;
            }
            Ok(Some(Incoming::Request(ack @ HostMessage::HelloAck { max_frame: agreed, .. }, raw))) => {
                source.decoder.set_max(agreed);
                max_frame.store(agreed, Ordering::Release);
                Incoming::Request(ack, raw)
            }
            Ok(Some(Incoming::Request(request, raw))) => {
                if let Some(req_id) = request.req_id() {
                    cancelled.begin(req_id);
                }
                Incoming::Request(request, raw)
            }
            Ok(Some(incoming)) => incoming,
            Ok(None) => Incoming::Gone,
            Err(fault) => Incoming::Fault(fault),
        };
        let last = matches!(incoming, Incoming::Gone | Incoming::Fault(_));
        if last {
            cancelled.cancel_all();
        }
        if queue.send(incoming).is_err() || last {
            break;
        }
    }
    // An engine that does not look at its cancellation must not outlive the daemon.
    std::thread::sleep(ORPHAN_GRACE);
    std::process::exit(EXIT_ORPHANED);
}

struct Source<'a> {
    reader: &'a mut Stream,
    decoder: Decoder,
    chunk: Vec<u8>,
}

impl Source<'_> {
    /// One request with its raw frame; `None` at the stream's end between frames.
    fn request(&mut self) -> Result<Option<Incoming>, String> {
        let Some(payload) = self.payload()? else {
            return Ok(None);
        };
        match HostMessage::parse(&payload).map_err(|error| error.to_string())? {
            Parsed::Message(message) => {
                let raw = self.raw(message.raw_bytes())?;
                Ok(Some(Incoming::Request(message, raw)))
            }
            Parsed::UnknownType {
                name,
                req_id,
                raw_bytes,
            } => {
                self.raw(raw_bytes)?;
                Ok(Some(Incoming::Unknown { name, req_id }))
            }
        }
    }

    fn raw(&mut self, expected: u64) -> Result<Vec<u8>, String> {
        if expected == 0 {
            return Ok(Vec::new());
        }
        let payload = self.payload()?.ok_or("the stream ended before a declared raw frame")?;
        if payload.len() as u64 == expected {
            Ok(payload)
        } else {
            Err(format!(
                "raw frame of {} bytes, its header declares {expected}",
                payload.len()
            ))
        }
    }

    fn payload(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(payload) = self.decoder.next_payload().map_err(|error| error.to_string())? {
                return Ok(Some(payload));
            }
            match self.reader.read(&mut self.chunk, None) {
                Ok(Some(0)) => return self.decoder.finish().map(|()| None).map_err(|error| error.to_string()),
                Ok(Some(count)) => self.decoder.feed(&self.chunk[..count]),
                // Without a bound there is no third answer; a socket that fails is a daemon that is gone.
                Ok(None) | Err(_) => return Ok(None),
            }
        }
    }
}
