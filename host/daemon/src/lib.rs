//! The Synapse daemon: everything that touches a socket, a process, a clock, a file or the database.
//!
//! State: one data directory, held by one process at a time (`singleton`), and what is rebuilt from it at start.
//! Callers: the `synapse` binary (`synapse serve`) and the integration tests, through [`serve`]. Not known here: the
//! plugin ABI (`synapse-loader`), and any decision that needs no I/O (`synapse-core`).
//!
//! One request's path: `rpc/connection` reads a line, `rpc/dispatch` parses it, `service/NAME` answers it with the
//! help of `lane`, `text` and `schedule`, and `rpc/reply` writes the answer.

#![forbid(unsafe_code)]

pub mod config;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hang_bound;
pub mod job;
pub mod lane;
pub mod log;
pub mod models;
pub mod offline;
pub mod paths;
pub mod pickup;
pub mod plugins;
pub mod probe;
pub mod rpc;
pub mod schedule;
mod serve;
pub mod service;
pub mod singleton;
pub mod state;
pub mod store;
pub mod task;
pub mod text;
pub mod worker;

pub use synapse_loader::process::quiet_environment;

pub use serve::{ServeOptions, StartError, Stop, serve, serve_until};
