//! One command a file; this one chooses.
//!
//! No state.

mod check;
mod explain;
mod fuzz;
mod install;
mod new;
mod pack;

use std::process::ExitCode;

use crate::args::{Command, From};
use crate::bundle::{self, Packed};
use crate::error::Error;
use crate::output::Output;

/// Carries a command out.
///
/// # Errors
/// [`Error`] where it could not do its work; a plugin that fails its checks is an exit code.
pub fn run(command: Command, output: &mut Output) -> Result<ExitCode, Error> {
    match command {
        Command::New(new) => new::run(&new, output),
        Command::Pack(pack) => pack::run(&pack, output),
        Command::Check(check) => check::run(&check, output),
        Command::Explain { id } => explain::run(id.as_deref(), output),
        Command::Fuzz(fuzz) => fuzz::run(&fuzz, output),
        Command::Install(install) => install::run(&install, output),
    }
}

/// The bundle that a command is about: a folder that was named, or the project, packed.
fn bundle(from: &From) -> Result<Packed, Error> {
    match &from.bundle {
        Some(folder) => bundle::existing(folder),
        None => bundle::pack(&from.build, None),
    }
}

/// How many processes work at once where nobody said.
fn jobs(asked: Option<usize>) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    asked.unwrap_or_else(|| processors().min(4)).max(1)
}
