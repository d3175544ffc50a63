//! What a worker prints: the ring of its last words, and a limited copy in the log (LOG-06, LOG-09).
//!
//! State: one [`LastWords`] a worker process, fed by one thread for each of its two streams. Callers:
//! [`super::launch`] starts the threads, [`super::supervisor`] reads the ring after a fault. The ring is not limited by
//! the rate of lines, and a last line without its newline is flushed at the stream's end (fault S12).

use std::collections::VecDeque;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use synapse_core::schedule::Tick;
use synapse_core::supervision::forward::LineLimit;

/// Bytes that ride on `engine_crashed` (ERR-08).
pub const LAST_WORDS_BYTES: usize = 8 * 1024;

/// A forwarded line is cut to this many bytes.
const LINE_BYTES: usize = 4 * 1024;

/// The end of everything that one worker printed, on both streams.
#[derive(Debug)]
pub struct LastWords {
    worker: String,
    started: Instant,
    ended: AtomicBool,
    inner: Mutex<Inner>,
    done: Condvar,
}

#[derive(Debug)]
struct Inner {
    ring: VecDeque<u8>,
    limit: LineLimit,
    /// Streams that are being followed.
    open: usize,
}

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output: forwarded at DEBUG.
    Out,
    /// Standard error: forwarded at WARN.
    Err,
}

impl LastWords {
    /// An empty ring for the worker of this name, forwarding at most `lines_per_second`.
    #[must_use]
    pub fn new(worker: String, lines_per_second: u32) -> Arc<Self> {
        let inner = Inner {
            ring: VecDeque::with_capacity(LAST_WORDS_BYTES),
            limit: LineLimit::new(lines_per_second),
            open: 0,
        };
        Arc::new(Self {
            worker,
            started: Instant::now(),
            ended: AtomicBool::new(false),
            inner: Mutex::new(inner),
            done: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last words as text, at most [`LAST_WORDS_BYTES`] of them.
    #[must_use]
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.lock().ring.iter().copied().collect();
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        let cut = text.len().saturating_sub(LAST_WORDS_BYTES);
        text.drain(..text.ceil_char_boundary(cut));
        text
    }

    /// Whether a stream has ended: the process is gone, as far as its output tells (fault S5).
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Announces a stream that a thread will follow.
    pub fn expect_stream(&self) {
        self.lock().open += 1;
    }

    /// Waits until every announced stream was read to its end, at most `bound`: what a process printed just before its
    /// end may still be on its way when its exit is known.
    pub fn settle(&self, bound: Duration) {
        // After the bound there is what there is: a grandchild may hold the stream for ever.
        let _ = self
            .done
            .wait_timeout_while(self.lock(), bound, |inner| inner.open > 0)
            .unwrap_or_else(PoisonError::into_inner);
    }

    fn keep(&self, bytes: &[u8]) {
        let mut inner = self.lock();
        let bytes = &bytes[bytes.len().saturating_sub(LAST_WORDS_BYTES)..];
        let over = (inner.ring.len() + bytes.len()).saturating_sub(LAST_WORDS_BYTES);
        inner.ring.drain(..over);
        inner.ring.extend(bytes);
    }

    fn forward(&self, stream: Stream, line: &[u8]) {
        let now = Tick(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let Some(dropped) = self.lock().limit.admit(now.after_ms(1_000)) else {
            return;
        };
        let line = String::from_utf8_lossy(line);
        let worker = self.worker.as_str();
        match (stream, dropped) {
            (Stream::Out, 0) => tracing::debug!(target: "synapse.worker", worker, "{line}"),
            (Stream::Out, dropped) => tracing::debug!(target: "synapse.worker", worker, dropped, "{line}"),
            (Stream::Err, 0) => tracing::warn!(target: "synapse.worker", worker, "{line}"),
            (Stream::Err, dropped) => tracing::warn!(target: "synapse.worker", worker, dropped, "{line}"),
        }
    }

    /// Reads one stream to its end. Runs on a thread of its own.
    pub fn follow(&self, stream: Stream, mut source: impl Read) {
        let mut chunk = [0u8; 8 * 1024];
        let mut line: Vec<u8> = Vec::new();
        loop {
            let count = match source.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let bytes = &chunk[..count];
            self.keep(bytes);
            for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                let (text, ended) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
                let room = LINE_BYTES.saturating_sub(line.len()).min(text.len());
                line.extend_from_slice(&text[..room]);
                if ended {
                    self.forward(stream, &line);
                    line.clear();
                }
            }
        }
        if !line.is_empty() {
            self.forward(stream, &line);
        }
        self.ended.store(true, Ordering::Release);
        let mut inner = self.lock();
        inner.open = inner.open.saturating_sub(1);
        drop(inner);
        self.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault S12: a last line without its newline is not lost. 20 KiB of output end with one: the ring holds exactly the last 8 KiB. The forwarding limit
    /// of 0 does not touch it.
    ///
    /// Proves ERR-08, LOG-09.
    #[test]
    fn the_ring_keeps_the_end_whatever_is_forwarded() {
        let words = LastWords::new("w".into(), 0);
        let printed: String = (0..2_000).map(|line| format!("line {line:05}\n")).collect::<String>() + "the last words";
        assert!(printed.len() > 20 * 1024);
        words.follow(Stream::Err, printed.as_bytes());
        assert_eq!(words.text(), &printed[printed.len() - LAST_WORDS_BYTES..]);
        assert_eq!(
            words.lock().limit.dropped(),
            2_001,
            "the line without a newline counts as a line"
        );
    }

    /// Bytes that are not UTF-8, and characters cut by the ring's start, never make it longer than its bound.
    #[test]
    fn the_text_is_bounded_for_any_bytes() {
        let words = LastWords::new("w".into(), 0);
        words.follow(Stream::Out, &[0xff; 9_000][..]);
        assert!(words.text().len() <= LAST_WORDS_BYTES);
        words.follow(Stream::Out, "é".repeat(5_000).as_bytes());
        assert!(words.text().len() <= LAST_WORDS_BYTES);
    }
}
