//! Aliases: which numeric spaces are equivalent, and whether an index may still be written (ALIAS-01..10, API-23, API-28).
//!
//! No state. What the rows mean is `synapse_core::alias`; the daemon keeps them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ErrorCode;
use super::method::operation;

/// The most fingerprints of one `aliases.check_index`.
pub const MAX_PROVENANCE: usize = 256;

/// Params of `aliases.list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AliasesListParams {
    /// Show retracted rows too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retracted: bool,
}

/// Where an alias stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AliasState {
    /// Declared, and never measured as equivalent: it counts for nothing yet.
    Declared,
    /// Measured as equivalent on this machine: either space may be served for the other, where a request allows it.
    Certified,
    /// Measured on a machine that is now another one: nothing is served by it until a probe. Indexes stay valid.
    Lapsed,
    /// Over. An index with vectors of both spaces must be rebuilt.
    Retracted,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl AliasState {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Certified => "certified",
            Self::Lapsed => "lapsed",
            Self::Retracted => "retracted",
            Self::Unknown => "unknown",
        }
    }
}

/// Who declared an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AliasOrigin {
    /// Synapse itself.
    Builtin,
    /// An operator, with `aliases.declare`.
    Operator,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// One pair of numeric spaces, and the epochs between which it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AliasEntry {
    /// The two fingerprints, the smaller first.
    pub fingerprints: [String; 2],
    /// The lanes that serve them, in the same order.
    pub lanes: [String; 2],
    /// The model of both lanes.
    pub model: String,
    /// The length of the vectors as served: an alias holds for one shape.
    pub dims: u32,
    /// Whether the vectors are served at unit length.
    pub normalized: bool,
    /// Who declared it.
    pub origin: AliasOrigin,
    /// Where it stands.
    pub state: AliasState,
    /// The table's epoch when it was declared.
    pub declared: u64,
    /// The epoch from which it was certified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_from: Option<u64>,
    /// The epoch of its retraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_to: Option<u64>,
    /// Why it was retracted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<String>,
}

/// Result of `aliases.list`, `aliases.declare` and `aliases.retract`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AliasesResult {
    /// The table's epoch.
    pub table_epoch: u64,
    /// The rows listed, declared or retracted, in the order of their declaration.
    pub aliases: Vec<AliasEntry>,
}

/// Params of `aliases.declare`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AliasesDeclareParams {
    /// Two lanes of one model, `MODEL@ENGINE:VARIANT`: one row for each shape in which both serve it.
    pub lanes: [String; 2],
}

/// Params of `aliases.retract`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AliasesRetractParams {
    /// Two fingerprints, for that pair; or two lanes, for every open row between them.
    pub pair: [String; 2],
    /// Why, for those who read the table later. At most 500 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Params of `aliases.check_index`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AliasesCheckIndexParams {
    /// The numeric space of the index: what its queries are embedded in.
    pub index_fingerprint: String,
    /// The fingerprint of every vector that was ever written to it, each once; at most 256.
    pub provenance_set: Vec<String>,
}

/// What may be done with an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexState {
    /// All its vectors may be compared, and more of them written.
    Valid,
    /// It holds vectors of spaces that are not equivalent. This is a state of the index: each of its vectors stays good
    /// among those of its own space.
    MigrationRequired,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Result of `aliases.check_index`: the verdict at one epoch of the table. A verdict, or an epoch, that was kept from an
/// earlier answer says nothing about now: ask before each write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AliasesCheckIndexResult {
    /// The epoch at which the verdict holds.
    pub table_epoch: u64,
    /// The verdict.
    pub verdict: IndexState,
    /// The pair that was retracted last of those that the index spans; absent where its spaces never were equivalent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retracted_pair: Option<[String; 2]>,
    /// The space to rebuild the index for: certified now, and covering most of what the index holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_target: Option<String>,
    /// `probe_required` where the index must be rebuilt and no certified space covers any of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocking_reason: Option<ErrorCode>,
}

operation!(
    /// `aliases.list`.
    AliasesList(AliasesListParams) -> AliasesResult
);
operation!(
    /// `aliases.declare`.
    AliasesDeclare(AliasesDeclareParams) -> AliasesResult
);
operation!(
    /// `aliases.retract`.
    AliasesRetract(AliasesRetractParams) -> AliasesResult
);
operation!(
    /// `aliases.check_index`.
    AliasesCheckIndex(AliasesCheckIndexParams) -> AliasesCheckIndexResult
);
