//! `rerank.score`: one raw score for each candidate of a query (API-15).
//!
//! No state. Scores come back as the engine gave them, unsquashed and in the order of the request; sorting them is the
//! client's affair. Which lane serves a request is decided by the daemon.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::constraints::engine_params;
use super::embed::BatchItem;
use super::job::JobAccepted;
use super::method::operation;
use super::served::{ItemOutcome, ServedBy};
use super::text::Text;

engine_params! {
    /// Params of `rerank.score`: up to 20 candidates on the interactive lane, up to 64 inline as bulk work, and up to
    /// 32,768 tokens over all pairs.
    #[derive(Eq)]
    pub struct RerankScoreParams {
        /// A model id, or `MODEL@ENGINE[:VARIANT]` for one of its lanes.
        pub model: String,
        /// The query. It is never cut: one that leaves no room for a document is refused with `input_too_long`.
        pub query: Text,
        /// The candidates, each with an id of its own.
        pub candidates: Vec<BatchItem>,
        /// Cut candidates that are too long, from their end (always disclosed), or refuse them; default as the model's
        /// record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub truncate: Option<bool>,
        /// Names the request, so that one over the inline caps becomes a job, and a repetition finds that job instead of
        /// doing the work twice. At most 256 bytes. Within the caps a key changes nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub request_key: Option<String>,
    }
}

impl RerankScoreParams {
    /// A query and its candidates for one model, everything else by default.
    #[must_use]
    pub fn new(model: impl Into<String>, query: impl Into<Text>, candidates: Vec<BatchItem>) -> Self {
        Self {
            model: model.into(),
            query: query.into(),
            candidates,
            truncate: None,
            request_key: None,
            deadline_ms: None,
            max_queue_ms: None,
            fail_if_not_ready: false,
            required_fingerprint: None,
            allow_equivalent: false,
            required_epoch: None,
            require_device: None,
        }
    }
}

/// What a model's scores are, as its record says. Whatever the kind, a higher score is a better match, and scores of
/// two fingerprints do not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// The raw output of a classification head: any finite number.
    Logit,
    /// The logarithm of a ratio of two probabilities: any finite number, 0 where both are equal.
    LogOdds,
    /// A probability, 0 to 1.
    Probability,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ScoreKind {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Logit => "logit",
            Self::LogOdds => "log_odds",
            Self::Probability => "probability",
            Self::Unknown => "unknown",
        }
    }
}

/// The scores of a `rerank.score`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RerankReply {
    /// The catalog id of the model.
    pub model: String,
    /// The numeric space of these scores.
    pub fingerprint: String,
    /// The numeric profile that served.
    pub numeric_profile_id: String,
    /// The alias table's epoch under which the request was accepted.
    pub table_epoch: u64,
    /// What the scores are.
    pub score_kind: ScoreKind,
    /// One raw score per candidate, in the order of the request; null for a candidate that failed.
    pub scores: Vec<Option<f32>>,
    /// Tokens that the engine saw, per candidate and with the query; 0 for a candidate that failed.
    pub real_token_counts: Vec<u32>,
    /// How each candidate fared.
    pub items: Vec<ItemOutcome>,
    /// Which lane served, and what is behind it.
    pub provenance: ServedBy,
}

/// Result of `rerank.score`: scores, or the job that a request over the inline caps became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RerankScoreResult {
    /// Answered inline.
    Scores(Box<RerankReply>),
    /// Accepted as a job (only with a `request_key`).
    Accepted(JobAccepted),
}

impl From<RerankReply> for RerankScoreResult {
    fn from(reply: RerankReply) -> Self {
        Self::Scores(Box::new(reply))
    }
}

operation!(
    /// `rerank.score`.
    RerankScore(RerankScoreParams) -> RerankScoreResult
);
