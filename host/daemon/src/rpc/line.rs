//! Reads lines from a socket: the length cap, the time limit of a line, and the end of the stream.
//!
//! State: the bytes of a line in progress. Callers: `connection`. Not known here: what a line says. The cap is kept by
//! `synapse_wire::framing`; an idle connection holds no buffer.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use synapse_wire::framing::{Frame, LineSplitter};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

/// Bytes taken from the socket at once.
const CHUNK: usize = 64 * 1024;

/// What the client sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A whole line, without its end.
    Line(Vec<u8>),
    /// The line in progress passed the cap; it is dropped up to its end.
    TooLong,
    /// The line in progress took too long.
    TooSlow,
    /// The client sends nothing more; it may still read.
    End,
}

/// Splits what a socket gives into lines.
#[derive(Debug)]
pub struct LineReader {
    splitter: LineSplitter,
    ready: VecDeque<Frame>,
    patience: Duration,
    /// When the line in progress must be complete.
    due: Option<Instant>,
    ended: bool,
}

impl LineReader {
    /// Lines of at most `max` bytes, each complete within `patience` of its first byte.
    #[must_use]
    pub const fn new(max: usize, patience: Duration) -> Self {
        Self {
            splitter: LineSplitter::new(max),
            ready: VecDeque::new(),
            patience,
            due: None,
            ended: false,
        }
    }

    /// Waits for the next event. After [`Event::End`] and [`Event::TooSlow`] nothing more comes. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn next(&mut self, stream: &UnixStream) -> io::Result<Event> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Ok(match frame {
                    Frame::Line(line) => Event::Line(line),
                    Frame::TooLong => Event::TooLong,
                });
            }
            if self.ended {
                return Ok(Event::End);
            }
            let readable = match self.due {
                Some(due) => match timeout_at(due, stream.readable()).await {
                    Ok(readable) => readable,
                    Err(_) => {
                        self.ended = true;
                        return Ok(Event::TooSlow);
                    }
                },
                None => stream.readable().await,
            };
            readable?;
            self.read(stream)?;
        }
    }

    /// Takes what is there, without waiting.
    fn read(&mut self, stream: &UnixStream) -> io::Result<()> {
        let mut chunk = [0_u8; CHUNK];
        match stream.try_read(&mut chunk) {
            Ok(0) => {
                self.ended = true;
                self.due = None;
                self.ready.extend(self.splitter.finish());
            }
            Ok(length) => {
                let mut complete = false;
                let mut input = chunk.get(..length).unwrap_or_default();
                while let Some(frame) = self.splitter.next_frame(&mut input) {
                    // A line that is too long goes on until its end, and so does its time.
                    complete |= matches!(frame, Frame::Line(_));
                    self.ready.push_back(frame);
                }
                if !self.splitter.is_mid_line() {
                    self.due = None;
                } else if complete || self.due.is_none() {
                    self.due = Some(Instant::now() + self.patience);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn pair() -> (UnixStream, UnixStream, LineReader) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, theirs, LineReader::new(16, Duration::from_secs(30)))
    }

    fn line(text: &str) -> Event {
        Event::Line(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn lines_a_long_line_and_the_end() {
        let (ours, mut theirs, mut reader) = pair();
        theirs.write_all(b"one\ntwo\n0123456789abcdefg\nlast").await.unwrap();
        drop(theirs);
        let mut events = Vec::new();
        for _ in 0..6 {
            events.push(reader.next(&ours).await.unwrap());
        }
        assert_eq!(
            events,
            [
                line("one"),
                line("two"),
                Event::TooLong,
                line("last"),
                Event::End,
                Event::End
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_has_its_time_and_an_idle_connection_has_for_ever() {
        let (ours, mut theirs, mut reader) = pair();
        let idle = tokio::time::timeout(Duration::from_secs(100_000), reader.next(&ours)).await;
        assert!(idle.is_err(), "an idle connection has no limit");
        theirs.write_all(b"sl").await.unwrap();
        assert!(
            tokio::time::timeout(Duration::from_secs(20), reader.next(&ours))
                .await
                .is_err()
        );
        theirs.write_all(b"ow").await.unwrap();
        let event = tokio::time::timeout(Duration::from_secs(20), reader.next(&ours))
            .await
            .unwrap();
        assert_eq!(event.unwrap(), Event::TooSlow, "bytes in between give no new time");
    }

    #[tokio::test(start_paused = true)]
    async fn each_line_has_its_own_time() {
        let (ours, mut theirs, mut reader) = pair();
        theirs.write_all(b"a").await.unwrap();
        assert!(
            tokio::time::timeout(Duration::from_secs(20), reader.next(&ours))
                .await
                .is_err()
        );
        theirs.write_all(b"\nb").await.unwrap();
        assert_eq!(reader.next(&ours).await.unwrap(), line("a"));
        assert!(
            tokio::time::timeout(Duration::from_secs(20), reader.next(&ours))
                .await
                .is_err()
        );
        theirs.write_all(b"\n").await.unwrap();
        assert_eq!(reader.next(&ours).await.unwrap(), line("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_without_end_runs_out_of_time_though_it_is_dropped() {
        let (ours, mut theirs, mut reader) = pair();
        theirs.write_all(&[b'x'; 17]).await.unwrap();
        assert_eq!(reader.next(&ours).await.unwrap(), Event::TooLong);
        assert!(
            tokio::time::timeout(Duration::from_secs(20), reader.next(&ours))
                .await
                .is_err()
        );
        theirs.write_all(&[b'x'; 17]).await.unwrap();
        assert_eq!(reader.next(&ours).await.unwrap(), Event::TooSlow);
    }
}
