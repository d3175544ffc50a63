//! One request to a worker and its reply.
//!
//! 1. Nothing may be pending from before: a late or doubled reply is a fault, never somebody else's answer.
//! 2. The request and its raw frame are written.
//! 3. Until the reply comes, progress renews the silence window, and a cancelled call sends CANCEL once. Neither the
//!    caller's deadline nor its cancellation ends the exchange: only its reply or a fault does.
//! 4. The reply must name this request, be of the kind that the request has, and agree with it in its counts. Its raw
//!    frame follows at once and has exactly the declared length.
//!
//! State: none beyond the call. Callers: [`super::supervisor`]. Not known here: processes, generations.

use std::time::{Duration, Instant};

use synapse_core::engine::{CallControl, EngineError, EngineErrorCode, EngineState, Flow};
use synapse_core::schedule::Tick;
use synapse_core::supervision::exchange::{Budgets, Phase, Report, Watch};
use synapse_wire::worker::message::{self, Parsed};
use synapse_wire::worker::raw::RawLength;
use synapse_wire::worker::{HostMessage, WorkerMessage};

use super::connection::{Connection, Received};
use super::fault::Fault;

/// How often a waiting exchange looks whether its call was cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// Why an exchange gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The worker answered with an error; the stream is in order.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The generation is lost.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A reply and the raw frame that followed it (empty where none does).
#[derive(Debug)]
pub struct Reply {
    /// The message.
    pub message: WorkerMessage,
    /// The raw frame's payload.
    pub raw: Vec<u8>,
}

/// What accompanies an exchange.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// The request's number.
    pub req_id: u64,
    /// What it does.
    pub phase: Phase,
    /// Its time budgets.
    pub budgets: Budgets,
    /// The caller's side: cancellation, and where progress goes.
    pub control: &'a dyn CallControl,
}

const fn request_name(message: &HostMessage) -> &'static str {
    match message {
        HostMessage::HelloAck { .. } => "HELLO_ACK",
        HostMessage::Load { .. } => "LOAD",
        HostMessage::EmbedBatch { .. } => "EMBED_BATCH",
        HostMessage::Rerank { .. } => "RERANK",
        HostMessage::Generate { .. } => "GENERATE",
        HostMessage::Cancel { .. } => "CANCEL",
        HostMessage::Unload { .. } => "UNLOAD",
        HostMessage::Ping { .. } => "PING",
        HostMessage::Shutdown {} => "SHUTDOWN",
    }
}

const fn answers(request: &HostMessage, reply: &WorkerMessage) -> bool {
    matches!(
        (request, reply),
        (HostMessage::Load { .. }, WorkerMessage::Loaded { .. })
            | (HostMessage::EmbedBatch { .. }, WorkerMessage::Vectors { .. })
            | (HostMessage::Rerank { .. }, WorkerMessage::Scores { .. })
            | (HostMessage::Generate { .. }, WorkerMessage::Text { .. })
            | (HostMessage::Unload { .. }, WorkerMessage::Unloaded { .. })
            | (HostMessage::Ping { .. }, WorkerMessage::Pong { .. })
    )
}

struct Clock(Instant);

impl Clock {
    fn now(&self) -> Tick {
        Tick(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Runs one exchange to its end.
///
/// # Errors
/// [`ExchangeError::Engine`] for the worker's own errors, [`ExchangeError::Fault`] when the generation is lost.
pub fn run(
    connection: &mut Connection,
    request: &HostMessage,
    raw: Option<&[u8]>,
    terms: Terms<'_>,
) -> Result<Reply, ExchangeError> {
    connection.expect_quiet()?;
    let silence = match terms.phase {
        Phase::Setup => terms.budgets.setup_silence,
        Phase::Inference => terms.budgets.inference_silence,
    };
    let payload = request.to_payload();
    check_size(connection, &payload, raw)?;
    connection.send(&payload, raw, Duration::from_nanos(silence))?;
    let clock = Clock(Instant::now());
    let mut watch = Watch::begin(terms.req_id, terms.phase, terms.budgets, clock.now());
    let mut cancelled = false;
    let name = request_name(request);
    loop {
        let payload = wait(connection, &watch, &clock, &terms, &mut cancelled)?;
        let message = match WorkerMessage::parse(&payload).map_err(Fault::from)? {
            Parsed::Message(message) => message,
            Parsed::UnknownType { name: found, .. } => {
                return Err(Fault::UnexpectedType { request: name, found }.into());
            }
        };
        match message {
            WorkerMessage::Progress {
                req_id,
                phase,
                completed,
                total,
            } => {
                let phase = match phase {
                    message::Phase::Setup => Phase::Setup,
                    message::Phase::Inference => Phase::Inference,
                };
                watch
                    .progress(
                        Report {
                            req_id,
                            phase,
                            completed,
                            total,
                        },
                        clock.now(),
                    )
                    .map_err(Fault::from)?;
                if terms.control.checkpoint(completed, total.unwrap_or(0)) == Flow::Cancel {
                    cancel(connection, &terms, &mut cancelled)?;
                }
            }
            message => {
                check_id(&message, terms.req_id)?;
                if let WorkerMessage::Err { code, state, msg, .. } = message {
                    return Err(EngineError::new(code_from_wire(&code), state_from_wire(state), msg).into());
                }
                if !answers(request, &message) {
                    return Err(Fault::UnexpectedType {
                        request: name,
                        found: type_name(&message),
                    }
                    .into());
                }
                check_count(request, &message)?;
                let raw = receive_raw(connection, &message, &watch, &clock, &terms, &mut cancelled)?;
                return Ok(Reply { message, raw });
            }
        }
    }
}

/// A request beyond the agreed frame size is this side's mistake, so it costs an error and not the worker.
fn check_size(connection: &Connection, payload: &[u8], raw: Option<&[u8]>) -> Result<(), EngineError> {
    let longest = payload.len().max(raw.map_or(0, <[u8]>::len));
    let max = connection.max_frame();
    if u32::try_from(longest).is_ok_and(|longest| longest <= max) {
        return Ok(());
    }
    let message = format!("a request of {longest} bytes does not fit into the agreed frames of {max} bytes");
    Err(EngineError::new(
        EngineErrorCode::InvalidArgument,
        EngineState::Usable,
        message,
    ))
}

fn check_id(message: &WorkerMessage, expected: u64) -> Result<(), Fault> {
    match message.req_id() {
        Some(found) if found == expected => Ok(()),
        Some(found) => Err(Fault::WrongId { expected, found }),
        None => Err(Fault::UnexpectedType {
            request: "a request",
            found: type_name(message),
        }),
    }
}

/// A reply for more or fewer items than were sent is no partial result.
fn check_count(request: &HostMessage, reply: &WorkerMessage) -> Result<(), Fault> {
    let (what, items, found) = match (request, reply) {
        (HostMessage::EmbedBatch { items, .. }, WorkerMessage::Vectors { n, .. }) => ("vectors", items, *n),
        (HostMessage::Rerank { items, .. }, WorkerMessage::Scores { n, .. }) => ("scores", items, *n),
        _ => return Ok(()),
    };
    let (expected, found) = (items.len() as u64, u64::from(found));
    if expected == found {
        Ok(())
    } else {
        Err(Fault::Contradiction { what, expected, found })
    }
}

fn type_name(message: &WorkerMessage) -> String {
    match message {
        WorkerMessage::Hello { .. } => "HELLO",
        WorkerMessage::Loaded { .. } => "LOADED",
        WorkerMessage::Vectors { .. } => "VECTORS",
        WorkerMessage::Scores { .. } => "SCORES",
        WorkerMessage::Text { .. } => "TEXT",
        WorkerMessage::Unloaded { .. } => "UNLOADED",
        WorkerMessage::Pong { .. } => "PONG",
        WorkerMessage::Progress { .. } => "PROGRESS",
        WorkerMessage::Err { .. } => "ERR",
    }
    .to_owned()
}

fn receive_raw(
    connection: &mut Connection,
    message: &WorkerMessage,
    watch: &Watch,
    clock: &Clock,
    terms: &Terms<'_>,
    cancelled: &mut bool,
) -> Result<Vec<u8>, Fault> {
    let expected = message.raw_bytes();
    let declared = match message {
        WorkerMessage::Vectors { dims, n, .. } => Some(u64::from(*dims) * u64::from(*n) * 4),
        WorkerMessage::Scores { n, .. } => Some(u64::from(*n) * 4),
        // Tokens that only ended the text have no id here.
        WorkerMessage::Text { n_gen, .. } => Some((u64::from(*n_gen) * 4).min(expected / 4 * 4)),
        _ => None,
    };
    if let Some(declared) = declared
        && declared != expected
    {
        return Err(RawLength {
            expected: declared,
            found: expected,
        }
        .into());
    }
    if expected == 0 {
        return Ok(Vec::new());
    }
    let payload = wait(connection, watch, clock, terms, cancelled)?;
    let found = payload.len() as u64;
    if found == expected {
        Ok(payload)
    } else {
        Err(RawLength { expected, found }.into())
    }
}

/// Waits for a payload until the exchange expires.
fn wait(
    connection: &mut Connection,
    watch: &Watch,
    clock: &Clock,
    terms: &Terms<'_>,
    cancelled: &mut bool,
) -> Result<Vec<u8>, Fault> {
    loop {
        let now = clock.now();
        if let Some(expired) = watch.expired(now) {
            return Err(expired.into());
        }
        let left = Duration::from_nanos(watch.expires_at().since(now)).max(Duration::from_millis(1));
        if let Received::Payload(payload) = connection.receive(left.min(CANCEL_POLL))? {
            return Ok(payload);
        }
        if terms.control.cancelled() {
            cancel(connection, terms, cancelled)?;
        }
    }
}

/// Asks the worker once to end the exchange soon. The exchange still ends by its reply.
fn cancel(connection: &mut Connection, terms: &Terms<'_>, cancelled: &mut bool) -> Result<(), Fault> {
    if *cancelled {
        return Ok(());
    }
    *cancelled = true;
    let bound = Duration::from_nanos(terms.budgets.inference_silence);
    connection.send(&HostMessage::Cancel { req_id: terms.req_id }.to_payload(), None, bound)
}

const fn state_from_wire(state: message::EngineState) -> EngineState {
    match state {
        message::EngineState::Usable => EngineState::Usable,
        message::EngineState::ModelBad => EngineState::ModelBad,
        message::EngineState::EngineBad => EngineState::EngineBad,
    }
}

/// A worker that does not know the request's type lacks the ability (WPROTO-25).
fn code_from_wire(name: &str) -> EngineErrorCode {
    match name {
        "unknown_type" => EngineErrorCode::Unsupported,
        name => EngineErrorCode::from_name(name).unwrap_or(EngineErrorCode::Internal),
    }
}
