//! One connection: reads requests, keeps the limits, answers each on one line.
//!
//! State: the connection's requests in flight and the replies that wait for the client. Callers: `listener` starts one
//! task per connection. Not known here: what the operations do; they are behind [`Dispatch`].
//!
//! The life of a connection:
//! 1. The reader takes one line at a time. A line that is no request is answered at once (`lines_that_are_no_requests…`).
//! 2. A request is admitted (id, slots) and runs in a task of its own; the reader goes on (`requests_run_side_by_side…`).
//! 3. Replies go through a bounded queue to the writer, so a client that does not read stops being read
//!    (`a_client_that_does_not_read_is_closed`).
//! 4. The end of what the client sends is a half-close: what is in flight is finished and answered
//!    (`a_half_closed_client_gets_its_answers`).
//! 5. When the client can no longer read either, what is in flight is cancelled (`a_vanished_client_cancels…`).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use synapse_wire::client::{EnvelopeFault, Id, Method, Request, RequestCancelParams, parse_params, parse_request};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::context::RequestId;
use super::dispatch::{Call, Dispatch};
use super::error::ServiceError;
use super::limits::{Admission, InFlight, ProcessId, ProcessSlots};
use super::line::{Event, LineReader};
use super::reply::{Reply, Sender};
use crate::config::ConnectionConfig;
use crate::service::request_cancel;
use crate::task::{Tasks, observed};

/// How long the last answers may take when the daemon closes its connections.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What all connections share.
#[derive(Debug)]
pub struct Shared<D> {
    /// Answers the operations.
    pub dispatch: Arc<D>,
    /// The daemon's start number.
    pub generation: u64,
    /// The limits.
    pub limits: ConnectionConfig,
    /// Starts the tasks.
    pub tasks: Tasks,
    /// The slots of each client process.
    pub slots: Arc<ProcessSlots>,
    /// Fires when no new work is taken any more.
    pub draining: CancellationToken,
    /// Fires when requests in flight are to be cancelled; parent of every request's token.
    pub cancel_all: CancellationToken,
    /// Fires when connections are to be closed.
    pub close: CancellationToken,
}

/// One connection's parts, shared by its tasks.
struct Connection<D> {
    shared: Arc<Shared<D>>,
    number: u64,
    stream: UnixStream,
    in_flight: Arc<InFlight>,
    replies: mpsc::Sender<Reply>,
    /// One permit per status operation that may run at once.
    status_turns: Arc<Semaphore>,
    /// Fires when what is in flight is to stop; parent of every request's token.
    cancel: CancellationToken,
    /// Fires when the client can no longer read.
    gone: CancellationToken,
    /// Fires when every request has been read and its answer queued.
    finished: CancellationToken,
}

/// Serves one connection until it ends.
pub async fn serve<D: Dispatch>(shared: Arc<Shared<D>>, number: u64, process: Option<ProcessId>, stream: UnixStream) {
    let (replies, queue) = mpsc::channel(shared.limits.max_replies_waiting);
    let connection = Arc::new(Connection {
        in_flight: InFlight::new(shared.limits.max_in_flight, process, Arc::clone(&shared.slots)),
        status_turns: Arc::new(Semaphore::new(shared.limits.max_status_in_flight)),
        cancel: shared.cancel_all.child_token(),
        gone: CancellationToken::new(),
        finished: CancellationToken::new(),
        shared,
        number,
        stream,
        replies,
    });
    let reading = async {
        connection.read().await;
        connection.finished.cancel();
    };
    let writing = connection.write(queue);
    let closing = connection.shared.close.cancelled();
    tokio::select! {
        () = async { tokio::join!(reading, writing); } => {}
        // A client that does not read its last answers cannot hold up the end of the daemon.
        () = async { closing.await; tokio::time::sleep(LAST_ANSWERS).await; } => {}
    }
    // Whatever ended it, nobody will read what is still in flight.
    connection.lost();
}

impl<D: Dispatch> Connection<D> {
    /// Nobody reads answers any more: ends the connection and what is in flight.
    fn lost(&self) {
        self.gone.cancel();
        self.cancel.cancel();
    }

    /// Reads requests until the client sends no more, then waits until all of them have their answers.
    async fn read(self: &Arc<Self>) {
        let limits = &self.shared.limits;
        let mut reader = LineReader::new(limits.max_line_bytes, Duration::from_millis(limits.line_timeout_ms));
        let mut sequence = 0_u64;
        loop {
            let event = tokio::select! {
                biased;
                () = self.gone.cancelled() => return,
                () = self.shared.close.cancelled() => return,
                event = reader.next(&self.stream) => event,
            };
            sequence += 1;
            let sender = self.sender(sequence);
            match event {
                Ok(Event::Line(line)) => self.line(&sender, &line).await,
                Ok(Event::TooLong) => self.refuse(&sender, None, &self.too_long()).await,
                Ok(Event::TooSlow) => {
                    self.refuse(&sender, None, &self.too_slow()).await;
                    break;
                }
                Ok(Event::End) => break,
                Err(error) => {
                    tracing::debug!(target: "synapse", connection = self.number, "the client is gone: {error}");
                    self.lost();
                    return;
                }
            }
        }
        tokio::select! {
            () = self.in_flight.idle() => {}
            () = self.write_side_gone() => self.lost(),
            () = self.shared.close.cancelled() => {}
            () = self.gone.cancelled() => {}
        }
    }

    /// Names the answers of a line.
    fn sender(&self, sequence: u64) -> Sender {
        Sender {
            generation: self.shared.generation,
            request_id: RequestId::new(self.number, sequence),
        }
    }

    /// Handles one line; waits while the client's replies back up.
    async fn line(self: &Arc<Self>, sender: &Sender, line: &[u8]) {
        let received = std::time::Instant::now();
        match parse_request(line) {
            // A request without an id is a notification: nothing answers it, and no operation of ours is one.
            Ok(Request { id: None, .. }) => {}
            Ok(Request {
                id: Some(id),
                method,
                params,
            }) => {
                if let Err(error) = self.request(sender, received, &id, &method, params).await {
                    self.refuse(sender, Some(&id), &error).await;
                }
            }
            Err(broken) => {
                let error = match broken.fault {
                    EnvelopeFault::Parse => ServiceError::parse_error(broken.message),
                    EnvelopeFault::Invalid => ServiceError::invalid_request(broken.message),
                };
                self.refuse(sender, broken.id.as_ref(), &error).await;
            }
        }
    }

    /// Admits a request and starts it.
    async fn request(
        self: &Arc<Self>,
        sender: &Sender,
        received: std::time::Instant,
        id: &Id,
        method: &str,
        params: Option<Box<serde_json::value::RawValue>>,
    ) -> Result<(), ServiceError> {
        let method: Method = method.parse().map_err(|_| unknown_method(method))?;
        if method == Method::RequestCancel {
            let params: RequestCancelParams =
                parse_params(params.as_deref()).map_err(|error| ServiceError::invalid_params(error.to_string()))?;
            let outcome = Ok(request_cancel::run(&self.in_flight, &params));
            self.send(sender.outcome(id, &outcome).into()).await;
            return Ok(());
        }
        if self.shared.draining.is_cancelled() && !method.is_status() {
            return Err(ServiceError::shutting_down());
        }
        let turn = if method.is_status() {
            tokio::select! {
                turn = Arc::clone(&self.status_turns).acquire_owned() => turn.ok(),
                () = self.gone.cancelled() => return Ok(()),
            }
        } else {
            None
        };
        let admission = self.in_flight.admit(id.clone(), !method.is_status(), &self.cancel)?;
        let call = Call {
            method,
            id: id.clone(),
            params,
            received,
            sender: sender.clone(),
            cancel: admission.cancel.clone(),
            draining: self.shared.draining.clone(),
        };
        let span = tracing::info_span!(target: "synapse", "request", request_id = %sender.request_id);
        let running = Arc::clone(self).run(call, admission, turn).instrument(span);
        drop(self.shared.tasks.spawn(method.name(), running));
        Ok(())
    }

    /// Runs one request and queues its answer; the admission ends after that.
    async fn run(self: Arc<Self>, call: Call, admission: Admission, turn: Option<tokio::sync::OwnedSemaphorePermit>) {
        let (id, sender, name) = (call.id.clone(), call.sender.clone(), call.method.name());
        let reply = match observed(name, Arc::clone(&self.shared.dispatch).call(call)).await {
            Ok(reply) => reply,
            Err(failed) => {
                let error = ServiceError::internal(format!("{failed}; the daemon's log has more"));
                sender.failed(Some(&id), &error).into()
            }
        };
        self.send(reply).await;
        drop((admission, turn));
    }

    /// Answers a line that does not become a request in flight.
    async fn refuse(&self, sender: &Sender, id: Option<&Id>, error: &ServiceError) {
        tracing::debug!(target: "synapse", request_id = %sender.request_id, code = error.code().as_str(), "refused");
        self.send(sender.failed(id, error).into()).await;
    }

    /// Queues a reply, unless nobody will read it.
    async fn send(&self, reply: Reply) {
        tokio::select! {
            // An error means that the writer has ended, and then nobody reads.
            _ = self.replies.send(reply) => {}
            () = self.gone.cancelled() => {}
        }
    }

    /// Writes replies in order until the connection's last reply, or until the client does not read in time. What a reply
    /// holds is given back once it is written.
    async fn write(self: &Arc<Self>, mut queue: mpsc::Receiver<Reply>) {
        let patience = Duration::from_millis(self.shared.limits.write_timeout_ms);
        let mut closing = false;
        loop {
            let reply = tokio::select! {
                biased;
                () = self.gone.cancelled() => None,
                () = self.finished.cancelled(), if !closing => {
                    closing = true;
                    queue.close();
                    continue;
                }
                reply = queue.recv() => reply,
            };
            let Some(reply) = reply else { return };
            let written = timeout(patience, write_all(&self.stream, &reply.line)).await;
            let problem = match written {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("it did not read a reply for {} ms", patience.as_millis()),
            };
            tracing::debug!(target: "synapse", connection = self.number, "the connection is closed: {problem}");
            self.lost();
            return;
        }
    }

    /// Resolves when the client can no longer read. Only useful after the end of what it sends: a half-close sets one
    /// flag of the socket, a full close both.
    async fn write_side_gone(&self) {
        // A second descriptor, so that its readiness can be consumed without disturbing the writer's.
        let Ok(watched) = second_descriptor(&self.stream) else {
            return std::future::pending().await;
        };
        loop {
            match watched.ready(Interest::WRITABLE).await {
                Ok(ready) if !ready.is_write_closed() => {
                    // Consumes the readiness: the next one comes with the next change of the socket.
                    let _ = watched.try_io(Interest::WRITABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    fn too_long(&self) -> ServiceError {
        let max = self.shared.limits.max_line_bytes;
        ServiceError::limit_exceeded(format!("the line has more than {max} bytes; send less at a time")).detail(
            |detail| {
                detail.limit = Some(String::from("connection.max_line_bytes"));
                detail.maximum = u64::try_from(max).ok();
            },
        )
    }

    fn too_slow(&self) -> ServiceError {
        let within = self.shared.limits.line_timeout_ms;
        ServiceError::invalid_request(format!(
            "the line was not complete within {within} ms; the connection is closed"
        ))
        .detail(|detail| {
            detail.limit = Some(String::from("connection.line_timeout_ms"));
            detail.maximum = Some(within);
        })
    }
}

/// The refusal of a method that does not exist; a long name is cut.
fn unknown_method(name: &str) -> ServiceError {
    let shown: String = name.chars().take(64).collect();
    ServiceError::method_not_found(format!("there is no method {shown:?}; docs/api lists them"))
}

/// The same socket, registered a second time.
fn second_descriptor(stream: &UnixStream) -> io::Result<UnixStream> {
    let descriptor = stream.as_fd().try_clone_to_owned()?;
    UnixStream::from_std(descriptor.into())
}

/// Writes all of `bytes`.
async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
