//! Why a call failed, from the client's side.
//!
//! No state. A typed error of the daemon arrives whole in [`ClientError::Daemon`]; the rest is about the connection.

use std::io;
use std::path::PathBuf;

use synapse_wire::client::{Class, ErrorCode, ErrorObject};
use synapse_wire::socket::SocketPathError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens on the socket.
    #[error("no daemon listens on {}: {source}", socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The socket is there but could not be opened.
    #[error("cannot connect to {}: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The process behind the socket belongs to another user: it is not spoken to.
    #[error("the daemon on {} runs as uid {found}, expected {expected}; choose another --socket or SYNAPSE_SOCKET", socket.display())]
    ForeignDaemon {
        /// The socket.
        socket: PathBuf,
        /// The peer's user id.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// The socket's place is not known.
    #[error(transparent)]
    Place(#[from] SocketPathError),
    /// The connection ended before the answer (API-29).
    #[error("the daemon closed the connection before it answered: {reason}")]
    Closed {
        /// What was seen.
        reason: String,
    },
    /// The daemon answered with a typed error.
    #[error("{} ({})", .0.message, .0.data.code)]
    Daemon(Box<ErrorObject>),
    /// The daemon answered with something that is no answer.
    #[error("the daemon's answer is not understood: {0}")]
    Protocol(String),
    /// The request cannot be written.
    #[error("the request cannot be sent: {0}")]
    Request(String),
}

impl ClientError {
    /// The daemon's error code, where the daemon answered.
    #[must_use]
    pub fn code(&self) -> Option<&ErrorCode> {
        match self {
            Self::Daemon(error) => Some(&error.data.code),
            _ => None,
        }
    }

    /// Whether trying again later can help.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Daemon(error) => error.data.class,
            Self::NoDaemon { .. } | Self::Connect { .. } | Self::Closed { .. } => Class::Transient,
            Self::ForeignDaemon { .. } | Self::Place(_) | Self::Protocol(_) | Self::Request(_) => Class::Permanent,
        }
    }
}
