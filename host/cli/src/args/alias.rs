//! The command lines of `synapse aliases` and `synapse explain`.
//!
//! No state. What they do is `command/aliases.rs` and `command/explain.rs`.

use clap::{Args, Subcommand, ValueEnum};
use synapse_client::wire::Workload;

/// `synapse aliases`.
#[derive(Debug, Subcommand)]
pub enum Aliases {
    /// Show the pairs of numeric spaces that are equivalent
    #[command(after_help = "Examples:\n  synapse aliases list\n  synapse aliases list --all --json")]
    List {
        /// Show retracted pairs too
        #[arg(long)]
        all: bool,
    },
    /// Say that two lanes of a model serve equivalent spaces; counts once a probe has measured it
    #[command(after_help = "\
Example:
  synapse aliases declare all-minilm-l6-v2@llama-cpp:f16 all-minilm-l6-v2@ort:f32
  synapse probe run all-minilm-l6-v2

The daemon's configuration must set alias_admin_enabled.")]
    Declare {
        /// A lane, MODEL@ENGINE:VARIANT
        #[arg(value_name = "LANE")]
        first: String,
        /// Another lane of the same model
        #[arg(value_name = "LANE")]
        second: String,
    },
    /// Say that two spaces are not equivalent any more; indexes that hold both must be rebuilt
    #[command(after_help = "\
Example:
  synapse aliases retract all-minilm-l6-v2@llama-cpp:f16 all-minilm-l6-v2@ort:f32 --reason \"drift in 0.3\"

The daemon's configuration must set alias_admin_enabled.")]
    Retract {
        /// A fingerprint, or a lane
        #[arg(value_name = "SPACE")]
        first: String,
        /// The other one
        #[arg(value_name = "SPACE")]
        second: String,
        /// Why
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Check whether an index may still be written; exit code 3 where it must be rebuilt
    #[command(after_help = "\
Example:
  synapse aliases check $INDEX_FINGERPRINT $WRITTEN_1 $WRITTEN_2

The answer holds at the epoch that it names. Ask before each write.")]
    Check {
        /// The fingerprint of the index: the space of its queries
        #[arg(value_name = "INDEX")]
        index: String,
        /// The fingerprint of every vector that was written to it, each once
        #[arg(value_name = "WRITTEN")]
        written: Vec<String>,
    },
}

/// `synapse explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The model, or MODEL@ENGINE[:VARIANT]
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// The kind of work; default: queries, for models that embed
    #[arg(long, value_name = "WORK")]
    pub work: Option<Work>,
    /// Demand this numeric space
    #[arg(long, value_name = "FINGERPRINT")]
    pub required_fingerprint: Option<String>,
    /// Take a space that is equivalent to it too
    #[arg(long, requires = "required_fingerprint")]
    pub allow_equivalent: bool,
    /// The space of an index: it, or one that is equivalent now
    #[arg(long, value_name = "FINGERPRINT")]
    pub target_fingerprint: Option<String>,
}

/// The kinds of work that lanes are compared at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Single texts
    Query,
    /// Batches and jobs
    Batch,
    /// Reranking
    Rerank,
    /// Text generation
    Generate,
}

impl From<Work> for Workload {
    fn from(work: Work) -> Self {
        match work {
            Work::Query => Self::Query,
            Work::Batch => Self::Batch,
            Work::Rerank => Self::Rerank,
            Work::Generate => Self::Generate,
        }
    }
}
