//! What goes into `load` and what comes out.
//!
//! Owns no state. The host makes artifact and settings; the plugin makes the handle and the report.

use std::path::Path;

use abi_stable::{
    StableAbi,
    std_types::{RString, RVec},
};

/// One setting or fact by name. Keys are `[a-z0-9_.-]`, 1 to 64 bytes.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct KeyValue {
    /// The name.
    pub key: RString,
    /// The value as text.
    pub value: RString,
}

impl KeyValue {
    /// A pair.
    #[must_use]
    pub fn new(key: impl Into<RString>, value: impl Into<RString>) -> Self {
        Self {
            key: key.into(),
            value: value.into(),
        }
    }
}

/// One file of a model. The host measured digest and size just before the call and holds the file unchanged until
/// the call returns.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct ArtifactFile {
    /// The file's role in the artifact, for example `weights`, `config`, `dense.0.weights`. Unique in the list.
    pub role: RString,
    /// Where it lies: an absolute path in UTF-8. Read-only; names carry no meaning.
    pub path: RString,
    /// SHA-256 of the content: 64 lower-case hexadecimal digits.
    pub sha256: RString,
    /// The length in bytes.
    pub size: u64,
}

impl ArtifactFile {
    /// The path as a [`Path`].
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(self.path.as_str())
    }
}

/// The files of one model in one format. The tokenizer is not among them: it is the host's.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct ValidatedArtifact {
    /// The files, in the record's order.
    pub files: RVec<ArtifactFile>,
}

/// How a model is to be run. Everything that can change output bits is also in the host's numeric profile.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct RuntimeConfig {
    /// The artifact's format, one that the descriptor lists.
    pub format: RString,
    /// The arithmetic type, one that the descriptor lists with this format.
    pub dtype: RString,
    /// The record's pooling: `mean`, `cls`, `last` or `none`.
    pub pooling: RString,
    /// The longest item in tokens, special tokens included; at least 1.
    pub max_tokens: u32,
    /// The most items of one call; at least 1.
    pub max_batch: u32,
    /// The most tokens of one call, over all items; at least `max_tokens`.
    pub max_batch_tokens: u32,
    /// The most threads of one call; at least 1.
    pub threads: u32,
    /// Further settings by key. An engine refuses a key that it does not know with
    /// [`crate::ErrorCode::CONFIG_INVALID`] and names it.
    pub extra: RVec<KeyValue>,
}

/// An engine's handle of one loaded model. Meaningful only to the engine that gave it; never reused by it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct ModelRef(pub u64);

/// What a load gave.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct LoadedModel {
    /// The handle for later calls.
    pub model: ModelRef,
    /// The length of an output vector; 0 where the engine gives none.
    pub dims: u32,
    /// The longest item in tokens that the loaded model takes; at least 1.
    pub max_tokens: u32,
    /// How many compute calls may run on it at once; at least 1, and at least 2 for [`crate::Preempt::CHECKPOINT`].
    pub max_concurrency: u32,
    /// Bytes that the model holds while it is loaded.
    pub memory_bytes: u64,
    /// Further facts by key. A host ignores keys that it does not know.
    pub extra: RVec<KeyValue>,
}

/// Bytes held by an engine.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq, StableAbi)]
pub struct MemoryReport {
    /// Weights and other state of the loaded models.
    pub model_bytes: u64,
    /// Scratch space kept between calls.
    pub scratch_bytes: u64,
    /// Further figures by key. A host ignores keys that it does not know.
    pub extra: RVec<KeyValue>,
}
