//! What the replies of all engine operations share: which lane served, and how each text fared.
//!
//! No state. `embed`, `rerank` and `oneshot` build their replies on it. What the lanes are is decided by the daemon.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Failure;

/// Where an engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Inside the daemon.
    InProcess,
    /// In a supervised worker process.
    Worker,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The lane that served a request, and what is behind it: the provenance of scores and of generated text, and the
/// larger part of a vector's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServedBy {
    /// The fingerprint actually used.
    pub fingerprint: String,
    /// The engine's name.
    pub engine: String,
    /// The engine's numeric version.
    pub engine_version: String,
    /// SHA-256 of the plugin bundle, lower-case hex.
    pub bundle_digest: String,
    /// The lane, `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// Where the engine ran.
    pub placement: Placement,
    /// SHA-256 over the model's files, lower-case hex.
    pub model_digest: String,
    /// The machine profile of the certificate; null while certification does not exist.
    pub machine_profile_hash: Option<String>,
    /// The certificate's level (`reference` or `consistent`); null where the lane has none.
    pub certification: Option<String>,
}

/// How one text fared; the arrays of a reply keep the request's length and order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ItemOutcome {
    /// The request's id of the item (`embed.query` answers `"0"`).
    pub id: String,
    /// Tokens of the whole text; of a candidate, those of its pair with the query.
    pub submitted_tokens: u32,
    /// Tokens that the engine saw.
    pub effective_tokens: u32,
    /// Whether something was cut off (API-14). Never silent.
    pub truncated: bool,
    /// Why this item has no vector or no score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}
