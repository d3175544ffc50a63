//! The command line of `synapse plugin`.
//!
//! No state. What the subcommands do is in `command/plugin/`.

use clap::{Args, Subcommand};

use super::Places;

/// `synapse plugin`.
#[derive(Debug, Subcommand)]
pub enum Plugin {
    /// List every bundle, accepted or refused, with the reason
    #[command(visible_alias = "ls")]
    List,
    /// Show one bundle: its files, its engines, where it runs and why
    #[command(after_help = "Examples:\n  synapse plugin show owned\n  synapse plugin show owned --json")]
    Show {
        /// The bundle's id
        id: String,
    },
    /// Check a bundle against the plugin contract, rule by rule
    #[command(after_help = "\
Examples:
  synapse plugin check owned
  synapse plugin check owned --level full --json
  synapse plugin check owned --only 'WP-3*'

The bundle runs in processes of its own; the daemon's is left alone.")]
    Check(PluginCheck),
    /// Promote a bundle, by its digest, to run inside the daemon from its next start on
    #[command(after_help = "Example:\n  synapse plugin trust owned")]
    Trust(PluginPlace),
    /// Take a promotion back: the bundle runs in a worker from the daemon's next start on
    #[command(after_help = "Example:\n  synapse plugin untrust owned")]
    Untrust(PluginPlace),
    /// Switch a bundle off: it is not looked into, and its lanes end what they have begun
    #[command(after_help = "Example:\n  synapse plugin disable owned")]
    Disable(PluginPlace),
    /// Switch a bundle on again
    #[command(after_help = "Example:\n  synapse plugin enable owned")]
    Enable(PluginPlace),
    /// Look for dropped, replaced and removed bundles now, instead of when the daemon's watcher does
    Rescan,
}

/// A bundle, and where things are.
#[derive(Debug, Args)]
pub struct PluginPlace {
    /// The bundle's id
    pub id: String,
    /// Where things are.
    #[command(flatten)]
    pub places: Places,
}

/// `synapse plugin check`.
#[derive(Debug, Args)]
pub struct PluginCheck {
    /// The bundle, and where things are.
    #[command(flatten)]
    pub bundle: PluginPlace,
    /// How far to go: core, full, fault or perf
    #[arg(long, value_name = "LEVEL", default_value = "core")]
    pub level: String,
    /// Run these checks only: ids separated by commas, `*` for any letters
    #[arg(long, value_name = "IDS")]
    pub only: Option<String>,
}
