//! The daemon as its users meet it. Each file has one subject; a new test goes where its subject is.
//!
//! `support` starts `synapse serve` in a temporary folder with the bundles that `make plugins` laid out beside this
//! binary, and talks to it over its socket, line by line. No test shares a daemon's data with another.

#![forbid(unsafe_code)]

mod bad_input;
mod cli_jobs;
mod envelope;
mod external_data;
mod flood;
mod forms;
mod jobs;
mod oneshot;
mod parity;
mod plugins;
mod probe;
mod pull_kill;
mod pull_source;
mod rerank;
mod restart;
mod schedule;
mod store_faults;
mod support;
mod worker;
mod zoo;
