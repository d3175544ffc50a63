//! Frames as bytes: a `u32` little-endian payload length, then the payload (WPROTO-05).
//!
//! [`Decoder`] is fed whatever a socket gave and yields whole payloads. It refuses a length beyond its limit before it
//! reserves a byte for it, and says how much of a frame is pending, so that a caller can tell a quiet stream from a
//! frame that is dripped in.

/// Bytes of the length before each payload.
pub const HEADER_BYTES: usize = 4;

/// Why a stream of frames cannot go on. The stream's position is lost: the only way on is a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame is longer than the two sides agreed on.
    #[error("frame of {length} bytes, at most {max} were agreed")]
    TooLong {
        /// Declared payload bytes.
        length: u32,
        /// The agreed bound.
        max: u32,
    },
    /// The stream ended inside a frame.
    #[error("stream ended inside a frame: {have} of {want} bytes")]
    Truncated {
        /// Bytes of the frame that arrived, its length included.
        have: usize,
        /// Bytes that the frame has; [`HEADER_BYTES`] while its length is not known.
        want: usize,
    },
}

/// Turns bytes into payloads.
#[derive(Debug)]
pub struct Decoder {
    max: u32,
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// A decoder that takes payloads of up to `max` bytes.
    #[must_use]
    pub const fn new(max: u32) -> Self {
        Self {
            max,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// Sets the bound for the frames from here on, as agreed in the handshake.
    pub const fn set_max(&mut self, max: u32) {
        self.max = max;
    }

    /// Takes bytes from the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole payload, or `None` until more bytes are fed.
    ///
    /// # Errors
    /// [`FrameError::TooLong`], as soon as the length is known.
    pub fn next_payload(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let pending = &self.buffer[self.start..];
        let Some(header) = pending.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header);
        if length > self.max {
            return Err(FrameError::TooLong { length, max: self.max });
        }
        let end = HEADER_BYTES + length as usize;
        let Some(payload) = pending.get(HEADER_BYTES..end) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.start += end;
        Ok(Some(payload))
    }

    /// Bytes fed and not yet yielded: 0 between frames.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        let pending = &self.buffer[self.start..];
        if pending.is_empty() {
            return Ok(());
        }
        let want = pending.first_chunk::<HEADER_BYTES>().map_or(HEADER_BYTES, |header| {
            HEADER_BYTES + u32::from_le_bytes(*header) as usize
        });
        Err(FrameError::Truncated {
            have: pending.len(),
            want,
        })
    }
}

/// Appends `payload` as one frame to `out`.
///
/// # Errors
/// [`FrameError::TooLong`] beyond `max`: a larger request is the sender's bug, since admission caps it upstream.
pub fn encode(payload: &[u8], max: u32, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    if length > max {
        return Err(FrameError::TooLong { length, max });
    }
    out.reserve(HEADER_BYTES + payload.len());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(payload);
    Ok(())
}
