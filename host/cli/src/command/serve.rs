//! `synapse serve`: the daemon in the foreground.
//!
//! No state. Everything is the daemon's; this is its runtime and its exit code.

use std::path::PathBuf;

use synapse_daemon::{ServeOptions, StartError};
use tokio::runtime::Builder;

use crate::args::{Global, Serve};
use crate::error::CliError;

/// Serves until a signal ends it.
pub fn run(global: &Global, serve: Serve) -> Result<(), CliError> {
    let places = serve.places;
    check_folders(&places.plugin_dirs)?;
    let options = ServeOptions {
        data_dir: places.data_dir,
        socket: global.socket.clone(),
        plugin_dirs: places.plugin_dirs,
        trust_file: places.trust_file,
        worker_binary: places.worker,
        project: places.project,
        log_to_stderr: true,
    };
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("starting the runtime", error))?;
    let outcome = runtime.block_on(synapse_daemon::serve(options));
    // The daemon has waited for its work as long as its configuration says; what hangs ends with the process.
    runtime.shutdown_background();
    outcome.map_err(|error| refused(&error))
}

/// A folder of the search path may be missing, but one that the command line names is a slip where it is.
fn check_folders(named: &[PathBuf]) -> Result<(), CliError> {
    match named.iter().find(|dir| !dir.is_dir()) {
        None => Ok(()),
        Some(dir) => Err(CliError::Usage(format!(
            "--plugin-dir {}: there is no such folder; it must hold bundles, one folder each",
            dir.display()
        ))),
    }
}

/// A wrong configuration or place is wrong usage; anything else is found on this machine, and some of it may pass.
fn refused(error: &StartError) -> CliError {
    match error {
        StartError::Config(_) | StartError::Place(_) => CliError::Usage(error.to_string()),
        other if other.may_pass() => CliError::NotNow(other.to_string()),
        other => CliError::Found(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_folder_that_is_not_there_is_named() {
        let here = std::env::temp_dir();
        assert!(check_folders(&[]).is_ok());
        assert!(check_folders(std::slice::from_ref(&here)).is_ok());
        let missing = here.join("synapse-no-such-folder");
        let words = check_folders(&[here, missing]).unwrap_err().to_string();
        assert!(words.contains("synapse-no-such-folder"), "{words}");
    }
}
