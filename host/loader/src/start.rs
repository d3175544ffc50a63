//! How a bundle's process is started: the command lines of the worker protocol (WP-01).
//!
//! State: none. Callers: the scan, the daemon's worker room, the conformance kit. Not known here: what the process
//! says. The program is `synapse-worker` for a library and the bundle's own for an executable
//! ([`crate::Bundle::worker_program`]); both take the same arguments.

use std::path::Path;

use crate::descriptor::settings_to_json;
use crate::process::Command;

/// Lets `program` describe the staged bundle in `dir`. The answer comes on standard output.
#[must_use]
pub fn describe(program: &Path, dir: &Path) -> Command {
    at_home(Command::new(program))
        .arg("--describe")
        .arg("--plugin")
        .arg(dir)
}

/// Lets `program` serve the staged bundle in `dir` to whoever listens on `socket`. `settings` are the manifest's
/// `[engine.config]`.
#[must_use]
pub fn serve(program: &Path, dir: &Path, socket: &Path, nonce: &str, settings: &[(String, String)]) -> Command {
    let settings = settings_to_json(&settings.iter().cloned().collect());
    at_home(Command::new(program))
        .arg("--plugin")
        .arg(dir)
        .arg("--socket")
        .arg(socket)
        .args(["--nonce", nonce])
        .args(["--settings", &settings])
}

/// What both have: a folder that is always there, and the system's private libraries, such as a GPU driver's, found as
/// the daemon would find them.
fn at_home(command: Command) -> Command {
    command.dir("/").inherit_env("LD_LIBRARY_PATH")
}
