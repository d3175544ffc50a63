//! Where the daemon and a worker meet: a path on Unix, a pipe's name on Windows.
//!
//! State: none. Callers: the daemon's worker room. Both forms follow from the folder of worker sockets and the worker's
//! id alone, so they can be computed and tested on any system.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// Hexadecimal digits of the digest in a pipe's name: 128 bits.
const PIPE_DIGITS: usize = 32;

/// The address of the worker `worker_id` whose daemon keeps its sockets in `folder`: `FOLDER/ID.sock`, or on Windows
/// the pipe of [`pipe_name`].
#[must_use]
pub fn address(folder: &Path, worker_id: &str) -> PathBuf {
    if cfg!(windows) {
        PathBuf::from(pipe_name(folder, worker_id))
    } else {
        socket_path(folder, worker_id)
    }
}

/// The Unix form: `FOLDER/ID.sock` (WPROTO-03).
#[must_use]
pub fn socket_path(folder: &Path, worker_id: &str) -> PathBuf {
    folder.join(format!("{worker_id}.sock"))
}

/// The Windows form: `\\.\pipe\synapse-DIGEST` (WPROTO-04), where DIGEST is the first 32 hexadecimal digits of the
/// SHA-256 of the folder's path, a slash and the worker's id, in UTF-8 and with `/` as the only separator (OQ-17).
///
/// A drive letter or a separator written in another way must not lead to another pipe for the same folder, so the
/// caller gives the folder as it resolved it once.
#[must_use]
pub fn pipe_name(folder: &Path, worker_id: &str) -> String {
    let folder = folder.to_string_lossy().replace('\\', "/");
    let logical = format!("{}/{worker_id}", folder.trim_end_matches('/'));
    let digest = Sha256::digest(logical.as_bytes());
    let digits: String = digest
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .take(PIPE_DIGITS)
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect();
    format!(r"\\.\pipe\synapse-{digits}")
}
