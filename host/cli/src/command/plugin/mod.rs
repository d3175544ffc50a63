//! `synapse plugin …`: one file per subcommand.
//!
//! No state.

mod check;
mod list;
mod rescan;
mod show;
mod switch;
mod trust;

use synapse_client::wire::{Placement, PluginEntry, PluginStatus};
use synapse_client::{Client, ClientError, Options, RetryPolicy};
use synapse_daemon::offline::{self, OfflineOptions};

use crate::args::{Global, Plugin, PluginPlace};
use crate::error::CliError;
use crate::output::Output;
use crate::places::{self, Resolution};
use crate::style::Tone;
use crate::table::Cell;

/// Carries out a subcommand.
pub async fn run(global: &Global, plugin: Plugin, output: &mut Output) -> Result<(), CliError> {
    match plugin {
        Plugin::List => list::run(global, output).await,
        Plugin::Show { id } => show::run(global, &id, output).await,
        Plugin::Check(check) => check::run(global, check, output).await,
        Plugin::Trust(bundle) => trust::run(global, bundle, true, output).await,
        Plugin::Untrust(bundle) => trust::run(global, bundle, false, output).await,
        Plugin::Disable(bundle) => switch::run(global, bundle, true, output).await,
        Plugin::Enable(bundle) => switch::run(global, bundle, false, output).await,
        Plugin::Rescan => rescan::run(global, output).await,
    }
}

/// The bundles, and where they were seen.
struct Sight {
    plugins: Vec<PluginEntry>,
    /// The places, with the data directory and the trust file of the daemon that runs.
    places: Resolution,
    /// The daemon, where one runs.
    daemon: Option<Client>,
}

/// The bundles as the daemon sees them, or as a scan of our own does where none runs.
async fn look(global: &Global, bundle: &PluginPlace) -> Result<Sight, CliError> {
    let mut places = places::resolve(global, &bundle.places)?;
    let options = Options {
        socket: Some(places.socket.clone()),
        retry: RetryPolicy::default(),
        ..Options::default()
    };
    match Client::connect(options).await {
        Ok(client) => {
            let info = client.server_info().await?.result;
            places.follow(&bundle.places, &info.data_dir);
            Ok(Sight {
                plugins: client.plugins_list().await?.result.plugins,
                places,
                daemon: Some(client),
            })
        }
        Err(ClientError::NoDaemon { .. }) => {
            let sight = offline::look(&OfflineOptions {
                data: places.data_dir.clone(),
                plugin_dirs: places.plugin_dirs.clone(),
                trust_file: places.trust_file.clone(),
                worker_binary: places.worker.clone(),
            });
            Ok(Sight {
                plugins: sight.and_then(|sight| sight.plugins).map_err(CliError::Found)?,
                places,
                daemon: None,
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// The bundle of that id that is not shadowed.
fn find<'a>(plugins: &'a [PluginEntry], id: &str) -> Result<&'a PluginEntry, CliError> {
    plugins
        .iter()
        .find(|plugin| plugin.id == id && plugin.status != PluginStatus::Shadowed)
        .ok_or_else(|| {
            let mut ids: Vec<&str> = plugins.iter().map(|plugin| plugin.id.as_str()).collect();
            ids.dedup();
            let known = if ids.is_empty() {
                "none".to_owned()
            } else {
                ids.join(", ")
            };
            CliError::Found(format!("no plugin `{id}` was found; found: {known}"))
        })
}

/// What became of a bundle, in a word with its tone.
pub fn status_word(plugin: &PluginEntry) -> (Tone, &'static str) {
    match plugin.status {
        PluginStatus::Ready if plugin.placement == Some(Placement::Worker) => (Tone::Good, "ready in a worker"),
        PluginStatus::Ready => (Tone::Good, "ready"),
        PluginStatus::NeedsWorker => (Tone::Notice, "needs worker"),
        PluginStatus::Refused => (Tone::Bad, "refused"),
        PluginStatus::Quarantined => (Tone::Bad, "quarantined"),
        PluginStatus::Disabled => (Tone::Quiet, "disabled"),
        PluginStatus::Shadowed => (Tone::Quiet, "shadowed"),
        PluginStatus::Unknown => (Tone::Notice, "unknown"),
    }
}

fn status_cell(plugin: &PluginEntry) -> Cell {
    let (tone, word) = status_word(plugin);
    Cell::new(tone, word)
}

/// A bundle that serves inside the daemon.
#[cfg(test)]
fn sample() -> PluginEntry {
    use synapse_client::wire::{ModelKind, PluginEngine};
    PluginEntry {
        id: "owned".to_owned(),
        version: Some("0.1.0".to_owned()),
        dir: "/p/owned".to_owned(),
        digest: Some("ab".to_owned()),
        status: PluginStatus::Ready,
        reason: None,
        message: None,
        engines: vec![PluginEngine {
            engine: "owned".to_owned(),
            version: "1".to_owned(),
            kind: ModelKind::Embed,
            format: "safetensors".to_owned(),
            dtype: "f32".to_owned(),
            preempt: "checkpoint".to_owned(),
        }],
        placement: Some(Placement::InProcess),
        promotable: true,
        pending: None,
    }
}
