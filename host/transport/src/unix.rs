//! A Unix socket. Calls with a bound never block beyond it, whatever the peer does; calls without one block as usual.
//!
//! State: the listening socket with its file, or the connected one. Callers: through the crate's root.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// A peer that is gone is an error and not SIGPIPE. Apple's systems have no such flag; every Rust program ignores the
/// signal from its start.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();

/// A socket at a path, for one worker. Its file goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    address: PathBuf,
    socket: UnixListener,
}

impl Listener {
    /// Listens. A file that is there already was left by a daemon that was killed: the folder is the caller's alone.
    ///
    /// # Errors
    /// The system's reason.
    pub fn bind(address: &Path) -> io::Result<Self> {
        match std::fs::remove_file(address) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(address)?;
        // From here on a failure must not leave the file behind: dropping `listener` removes it.
        let listener = Self {
            address: address.to_owned(),
            socket,
        };
        listener.socket.set_nonblocking(true)?;
        std::fs::set_permissions(address, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Path {
        &self.address
    }

    /// The worker's connection; `None` when nobody came within `bound`.
    ///
    /// # Errors
    /// The system's reason.
    pub fn accept(&mut self, bound: Duration) -> io::Result<Option<Stream>> {
        let end = Instant::now() + bound;
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => return Stream::new(stream).map(Some),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait(&self.socket, PollFlags::IN, left)?;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // That the file is already gone is as good.
        let _ = std::fs::remove_file(&self.address);
    }
}

/// A connected socket.
#[derive(Debug)]
pub struct Stream(UnixStream);

impl Stream {
    fn new(stream: UnixStream) -> io::Result<Self> {
        // An accepted socket takes over its listener's mode on some systems.
        stream.set_nonblocking(false)?;
        Ok(Self(stream))
    }

    /// Connects to a daemon that listens.
    ///
    /// # Errors
    /// The system's reason.
    pub fn connect(address: &Path) -> io::Result<Self> {
        UnixStream::connect(address).map(Self)
    }

    /// Two ends of one connection, for peers in one process.
    ///
    /// # Errors
    /// The system's reason.
    pub fn pair() -> io::Result<(Self, Self)> {
        UnixStream::pair().map(|(one, other)| (Self(one), Self(other)))
    }

    /// A second handle of the same connection, for another thread.
    ///
    /// # Errors
    /// The system's reason.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Reads what is there, up to `buffer.len()` bytes, waiting `bound` at most (for ever without one). `Some(0)` is the
    /// peer's end; `None` means that the bound passed.
    ///
    /// # Errors
    /// The system's reason.
    pub fn read(&mut self, buffer: &mut [u8], bound: Option<Duration>) -> io::Result<Option<usize>> {
        let end = bound.map(|bound| Instant::now() + bound);
        let flags = if end.is_some() {
            RecvFlags::DONTWAIT
        } else {
            RecvFlags::empty()
        };
        loop {
            match recv(&self.0, &mut *buffer, flags) {
                Ok((count, _)) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
                    if left.is_zero() {
                        return Ok(None);
                    }
                    wait(&self.0, PollFlags::IN, left)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes all of `bytes`, waiting `bound` in all (for ever without one).
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when the bound passed, after which an unknown part is written;
    /// [`io::ErrorKind::BrokenPipe`] when the peer is gone; otherwise the system's reason.
    pub fn write_all(&mut self, mut bytes: &[u8], bound: Option<Duration>) -> io::Result<()> {
        let end = bound.map(|bound| Instant::now() + bound);
        let flags = if end.is_some() {
            NO_SIGNAL | SendFlags::DONTWAIT
        } else {
            NO_SIGNAL
        };
        while !bytes.is_empty() {
            match send(&self.0, bytes, flags) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    wait(&self.0, PollFlags::OUT, left)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Waits until the socket is ready, `most` at most.
fn wait(socket: impl AsFd, events: PollFlags, most: Duration) -> io::Result<()> {
    let bound = Timespec::try_from(most).ok();
    match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), events)], bound.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
