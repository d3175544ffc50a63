//! `embed.query` and `embed.batch`: params and the vector reply.
//!
//! No state. Both operations answer with the same [`EmbedReply`] (API-12). Which lane serves a request, and what a
//! model allows, is decided by the daemon.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::constraints::engine_params;
use super::job::JobAccepted;
use super::method::operation;
use super::served::{ItemOutcome, ServedBy};
use super::text::Text;
use super::vector::{Encoding, Vector};

/// What a text is for. Models with templates treat the two apart; the others ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A search query; the default of `embed.query`.
    Query,
    /// A text to be found; the default of `embed.batch`.
    Document,
    /// No template at all.
    None,
}

impl Role {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Document => "document",
            Self::None => "none",
        }
    }
}

engine_params! {
    /// Params of `embed.query`: one text.
    #[derive(Eq)]
    pub struct EmbedQueryParams {
        /// A model id, or `MODEL@ENGINE[:VARIANT]` for one of its lanes.
        pub model: String,
        /// The text.
        pub text: Text,
        /// What the text is for; default `query`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub role: Option<Role>,
        /// Keep only the first so many dimensions and scale to unit length again; only what the model's record lists.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub dimensions: Option<u32>,
        /// Scale to unit length; default as the model's record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub normalize: Option<bool>,
        /// Cut a text that is too long (always disclosed) or refuse it; default as the model's record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub truncate: Option<bool>,
        /// How to write the vector; default `array`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub encoding: Option<Encoding>,
        /// The numeric space of the index to be searched: serve in it or in one that is equivalent now (API-10).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub target_fingerprint: Option<String>,
    }
}

engine_params! {
    /// Params of `embed.batch`: up to 64 texts, 8,192 tokens and 8 MiB inline.
    #[derive(Eq)]
    pub struct EmbedBatchParams {
        /// A model id, or `MODEL@ENGINE[:VARIANT]` for one of its lanes.
        pub model: String,
        /// The texts, each with an id of its own.
        pub items: Vec<BatchItem>,
        /// What the texts are for; default `document`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub role: Option<Role>,
        /// Keep only the first so many dimensions and scale to unit length again; only what the model's record lists.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub dimensions: Option<u32>,
        /// Scale to unit length; default as the model's record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub normalize: Option<bool>,
        /// Cut texts that are too long (always disclosed) or refuse them; default as the model's record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub truncate: Option<bool>,
        /// How to write the vectors; default `array`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub encoding: Option<Encoding>,
        /// The numeric space of the index to be extended: serve in it or in one that is equivalent now (API-10).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub target_fingerprint: Option<String>,
        /// Names the batch, so that a batch over the inline caps becomes a job, and a repetition finds that job instead
        /// of doing the work twice. At most 256 bytes. Within the caps a key changes nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub request_key: Option<String>,
    }
}

impl EmbedQueryParams {
    /// One text for one model, everything else by default.
    #[must_use]
    pub fn new(model: impl Into<String>, text: impl Into<Text>) -> Self {
        Self {
            model: model.into(),
            text: text.into(),
            role: None,
            dimensions: None,
            normalize: None,
            truncate: None,
            encoding: None,
            target_fingerprint: None,
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

impl EmbedBatchParams {
    /// Some texts for one model, everything else by default.
    #[must_use]
    pub fn new(model: impl Into<String>, items: Vec<BatchItem>) -> Self {
        Self {
            model: model.into(),
            items,
            role: None,
            dimensions: None,
            normalize: None,
            truncate: None,
            encoding: None,
            target_fingerprint: None,
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

/// One text of a batch, or one candidate of a reranking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchItem {
    /// The client's name for it, unique within the request, at most 256 bytes.
    pub id: String,
    /// The text.
    pub text: Text,
}

impl BatchItem {
    /// An item.
    #[must_use]
    pub fn new(id: impl Into<String>, text: impl Into<Text>) -> Self {
        Self {
            id: id.into(),
            text: text.into(),
        }
    }
}

/// Where a vector comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Provenance {
    /// The lane and its engine.
    #[serde(flatten)]
    pub by: ServedBy,
    /// The role applied.
    pub role: Role,
    /// The template applied, where the model has one for the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
    /// Whether the vectors were scaled to unit length.
    pub normalized: bool,
}

/// The reply of every vector-bearing operation (API-12).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EmbedReply {
    /// The catalog id of the model.
    pub model: String,
    /// The numeric space of these vectors as served: store it with them, and never compare across two.
    pub fingerprint: String,
    /// The numeric profile: the same for every dimension and normalisation served from it.
    pub numeric_profile_id: String,
    /// The alias table's epoch under which the request was accepted.
    pub table_epoch: u64,
    /// The length of every vector.
    pub dims: u32,
    /// Where the vectors come from.
    pub provenance: Provenance,
    /// One vector per item; null for an item that failed.
    pub vectors: Vec<Option<Vector>>,
    /// Tokens that the engine saw, per item; 0 for an item that failed.
    pub real_token_counts: Vec<u32>,
    /// How each item fared.
    pub items: Vec<ItemOutcome>,
    /// Fingerprints that are certified as equivalent now.
    pub equivalent_to: Vec<String>,
}

/// Result of `embed.batch`: vectors, or the job that a batch over the inline caps became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EmbedBatchResult {
    /// Answered inline.
    Vectors(Box<EmbedReply>),
    /// Accepted as a job (only with a `request_key`).
    Accepted(JobAccepted),
}

impl From<EmbedReply> for EmbedBatchResult {
    fn from(reply: EmbedReply) -> Self {
        Self::Vectors(Box::new(reply))
    }
}

operation!(
    /// `embed.query`.
    EmbedQuery(EmbedQueryParams) -> EmbedReply
);
operation!(
    /// `embed.batch`.
    EmbedBatch(EmbedBatchParams) -> EmbedBatchResult
);
