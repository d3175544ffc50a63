//! `synapse plugin …`: one file per subcommand.
//!
//! No state.

mod list;
mod trust;

use synapse_client::wire::{Placement, PluginEntry, PluginStatus};

use crate::args::{Global, Plugin};
use crate::error::CliError;
use crate::output::Output;
use crate::style::Tone;
use crate::table::Cell;

/// Carries out a subcommand.
pub async fn run(global: &Global, plugin: Plugin, output: &mut Output) -> Result<(), CliError> {
    match plugin {
        Plugin::List => list::run(global, output).await,
        Plugin::Trust(trust) => trust::run(global, trust, output).await,
    }
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
