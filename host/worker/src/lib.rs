//! The generic worker process: loads one engine bundle, to describe it or to serve it.
//!
//! State: none of its own; one process does one thing and ends. Callers: `synapse-loader` starts it to describe a
//! bundle, the daemon's worker room to serve one, and an author may do the same by hand. Not known here: the daemon,
//! trust, what the bundle is for. A library rather than only a binary, so that the tests of faulty bundles run this
//! very code.
//!
//! | ends with | means | standard output of `--describe` |
//! |---|---|---|
//! | 0 | described, or served until SHUTDOWN or the daemon's end | the descriptor, one line of JSON |
//! | 1 | serving failed: standard error says why | |
//! | 2 | wrong arguments | nothing |
//! | 3 | refused | `{"refused": REASON, "message": TEXT}` |
//! | 4 | the answer could not be written | nothing |
//! | 5 | the daemon went away and the engine did not stop | |
//! | anything else, or a signal | the bundle's library crashed | nothing |

#![forbid(unsafe_code)]

mod answer;
mod log;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// The exit code when the answer could not be written.
pub const EXIT_UNWRITTEN: u8 = 4;

/// Loads one engine bundle, to describe it or to serve it.
#[derive(Debug, Parser)]
#[command(name = "synapse-worker", version, about)]
struct Arguments {
    /// Load the bundle, print its descriptor as one line of JSON, and end
    #[arg(long, conflicts_with_all = ["socket", "nonce", "settings"], required_unless_present = "socket")]
    describe: bool,
    /// The bundle's folder: plugin.toml, the library, its private libraries
    #[arg(long, value_name = "DIR")]
    plugin: PathBuf,
    /// Serve the bundle to the daemon that listens on this socket
    #[arg(long, value_name = "PATH", requires = "nonce")]
    socket: Option<PathBuf>,
    /// The nonce that the daemon gave for this start
    #[arg(long, value_name = "HEX")]
    nonce: Option<String>,
    /// The engine's settings, a JSON object of strings, laid over the manifest's
    #[arg(long, value_name = "JSON", value_parser = settings)]
    settings: Option<Settings>,
}

/// An engine's settings as the command line has them.
type Settings = std::collections::BTreeMap<String, String>;

fn settings(text: &str) -> Result<Settings, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object of strings: {error}"))
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
    match (arguments.socket, arguments.nonce) {
        (Some(socket), Some(nonce)) => serve(&serve::Options {
            plugin: arguments.plugin,
            socket,
            nonce,
            settings: arguments.settings.unwrap_or_default().into_iter().collect(),
        }),
        _ => describe(&arguments.plugin),
    }
}

fn describe(plugin: &std::path::Path) -> ExitCode {
    let Ok(channel) = answer::Channel::take() else {
        return ExitCode::from(EXIT_UNWRITTEN);
    };
    let answer = synapse_loader::describe(plugin);
    match channel.send(&answer.json) {
        Ok(()) => ExitCode::from(answer.exit_code),
        Err(_) => ExitCode::from(EXIT_UNWRITTEN),
    }
}

fn serve(options: &serve::Options) -> ExitCode {
    log::start();
    match serve::serve(options) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(target: "synapse.worker", "{error}");
            ExitCode::FAILURE
        }
    }
}
