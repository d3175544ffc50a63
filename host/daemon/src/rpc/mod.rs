//! The client socket: listening, lines, requests, replies, and the table of public errors.

pub mod context;
pub mod error;
