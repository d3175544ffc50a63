//! The identity of a numeric space: which vectors may be compared, as two hashes (FPR-01..07).
//!
//! State: none. Callers: the daemon (provenance of every vector), the catalog (builds the profile from a record and an
//! envelope row), later the probe and the alias table. The canonical forms below are frozen, as are the vectors in
//! `testdata/fingerprint.json`, which an independent script wrote: a change here is a new domain (`.v2`).
//!
//! Deliberately not inputs: the role chosen for a request, placement, instruction set, truncation, ports, names,
//! paths, the envelope row's id and version range, the plugin's package version. They do not move the space.

use std::collections::BTreeMap;

use crate::canon::{Value, domain_hash};
use crate::digest::Sha256Digest;
use crate::engine::EngineIdentity;

/// Domain of [`model_digest`].
pub const MODEL_DOMAIN: &str = "synapse.model_files.v1";
/// Domain of [`numeric_profile_id`].
pub const PROFILE_DOMAIN: &str = "synapse.numeric_profile.v1";
/// Domain of [`fingerprint`].
pub const FINGERPRINT_DOMAIN: &str = "synapse.fingerprint.v1";

/// The numeric bounds of one catalog envelope row: the shapes for which a lane is certified. Its id, its engine
/// version range and its place in the file are not here, because they are not hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EnvelopeBounds {
    /// The longest item, in tokens, special tokens included.
    pub max_tokens: u32,
    /// The most items of one engine call.
    pub max_batch: u32,
    /// The most tokens of one engine call, over all items (llama.cpp's `n_ubatch`).
    pub max_batch_tokens: u32,
    /// The most sequences decoded at once (llama.cpp's `n_seq_max`; equal to `max_batch` elsewhere).
    pub max_sequences: u32,
}

/// How the number of threads enters the profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ThreadPolicy {
    /// The engine declares that its output does not depend on the thread count, so no class is hashed.
    Invariant,
    /// The output may depend on it: the class of thread counts that the lane runs with, for example `2`.
    Class(String),
}

/// Everything that decides the bits of an embedding, with the record's defaults (FPR-01).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumericProfile {
    /// See [`model_digest`].
    pub model_digest: Sha256Digest,
    /// How the weights are stored: `f32`, `f16`, `q4_1`, …
    pub quant: String,
    /// The engine's numeric identity. Flags are sorted and deduplicated when hashed.
    pub engine: EngineIdentity,
    /// Digest of the sanitised tokenizer; `None` where the engine owns its tokenizer.
    pub tokenizer_digest: Option<Sha256Digest>,
    /// `mean`, `cls`, `last`, or `none`.
    pub pooling: String,
    /// Whether the record's default output has length 1.
    pub normalize: bool,
    /// The arithmetic: `f32`, `f16`, `bf16`, `int8`, …
    pub dtype: String,
    /// Whether flash attention is used. Engines without the choice say `false`.
    pub flash_attention: bool,
    /// The catalog row's bounds.
    pub envelope: EnvelopeBounds,
    /// The record's whole set of role → template, whichever of them a request chooses.
    pub templates: BTreeMap<String, String>,
    /// How the thread count enters.
    pub thread_policy: ThreadPolicy,
    /// The shape class, where an engine is not shape-invariant and the probe split the profile (FPR-04).
    pub shape_class: Option<String>,
}

/// What a request is served, besides the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServedShape {
    /// The length of the vectors handed out.
    pub dims: u32,
    /// Whether they were normalised to length 1.
    pub normalized: bool,
}

/// The digest of a model: over the sorted pairs of role and SHA-256 of every file that is passed to `load`.
///
/// A JSON config enters with [`crate::canon::config_digest`] in place of its file's SHA-256; the tokenizer is not
/// among the files. Names and paths never enter.
pub fn model_digest<R: AsRef<str>>(files: impl IntoIterator<Item = (R, Sha256Digest)>) -> Sha256Digest {
    let mut pairs: Vec<(String, Sha256Digest)> = files.into_iter().map(|(r, d)| (r.as_ref().to_owned(), d)).collect();
    pairs.sort();
    let list = pairs
        .into_iter()
        .map(|(role, digest)| Value::object([("role", Value::Str(role)), ("sha256", Value::from(digest))]));
    hash(MODEL_DOMAIN, &Value::Array(list.collect()))
}

/// The numeric profile's id (FPR-01): what the engine computes, before a request's own choice of output.
#[must_use]
pub fn numeric_profile_id(profile: &NumericProfile) -> Sha256Digest {
    hash(PROFILE_DOMAIN, &profile_value(profile))
}

/// The fingerprint of the vectors handed out (FPR-02): two vectors may be compared if theirs are equal, or if the
/// alias table says so.
#[must_use]
pub fn fingerprint(profile: &NumericProfile, served: &ServedShape) -> Sha256Digest {
    hash(
        FINGERPRINT_DOMAIN,
        &Value::object([
            ("dims", Value::from(served.dims)),
            ("model_digest", Value::from(profile.model_digest)),
            ("normalization", normalization(served.normalized)),
            ("numeric_profile_id", Value::from(numeric_profile_id(profile))),
            ("quant", Value::text(&profile.quant)),
        ]),
    )
}

fn profile_value(profile: &NumericProfile) -> Value {
    let mut flags = profile.engine.build_flags.clone();
    flags.sort();
    flags.dedup();
    let envelope = &profile.envelope;
    let templates = profile
        .templates
        .iter()
        .map(|(role, template)| Value::object([("role", Value::text(role)), ("template", Value::text(template))]));
    let mut pairs = vec![
        ("dtype", Value::text(&profile.dtype)),
        (
            "engine",
            Value::object([
                ("build_flags", Value::Array(flags.into_iter().map(Value::Str).collect())),
                ("engine", Value::text(&profile.engine.engine)),
                ("version", Value::text(&profile.engine.version)),
            ]),
        ),
        (
            "envelope",
            Value::object([
                ("max_batch", Value::from(envelope.max_batch)),
                ("max_batch_tokens", Value::from(envelope.max_batch_tokens)),
                ("max_sequences", Value::from(envelope.max_sequences)),
                ("max_tokens", Value::from(envelope.max_tokens)),
            ]),
        ),
        (
            "flash_attention",
            Value::text(if profile.flash_attention { "on" } else { "off" }),
        ),
        ("model_digest", Value::from(profile.model_digest)),
        ("normalization", normalization(profile.normalize)),
        ("pooling", Value::text(&profile.pooling)),
        ("quant", Value::text(&profile.quant)),
        ("templates", Value::Array(templates.collect())),
    ];
    if let Some(digest) = profile.tokenizer_digest {
        pairs.push(("tokenizer_digest", Value::from(digest)));
    }
    if let ThreadPolicy::Class(class) = &profile.thread_policy {
        pairs.push(("thread_class", Value::text(class)));
    }
    if let Some(class) = &profile.shape_class {
        pairs.push(("shape_class", Value::text(class)));
    }
    Value::object(pairs)
}

fn normalization(normalize: bool) -> Value {
    Value::text(if normalize { "l2" } else { "none" })
}

/// Total for the values built above: no doubles, ASCII keys, integers of 32 bits, four levels deep.
fn hash(domain: &str, value: &Value) -> Sha256Digest {
    domain_hash(domain, value).expect("fingerprint inputs are strings and 32-bit integers under ASCII keys")
}
