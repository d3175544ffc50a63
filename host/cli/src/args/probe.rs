//! The command lines of `synapse setup` and `synapse probe`.
//!
//! No state. What they do is `command/setup.rs` and `command/probe/`.

use clap::{Args, Subcommand};

/// `synapse setup`.
#[derive(Debug, Args)]
pub struct Setup {
    /// The model, or MODEL@ENGINE[:VARIANT]; default: the catalog's default model
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// Do not ask before something is fetched
    #[arg(long, short)]
    pub yes: bool,
}

/// `synapse probe`.
#[derive(Debug, Subcommand)]
pub enum Probe {
    /// Probe models or lanes and show what came out; without names, every lane that could serve here
    #[command(after_help = "\
Examples:
  synapse probe run                              everything that is installed
  synapse probe run all-minilm-l6-v2@owned:f32   one lane

Ctrl-C ends the command and not the probe: `synapse jobs cancel ID` stops it. Queries are served
meanwhile. Exit codes: 0 every lane passed, 3 one did not and stays closed.")]
    Run {
        /// Models, or MODEL@ENGINE[:VARIANT]
        #[arg(value_name = "MODEL")]
        models: Vec<String>,
        /// Print the job and do not wait
        #[arg(long)]
        no_wait: bool,
    },
    /// Show everything that was measured on this machine
    #[command(
        after_help = "Examples:\n  synapse probe report\n  synapse probe report --json | jq '.lanes[].findings.gates'"
    )]
    Report {
        /// Models or lanes; default: every installed model
        #[arg(value_name = "MODEL")]
        models: Vec<String>,
    },
}
