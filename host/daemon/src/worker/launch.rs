//! Starting one worker: listen, spawn, HELLO, HELLO_ACK, all inside one budget (fault S6).
//!
//! 1. The socket is bound before the process starts, so a crash loop never meets a stale file (WPROTO-03).
//! 2. The worker connects and its HELLO is checked: version, nonce, process id, bundle, engines. Anything else first,
//!    or anything wrong in it, closes the connection and ends the process (WPROTO-12, WPROTO-13, WPROTO-15).
//! 3. HELLO_ACK names the frame size that both sides keep.
//!
//! The socket's name is free again as soon as the worker is connected: nobody else ever connects to it.
//!
//! State: none beyond the call. Callers: [`super::supervisor`]. Not known here: why a worker is wanted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use synapse_loader::process::{Child, Output, SpawnError, spawner};
use synapse_loader::start;
use synapse_transport::{Listener, Stream as Socket, name};
use synapse_wire::worker::message::{BundleHello, EngineHello, Parsed};
use synapse_wire::worker::{HostMessage, MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage, negotiate_max_frame};

use super::connection::{Connection, Received};
use super::fault::Fault;
use super::output::{LastWords, Stream};
use crate::paths::private_dir;
use crate::task::Tasks;

/// What to start, and what it must say it is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The worker program, or the bundle's own.
    pub program: PathBuf,
    /// The staged bundle.
    pub bundle: PathBuf,
    /// The private folder of worker sockets.
    pub socket_dir: PathBuf,
    /// The bundle that HELLO must name.
    pub expected_bundle: BundleHello,
    /// The engines that HELLO must name, in any order.
    pub expected_engines: Vec<EngineHello>,
    /// The engine's settings.
    pub settings: Vec<(String, String)>,
    /// One budget for spawn, connection, HELLO and HELLO_ACK.
    pub handshake: Duration,
    /// The largest frame that this side takes, in bytes.
    pub max_frame: u32,
    /// The most output lines a second that reach the log.
    pub log_lines_per_second: u32,
}

/// A worker that is ready for work.
#[derive(Debug)]
pub struct Worker {
    /// The process. Shared, so that it can be killed while its exchange runs.
    pub child: Arc<Mutex<Child>>,
    /// Its process id.
    pub pid: u32,
    /// Its socket.
    pub connection: Connection,
    /// What it printed last.
    pub words: Arc<LastWords>,
    /// Its folder for temporary files, which goes with it.
    pub scratch: Scratch,
}

/// The folder that a worker makes beside its socket; removed when this is dropped, however the worker ended.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // A worker that ended in order removed it itself.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Why a worker did not come up. The process, if there was one, has ended.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The socket could not be made.
    #[error("cannot listen for the worker on {}: {source}", path.display())]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The process could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The process ended before it said HELLO.
    #[error("the worker ended before its HELLO ({status}); {words}")]
    Ended {
        /// How it ended.
        status: String,
        /// What it printed last.
        words: String,
    },
    /// The budget passed.
    #[error("the worker did not complete its handshake within {} ms", .0.as_millis())]
    TooSlow(Duration),
    /// The first message was no HELLO.
    #[error("the worker's first message is no HELLO: {0}")]
    NotHello(String),
    /// HELLO does not say what it must.
    #[error("the worker's HELLO has {field} {found}, expected {expected}")]
    Refused {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// The value that it must have.
        expected: String,
    },
    /// The connection failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

// What an executable bundle's manifest is compared with is what is spoken here.
const _: () = assert!(synapse_loader::WORKER_PROTOCOL == PROTOCOL_VERSION);

/// The environment variable that tells a worker its name (WPROTO-09).
pub const WORKER_ID: &str = "SYNAPSE_WORKER_ID";

/// How long the last words of an ended process are waited for.
pub const SETTLE: Duration = Duration::from_millis(500);

/// How often a process that has not connected yet is asked whether it ended.
const EXIT_POLL: Duration = Duration::from_millis(50);

/// Starts the worker `worker_id` and shakes hands with it.
///
/// # Errors
/// [`LaunchError`]; nothing of the worker is left then.
pub fn launch(plan: &Plan, worker_id: &str, tasks: &Tasks) -> Result<Worker, LaunchError> {
    let end = Instant::now() + plan.handshake;
    let mut listener = listen(&plan.socket_dir, worker_id)?;
    let nonce = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    let command = start::serve(&plan.program, &plan.bundle, listener.address(), &nonce, &plan.settings)
        .env(WORKER_ID, worker_id)
        .stdout(Output::Stream)
        .stderr(Output::Stream);
    let scratch = Scratch(listener.address().with_extension("tmp"));
    let mut child = spawner().spawn(command)?;
    let words = LastWords::new(worker_id.to_owned(), plan.log_lines_per_second);
    follow(&mut child, &words, tasks);
    match shake_hands(plan, &mut listener, &nonce, &mut child, end) {
        Ok(connection) => {
            let pid = child.pid();
            Ok(Worker {
                child: Arc::new(Mutex::new(child)),
                pid,
                connection,
                words,
                scratch,
            })
        }
        Err(failure) => {
            child.kill();
            let ended = child.wait_for_exit(plan.handshake);
            drop(child);
            words.settle(SETTLE);
            Err(match (failure, ended) {
                (LaunchError::Ended { status, .. }, _) => LaunchError::Ended {
                    status,
                    words: words.text(),
                },
                (failure, _) => failure,
            })
        }
    }
}

fn follow(child: &mut Child, words: &Arc<LastWords>, tasks: &Tasks) {
    if let Some(out) = child.take_stdout() {
        let words = Arc::clone(words);
        words.expect_stream();
        // Without a thread the output is lost, not the worker.
        let _ = tasks.thread("worker-stdout", move || words.follow(Stream::Out, out));
    }
    if let Some(err) = child.take_stderr() {
        let words = Arc::clone(words);
        words.expect_stream();
        let _ = tasks.thread("worker-stderr", move || words.follow(Stream::Err, err));
    }
}

/// Listens for one worker in the private folder of worker sockets.
fn listen(dir: &Path, worker_id: &str) -> Result<Listener, LaunchError> {
    let path = name::address(dir, worker_id);
    let bind = || {
        if let Some(parent) = dir.parent() {
            private_dir(parent)?;
        }
        private_dir(dir)?;
        Listener::bind(&path)
    };
    bind().map_err(|source| LaunchError::Listen {
        path: path.clone(),
        source,
    })
}

/// The worker's connection, while its process runs and the budget lasts.
fn accept(listener: &mut Listener, child: &mut Child, end: Instant, budget: Duration) -> Result<Socket, LaunchError> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let accepted = listener.accept(left.min(EXIT_POLL));
        if let Some(stream) = accepted.map_err(|source| LaunchError::Listen {
            path: listener.address().to_owned(),
            source,
        })? {
            return Ok(stream);
        }
        if let Some(status) = child.try_wait().map_err(Fault::Io)? {
            return Err(LaunchError::Ended {
                status: status.to_string(),
                words: String::new(),
            });
        }
        if left.is_zero() {
            return Err(LaunchError::TooSlow(budget));
        }
    }
}

fn shake_hands(
    plan: &Plan,
    listener: &mut Listener,
    nonce: &str,
    child: &mut Child,
    end: Instant,
) -> Result<Connection, LaunchError> {
    let stream = accept(listener, child, end, plan.handshake)?;
    let mut connection = Connection::new(stream, plan.max_frame.min(MIN_MAX_FRAME));
    let left = |end: Instant| end.saturating_duration_since(Instant::now());
    let payload = match connection.receive(left(end)) {
        Ok(Received::Payload(payload)) => payload,
        Ok(Received::Nothing) => return Err(LaunchError::TooSlow(plan.handshake)),
        Err(Fault::Closed) => {
            let status = child.wait_for_exit(left(end)).map_err(Fault::Io)?;
            let status = status.map_or_else(|| "its connection closed".to_owned(), |status| status.to_string());
            return Err(LaunchError::Ended {
                status,
                words: String::new(),
            });
        }
        Err(fault) => return Err(fault.into()),
    };
    let hello = match WorkerMessage::parse(&payload) {
        Ok(Parsed::Message(hello @ WorkerMessage::Hello { .. })) => hello,
        Ok(other) => return Err(LaunchError::NotHello(format!("{other:?}").chars().take(120).collect())),
        Err(error) => return Err(LaunchError::NotHello(error.to_string())),
    };
    let max_frame = check_hello(plan, nonce, child.pid(), &hello)?;
    let ack = HostMessage::HelloAck {
        v: PROTOCOL_VERSION,
        accept: true,
        max_frame,
    };
    connection.send(&ack.to_payload(), None, left(end))?;
    connection.set_max_frame(max_frame);
    Ok(connection)
}

/// Checks a HELLO and gives the agreed frame size.
///
/// # Errors
/// [`LaunchError::Refused`] names the first field that is wrong.
pub fn check_hello(plan: &Plan, expected_nonce: &str, child: u32, hello: &WorkerMessage) -> Result<u32, LaunchError> {
    let WorkerMessage::Hello {
        v,
        nonce,
        bundle,
        engines,
        pid,
        max_frame,
    } = hello
    else {
        return Err(LaunchError::NotHello(format!("{hello:?}").chars().take(120).collect()));
    };
    let refuse = |field, found: String, expected: String| Err(LaunchError::Refused { field, found, expected });
    if *v != PROTOCOL_VERSION {
        tracing::error!(
            target: "synapse.worker",
            worker_version = v, host_version = PROTOCOL_VERSION,
            "worker speaks another protocol version; install the worker that belongs to this daemon"
        );
        return refuse("v", v.to_string(), PROTOCOL_VERSION.to_string());
    }
    if nonce != expected_nonce {
        return refuse(
            "nonce",
            "of another spawn".to_owned(),
            "the nonce of this spawn".to_owned(),
        );
    }
    if *pid != child {
        return refuse("pid", pid.to_string(), child.to_string());
    }
    if *bundle != plan.expected_bundle {
        return refuse("bundle", format!("{bundle:?}"), format!("{:?}", plan.expected_bundle));
    }
    let sorted = |engines: &[EngineHello]| {
        let mut engines = engines.to_vec();
        engines.sort_by(|a, b| (a.kind, &a.engine).cmp(&(b.kind, &b.engine)));
        engines
    };
    let (found, expected) = (sorted(engines), sorted(&plan.expected_engines));
    if found != expected {
        return refuse("engines", format!("{found:?}"), format!("{expected:?}"));
    }
    if *max_frame < MIN_MAX_FRAME {
        return refuse("max_frame", max_frame.to_string(), format!("at least {MIN_MAX_FRAME}"));
    }
    Ok(negotiate_max_frame(plan.max_frame, *max_frame))
}
