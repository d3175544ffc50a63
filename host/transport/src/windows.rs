//! A named pipe. Type-checked, never run: the semantics are those of `unix.rs`, whose tests run here too on Windows.
//!
//! The system's own calls on a pipe know no bound, so the pipe belongs to a small runtime of its own, and each call here
//! is one bounded wait on it. The pipe's name is no file, so nothing is left behind by a killed daemon; a second daemon
//! cannot take a name that is taken, and machines elsewhere cannot connect.
//!
//! State: the pipe and its runtime. Callers: through the crate's root, from threads that are no asynchronous tasks.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::windows::named_pipe::{ClientOptions, NamedPipeClient, NamedPipeServer, ServerOptions};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> io::Result<Arc<Runtime>> {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(1)
        .thread_name("worker-pipe")
        .enable_io()
        .enable_time();
    runtime.build().map(Arc::new)
}

/// Runs `work` to its end, `bound` at most; `None` when the bound passed.
fn within<T>(
    runtime: &Runtime,
    bound: Option<Duration>,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<Option<T>> {
    runtime.block_on(async {
        match bound {
            None => work.await.map(Some),
            Some(bound) => match tokio::time::timeout(bound, work).await {
                Ok(done) => done.map(Some),
                Err(_) => Ok(None),
            },
        }
    })
}

/// A pipe under its name, for one worker.
#[derive(Debug)]
pub struct Listener {
    address: PathBuf,
    runtime: Arc<Runtime>,
    /// Absent after the worker connected: the pipe is then the stream's.
    pipe: Option<NamedPipeServer>,
}

impl Listener {
    /// Makes the pipe. It is the name's first and only instance, so nobody else can be met under it.
    ///
    /// # Errors
    /// The system's reason.
    pub fn bind(address: &Path) -> io::Result<Self> {
        let runtime = runtime()?;
        let pipe = {
            let _entered = runtime.enter();
            let mut options = ServerOptions::new();
            options
                .first_pipe_instance(true)
                .max_instances(1)
                .reject_remote_clients(true);
            options.create(address)?
        };
        Ok(Self {
            address: address.to_owned(),
            runtime,
            pipe: Some(pipe),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Path {
        &self.address
    }

    /// The worker's connection; `None` when nobody came within `bound`.
    ///
    /// # Errors
    /// The system's reason; [`io::ErrorKind::NotConnected`] after the one worker came.
    pub fn accept(&mut self, bound: Duration) -> io::Result<Option<Stream>> {
        let pipe = self.pipe.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        if within(&self.runtime, Some(bound), pipe.connect())?.is_none() {
            return Ok(None);
        }
        let stream = self.pipe.take().map(|pipe| Stream {
            runtime: Arc::clone(&self.runtime),
            pipe: Arc::new(Pipe::Daemon(pipe)),
        });
        Ok(stream)
    }
}

#[derive(Debug)]
enum Pipe {
    Daemon(NamedPipeServer),
    Worker(NamedPipeClient),
}

impl Pipe {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Daemon(pipe) => {
                    pipe.readable().await?;
                    pipe.try_read(buffer)
                }
                Self::Worker(pipe) => {
                    pipe.readable().await?;
                    pipe.try_read(buffer)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // How a pipe says that its other end was closed.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
                read => return read,
            }
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match self {
                Self::Daemon(pipe) => {
                    pipe.writable().await?;
                    pipe.try_write(bytes)
                }
                Self::Worker(pipe) => {
                    pipe.writable().await?;
                    pipe.try_write(bytes)
                }
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A connected pipe.
#[derive(Debug)]
pub struct Stream {
    runtime: Arc<Runtime>,
    pipe: Arc<Pipe>,
}

impl Stream {
    /// Connects to a daemon that listens.
    ///
    /// # Errors
    /// The system's reason.
    pub fn connect(address: &Path) -> io::Result<Self> {
        let runtime = runtime()?;
        let pipe = {
            let _entered = runtime.enter();
            ClientOptions::new().open(address)?
        };
        Ok(Self {
            runtime,
            pipe: Arc::new(Pipe::Worker(pipe)),
        })
    }

    /// A second handle of the same connection, for another thread.
    ///
    /// # Errors
    /// None on this system.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            runtime: Arc::clone(&self.runtime),
            pipe: Arc::clone(&self.pipe),
        })
    }

    /// Reads what is there, up to `buffer.len()` bytes, waiting `bound` at most (for ever without one). `Some(0)` is the
    /// peer's end; `None` means that the bound passed.
    ///
    /// # Errors
    /// The system's reason.
    pub fn read(&mut self, buffer: &mut [u8], bound: Option<Duration>) -> io::Result<Option<usize>> {
        within(&self.runtime, bound, self.pipe.read(buffer))
    }

    /// Writes all of `bytes`, waiting `bound` in all (for ever without one).
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when the bound passed, after which an unknown part is written;
    /// [`io::ErrorKind::BrokenPipe`] when the peer is gone; otherwise the system's reason.
    pub fn write_all(&mut self, bytes: &[u8], bound: Option<Duration>) -> io::Result<()> {
        within(&self.runtime, bound, self.pipe.write_all(bytes))?.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}
