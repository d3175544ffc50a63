//! Framing: bytes to lines, as a pure state machine.
//!
//! It owns the bytes of the line that has begun, never more than the cap. The daemon's connection loop and the client
//! feed it what a socket gave. Sockets, time and JSON are not known here; the depth check looks at brackets and quotes
//! only, so that a line can be refused before a parser sees it.

/// The longest line, without its newline: 16 MiB.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

/// The deepest nesting of arrays and objects in a line.
pub const MAX_DEPTH: usize = 64;

/// What the splitter found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A whole line, without `\n` or `\r\n`. Never blank: blank lines are skipped.
    Line(Vec<u8>),
    /// The line in progress passed the cap. Said once, at once; the rest of that line is dropped up to its newline,
    /// and the next line is read normally.
    TooLong,
}

/// Splits a stream of bytes into lines.
#[derive(Debug)]
pub struct LineSplitter {
    buffer: Vec<u8>,
    max: usize,
    dropping: bool,
}

impl Default for LineSplitter {
    fn default() -> Self {
        Self::new(MAX_LINE_BYTES)
    }
}

impl LineSplitter {
    /// A splitter with a cap in bytes.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            max,
            dropping: false,
        }
    }

    /// Takes bytes from the front of `input` up to the next frame and returns it; `None` once all of `input` is taken.
    pub fn next_frame(&mut self, input: &mut &[u8]) -> Option<Frame> {
        while !input.is_empty() {
            let end = input.iter().position(|&byte| byte == b'\n');
            let (piece, rest) = input.split_at(end.unwrap_or(input.len()));
            *input = if end.is_some() { &rest[1..] } else { rest };
            if self.dropping {
                self.dropping = end.is_none();
                continue;
            }
            if piece.len() > self.max - self.buffer.len() {
                self.buffer = Vec::new();
                self.dropping = end.is_none();
                return Some(Frame::TooLong);
            }
            self.append(piece);
            if end.is_some()
                && let Some(line) = self.take()
            {
                return Some(Frame::Line(line));
            }
        }
        None
    }

    /// The stream has ended: returns a last line that has no newline.
    pub fn finish(&mut self) -> Option<Frame> {
        self.dropping = false;
        self.take().map(Frame::Line)
    }

    /// Whether a line has begun and not ended.
    #[must_use]
    pub const fn is_mid_line(&self) -> bool {
        self.dropping || !self.buffer.is_empty()
    }

    /// Bytes held for the line in progress.
    #[must_use]
    pub const fn buffered(&self) -> usize {
        self.buffer.capacity()
    }

    /// Grows by doubling, but never beyond the cap.
    fn append(&mut self, piece: &[u8]) {
        let needed = self.buffer.len() + piece.len();
        if needed > self.buffer.capacity() {
            let target = self.buffer.capacity().saturating_mul(2).clamp(needed, self.max);
            self.buffer.reserve_exact(target - self.buffer.len());
        }
        self.buffer.extend_from_slice(piece);
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let mut line = std::mem::take(&mut self.buffer);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        (!line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))).then_some(line)
    }
}

/// Whether arrays and objects nest at most `max` deep. Brackets inside strings do not count. Linear, no allocation;
/// says nothing about whether the line is JSON.
#[must_use]
pub fn depth_within(line: &[u8], max: usize) -> bool {
    let mut depth = 0_usize;
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(inside) = bytes.next() {
                    match inside {
                        b'\\' => _ = bytes.next(),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > max {
                    return false;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}
