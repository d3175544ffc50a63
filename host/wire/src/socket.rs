//! Where the daemon's socket lies: one rule, shared by the daemon and every client.
//!
//! No state and no I/O: the environment comes in as a value, so the rule is a table that tests can read. Whether
//! something listens there, and who owns the folder, is the caller's business.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The longest socket path in bytes that the platform's `sockaddr_un` takes, without the closing NUL.
pub const MAX_SOCKET_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// The parts of the environment that decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// `--socket`.
    pub flag: Option<PathBuf>,
    /// `SYNAPSE_SOCKET`.
    pub synapse_socket: Option<PathBuf>,
    /// `--data-dir`: a namespace of its own, so its socket lies inside it.
    pub data_dir_flag: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub xdg_runtime_dir: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub xdg_data_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// The user's id.
    pub uid: u32,
}

/// Why there is no socket path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketPathError {
    /// A path that was given is too long for the platform.
    #[error(
        "the socket path {path} has {length} bytes; this system takes at most {MAX_SOCKET_PATH}. Choose a shorter --socket or SYNAPSE_SOCKET"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        length: usize,
    },
    /// Neither a home nor another place is known.
    #[error("no place for the socket is known: set HOME, XDG_DATA_HOME or SYNAPSE_SOCKET, or give --socket")]
    NoPlace,
}

impl Surroundings {
    /// Reads the process environment; empty variables count as absent, relative XDG paths are ignored (as the XDG
    /// specification asks).
    #[must_use]
    pub fn from_env(uid: u32) -> Self {
        let value = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let absolute = |name: &str| value(name).filter(|path| path.is_absolute());
        Self {
            flag: None,
            synapse_socket: value("SYNAPSE_SOCKET"),
            data_dir_flag: None,
            xdg_runtime_dir: absolute("XDG_RUNTIME_DIR"),
            xdg_data_home: absolute("XDG_DATA_HOME"),
            home: absolute("HOME"),
            uid,
        }
    }

    /// The data directory: the flag, `$XDG_DATA_HOME/synapse`, or `~/.local/share/synapse` (CACHE-01).
    #[must_use]
    pub fn data_dir(&self) -> Option<PathBuf> {
        self.data_dir_flag
            .clone()
            .or_else(|| self.xdg_data_home.as_ref().map(|base| base.join("synapse")))
            .or_else(|| self.home.as_ref().map(|home| home.join(".local/share/synapse")))
    }

    /// The socket: `--socket`, `SYNAPSE_SOCKET`, then inside an explicit data dir, then
    /// `$XDG_RUNTIME_DIR/synapse/synapse.sock`, then `<data dir>/run/synapse.sock`. A derived path that is too long is
    /// replaced by [`short_path`].
    ///
    /// # Errors
    /// [`SocketPathError`] where a given path is too long, or no place is known.
    pub fn socket(&self) -> Result<PathBuf, SocketPathError> {
        if let Some(given) = self.flag.as_ref().or(self.synapse_socket.as_ref()) {
            return if fits(given) {
                Ok(given.clone())
            } else {
                Err(SocketPathError::TooLong {
                    path: given.clone(),
                    length: given.as_os_str().len(),
                })
            };
        }
        let derived = match (&self.data_dir_flag, &self.xdg_runtime_dir) {
            (None, Some(runtime)) => runtime.join("synapse").join("synapse.sock"),
            _ => self
                .data_dir()
                .ok_or(SocketPathError::NoPlace)?
                .join("run")
                .join("synapse.sock"),
        };
        Ok(if fits(&derived) {
            derived
        } else {
            short_path(&derived, self.uid)
        })
    }
}

fn fits(path: &Path) -> bool {
    path.as_os_str().len() <= MAX_SOCKET_PATH
}

/// A short path that stands for a long one: `/tmp/synapse-UID-DIGEST/synapse.sock`, where DIGEST is the first 16 hex
/// digits of the SHA-256 of the long path. The daemon makes that folder 0700 and refuses one that is not its own.
#[must_use]
pub fn short_path(long: &Path, uid: u32) -> PathBuf {
    let digest = Sha256::digest(bytes(long.as_os_str()));
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    PathBuf::from(format!("/tmp/synapse-{uid}-{hex}/synapse.sock"))
}

fn bytes(text: &OsStr) -> &[u8] {
    text.as_encoded_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text))
    }

    fn everything() -> Surroundings {
        Surroundings {
            flag: path("/f.sock"),
            synapse_socket: path("/e.sock"),
            data_dir_flag: path("/d"),
            xdg_runtime_dir: path("/run/user/7"),
            xdg_data_home: path("/x"),
            home: path("/h"),
            uid: 7,
        }
    }

    #[test]
    fn the_first_place_that_is_known_wins() {
        let mut around = everything();
        let mut places = Vec::new();
        places.push(around.socket().unwrap());
        around.flag = None;
        places.push(around.socket().unwrap());
        around.synapse_socket = None;
        places.push(around.socket().unwrap());
        around.data_dir_flag = None;
        places.push(around.socket().unwrap());
        around.xdg_runtime_dir = None;
        places.push(around.socket().unwrap());
        around.xdg_data_home = None;
        places.push(around.socket().unwrap());
        let expected = [
            "/f.sock",
            "/e.sock",
            "/d/run/synapse.sock",
            "/run/user/7/synapse/synapse.sock",
            "/x/synapse/run/synapse.sock",
            "/h/.local/share/synapse/run/synapse.sock",
        ];
        assert_eq!(places, expected.map(PathBuf::from));
        around.home = None;
        assert_eq!(around.socket(), Err(SocketPathError::NoPlace));
    }

    #[test]
    fn a_given_path_that_is_too_long_is_refused_and_a_derived_one_is_shortened() {
        let long = "/long".repeat(30);
        let given = Surroundings {
            flag: path(&long),
            ..everything()
        };
        assert!(matches!(
            given.socket(),
            Err(SocketPathError::TooLong { length: 150, .. })
        ));
        let derived = Surroundings {
            flag: None,
            synapse_socket: None,
            data_dir_flag: path(&long),
            ..everything()
        };
        let socket = derived.socket().unwrap();
        // The digest is that of `printf %s PATH | sha256sum`.
        assert_eq!(socket, PathBuf::from("/tmp/synapse-7-7ad3b3f1caf2b7f5/synapse.sock"));
        assert!(fits(&socket));
    }

    #[test]
    fn the_limit_is_that_of_the_platform() {
        let exact = "x".repeat(MAX_SOCKET_PATH);
        assert!(fits(Path::new(&exact)));
        assert!(!fits(Path::new(&format!("{exact}x"))));
    }
}
