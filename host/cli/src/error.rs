//! Why a command failed, which exit code that is, and what to do about it.
//!
//! No state. Commands return [`CliError`]; `output` writes it; `main` turns it into the exit code.

use std::io;

use synapse_client::wire::{Failure, JobAccepted};
use synapse_client::{Class, ClientError};

/// Exit code of an internal fault.
pub const INTERNAL: u8 = 1;
/// Exit code of wrong usage.
pub const USAGE: u8 = 2;
/// Exit code of a permanent error.
pub const PERMANENT: u8 = 3;
/// Exit code of a transient error.
pub const TRANSIENT: u8 = 4;
/// Exit code where no daemon listens.
pub const NO_DAEMON: u8 = 5;

/// Exit code of a run that Ctrl-C has ended, as shells have it for SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The daemon, or the way to it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The command line or its input is wrong.
    #[error("{0}")]
    Usage(String),
    /// A job has failed.
    #[error("{} ({})", .0.message, .0.code)]
    Job(Box<Failure>),
    /// A job was cancelled by someone else.
    #[error("the job {0} was cancelled")]
    JobCancelled(String),
    /// The user has ended the command; the words say what that leaves.
    #[error("{0}")]
    Interrupted(String),
    /// Something is not as it should be, and the command has already said what.
    #[error("{0}")]
    Found(String),
    /// Something stands in the way that may go away by itself.
    #[error("{0}")]
    NotNow(String),
    /// A file or stream could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's words.
        source: io::Error,
    },
    /// Whoever read our output has stopped: no error.
    #[error("the reader of the output has gone")]
    ReaderGone,
    /// A fault of this program.
    #[error("internal fault: {0}")]
    Internal(String),
}

impl CliError {
    /// The exit code of `main`'s table.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::ReaderGone => 0,
            Self::Client(ClientError::NoDaemon { .. }) => NO_DAEMON,
            Self::Client(ClientError::Request(_) | ClientError::Place(_)) | Self::Usage(_) => USAGE,
            Self::Client(error) => of_class(error.class()),
            Self::Job(failure) => of_class(failure.class),
            Self::JobCancelled(_) | Self::Found(_) => PERMANENT,
            Self::NotNow(_) => TRANSIENT,
            Self::Interrupted(_) => INTERRUPTED,
            Self::Io { .. } | Self::Internal(_) => INTERNAL,
        }
    }

    /// What to do, where this program knows more than the message says.
    pub fn advice(&self) -> Option<String> {
        match self {
            Self::Client(ClientError::NoDaemon { .. }) => Some(
                "start one:        synapse serve\nor choose another: synapse --socket PATH …  (or set SYNAPSE_SOCKET)"
                    .to_owned(),
            ),
            Self::Client(ClientError::Closed { .. }) => {
                Some("the daemon may have stopped or restarted: see `synapse status` and its log".to_owned())
            }
            Self::Client(ClientError::Protocol(_)) => {
                Some("this command and the daemon may differ in version: see `synapse status`".to_owned())
            }
            Self::Client(ClientError::Daemon(error)) => error
                .data
                .retry_after_ms
                .map(|wait| format!("it may pass: try again in {wait} ms")),
            Self::Job(failure) => failure
                .retry_after_ms
                .map(|wait| format!("it may pass: try again in {wait} ms")),
            _ => None,
        }
    }

    /// A job that nobody asked for: only a request with a key may become one.
    pub fn without_key(job: &JobAccepted) -> Self {
        Self::Internal(format!("a request without key became the job {}", job.job_id))
    }

    /// An I/O error, or [`CliError::ReaderGone`].
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            return Self::ReaderGone;
        }
        Self::Io {
            what: what.into(),
            source,
        }
    }
}

const fn of_class(class: Class) -> u8 {
    match class {
        Class::Transient => TRANSIENT,
        Class::Permanent => PERMANENT,
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::ErrorCode;
    use synapse_client::wire::{ErrorData, ErrorObject};

    use super::*;

    fn daemon(class: Class) -> CliError {
        CliError::Client(ClientError::Daemon(Box::new(ErrorObject {
            code: -32_001,
            message: "words".to_owned(),
            data: ErrorData {
                code: ErrorCode::QueueFull,
                class,
                retry_after_ms: (class == Class::Transient).then_some(40),
                safe_to_retry_same_request: true,
                module_generation: 1,
                request_id: String::new(),
                detail: None,
            },
        })))
    }

    #[test]
    fn exit_codes_follow_the_class() {
        let absent = ClientError::NoDaemon {
            socket: "/s".into(),
            source: io::ErrorKind::NotFound.into(),
        };
        let table = [
            (daemon(Class::Permanent), PERMANENT),
            (daemon(Class::Transient), TRANSIENT),
            (CliError::Client(absent), NO_DAEMON),
            (CliError::Usage(String::new()), USAGE),
            (
                CliError::io("reading", io::ErrorKind::PermissionDenied.into()),
                INTERNAL,
            ),
            (CliError::io("writing", io::ErrorKind::BrokenPipe.into()), 0),
            (CliError::Found(String::new()), PERMANENT),
            (CliError::NotNow(String::new()), TRANSIENT),
            (CliError::Interrupted(String::new()), 130),
        ];
        for (error, code) in table {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }

    #[test]
    fn an_absent_daemon_says_how_to_start_one() {
        let absent = CliError::Client(ClientError::NoDaemon {
            socket: "/run/s.sock".into(),
            source: io::ErrorKind::NotFound.into(),
        });
        assert!(absent.to_string().contains("/run/s.sock"));
        assert!(absent.advice().unwrap().contains("synapse serve"));
        assert_eq!(
            daemon(Class::Transient).advice().unwrap(),
            "it may pass: try again in 40 ms"
        );
        assert_eq!(daemon(Class::Permanent).advice(), None);
    }
}
