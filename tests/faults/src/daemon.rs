//! The daemon's own code under a name of this package, so that cargo builds it for the tests of this package.
//!
//! Arguments: data directory, socket, plugin folder, worker.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use synapse_daemon::ServeOptions;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [data_dir, socket, plugins, worker] = arguments.as_slice() else {
        return ExitCode::from(2);
    };
    let options = ServeOptions {
        data_dir: Some(data_dir.clone()),
        socket: Some(socket.clone()),
        plugin_dirs: vec![plugins.clone()],
        trust_file: None,
        worker_binary: Some(worker.clone()),
        project: Some(data_dir.clone()),
        log_to_stderr: true,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(synapse_daemon::serve(options))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(_)) | Err(_) => ExitCode::FAILURE,
    }
}
