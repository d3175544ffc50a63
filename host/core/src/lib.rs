//! Every decision of the Synapse host, and no I/O.
//!
//! State: none; every function maps values to values. Callers: the daemon, the loader, the catalog and the
//! conformance kit. Not known here: clocks, randomness, files, sockets, JSON, the plugin ABI. Time is an argument,
//! and a decision is a value that the daemon carries out.

#![forbid(unsafe_code)]

pub mod alias;
pub mod canon;
pub mod digest;
pub mod engine;
pub mod fingerprint;
pub mod job;
pub mod limits;
pub mod residency;
pub mod route;
pub mod schedule;
pub mod supervision;
