//! One daemon for each data directory (CONF-14).
//!
//! State: an exclusive lock on `<data dir>/synapse.lock`, held as long as the [`Lease`] lives. Callers: `serve`. Not
//! known here: what the directory holds. The kernel gives the lock back when the process ends, however it ends, so
//! there is no stale lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Why the data directory is not ours.
#[derive(Debug, thiserror::Error)]
pub enum SingletonError {
    /// Another daemon has it.
    #[error("another daemon{} has the data directory {}; stop it, or give another --data-dir", holder(.process.as_deref()), path.display())]
    Held {
        /// The directory.
        path: PathBuf,
        /// The other daemon's process id, where it could be read.
        process: Option<String>,
    },
    /// The lock file cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// ` (process N)`, where the number is known.
fn holder(process: Option<&str>) -> String {
    process
        .map(|process| format!(" (process {process})"))
        .unwrap_or_default()
}

/// The right to be the daemon of a data directory.
#[derive(Debug)]
pub struct Lease {
    _file: File,
}

impl Lease {
    /// Takes the lock file `path` of the data directory `root`, without waiting.
    ///
    /// # Errors
    /// [`SingletonError::Held`] when another daemon has it.
    pub fn take(root: &Path, path: &Path) -> Result<Self, SingletonError> {
        let io = |source| SingletonError::Io {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let known = file.take(32).read_to_string(&mut text).is_ok();
                let text = text.trim();
                let process = (known && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
                    .then(|| text.to_owned());
                return Err(SingletonError::Held {
                    path: root.to_owned(),
                    process,
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // The number is for people only; nothing decides by it.
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(io)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves CONF-14 for two leases of one process; tests/it does it with two processes and a kill.
    #[test]
    fn the_second_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("synapse.lock");
        let first = Lease::take(dir.path(), &path).unwrap();
        let refused = Lease::take(dir.path(), &path).unwrap_err();
        assert!(
            refused.to_string().contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        drop(first);
        Lease::take(dir.path(), &path).unwrap();
    }

    #[test]
    fn a_lock_file_of_someone_else_is_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("synapse.lock");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&path)
            .unwrap();
        file.write_all(b"\x1b[31mnot a number\n").unwrap();
        file.try_lock().unwrap();
        assert!(matches!(
            Lease::take(dir.path(), &path),
            Err(SingletonError::Held { process: None, .. })
        ));
    }
}
