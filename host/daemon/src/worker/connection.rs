//! Frames over a worker's connection, in blocking style with a bound on every wait.
//!
//! State: the connection, its decoder, and the agreed frame size. Callers: [`super::launch`] and [`super::exchange`].
//! Not known here: what the frames mean, and what kind of socket carries them.

use std::io;
use std::time::{Duration, Instant};

use synapse_transport::Stream;
use synapse_wire::worker::frame::{Decoder, FrameError, encode};

use super::fault::Fault;

/// Read at once from the socket, in bytes.
const CHUNK: usize = 256 * 1024;

/// One worker's connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    decoder: Decoder,
    max_frame: u32,
    chunk: Box<[u8]>,
}

/// What a bounded wait brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole payload.
    Payload(Vec<u8>),
    /// The wait's end; bytes of a frame may have come.
    Nothing,
}

impl Connection {
    /// Takes over a connected socket.
    #[must_use]
    pub fn new(stream: Stream, max_frame: u32) -> Self {
        Self {
            stream,
            decoder: Decoder::new(max_frame),
            max_frame,
            chunk: vec![0; CHUNK].into_boxed_slice(),
        }
    }

    /// Keeps the agreed frame size from here on, in both directions (fault S1).
    pub const fn set_max_frame(&mut self, max_frame: u32) {
        self.max_frame = max_frame;
        self.decoder.set_max(max_frame);
    }

    /// The agreed frame size.
    #[must_use]
    pub const fn max_frame(&self) -> u32 {
        self.max_frame
    }

    /// Writes one control frame and, where there is one, the raw frame that it declares.
    ///
    /// # Errors
    /// [`Fault::Closed`] or [`Fault::Io`] when the worker is gone or has not read for `bound`;
    /// [`Fault::Frame`] for a request beyond the agreed size, of which then nothing was written.
    pub fn send(&mut self, payload: &[u8], raw: Option<&[u8]>, bound: Duration) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        encode(payload, self.max_frame, &mut bytes)?;
        if let Some(raw) = raw {
            encode(raw, self.max_frame, &mut bytes)?;
        }
        self.stream
            .write_all(&bytes, Some(bound))
            .map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => Fault::Closed,
                _ => Fault::Io(error),
            })
    }

    /// The next payload, waiting `bound` at most.
    ///
    /// # Errors
    /// [`Fault::Closed`] between frames, [`Fault::Frame`] inside one or for one beyond the agreed size.
    pub fn receive(&mut self, bound: Duration) -> Result<Received, Fault> {
        let end = Instant::now() + bound;
        let mut fed = false;
        loop {
            if let Some(payload) = self.decoder.next_payload()? {
                return Ok(Received::Payload(payload));
            }
            let left = end.saturating_duration_since(Instant::now());
            // A peer that never stops sending bytes of one frame must not hold this side beyond its bound.
            if fed && left.is_zero() {
                return Ok(Received::Nothing);
            }
            match self.stream.read(&mut self.chunk, Some(left)) {
                Ok(None) => return Ok(Received::Nothing),
                Ok(Some(0)) => {
                    self.decoder.finish()?;
                    return Err(Fault::Closed);
                }
                Ok(Some(count)) => {
                    self.decoder.feed(&self.chunk[..count]);
                    fed = true;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(Fault::Closed),
                Err(error) => return Err(Fault::Io(error)),
            }
        }
    }

    /// Checks that nothing came since the last reply: a worker speaks only when asked.
    ///
    /// # Errors
    /// [`Fault::Unsolicited`], or [`Fault::Closed`] when the worker is gone.
    pub fn expect_quiet(&mut self) -> Result<(), Fault> {
        let known = match self.receive(Duration::ZERO) {
            Ok(Received::Payload(payload)) => payload.len(),
            Ok(Received::Nothing) => 0,
            Err(Fault::Frame(FrameError::TooLong { .. })) => 0,
            Err(fault) => return Err(fault),
        };
        let bytes = known + self.decoder.pending();
        if bytes == 0 {
            Ok(())
        } else {
            Err(Fault::Unsolicited { bytes })
        }
    }
}
