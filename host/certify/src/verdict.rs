//! What a probe found: everything that is stored of it.
//!
//! State: none. Callers: `plan/` makes it, the daemon stores and shows it. Figures are kept, not verdicts alone.

use synapse_core::digest::Sha256Digest;
pub use synapse_core::route::Level;

use crate::alias::KeptVectors;
use crate::gate::{Gate, GateResult};
use crate::subject::Depth;

/// One tested shape, and how far its rows were from the same texts alone (CERT-02).
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeFigure {
    /// Items of the engine call.
    pub items: u32,
    /// Tokens of its longest item.
    pub longest: u32,
    /// Tokens of all items.
    pub tokens: u64,
    /// The composition: `even`, `mixed`, `ramp`, `corner`, `corpus`.
    pub composition: &'static str,
    /// Largest difference of a value from the same text alone, on unit vectors.
    pub max_abs: f64,
    /// Smallest cosine with the same text alone.
    pub min_cosine: f64,
}

/// A range of batch sizes whose vectors are of one space (FPR-04).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeClass {
    /// The name that enters the numeric profile, for example `items_1`, `items_2_8`; `None` where the profile is not
    /// split.
    pub name: Option<String>,
    /// The fewest items of a call.
    pub from_items: u32,
    /// The most items of a call.
    pub to_items: u32,
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// One text of about this many tokens, alone.
    Query {
        /// Tokens, special tokens included.
        tokens: u32,
    },
    /// This many texts of 32 tokens, in one call, or in several where the lane cannot give way in the middle of one.
    Batch {
        /// Items of a call.
        items: u32,
    },
    /// One pair of about this many tokens.
    Pair {
        /// Tokens, special tokens included.
        tokens: u32,
    },
    /// A short greedy generation.
    Generation,
}

impl Workload {
    /// The name on the wire and in the store: `query_8`, `batch_32`, `pair_64`, `generation`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Query { tokens } => format!("query_{tokens}"),
            Self::Batch { items } => format!("batch_{items}"),
            Self::Pair { tokens } => format!("pair_{tokens}"),
            Self::Generation => "generation".to_owned(),
        }
    }
}

/// The figures of one workload (OQ-26). Load time, memory and time stamps are the [`crate::Observation`]'s.
#[derive(Clone, Debug, PartialEq)]
pub struct PerfRow {
    /// What was timed.
    pub workload: Workload,
    /// Timed calls.
    pub samples: u32,
    /// Tokens of one call, the mean over all.
    pub tokens_per_call: f64,
    /// The median of a call, in milliseconds.
    pub p50_ms: f64,
    /// The 95th percentile of a call, in milliseconds.
    pub p95_ms: f64,
    /// Tokens a second over all calls; generated tokens where something is generated.
    pub tokens_per_second: f64,
}

/// What a probe found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What the certificate would say.
    pub level: Level,
    /// How much was tried. Only [`Depth::Full`] may be stored.
    pub depth: Depth,
    /// One result a gate, in the order of [`Gate::ALL`], without the alias gate.
    pub gates: Vec<GateResult>,
    /// Every tested shape.
    pub shapes: Vec<ShapeFigure>,
    /// The batch sizes that may be served; more than one class is a split profile. Empty: none.
    pub classes: Vec<ShapeClass>,
    /// Why the lane is not batchable, or not in every size of the envelope; empty where it is.
    pub batching: String,
    /// The figures of speed.
    pub perf: Vec<PerfRow>,
    /// The corpus' digest.
    pub corpus: Sha256Digest,
    /// The references' digest, where there were any.
    pub references: Option<Sha256Digest>,
    /// The vectors of the corpus, for alias comparisons; only of embedding lanes.
    pub kept: Option<KeptVectors>,
}

impl Verdict {
    /// What a gate said.
    #[must_use]
    pub fn gate(&self, gate: Gate) -> Option<&GateResult> {
        self.gates.iter().find(|result| result.gate == gate)
    }

    /// Whether the lane is certified: everything was tried, and every gate but query ≡ batch is open.
    #[must_use]
    pub fn is_certified(&self) -> bool {
        self.depth == Depth::Full && !self.classes.is_empty() && self.closed().next().is_none()
    }

    /// Whether a query may take the hot path (FPR-05).
    #[must_use]
    pub fn hot_path(&self) -> bool {
        self.is_certified() && self.gate(Gate::QueryBatch).is_some_and(GateResult::is_open)
    }

    /// The gates that close the lane.
    pub fn closed(&self) -> impl Iterator<Item = &GateResult> {
        self.gates
            .iter()
            .filter(|result| result.gate != Gate::QueryBatch && !result.is_open())
    }
}
