//! Jobs over large inputs: created, filled and sealed by the client, read page by page (API-11, JOB-06, JOB-07).
//!
//! No state. A client that has more texts than an inline request takes creates a job, appends texts in order, seals it,
//! and reads pages while it runs. What a key names and what is kept across a restart is decided by the daemon; it keeps
//! [`EmbedJobOptions`] and [`JobPage`], [`RerankJobOptions`] and [`ScorePage`] in the forms of their `to_text` and
//! `to_bytes`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::constraints::Constraints;
use super::embed::{BatchItem, EmbedBatchParams, Provenance, Role};
use super::error::Failure;
use super::job::{JobAccepted, JobParams, JobState, JobView};
use super::kept::{kept_as_bytes, kept_as_text};
use super::method::operation;
use super::rerank::{RerankScoreParams, ScoreKind};
use super::served::{ItemOutcome, ServedBy};
use super::vector::{Encoding, Vector};

/// What a job over a large input does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum JobOperation {
    /// Embeds the texts.
    #[serde(rename = "embed.batch")]
    EmbedBatch,
}

/// How the texts of a job are embedded; each field as in `embed.batch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbedJobOptions {
    /// What the texts are for; default `document`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Keep only the first so many dimensions and scale to unit length again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// Scale to unit length; default as the model's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalize: Option<bool>,
    /// Cut texts that are too long (always disclosed) or refuse them; default as the model's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// The numeric space of the index to be extended (API-10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_fingerprint: Option<String>,
    /// Serve only in this numeric space (API-06).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_fingerprint: Option<String>,
    /// With `required_fingerprint`: also serve in a space that is certified as equivalent now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_equivalent: bool,
    /// Serve only on this device class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_device: Option<String>,
}

impl EmbedJobOptions {
    /// What a batch says beyond its texts.
    #[must_use]
    pub fn of(batch: &EmbedBatchParams) -> Self {
        Self {
            role: batch.role,
            dimensions: batch.dimensions,
            normalize: batch.normalize,
            truncate: batch.truncate,
            target_fingerprint: batch.target_fingerprint.clone(),
            required_fingerprint: batch.required_fingerprint.clone(),
            allow_equivalent: batch.allow_equivalent,
            require_device: batch.require_device.clone(),
        }
    }

    /// The demands on the lane. A job has no deadline of its own.
    #[must_use]
    pub fn constraints(&self) -> Constraints {
        Constraints {
            required_fingerprint: self.required_fingerprint.clone(),
            allow_equivalent: self.allow_equivalent,
            require_device: self.require_device.clone(),
            ..Constraints::default()
        }
    }
}

/// How the candidates of a job are scored; each field as in `rerank.score`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerankJobOptions {
    /// The query.
    pub query: String,
    /// Cut candidates that are too long (always disclosed) or refuse them; default as the model's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Serve only in this numeric space (API-06).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_fingerprint: Option<String>,
    /// With `required_fingerprint`: also serve in a space that is certified as equivalent now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_equivalent: bool,
    /// Serve only on this device class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_device: Option<String>,
}

impl RerankJobOptions {
    /// What a request says beyond its candidates; `query` is its query as text.
    #[must_use]
    pub fn of(request: &RerankScoreParams, query: String) -> Self {
        Self {
            query,
            truncate: request.truncate,
            required_fingerprint: request.required_fingerprint.clone(),
            allow_equivalent: request.allow_equivalent,
            require_device: request.require_device.clone(),
        }
    }

    /// The demands on the lane. A job has no deadline of its own.
    #[must_use]
    pub fn constraints(&self) -> Constraints {
        Constraints {
            required_fingerprint: self.required_fingerprint.clone(),
            allow_equivalent: self.allow_equivalent,
            require_device: self.require_device.clone(),
            ..Constraints::default()
        }
    }
}

kept_as_text!(
    EmbedJobOptions = "options of a job",
    RerankJobOptions = "options of a job",
    Failure = "failure of a job"
);
kept_as_bytes!(JobPage = "page of a job", ScorePage = "page of a job");

/// Params of `job.create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobCreateParams {
    /// What the job does.
    pub operation: JobOperation,
    /// A model id, or `MODEL@ENGINE[:VARIANT]` for one of its lanes.
    pub model: String,
    /// How it does it.
    #[serde(default)]
    pub options: EmbedJobOptions,
    /// Names the work, so that a repetition finds the job instead of doing it twice. At most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_key: Option<String>,
    /// Its share among the jobs at work, 1 to 100: twice the weight gets twice the time. Default 1. No part of what the
    /// key names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Params of `job.append`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobAppendParams {
    /// The open job.
    pub job_id: String,
    /// The number of this append, from 0.
    pub seq: u64,
    /// The texts, each with an id of its own within the job.
    pub items: Vec<BatchItem>,
}

/// Result of `job.append`. It is on the disk when this is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobAppendResult {
    /// Whether the texts are kept; false where an append before this one is missing.
    pub kept: bool,
    /// The number expected next.
    pub next_seq: u64,
}

/// Params of `job.result`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobResultParams {
    /// The job.
    pub job_id: String,
    /// The page, from 0.
    pub page: u64,
    /// How to write vectors; default `array`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
}

/// Some items of a job, in the order in which they were computed: an item is known by its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobPage {
    /// The numeric space of these vectors: the same on every page of a job.
    pub fingerprint: String,
    /// The numeric profile.
    pub numeric_profile_id: String,
    /// The alias table's epoch under which the page was computed.
    pub table_epoch: u64,
    /// The length of every vector.
    pub dims: u32,
    /// Where the vectors come from.
    pub provenance: Provenance,
    /// How each item fared.
    pub items: Vec<ItemOutcome>,
    /// One vector per item; null for an item that failed.
    pub vectors: Vec<Option<Vector>>,
}

/// Some candidates of a job that scores, in the order in which they were scored: a candidate is known by its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScorePage {
    /// The numeric space of these scores: the same on every page of a job.
    pub fingerprint: String,
    /// The numeric profile.
    pub numeric_profile_id: String,
    /// The alias table's epoch under which the page was computed.
    pub table_epoch: u64,
    /// What the scores are.
    pub score_kind: ScoreKind,
    /// Where the scores come from.
    pub provenance: ServedBy,
    /// How each candidate fared.
    pub items: Vec<ItemOutcome>,
    /// One raw score per candidate; null for one that failed.
    pub scores: Vec<Option<f32>>,
}

/// Result of `job.result`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobPageResult {
    /// Where the job stands: once it has ended, no further page comes.
    pub state: JobState,
    /// Pages that there are now.
    pub pages: u64,
    /// The page of a job that embeds; absent where it is not there, or not there yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<JobPage>,
    /// The page of a job that scores; absent where it is not there, or not there yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<ScorePage>,
}

operation!(
    /// `job.create`.
    JobCreate(JobCreateParams) -> JobAccepted
);
operation!(
    /// `job.append`.
    JobAppend(JobAppendParams) -> JobAppendResult
);
operation!(
    /// `job.seal`: the job that now does the work, which is another one where the key names it.
    JobSeal(JobParams) -> JobView
);
operation!(
    /// `job.result`: one page of what is done.
    JobPages(JobResultParams) -> JobPageResult
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_forms_read_back() {
        let options = EmbedJobOptions {
            dimensions: Some(8),
            allow_equivalent: true,
            ..EmbedJobOptions::default()
        };
        assert_eq!(EmbedJobOptions::from_text(&options.to_text()), Ok(options));
        assert_eq!(EmbedJobOptions::default().to_text(), "{}");
        let error = EmbedJobOptions::from_text("{\"colour\":1}").unwrap_err();
        assert!(error.to_string().contains("options of a job"), "{error}");
        assert!(JobPage::from_bytes(b"[]").is_err());
        assert!(ScorePage::from_bytes(b"[]").is_err());
        let request = RerankScoreParams::new("m", "why", Vec::new());
        let options = RerankJobOptions::of(&request, "why".to_owned());
        assert_eq!(options.to_text(), "{\"query\":\"why\"}");
        assert_eq!(RerankJobOptions::from_text(&options.to_text()), Ok(options));
        assert!(Failure::from_text("").is_err());
    }
}
