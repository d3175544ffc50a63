//! The loader's errors. A bundle that is refused is not an error: it is a [`crate::Bundle`] with its reason.

use std::path::PathBuf;

/// Why the loader could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LoaderError {
    /// A file or folder of the loader's own could not be used.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was being done, for example `cannot create the staging folder`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The staging folder's file system forbids running code from it.
    #[error(
        "{} is on a file system mounted noexec, so no engine can be loaded from it: choose a data folder on one that allows \
         execution (--data-dir), or remount it with exec",
        path.display()
    )]
    NoExec {
        /// The staging folder.
        path: PathBuf,
    },
    /// The trust file cannot be believed or read.
    #[error("the trust file {}: {problem}", path.display())]
    Trust {
        /// The trust file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// [`crate::Loader::open`] was given a bundle that is not ready.
    #[error("the bundle {id} cannot be opened in this process: its status is {status}")]
    NotReady {
        /// The bundle's id.
        id: String,
        /// Its status.
        status: String,
    },
    /// The library could not be loaded.
    #[error("the bundle {id} could not be loaded ({reason}): {message}")]
    Load {
        /// The bundle's id.
        id: String,
        /// Why.
        reason: crate::RefusalReason,
        /// What was wrong, what was expected, what to do.
        message: String,
    },
    /// Another bundle of this process already loaded a private library of the same name.
    #[error(
        "the bundle {id} has a private library named {soname}, which {other} already loaded into this process; the system \
         would give it that one, so it can only run in a worker"
    )]
    SonameConflict {
        /// The bundle's id.
        id: String,
        /// The library's name.
        soname: String,
        /// The bundle that came first.
        other: String,
    },
    /// The bundle does not offer this kind of engine.
    #[error("the bundle {id} offers no {kind} engine")]
    NoEngine {
        /// The bundle's id.
        id: String,
        /// `embed`, `rerank` or `generate`.
        kind: &'static str,
    },
    /// The engine panicked while it was made, or said that it must not be called again.
    #[error("the engine of {id} failed and is not called again in this process: {message}")]
    EngineBad {
        /// The bundle's id.
        id: String,
        /// The engine's own words.
        message: String,
    },
    /// The engine refused its configuration.
    #[error("the engine of {id} could not be made: {message}")]
    Engine {
        /// The bundle's id.
        id: String,
        /// The engine's own words.
        message: String,
    },
}
