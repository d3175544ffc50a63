//! The worker protocol, version 3: what the daemon and one engine process say to each other.
//!
//! The daemon listens on a socket and starts the worker, which connects and sends [`WorkerMessage::Hello`]. The
//! daemon checks the version, the nonce, the process id, the bundle and its engines' identities, answers
//! [`HostMessage::HelloAck`] with the frame size that both sides then keep, and from there on asks one thing at a
//! time. A message is one frame of JSON ([`frame`]); a message that declares `raw_bytes` is followed by exactly one
//! frame of that many raw little-endian bytes ([`raw`]). A peer skips the raw frame of a message that it does not
//! know, so the stream's position never depends on what a peer understands.
//!
//! State: none. Callers: `synapse-daemon` (its worker room) and `synapse-worker`. Not known here: sockets, processes,
//! time.

pub mod frame;
pub mod message;
pub mod raw;

pub use message::{HostMessage, WorkerMessage};

/// The protocol version, an integer (WPROTO-11). A peer of any other version is refused.
pub const PROTOCOL_VERSION: u32 = 3;

/// The frame size that a peer offers unless configured otherwise, in bytes (WPROTO-08).
pub const DEFAULT_MAX_FRAME: u32 = 64 * 1024 * 1024;

/// The smallest frame size that a peer may offer: room for every control message, in bytes.
pub const MIN_MAX_FRAME: u32 = 64 * 1024;

/// The frame size that both sides keep after the handshake: the smaller offer.
#[must_use]
pub const fn negotiate_max_frame(ours: u32, theirs: u32) -> u32 {
    if ours < theirs { ours } else { theirs }
}

#[cfg(test)]
mod tests;
