//! The client: the connection in use, the retry loop, and the daemon's generation.
//!
//! It owns the current connection and replaces it when it has ended. [`crate::operations`] adds one typed method per
//! operation. Sockets' bytes are [`crate::connection`]'s; when to retry is decided in [`crate::retry`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use synapse_wire::client::{Encoding, Method, Operation, Stamp, Stamped};
use synapse_wire::socket::{SocketPathError, Surroundings};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::error::ClientError;
use crate::retry::RetryPolicy;

/// How a client behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The daemon's socket; `None` looks where the daemon puts it ([`default_socket`]).
    pub socket: Option<PathBuf>,
    /// When failed calls are tried again.
    pub retry: RetryPolicy,
    /// How vectors are asked for where a request does not say; base64 is exact and a third of the size.
    pub encoding: Encoding,
    /// Requests in flight at most, status operations not counted; further calls wait here instead of being refused
    /// there. The daemon's own bound is 32 per connection.
    pub max_in_flight: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socket: None,
            retry: RetryPolicy::default(),
            encoding: Encoding::Base64,
            max_in_flight: 32,
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// Where the daemon of this user and environment has its socket: `SYNAPSE_SOCKET`, else
/// `$XDG_RUNTIME_DIR/synapse/synapse.sock`, else `<data dir>/run/synapse.sock`, shortened where it is too long.
///
/// # Errors
/// [`SocketPathError`] where the environment names no usable place.
pub fn default_socket() -> Result<PathBuf, SocketPathError> {
    surroundings().socket()
}

/// The parts of this process's environment that decide about [`default_socket`].
#[must_use]
pub fn surroundings() -> Surroundings {
    Surroundings::from_env(rustix::process::getuid().as_raw())
}

/// A client of one daemon. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    options: Options,
    connection: Mutex<Option<Arc<Connection>>>,
    slots: Semaphore,
    generation: watch::Sender<Option<u64>>,
}

impl Client {
    /// Connects to the daemon of this user and environment.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] where none listens, and the other connection errors.
    pub async fn connect_default() -> Result<Self, ClientError> {
        Self::connect(Options::default()).await
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] where none listens, and the other connection errors.
    pub async fn connect(options: Options) -> Result<Self, ClientError> {
        let socket = match &options.socket {
            Some(socket) => socket.clone(),
            None => default_socket()?,
        };
        let client = Self {
            shared: Arc::new(Shared {
                socket,
                slots: Semaphore::new(options.max_in_flight.clamp(1, Semaphore::MAX_PERMITS)),
                options,
                connection: Mutex::new(None),
                generation: watch::Sender::new(None),
            }),
        };
        client.connection().await?;
        Ok(client)
    }

    /// The socket in use.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// The behaviour in use.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Follows the daemon's `module_generation`: `None` before the first answer; a change means that the daemon has
    /// restarted, so what it kept in memory (loaded models, jobs) may be gone.
    #[must_use]
    pub fn generation(&self) -> watch::Receiver<Option<u64>> {
        self.shared.generation.subscribe()
    }

    /// Calls one operation and waits for its result. Dropping the future cancels the request at the daemon.
    ///
    /// # Errors
    /// [`ClientError::Daemon`] with the daemon's typed error, or what went wrong on the way.
    pub async fn call<O: Operation>(&self, params: &O::Params) -> Result<Stamped<O::Result>, ClientError> {
        let raw = self.call_raw(O::METHOD.name(), params).await?;
        Stamped::read(&raw).map_err(|error| ClientError::Protocol(format!("{}: {error}", O::METHOD)))
    }

    /// Calls an operation by name and returns its result as it stands on the wire: for operations that this version
    /// has no types for.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_raw<P: Serialize>(&self, method: &str, params: &P) -> Result<Box<RawValue>, ClientError> {
        let begun = Instant::now();
        let mut attempt = 1;
        loop {
            let error = match self.attempt(method, params).await {
                Ok(result) => {
                    if let Ok(stamp) = serde_json::from_str::<Stamp>(result.get()) {
                        self.observe(stamp.module_generation);
                    }
                    return Ok(result);
                }
                Err(error) => error,
            };
            if let ClientError::Daemon(object) = &error {
                self.observe(object.data.module_generation);
            }
            match self
                .shared
                .options
                .retry
                .next_wait(method, attempt, begun.elapsed(), &error)
            {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(error),
            }
            attempt += 1;
        }
    }

    async fn attempt<P: Serialize>(&self, method: &str, params: &P) -> Result<Box<RawValue>, ClientError> {
        let status = method.parse::<Method>().is_ok_and(Method::is_status);
        let _slot = if status {
            None
        } else {
            let slot = self.shared.slots.acquire().await;
            Some(slot.map_err(|_| ClientError::Request("the client is closed".to_owned()))?)
        };
        self.connection().await?.exchange(method, params).await
    }

    /// The connection in use, or a new one where it has ended.
    async fn connection(&self) -> Result<Arc<Connection>, ClientError> {
        let mut current = self.shared.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        let opened = Connection::open(&self.shared.socket, self.shared.options.connect_timeout).await?;
        Ok(Arc::clone(current.insert(Arc::new(opened))))
    }

    fn observe(&self, generation: u64) {
        self.shared.generation.send_if_modified(|known| {
            let changed = *known != Some(generation);
            *known = Some(generation);
            changed
        });
    }
}
