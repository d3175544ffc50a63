//! What ends a worker generation, and the words for it.

use std::io;

use synapse_core::supervision::exchange::{Expired, ProgressFault};
use synapse_wire::worker::frame::FrameError;
use synapse_wire::worker::message::MessageError;
use synapse_wire::worker::raw::RawLength;

/// A transport fault: the stream's position or the worker's state is no longer known (WSUP-12).
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The worker closed its end, or died.
    #[error("the worker's connection ended")]
    Closed,
    /// The socket failed.
    #[error("the worker's socket failed: {0}")]
    Io(#[from] io::Error),
    /// A frame broke the framing.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A control frame was no message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A raw frame was not what its header declared.
    #[error(transparent)]
    Raw(#[from] RawLength),
    /// A progress report broke the rules.
    #[error(transparent)]
    Progress(#[from] ProgressFault),
    /// The exchange was silent or long beyond its bounds.
    #[error(transparent)]
    Expired(#[from] Expired),
    /// A reply named another request.
    #[error("reply to request {found}, {expected} is running")]
    WrongId {
        /// The running request.
        expected: u64,
        /// The named one.
        found: u64,
    },
    /// A reply of a kind that the request cannot have.
    #[error("{found} is no reply to {request}")]
    UnexpectedType {
        /// The request's type.
        request: &'static str,
        /// The reply's type.
        found: String,
    },
    /// A reply whose counts contradict the request.
    #[error("{what}: expected {expected}, found {found}")]
    Contradiction {
        /// Which count.
        what: &'static str,
        /// Its value by the request.
        expected: u64,
        /// Its value in the reply.
        found: u64,
    },
    /// Bytes came while no request was running.
    #[error("the worker sent {bytes} bytes that nobody asked for")]
    Unsolicited {
        /// How many.
        bytes: usize,
    },
}

/// Where in a worker's life a fault belongs; `detail.stage` of `engine_crashed` (ERR-08).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The process ended or closed its connection.
    Exit,
    /// A time budget passed.
    Timeout,
    /// The worker broke the protocol.
    Protocol,
    /// The process did not come up.
    Start,
    /// The engine panicked; its process was ended.
    Panic,
    /// The engine said that it is not to be called again; its process was ended.
    Engine,
}

impl Stage {
    /// The stage's name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Start => "start",
            Self::Panic => "panic",
            Self::Engine => "engine",
        }
    }
}

impl Fault {
    /// The stage that this fault belongs to.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        match self {
            Self::Closed | Self::Io(_) | Self::Frame(FrameError::Truncated { .. }) => Stage::Exit,
            Self::Expired(_) => Stage::Timeout,
            _ => Stage::Protocol,
        }
    }
}
