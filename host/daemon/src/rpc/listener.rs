//! The listening socket: made private, guarded by the peer's user, removed at the end.
//!
//! State: the socket file and the number of open connections. Callers: `serve`. Not known here: what a connection
//! says. Guards, from the outside in: a directory that only this user may enter, a socket of mode 0600, and the
//! kernel's word on the peer's user (API-01).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Shared};
use super::context::RequestId;
use super::dispatch::Dispatch;
use super::error::ServiceError;
use super::reply::Sender;
use crate::paths::private_dir;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("another daemon listens on {}; stop it, or give another --socket", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something that is no socket stands there.
    #[error("{} exists and is not a socket; move it away, or give another --socket", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// Others could replace the socket.
    #[error("the folder {} {problem}; give a --socket in a folder that only you may write (chmod 700)", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system refused.
    #[error("the socket {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A bound socket. Dropping it removes the file, unless another has taken its place.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// The file's device and inode.
    file: (u64, u64),
}

impl Listener {
    /// Binds `path`. The folder of a path that the daemon chose itself (`chosen`) is made 0700; that of a path that was
    /// given is made when it does not exist, and refused when others may write it. A socket that nobody listens on is
    /// removed first. The caller holds the data directory's lease.
    ///
    /// # Errors
    /// [`ListenError`] says what stands in the way.
    pub fn bind(path: &Path, chosen: bool) -> Result<Self, ListenError> {
        let io = |source| ListenError::Io {
            path: path.to_owned(),
            source,
        };
        folder(path, chosen)?;
        remove_stale(path)?;
        let socket = UnixListener::bind(path).map_err(io)?;
        let file = identity(path).map_err(io)?;
        let listener = Self {
            socket,
            path: path.to_owned(),
            file,
        };
        set_mode(path).map_err(io)?;
        Ok(listener)
    }

    /// The socket file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts connections until `stop` fires; each runs in a task of its own.
    pub async fn run<D: Dispatch>(self, shared: Arc<Shared<D>>, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(shared.limits.max_connections));
        let ours = rustix::process::geteuid().as_raw();
        let mut number = 0_u64;
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Usually no descriptor is left; one may be free when a connection has ended.
                    tracing::warn!(target: "synapse", "no connection could be accepted: {error}");
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(Duration::from_millis(100)) => continue,
                    }
                }
            };
            number += 1;
            let process = match peer(&stream, ours) {
                Ok(process) => process,
                Err(problem) => {
                    tracing::warn!(target: "synapse", connection = number, "a connection was refused: {problem}");
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                refuse(&stream, number, &shared);
                continue;
            };
            let served = connection::serve(Arc::clone(&shared), number, process, stream);
            drop(shared.tasks.spawn("connection", async move {
                served.await;
                drop(place);
            }));
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // It may be gone already; nothing else can be done at the end.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Checks that the peer is this user; gives its process id where the system knows it.
fn peer(stream: &UnixStream, ours: u32) -> Result<Option<i32>, String> {
    let credentials = stream
        .peer_cred()
        .map_err(|error| format!("the peer's user is not known: {error}"))?;
    let theirs = credentials.uid();
    if theirs == ours {
        Ok(credentials.pid())
    } else {
        Err(format!("the peer is user {theirs}, not {ours}"))
    }
}

/// Tells one client too many so, as far as it fits without waiting.
fn refuse<D>(stream: &UnixStream, number: u64, shared: &Shared<D>) {
    let max = shared.limits.max_connections;
    let error = ServiceError::queue_full(format!(
        "{max} connections are open, as many as may be; try again later"
    ))
    .retry_after(1_000)
    .detail(|detail| {
        detail.limit = Some(String::from("connection.max_connections"));
        detail.maximum = u64::try_from(max).ok();
    });
    let sender = Sender {
        generation: shared.generation,
        request_id: RequestId::new(number, 0),
    };
    let _ = stream.try_write(&sender.failed(None, &error));
    tracing::warn!(target: "synapse", connection = number, "a connection was refused: {max} are open");
}

/// Makes or checks the socket's folder.
fn folder(path: &Path, chosen: bool) -> Result<(), ListenError> {
    use std::os::unix::fs::MetadataExt;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let problem = |problem: String| ListenError::Folder {
        path: folder.to_owned(),
        problem,
    };
    if chosen || !folder.exists() {
        return private_dir(folder).map_err(|error| problem(format!("cannot be made private: {error}")));
    }
    let found = std::fs::metadata(folder).map_err(|error| problem(format!("cannot be read: {error}")))?;
    let ours = rustix::process::geteuid().as_raw();
    if found.uid() != ours {
        return Err(problem(format!("belongs to user {}, not to {ours}", found.uid())));
    }
    if found.mode() & 0o022 != 0 {
        return Err(problem(format!(
            "has mode {:o}, so others may write it",
            found.mode() & 0o7777
        )));
    }
    Ok(())
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    use std::os::unix::fs::FileTypeExt;
    let io = |source| ListenError::Io {
        path: path.to_owned(),
        source,
    };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ListenError::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(io),
        Err(error) => Err(io(error)),
    }
}

/// The device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Lets only this user connect.
fn set_mode(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Proves API-01 for the file's modes.
    #[tokio::test]
    async fn the_socket_and_its_folder_are_private_and_go_with_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/s.sock");
        let listener = Listener::bind(&path, true).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&path, false).unwrap();
        assert!(matches!(Listener::bind(&path, false), Err(ListenError::InUse { .. })));
        assert!(path.exists(), "the refused one leaves the other's socket alone");
        drop(listener);
    }

    #[tokio::test]
    async fn only_a_socket_is_ever_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("precious");
        std::fs::write(&file, "kept").unwrap();
        assert!(matches!(
            Listener::bind(&file, false),
            Err(ListenError::NotASocket { .. })
        ));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(matches!(
            Listener::bind(&link, false),
            Err(ListenError::NotASocket { .. })
        ));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    }

    #[tokio::test]
    async fn a_folder_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            Listener::bind(&open.join("s.sock"), false),
            Err(ListenError::Folder { .. })
        ));
        assert_eq!(mode(&open), 0o777, "a folder that was given is not changed");
        Listener::bind(&open.join("s.sock"), true).unwrap();
        assert_eq!(mode(&open), 0o700, "one that the daemon chose is narrowed");
    }

    #[tokio::test]
    async fn a_listener_leaves_a_successor_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let listener = Listener::bind(&path, false).unwrap();
        std::fs::remove_file(&path).unwrap();
        let successor = Listener::bind(&path, false).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(successor);
    }

    #[tokio::test]
    async fn the_peer_must_be_this_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        let ours = rustix::process::geteuid().as_raw();
        let process = peer(&one, ours).unwrap();
        if cfg!(target_os = "linux") {
            assert_eq!(process, i32::try_from(std::process::id()).ok());
        }
        assert!(peer(&one, ours + 1).unwrap_err().contains("not"));
    }
}
