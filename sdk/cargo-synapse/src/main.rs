//! `cargo synapse`: makes, packs, checks, fuzzes and installs a plugin.
//!
//! State: none; what a command makes lies below the project's target folder, and what it installs in a plugin folder.
//! Callers: authors, their CI. Not known here: the daemon, which finds an installed bundle by itself, and models other
//! than a template's. The checks and the fuzzer are `synapse-conformance`'s; what a bundle may be is `synapse-loader`'s,
//! which judges every bundle that is packed or installed. The program is also the child that both run bundles in.
//!
//! | question | file |
//! |---|---|
//! | what may be said | `args.rs` |
//! | what does `new` write | `template.rs` and the folder `template` |
//! | which project is this, how is it built | `project.rs`, `cargo.rs` |
//! | how is a bundle laid out | `bundle.rs`, `library.rs` |
//! | what does the host think of it | `verdict.rs` |
//! | what does a command do | `command/` |
//! | what comes out, with which exit code | `output.rs`, `json.rs`, `error.rs` |

#![forbid(unsafe_code)]

mod args;
mod bundle;
mod cargo;
mod command;
mod error;
mod json;
mod library;
mod output;
mod project;
mod template;
mod verdict;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    // A check, a batch of the fuzzer, or a bundle that describes itself: a process of its own.
    if let Some(code) = synapse_conformance::hidden().or_else(synapse_conformance::fuzz::hidden) {
        return code;
    }
    // clap answers --help, --version and wrong arguments itself: exit code 0, 0 and 2.
    let args::Cargo::Synapse(arguments) = args::Cargo::parse();
    let mut output = output::Output::new(arguments.json);
    match command::run(arguments.command, &mut output) {
        Ok(code) => code,
        Err(error) => output.failed(&error),
    }
}
