//! One connection: a writer task, a reader task, and the answers that are awaited.
//!
//! It owns the socket and the table of requests in flight. [`crate::client`] opens one and replaces it when it is
//! closed. What a request means, and whether to send it again, is not known here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use synapse_wire::client::{ErrorObject, Id, Method, RequestCancelParams, encode_request, parse_response};
use synapse_wire::framing::{Frame, LineSplitter, MAX_LINE_BYTES};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::error::ClientError;

/// Bytes asked from the socket at a time.
const READ_BYTES: usize = 64 * 1024;

/// How long answers are still awaited after the daemon stopped reading.
const DRAIN: Duration = Duration::from_secs(5);

type Answer = Result<Box<RawValue>, ErrorObject>;

/// A live (or ended) connection. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct Connection {
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
    next_id: AtomicI64,
    tasks: [AbortHandle; 2],
}

/// The requests in flight, and why there can be no more.
#[derive(Debug, Default)]
struct Waiting {
    answers: HashMap<i64, oneshot::Sender<Answer>>,
    ended: Option<String>,
    /// An error without id: the daemon's last word about the whole connection.
    parting: Option<ErrorObject>,
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // No code panics while it holds this lock, and the table stays meaningful in any case.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Connects, and checks that the process behind the socket is the same user's.
    pub(crate) async fn open(socket: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let failed = |source: std::io::Error| {
            use std::io::ErrorKind::{ConnectionRefused, NotFound};
            let socket = socket.to_owned();
            match source.kind() {
                NotFound | ConnectionRefused => ClientError::NoDaemon { socket, source },
                _ => ClientError::Connect { socket, source },
            }
        };
        let stream = tokio::time::timeout(timeout, UnixStream::connect(socket))
            .await
            .map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?
            .map_err(failed)?;
        let found = stream.peer_cred().map_err(failed)?.uid();
        let expected = rustix::process::getuid().as_raw();
        if found != expected {
            return Err(ClientError::ForeignDaemon {
                socket: socket.to_owned(),
                found,
                expected,
            });
        }
        Ok(Self::over(stream))
    }

    fn over(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        let (outgoing, lines) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let writer = tokio::spawn(write_lines(write, lines, Arc::clone(&waiting))).abort_handle();
        let reader = tokio::spawn(read_lines(read, Arc::clone(&waiting))).abort_handle();
        Self {
            outgoing,
            waiting,
            next_id: AtomicI64::new(1),
            tasks: [writer, reader],
        }
    }

    /// Whether no request can be sent any more.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.waiting).ended.is_some()
    }

    /// Sends one request and waits for its answer. Dropping the future cancels the request at the daemon.
    pub(crate) async fn exchange<P: Serialize>(&self, method: &str, params: &P) -> Result<Box<RawValue>, ClientError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let line =
            encode_request(&Id::Number(id), method, params).map_err(|error| ClientError::Request(error.to_string()))?;
        if line.len() - 1 > MAX_LINE_BYTES {
            return Err(ClientError::Request(format!(
                "it has {} bytes, a line may have {MAX_LINE_BYTES}; send fewer items at a time",
                line.len() - 1
            )));
        }
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if let Some(reason) = &waiting.ended {
                return Err(ClientError::Closed { reason: reason.clone() });
            }
            waiting.answers.insert(id, sender);
        }
        let in_flight = InFlight { connection: self, id };
        // A closed channel means that the writer has ended; the answer then fails with its reason.
        let _ = self.outgoing.send(line);
        let answer = receiver.await;
        drop(in_flight);
        match answer {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(ClientError::Daemon(Box::new(error))),
            Err(_) => Err(self.farewell()),
        }
    }

    fn farewell(&self) -> ClientError {
        let waiting = lock(&self.waiting);
        match &waiting.parting {
            Some(error) => ClientError::Daemon(Box::new(error.clone())),
            None => ClientError::Closed {
                reason: waiting.ended.clone().unwrap_or_else(|| "end of stream".to_owned()),
            },
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A request that may have to be cancelled.
struct InFlight<'a> {
    connection: &'a Connection,
    id: i64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if lock(&self.connection.waiting).answers.remove(&self.id).is_none() {
            return; // answered, or the connection ended
        }
        let id = self.connection.next_id.fetch_add(1, Ordering::Relaxed);
        let params = RequestCancelParams {
            id: Id::Number(self.id),
        };
        if let Ok(line) = encode_request(&Id::Number(id), Method::RequestCancel.name(), &params) {
            // Nobody waits for the answer; a connection that has ended has nothing to cancel.
            let _ = self.connection.outgoing.send(line);
        }
    }
}

/// Ends the connection: every awaited answer fails, and no request is taken any more.
fn end(waiting: &Mutex<Waiting>, reason: String) {
    let mut waiting = lock(waiting);
    waiting.ended.get_or_insert(reason);
    waiting.answers.clear();
}

async fn write_lines(
    mut socket: OwnedWriteHalf,
    mut lines: mpsc::UnboundedReceiver<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
) {
    while let Some(line) = lines.recv().await {
        if let Err(error) = socket.write_all(&line).await {
            // Answers that were sent before may still arrive: the reader drains them and then sees the end itself.
            lock(&waiting).ended.get_or_insert_with(|| error.to_string());
            tokio::time::sleep(DRAIN).await;
            return end(&waiting, error.to_string());
        }
    }
}

async fn read_lines(mut socket: OwnedReadHalf, waiting: Arc<Mutex<Waiting>>) {
    let mut splitter = LineSplitter::default();
    let mut chunk = vec![0_u8; READ_BYTES];
    loop {
        let length = match socket.read(&mut chunk).await {
            Ok(0) => return end(&waiting, "end of stream".to_owned()),
            Ok(length) => length,
            Err(error) => return end(&waiting, error.to_string()),
        };
        let mut input = &chunk[..length];
        while let Some(frame) = splitter.next_frame(&mut input) {
            let line = match frame {
                Frame::Line(line) => line,
                Frame::TooLong => return end(&waiting, format!("an answer is longer than {MAX_LINE_BYTES} bytes")),
            };
            match parse_response(&line) {
                Ok(response) => settle(&waiting, response.id, response.outcome),
                Err(error) => return end(&waiting, error.to_string()),
            }
        }
    }
}

/// Hands an answer to whoever waits for it. An answer that nobody waits for belongs to a cancelled request.
fn settle(waiting: &Mutex<Waiting>, id: Option<Id>, answer: Answer) {
    let mut waiting = lock(waiting);
    match id {
        Some(Id::Number(id)) => {
            if let Some(sender) = waiting.answers.remove(&id) {
                let _ = sender.send(answer);
            }
        }
        Some(Id::Text(_)) => {}
        None => waiting.parting = answer.err(),
    }
}
