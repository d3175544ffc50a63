//! May two lanes' vectors stand in one index (ALIAS-05)?
//!
//! State: none. Callers: the daemon, which keeps the vectors of each certified lane and compares those of a declared pair.

use synapse_core::digest::Sha256Digest;

use crate::gate::{Gate, GateResult, Outcome};

/// A lane's vectors over the corpus, unit length, in the corpus' order.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptVectors {
    /// The corpus that they are of.
    pub corpus: Sha256Digest,
    /// Texts are cut to this many tokens.
    pub max_tokens: u32,
    /// Length of a vector.
    pub dims: u32,
    /// `items × dims` values.
    pub values: Vec<f32>,
}

/// Compares two lanes: minimum cosine ≥ 0.9999 and mean top-10 overlap ≥ 0.995 (DECISIONS, "gates").
#[must_use]
pub fn alias_gate(_a: &KeptVectors, _b: &KeptVectors) -> GateResult {
    GateResult::bare(Gate::Alias, Outcome::NotRun, "")
}
