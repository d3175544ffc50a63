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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split_in(chunks: &[&[u8]], max: usize) -> Vec<Frame> {
        let mut splitter = LineSplitter::new(max);
        let mut frames = Vec::new();
        for chunk in chunks {
            let mut input = *chunk;
            while let Some(frame) = splitter.next_frame(&mut input) {
                frames.push(frame);
            }
            assert!(input.is_empty(), "the splitter left bytes behind");
            assert!(splitter.buffered() <= max, "the splitter holds more than the cap");
        }
        frames.extend(splitter.finish());
        frames
    }

    fn line(text: &str) -> Frame {
        Frame::Line(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_end_with_newline_or_with_the_stream() {
        assert_eq!(split_in(&[b"a\nb\r\nc"], 8), [line("a"), line("b"), line("c")]);
        assert_eq!(split_in(&[b"a", b"b", b"\n", b"c\n"], 8), [line("ab"), line("c")]);
    }

    #[test]
    fn blank_lines_are_skipped() {
        assert_eq!(split_in(&[b"\n\r\n  \t\n a \n\n"], 8), [line(" a ")]);
        assert_eq!(split_in(&[b""], 8), []);
    }

    /// A line of exactly the cap passes; one byte more is refused once, and the stream goes on after its newline.
    #[test]
    fn the_cap_is_exact_and_the_stream_resynchronises() {
        assert_eq!(split_in(&[b"12345678\n"], 8), [line("12345678")]);
        assert_eq!(split_in(&[b"123456789\nok\n"], 8), [Frame::TooLong, line("ok")]);
        assert_eq!(
            split_in(&[b"12345", b"6789", b"more and more", b" of it\nok"], 8),
            [Frame::TooLong, line("ok")]
        );
        assert_eq!(
            split_in(&[b"123456789", b"\n", b"123456789\n"], 8),
            [Frame::TooLong, Frame::TooLong]
        );
    }

    #[test]
    fn the_refusal_comes_before_the_line_ends() {
        let mut splitter = LineSplitter::new(4);
        let mut input: &[u8] = b"12345";
        assert_eq!(splitter.next_frame(&mut input), Some(Frame::TooLong));
        assert!(splitter.is_mid_line());
        assert_eq!(splitter.buffered(), 0);
        let mut input: &[u8] = b"\n";
        assert_eq!(splitter.next_frame(&mut input), None);
        assert!(!splitter.is_mid_line());
    }

    #[test]
    fn depth_counts_brackets_outside_strings_only() {
        assert!(depth_within(br#"{"a":[[1]]}"#, 3));
        assert!(!depth_within(br#"{"a":[[1]]}"#, 2));
        assert!(depth_within(br#"{"a":"[[[[[[\"[[[["}"#, 1));
        assert!(depth_within(br#"["\\",[]]"#, 2));
        assert!(depth_within(b"[][][][]", 1));
        assert!(!depth_within(&[b'['; 65], MAX_DEPTH));
        assert!(depth_within(&[b'['; 64], MAX_DEPTH));
        assert!(depth_within(b"\"unterminated [[[[ \\", 0));
    }

    proptest! {
        /// However a stream is cut, its lines are those of `split` on the newline.
        #[test]
        fn chunks_do_not_matter(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b' '), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(0_usize..200, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let expected: Vec<Frame> = bytes
                .split(|&byte| byte == b'\n')
                .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
                .filter(|line| line.iter().any(|byte| !matches!(byte, b' ' | b'\t' | b'\r')))
                .map(|line| Frame::Line(line.to_vec()))
                .collect();
            prop_assert_eq!(split_in(&chunks, 1000), expected);
        }
    }
}
