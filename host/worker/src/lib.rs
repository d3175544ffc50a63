//! The generic worker process: loads one engine bundle.
//!
//! State: none; one process does one thing and ends. Callers: `synapse-loader` starts it to describe a bundle, and an
//! author may do the same by hand. Not known here: the daemon, trust, what the bundle is for. A library rather than
//! only a binary, so that the tests of faulty bundles run this very code.
//!
//! | ends with | means | standard output |
//! |---|---|---|
//! | 0 | described | the descriptor, one line of JSON |
//! | 2 | wrong arguments | nothing |
//! | 3 | refused | `{"refused": REASON, "message": TEXT}` |
//! | 4 | the answer could not be written | nothing |
//! | anything else, or a signal | the bundle's library crashed | nothing |

#![forbid(unsafe_code)]

mod answer;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// The exit code when the answer could not be written.
pub const EXIT_UNWRITTEN: u8 = 4;

/// Loads one engine bundle.
#[derive(Debug, Parser)]
#[command(name = "synapse-worker", version, about)]
struct Arguments {
    /// Load the bundle, print its descriptor as one line of JSON, and end
    #[arg(long, required = true)]
    describe: bool,
    /// The bundle's folder: plugin.toml, the library, its private libraries
    #[arg(long, value_name = "DIR")]
    plugin: PathBuf,
}

/// Runs the worker with the process's arguments.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to standard output with 0, a mistake to standard error with 2.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    debug_assert!(arguments.describe, "the only thing that it can do so far");
    let Ok(channel) = answer::Channel::take() else {
        return ExitCode::from(EXIT_UNWRITTEN);
    };
    let answer = synapse_loader::describe(&arguments.plugin);
    match channel.send(&answer.json) {
        Ok(()) => ExitCode::from(answer.exit_code),
        Err(_) => ExitCode::from(EXIT_UNWRITTEN),
    }
}
