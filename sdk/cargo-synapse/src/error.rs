//! Why a command could not do its work, and the exit code that says so.
//!
//! State: none. A plugin that fails its checks is no error: that is what the command is for (exit code 1).

use std::path::PathBuf;

/// A command's failure: what was wrong, what was expected, what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words on the command line do not fit.
    #[error("{0}")]
    Usage(String),
    /// The project is not what a plugin's project must be.
    #[error("{0}")]
    Project(String),
    /// The build failed; the compiler has said why.
    #[error("cargo could not build the plugin: {0}")]
    Build(String),
    /// A program that is needed cannot be started.
    #[error("{program} cannot be started: {reason}; {remedy}")]
    Program {
        /// The program.
        program: String,
        /// The system's reason.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The host would refuse the bundle.
    #[error("{}: a host refuses this bundle ({reason}): {message}", path.display())]
    Refused {
        /// The bundle.
        path: PathBuf,
        /// The loader's reason.
        reason: String,
        /// The loader's words.
        message: String,
    },
    /// The conformance kit could not run.
    #[error(transparent)]
    Conformance(#[from] synapse_conformance::Error),
    /// The fuzzer found nothing to call.
    #[error(transparent)]
    Fuzz(#[from] synapse_conformance::fuzz::Refused),
    /// The loader could not work.
    #[error(transparent)]
    Loader(#[from] synapse_loader::LoaderError),
    /// The system refused a file or a folder.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was to be done, for example `cannot write`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    /// An error of the system about a path.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// 2 wrong usage, 3 the project or the bundle, 4 the system.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Project(_) | Self::Build(_) | Self::Refused { .. } | Self::Conformance(_) | Self::Fuzz(_) => 3,
            Self::Program { .. } | Self::Loader(_) | Self::Io { .. } => 4,
        }
    }
}
