//! Where things are for commands that work without a daemon: resolved as `synapse serve` resolves them.
//!
//! No state. The rules themselves are the daemon's (`synapse_daemon::paths`, `config`) and the wire's (`socket`).

use std::path::PathBuf;

use synapse_client::Surroundings;
use synapse_daemon::config::{ConfigProblem, Resolved};
use synapse_daemon::paths::{DataDir, Environment, Platform, default_data_dir, plugin_dirs};

use crate::args::{Global, Places};
use crate::error::CliError;

/// Everything resolved.
pub struct Resolution {
    /// The data directory.
    pub data_dir: DataDir,
    /// The socket.
    pub socket: PathBuf,
    /// The folders searched for bundles, in order.
    pub plugin_dirs: Vec<PathBuf>,
    /// The trust file.
    pub trust_file: PathBuf,
    /// The worker program.
    pub worker: PathBuf,
    /// The settings, or what is wrong with them.
    pub config: Result<Resolved, Vec<ConfigProblem>>,
}

impl Resolution {
    /// Takes the data directory of a running daemon, and the trust file in it unless one was given: those count.
    pub fn follow(&mut self, places: &Places, data_dir: &str) {
        self.data_dir = DataDir::new(data_dir.into());
        if places.trust_file.is_none() {
            self.trust_file = self.data_dir.trust_file();
        }
    }
}

/// Resolves the places.
///
/// # Errors
/// [`CliError::Usage`] where the environment names no home and no directory was given.
pub fn resolve(global: &Global, places: &Places) -> Result<Resolution, CliError> {
    let (environment, platform) = (Environment::of_this_process(), Platform::current());
    let root = places
        .data_dir
        .clone()
        .or_else(|| default_data_dir(&environment, platform))
        .ok_or_else(|| CliError::Usage("no place for data is known: set HOME, or give --data-dir".to_owned()))?;
    let data_dir = DataDir::new(root);
    let project = project(places)?;
    let config = synapse_daemon::config::load(&environment, platform, &project);
    let configured = config
        .as_ref()
        .map(|resolved| resolved.config.plugins.dirs.clone())
        .unwrap_or_default();
    let surroundings = Surroundings {
        flag: global.socket.clone(),
        data_dir_flag: places.data_dir.clone(),
        ..synapse_client::surroundings()
    };
    Ok(Resolution {
        socket: surroundings.socket().map_err(synapse_client::ClientError::from)?,
        plugin_dirs: plugin_dirs(&environment, platform, &places.plugin_dirs, &configured),
        trust_file: places.trust_file.clone().unwrap_or_else(|| data_dir.trust_file()),
        worker: worker(places),
        data_dir,
        config,
    })
}

/// The project directory: the flag, otherwise the current directory.
fn project(places: &Places) -> Result<PathBuf, CliError> {
    match &places.project {
        Some(project) => Ok(project.clone()),
        None => std::env::current_dir().map_err(|error| CliError::io("finding the current directory", error)),
    }
}

/// The worker program: the flag, otherwise `synapse-worker` beside this program.
fn worker(places: &Places) -> PathBuf {
    let name = format!("synapse-worker{}", std::env::consts::EXE_SUFFIX);
    places.worker.clone().unwrap_or_else(|| {
        std::env::current_exe()
            .ok()
            .and_then(|program| Some(program.parent()?.join(&name)))
            .unwrap_or_else(|| PathBuf::from(&name))
    })
}
