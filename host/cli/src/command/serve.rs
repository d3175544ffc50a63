//! `synapse serve`: the daemon in the foreground.
//!
//! No state. Everything is the daemon's; this is its runtime and its exit code.

use synapse_daemon::{ServeOptions, StartError};
use tokio::runtime::Builder;

use crate::args::{Global, Serve};
use crate::error::CliError;

/// Serves until a signal ends it.
pub fn run(global: &Global, serve: Serve) -> Result<(), CliError> {
    let places = serve.places;
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

/// A wrong configuration or place is wrong usage; anything else is found on this machine.
fn refused(error: &StartError) -> CliError {
    match error {
        StartError::Config(_) | StartError::Place(_) => CliError::Usage(error.to_string()),
        other => CliError::Found(other.to_string()),
    }
}
