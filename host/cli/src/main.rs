//! The `synapse` command: the daemon, and every command that talks to it.
//!
//! This file reads as the program: arguments, then one command, then an exit code. It owns nothing beyond one run.
//! Each command is one file under `command/`; what they print is made by pure functions (`table`, `style`, the
//! `render` functions of the commands). How the daemon works, and what an operation means, is not known here.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | it worked |
//! | 1 | a fault of the program itself, or of a file or stream that it needed |
//! | 2 | the command line or its input is wrong |
//! | 3 | an error that trying again will not cure (class `permanent`) |
//! | 4 | an error that may pass (class `transient`) |
//! | 5 | no daemon listens |
//! | 130 | Ctrl-C, where that leaves something to go on with |
#![forbid(unsafe_code)]

mod args;
mod batch;
mod command;
mod error;
mod input;
mod output;
mod places;
mod progress;
mod session;
mod style;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Arguments;
use crate::output::Output;

fn main() -> ExitCode {
    // First of all, while this is the only thread.
    synapse_daemon::quiet_environment();
    // `plugin check` starts this program for each check, whose arguments are not ours.
    if let Some(code) = synapse_conformance::hidden() {
        return code;
    }
    // clap answers --help, --version and wrong arguments itself: exit code 0, 0 and 2.
    let arguments = Arguments::parse();
    let mut output = Output::new(&arguments.global);
    match command::run(arguments, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(output.report(&error)),
    }
}
