//! From a record, a row and an engine to the numeric profile that is hashed (FPR-01, FPR-07).
//!
//! State: none. Caller: the daemon, once per loaded lane. What a lane runs with and what is hashed come from the same
//! two values, the record and the row, so they cannot drift apart. The record's id, title, licence, sources, paths and
//! `truncate_default` and `score_kind`, and the row's engine range and variant, are not read here: they are not hashed.

use std::collections::BTreeMap;

use synapse_core::canon::{CanonError, config_digest};
use synapse_core::digest::Sha256Digest;
use synapse_core::engine::EngineIdentity;
use synapse_core::fingerprint::{NumericProfile, ThreadPolicy, model_digest};

use crate::json::{self, JsonError};
use crate::record::{EnvelopeRow, Format, Record};

/// What a profile needs besides the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneFacts {
    /// From [`artifact_digest`].
    pub model_digest: Sha256Digest,
    /// Digest of the sanitised tokenizer, unless the engine owns it.
    pub tokenizer_digest: Option<Sha256Digest>,
    /// From the engine.
    pub engine: EngineIdentity,
    /// From the descriptor's `thread_invariant`, or the class of thread counts that the lane runs with.
    pub thread_policy: ThreadPolicy,
}

/// The profile of one lane.
#[must_use]
pub fn numeric_profile(record: &Record, row: &EnvelopeRow, facts: LaneFacts) -> NumericProfile {
    NumericProfile {
        model_digest: facts.model_digest,
        quant: row.quant.clone(),
        engine: facts.engine,
        tokenizer_digest: facts.tokenizer_digest,
        pooling: record.pooling.name().to_owned(),
        normalize: record.normalize,
        dtype: row.dtype.clone(),
        flash_attention: row.flash_attention,
        envelope: row.bounds,
        templates: templates(record),
        thread_policy: facts.thread_policy,
        shape_class: None,
    }
}

/// Every template by its role. A record's chat template is one of them; a GGUF's own is in the model digest.
fn templates(record: &Record) -> BTreeMap<String, String> {
    let mut templates = record.templates.clone();
    if let Some(chat) = &record.chat_template {
        templates.insert("chat".to_owned(), chat.clone());
    }
    templates
}

/// Whether a file with this role enters the model digest by its canonical JSON: `config`, `dense.0.config`, …
#[must_use]
pub fn is_json_config(role: &str) -> bool {
    role == "config" || role.ends_with(".config")
}

/// Why an artifact has no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactDigestError {
    /// A JSON config was not handed in.
    #[error("the content of {0} is needed for the model digest")]
    ConfigMissing(String),
    /// A JSON config does not parse.
    #[error("{role}: {problem}")]
    ConfigJson {
        /// The file's role.
        role: String,
        /// What is wrong.
        problem: JsonError,
    },
    /// A JSON config has no canonical form.
    #[error("{role}: {problem}")]
    ConfigForm {
        /// The file's role.
        role: String,
        /// What is wrong.
        problem: CanonError,
    },
}

/// The model digest of one stored form. `content` gives the bytes of a JSON config by role; every other file enters by
/// the SHA-256 that the record states and the store has verified.
///
/// # Errors
/// [`ArtifactDigestError`] names the role.
pub fn artifact_digest<B: AsRef<[u8]>>(
    format: &Format,
    content: impl Fn(&str) -> Option<B>,
) -> Result<Sha256Digest, ArtifactDigestError> {
    let mut pairs = Vec::with_capacity(format.files.len());
    for file in &format.files {
        let role = file.role.as_str();
        let digest = if is_json_config(role) {
            let bytes = content(role).ok_or_else(|| ArtifactDigestError::ConfigMissing(role.to_owned()))?;
            let value = json::parse(bytes.as_ref()).map_err(|problem| ArtifactDigestError::ConfigJson {
                role: role.to_owned(),
                problem,
            })?;
            config_digest(&value).map_err(|problem| ArtifactDigestError::ConfigForm {
                role: role.to_owned(),
                problem,
            })?
        } else {
            file.sha256
        };
        pairs.push((role, digest));
    }
    Ok(model_digest(pairs))
}
