//! The connection between the daemon and one worker: bytes in order, every wait with a bound.
//!
//! The daemon listens before it starts the worker, one worker connects, and nobody else ever does. On Unix that is a
//! socket file in a private folder, on Windows a named pipe whose name follows from the same path ([`name`]); framing
//! and handshake above it are the same (WPROTO-02).
//!
//! State: a [`Listener`] owns the name until it is dropped, a [`Stream`] its connection. Callers: the daemon's worker
//! room and `synapse-worker`. Not known here: frames, messages, processes, and who may use the folder.
//!
//! | question | file |
//! |---|---|
//! | where is a worker met | `name.rs` |
//! | how, on Unix | `unix.rs` |
//! | how, on Windows | `windows.rs` |

#![forbid(unsafe_code)]

pub mod name;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{Listener, Stream};
#[cfg(windows)]
pub use windows::{Listener, Stream};

#[cfg(test)]
mod tests;
