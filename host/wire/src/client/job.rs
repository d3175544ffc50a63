//! Jobs: how slow work is accepted, watched and cancelled (API-02, JOB-03).
//!
//! No state. Every slow operation answers with [`JobAccepted`] and is then polled with `job.status`. The state machine
//! is `core::job`; the registry is `daemon/job`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Failure;
use super::kept::kept_as_text;
use super::method::operation;
use super::probe::ProbeOutcome;

/// What an operation answers that started (or found) a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobAccepted {
    /// The job to poll.
    pub job_id: String,
}

/// Params of `job.status` and `job.cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobParams {
    /// The job.
    pub job_id: String,
}

/// Params of `job.list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobListParams {}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Fetches and verifies a model.
    ModelPull,
    /// Loads a model into memory.
    ModelLoad,
    /// Embeds a large batch.
    EmbedBatch,
    /// Scores many candidates of a query.
    RerankScore,
    /// Certifies lanes.
    Probe,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl JobKind {
    /// The name on the wire, for logs and tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ModelPull => "model_pull",
            Self::ModelLoad => "model_load",
            Self::EmbedBatch => "embed_batch",
            Self::RerankScore => "rerank_score",
            Self::Probe => "probe",
            Self::Unknown => "unknown",
        }
    }

    /// The kind of this name; unknown where this version has no such kind.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let kinds = [
            Self::ModelPull,
            Self::ModelLoad,
            Self::EmbedBatch,
            Self::RerankScore,
            Self::Probe,
        ];
        kinds
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .unwrap_or(Self::Unknown)
    }

    /// Whether it works on texts that a client sent, and gives pages.
    #[must_use]
    pub const fn has_texts(self) -> bool {
        matches!(self, Self::EmbedBatch | Self::RerankScore)
    }
}

/// Why a job that runs does no work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobWait {
    /// The disk takes nothing: there is no room, or a quota is used up.
    Disk,
    /// Its model is being loaded.
    Model,
    /// Its lane has no room for more work.
    Lane,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl JobWait {
    /// The name on the wire, for logs and tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Model => "model",
            Self::Lane => "lane",
            Self::Unknown => "unknown",
        }
    }
}

/// Where a job stands (JOB-03). The last four are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Input is still being appended.
    Open,
    /// Waits for its start.
    Queued,
    /// Runs.
    Running,
    /// Ended well.
    Done,
    /// Ended; the same request will fail again.
    FailedPermanent,
    /// Ended; the same request may succeed later.
    FailedTransient,
    /// Ended on request.
    Cancelled,
    /// A value that this version does not know; poll on.
    #[serde(other)]
    Unknown,
}

impl JobState {
    /// The name on the wire, for logs and tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::FailedPermanent => "failed_permanent",
            Self::FailedTransient => "failed_transient",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }

    /// Whether nothing will change any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::Done | Self::FailedPermanent | Self::FailedTransient | Self::Cancelled
        )
    }
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobProgress {
    /// What it does now, for example `download`, `verify`, `load`.
    pub phase: String,
    /// Work done in this phase.
    pub done: u64,
    /// Work of this phase where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// What is counted: `bytes`, `files`, `items`.
    pub unit: String,
}

/// One job. The result of `job.status` and `job.cancel`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobView {
    /// Its id.
    pub job_id: String,
    /// What it does.
    pub kind: JobKind,
    /// Where it stands.
    pub state: JobState,
    /// The model it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How far it is.
    pub progress: JobProgress,
    /// Why it does no work although it runs; absent while it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<JobWait>,
    /// About how many milliseconds the rest takes on its lane alone, by the lane's measured speed; absent while nothing
    /// was measured, and once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_ms: Option<u64>,
    /// When it was accepted: milliseconds since 1970-01-01 UTC.
    pub created_ms: u64,
    /// When it last changed: milliseconds since 1970-01-01 UTC.
    pub updated_ms: u64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// What it gave, by kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
}

/// What a finished job gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum JobResult {
    /// Of a `model_pull`.
    Pull(PullOutcome),
    /// Of a `model_load`.
    Load(LoadOutcome),
    /// Of a `probe`.
    Probe(ProbeOutcome),
    /// Of a kind that this version does not know.
    Other(serde_json::Value),
}

kept_as_text!(JobResult = "result of a job");

/// What a `model_pull` gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PullOutcome {
    /// The model.
    pub model: String,
    /// The source that delivered it: `pypi`, `hf`, `local`; absent where all of it was here already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The format installed, for example `safetensors`.
    pub format: String,
    /// Files installed.
    pub files: u32,
    /// Bytes installed.
    pub size_bytes: u64,
}

/// What a `model_load` gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadOutcome {
    /// The model.
    pub model: String,
    /// The lane that serves it, `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// The fingerprint of its vectors with the record's defaults.
    pub fingerprint: String,
    /// Bytes that the engine holds for it.
    pub memory_bytes: u64,
    /// How long the load took.
    pub load_ms: u64,
}

/// Result of `job.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobListResult {
    /// The jobs that are remembered, the newest first.
    pub jobs: Vec<JobView>,
}

operation!(
    /// `job.status`.
    JobStatus(JobParams) -> JobView
);
operation!(
    /// `job.cancel`: asks for the end; the answer shows the job as it is now.
    JobCancel(JobParams) -> JobView
);
operation!(
    /// `job.list`.
    JobList(JobListParams) -> JobListResult
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_one_on_the_wire() {
        let kinds = [
            JobKind::ModelPull,
            JobKind::ModelLoad,
            JobKind::EmbedBatch,
            JobKind::RerankScore,
            JobKind::Probe,
            JobKind::Unknown,
        ];
        for kind in kinds {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(JobKind::from_name(kind.as_str()), kind);
        }
        for wait in [JobWait::Disk, JobWait::Model, JobWait::Lane, JobWait::Unknown] {
            assert_eq!(serde_json::to_value(wait).unwrap(), wait.as_str());
        }
        let states = [
            JobState::Open,
            JobState::Queued,
            JobState::Running,
            JobState::Done,
            JobState::FailedPermanent,
            JobState::FailedTransient,
            JobState::Cancelled,
            JobState::Unknown,
        ];
        for state in states {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
