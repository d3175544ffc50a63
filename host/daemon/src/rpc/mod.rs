//! The client socket: listening, lines, requests, replies, and the table of public errors.
//!
//! State: the open connections and their requests in flight. Callers: `serve` starts the listener. Not known here:
//! what the operations do. A line's path: `listener` accepts the connection, `connection` reads the line and keeps the
//! limits, `dispatch` finds the operation, `reply` writes the answer.

pub mod connection;
pub mod context;
pub mod convert;
pub mod dispatch;
pub mod error;
pub mod failure;
pub mod limits;
pub mod line;
pub mod listener;
pub mod reply;
