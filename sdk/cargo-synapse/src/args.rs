//! The command line: what may be said, and the help that explains it.
//!
//! No state. clap reads it; `command::run` carries it out.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  cargo synapse new demo                 a whole project that embeds
  cargo synapse new judge --kind rerank
  cargo synapse pack                     target/bundles/demo
  cargo synapse check                    the conformance kit, core level
  cargo synapse check --level fault --junit target/conformance.xml
  cargo synapse explain NAME             why a check matters and how to fix what it found
  cargo synapse fuzz --batches 100       random valid and hostile calls
  cargo synapse fuzz --reproduce 0x2a    one batch again, call by call
  cargo synapse install                  into the user's plugin folder

Exit codes: 0 it worked, 1 the plugin failed a check or a batch, 2 wrong usage, 3 the project or the bundle is not
what it must be, 4 the system refused something.";

/// What cargo calls: `cargo-synapse synapse …`.
#[derive(Debug, Parser)]
#[command(name = "cargo", bin_name = "cargo")]
pub enum Cargo {
    /// Make, pack, check, fuzz and install a Synapse plugin
    #[command(version, after_help = EXAMPLES, max_term_width = 100)]
    Synapse(Arguments),
}

/// Everything that the command line said.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a new plugin project: engine, tests, manifest, model, catalog record, CI
    New(New),
    /// Build the plugin and lay its bundle out in target/bundles
    Pack(Pack),
    /// Run the conformance kit against the bundle
    Check(Check),
    /// Say why a check matters and how to fix what it found; without an id, list all
    Explain {
        /// A check's id
        id: Option<String>,
    },
    /// Call the bundle with random valid and hostile input, in processes of their own
    Fuzz(Fuzz),
    /// Put the bundle into a plugin folder, in place of an older one
    Install(Install),
}

/// A kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Token ids to vectors.
    Embed,
    /// Pairs to scores.
    Rerank,
    /// A prompt to a text.
    Generate,
}

/// `cargo synapse new`.
#[derive(Debug, Args)]
pub struct New {
    /// The folder to make; its last part is the plugin's id: a-z, 0-9 and '-'
    pub path: PathBuf,
    /// What the engine does
    #[arg(long, value_enum, default_value = "embed")]
    pub kind: Kind,
}

/// Which project is built, and how.
#[derive(Clone, Debug, Args)]
pub struct Build {
    /// The plugin's Cargo.toml; default: that of the current folder or of one above it
    #[arg(long, value_name = "FILE")]
    pub manifest_path: Option<PathBuf>,
    /// The cargo profile
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub profile: String,
    /// Features to build with, separated by commas
    #[arg(long, value_name = "LIST")]
    pub features: Option<String>,
    /// Build without a network
    #[arg(long)]
    pub offline: bool,
    /// Require that Cargo.lock needs no change
    #[arg(long)]
    pub locked: bool,
}

/// Where a bundle comes from.
#[derive(Clone, Debug, Args)]
pub struct From {
    /// A bundle's folder, instead of packing the project; any kind of bundle
    #[arg(long, value_name = "DIR", conflicts_with_all = ["manifest_path", "features"])]
    pub bundle: Option<PathBuf>,
    /// The project.
    #[command(flatten)]
    pub build: Build,
}

/// `cargo synapse pack`.
#[derive(Debug, Args)]
pub struct Pack {
    /// The project.
    #[command(flatten)]
    pub build: Build,
    /// The folder that gets the bundle's folder; default: target/bundles
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// `cargo synapse check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Where the bundle comes from.
    #[command(flatten)]
    pub from: From,
    /// How far to go: core, full, fault or perf
    #[arg(long, default_value = "core")]
    pub level: String,
    /// Only these checks, separated by commas; `*` stands for anything
    #[arg(long, value_name = "IDS")]
    pub only: Option<String>,
    /// The seed of everything that is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many checks run at once; default: as many as there are processors, four at most
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// The file that names models and tests; default: the bundle's own conformance.toml
    #[arg(long, value_name = "FILE")]
    pub subject: Option<PathBuf>,
    /// The synapse-worker program, for the checks of the worker protocol; default: the one in PATH, else they skip
    #[arg(long, value_name = "FILE")]
    pub worker: Option<PathBuf>,
    /// Write the report as JUnit XML too
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
}

/// `cargo synapse fuzz`.
#[derive(Debug, Args)]
pub struct Fuzz {
    /// Where the bundle comes from.
    #[command(flatten)]
    pub from: From,
    /// How many batches, each a process of its own with a seed of its own
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub batches: u64,
    /// How many calls a batch makes
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub calls: u32,
    /// The first batch's seed; the others follow it. Default: drawn, and printed
    #[arg(long, value_parser = seed)]
    pub seed: Option<u64>,
    /// Run one batch again and print every call
    #[arg(long, value_name = "SEED", value_parser = seed, conflicts_with_all = ["seed", "batches"])]
    pub reproduce: Option<u64>,
    /// How many batches run at once; default: as many as there are processors, four at most
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// How many seconds a batch may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub time_limit: u64,
    /// The file that names models; default: the bundle's own conformance.toml
    #[arg(long, value_name = "FILE")]
    pub subject: Option<PathBuf>,
}

/// `cargo synapse install`.
#[derive(Debug, Args)]
pub struct Install {
    /// Where the bundle comes from.
    #[command(flatten)]
    pub from: From,
    /// The plugin folder; default: $XDG_DATA_HOME/synapse/plugins, else ~/.local/share/synapse/plugins
    #[arg(long, value_name = "DIR")]
    pub plugin_dir: Option<PathBuf>,
}

/// A seed as it is printed, in hexadecimal, or a decimal number.
fn seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "expected a number, or 0x and hexadecimal digits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Cargo::command().debug_assert();
        assert_eq!((seed("0x2a"), seed("42")), (Ok(42), Ok(42)));
        assert!(seed("x").is_err());
    }
}
