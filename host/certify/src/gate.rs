//! The gates by name, and what one said: figures with their bounds, an outcome, words.
//!
//! State: none. Callers: `plan/`, the daemon (stores and shows results). The bounds are those of DECISIONS, "gates".

use std::fmt;

/// One thing that a lane has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// Every shape of the envelope is answered: no engine error, as many results as items.
    Envelope,
    /// Every value is finite.
    Finite,
    /// Vectors are near those of an independent implementation.
    Quality,
    /// A text's vector does not depend on the batch around it (CERT-02).
    ShapeInvariance,
    /// The query path gives the vectors of the batch path (CERT-03). Failing it disables the hot path only.
    QueryBatch,
    /// The thread count does not move the output, where the engine declares that.
    ThreadInvariance,
    /// The same call gives the same output.
    Repeatability,
    /// Candidates come in the reference's order, where its scores differ clearly.
    RerankOrder,
    /// Greedy generation is the same each time, and begins as the reference's where that is clear.
    Generation,
    /// The reported share of work on the engine's device (CERT-15).
    Placement,
    /// Timed texts were all different (CERT-20).
    VariedText,
    /// Two lanes' vectors are near enough to stand in one index.
    Alias,
}

impl Gate {
    /// Every gate.
    pub const ALL: [Self; 12] = [
        Self::Envelope,
        Self::Finite,
        Self::Quality,
        Self::ShapeInvariance,
        Self::QueryBatch,
        Self::ThreadInvariance,
        Self::Repeatability,
        Self::RerankOrder,
        Self::Generation,
        Self::Placement,
        Self::VariedText,
        Self::Alias,
    ];

    /// The name on the wire, in the store and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Envelope => "envelope",
            Self::Finite => "finite",
            Self::Quality => "quality",
            Self::ShapeInvariance => "shape_invariance",
            Self::QueryBatch => "query_batch",
            Self::ThreadInvariance => "thread_invariance",
            Self::Repeatability => "repeatability",
            Self::RerankOrder => "rerank_order",
            Self::Generation => "generation",
            Self::Placement => "placement",
            Self::VariedText => "varied_text",
            Self::Alias => "alias",
        }
    }

    /// The gate of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gate| gate.name() == name)
    }
}

/// What a gate came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Every figure is within its bound.
    Passed,
    /// One is not, or one that must be there is missing.
    Failed,
    /// Nothing to show: the engine does not claim it, or the model has no such thing.
    NotApplicable,
    /// The plan ended before it. Not passed.
    NotRun,
}

impl Outcome {
    /// The name on the wire, in the store and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotApplicable => "not_applicable",
            Self::NotRun => "not_run",
        }
    }

    /// The outcome of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Passed, Self::Failed, Self::NotApplicable, Self::NotRun]
            .into_iter()
            .find(|outcome| outcome.name() == name)
    }
}

/// What a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Bound {
    /// Whether `value` is within the bound; a value that is no number never is.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

/// One measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is, for example `min_cosine`.
    pub name: &'static str,
    /// The number as measured.
    pub value: f64,
    /// What it has to be; `None` where it is recorded only.
    pub bound: Option<Bound>,
}

impl Figure {
    /// Whether the figure is within its bound.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.bound.is_none_or(|bound| bound.holds(self.value))
    }
}

/// What one gate said.
#[derive(Clone, Debug, PartialEq)]
pub struct GateResult {
    /// The gate.
    pub gate: Gate,
    /// What it came to.
    pub outcome: Outcome,
    /// What was measured, and the bounds.
    pub figures: Vec<Figure>,
    /// For people: which text or shape was worst, why nothing was tried. May be empty.
    pub note: String,
}

impl GateResult {
    /// The result of figures: passed when every one is within its bound.
    #[must_use]
    pub fn of(gate: Gate, figures: Vec<Figure>, note: impl Into<String>) -> Self {
        let outcome = if figures.iter().all(Figure::holds) {
            Outcome::Passed
        } else {
            Outcome::Failed
        };
        Self {
            gate,
            outcome,
            figures,
            note: note.into(),
        }
    }

    /// A result without figures.
    #[must_use]
    pub fn bare(gate: Gate, outcome: Outcome, note: impl Into<String>) -> Self {
        Self {
            gate,
            outcome,
            figures: Vec::new(),
            note: note.into(),
        }
    }

    /// Whether the gate stands in nobody's way.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.outcome, Outcome::Passed | Outcome::NotApplicable)
    }
}
