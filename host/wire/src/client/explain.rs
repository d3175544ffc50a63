//! `models.explain`: which lane would serve a model, and why every other would not.
//!
//! No state. The rules are `synapse_core::route`; the answer is what a request with the same demands would meet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Failure;
use super::method::operation;

/// The kinds of work that lanes are compared at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// `embed.query`.
    Query,
    /// `embed.batch` and jobs.
    Batch,
    /// `rerank.score`.
    Rerank,
    /// `microllm.oneshot`.
    Generate,
}

impl Workload {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Batch => "batch",
            Self::Rerank => "rerank",
            Self::Generate => "generate",
        }
    }
}

/// Params of `models.explain`: a model, and what a request for it would demand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelsExplainParams {
    /// A model id, or `MODEL@ENGINE[:VARIANT]`.
    pub model: String,
    /// The kind of work; default `query` for models that embed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// As in a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_fingerprint: Option<String>,
    /// As in a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_equivalent: bool,
    /// As in a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_fingerprint: Option<String>,
    /// As in a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_epoch: Option<u64>,
    /// As in a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_device: Option<String>,
}

impl ModelsExplainParams {
    /// A model, asked for without demands.
    #[must_use]
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            workload: None,
            required_fingerprint: None,
            allow_equivalent: false,
            target_fingerprint: None,
            required_epoch: None,
            require_device: None,
        }
    }
}

/// One lane of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedLane {
    /// `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// It would serve.
    pub serves: bool,
    /// What stands in its way, as a stable word: `unusable`, `not_installed`, `by_name_only`, `device`, `unprobed`, `level`,
    /// `stale`, `probe_failed`, `hot_path`, `fingerprint_mismatch`, `other_space`, `not_preferred`, `not_named`. Absent where
    /// it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar: Option<String>,
    /// The same in words, with what to do.
    pub reason: String,
    /// The numeric space with the record's defaults; absent for a lane that cannot serve here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The certificate's level, `reference` or `consistent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Its measured speed at this work under the knob in force, in tokens a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
}

/// Result of `models.explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelsExplainResult {
    /// The model.
    pub model: String,
    /// The kind of work.
    pub workload: Workload,
    /// The knob in force.
    pub knob: String,
    /// The alias table's epoch.
    pub table_epoch: u64,
    /// The lane that would serve; absent where none would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<String>,
    /// What a request would be answered where no lane serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Failure>,
    /// Every lane of the model, in the catalog's order.
    pub lanes: Vec<ExplainedLane>,
}

operation!(
    /// `models.explain`.
    ModelsExplain(ModelsExplainParams) -> ModelsExplainResult
);
