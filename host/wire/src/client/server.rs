//! `server.info`, `health` and `request.cancel`: the daemon about itself.
//!
//! No state. Health is answered from memory only (HEALTH-01); the serving paths stamp it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::envelope::Id;
use super::method::operation;
use super::model::ModelState;
use super::probe::LaneVerdict;

/// Params of `server.info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerInfoParams {}

/// The limits that a client should know; each is a field of the daemon's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// The longest line, in bytes.
    pub max_line_bytes: u64,
    /// The deepest nesting of a line.
    pub max_depth: u32,
    /// Requests in flight on one connection; status operations are free.
    pub max_in_flight_per_connection: u32,
    /// Requests in flight of one client process.
    pub max_in_flight_per_process: u32,
    /// Open connections.
    pub max_connections: u32,
    /// Time from a line's first byte to its end, in milliseconds.
    pub line_timeout_ms: u64,
    /// Items of an inline batch.
    pub inline_items: u32,
    /// Tokens of an inline batch.
    pub inline_tokens: u32,
    /// Bytes of all texts of an inline batch.
    pub inline_text_bytes: u64,
    /// Bytes of one text.
    pub inline_item_bytes: u64,
    /// Candidates of a `rerank.score` that is answered inline.
    pub rerank_candidates: u32,
    /// Candidates of a `rerank.score` that is answered on the interactive lane.
    pub rerank_interactive_candidates: u32,
    /// Tokens of a `rerank.score` that is answered inline, over all pairs.
    pub rerank_tokens: u32,
    /// Texts of one job.
    pub job_items: u64,
    /// Bytes of text of one job.
    pub job_bytes: u64,
    /// Jobs that are open for texts at once.
    pub open_jobs: u32,
    /// Bytes of text in all open jobs together.
    pub open_job_bytes: u64,
    /// Jobs that are queued or running at once.
    pub live_jobs: u32,
    /// How long a job is remembered after its end, in milliseconds, with its texts and pages.
    pub job_ttl_ms: u64,
    /// Tokens that `microllm.oneshot` generates at most.
    pub microllm_max_tokens: u32,
    /// The deadline of a request that names none, in milliseconds.
    pub default_deadline_ms: u64,
    /// The longest wait of a request that names none, in milliseconds.
    pub default_max_queue_ms: u64,
}

/// Result of `server.info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerInfoResult {
    /// `synapse`.
    pub name: String,
    /// The daemon's version.
    pub version: String,
    /// The version of this wire, `MAJOR.MINOR`.
    pub api_version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// When it started: milliseconds since 1970-01-01 UTC.
    pub started_ms: u64,
    /// Its data directory.
    pub data_dir: String,
    /// Its socket.
    pub socket: String,
    /// Its limits.
    pub limits: Limits,
    /// What it offers, as sorted words, for example `embed`, `encoding.base64`.
    pub capabilities: Vec<String>,
}

/// Params of `health`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthParams {}

/// The summary of health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Everything serves.
    Ok,
    /// Something does not, or not yet; `text` says what.
    Degraded,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// One lane that has a model loaded or loading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneHealth {
    /// The lane, `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// The state of the model on it.
    pub state: ModelState,
    /// Interactive requests that wait.
    pub queued_interactive: u32,
    /// Bulk requests that wait.
    pub queued_bulk: u32,
    /// Calls in the engine now.
    pub in_flight: u32,
    /// Milliseconds since a serving path last stamped this row (HEALTH-03).
    pub age_ms: u64,
    /// Where the lane stands with its certificate: `stale`, `failed` and `unprobed` lanes are closed, unless the daemon's
    /// configuration lets uncertified lanes serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certification: Option<LaneVerdict>,
}

/// The state of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelHealth {
    /// The catalog id.
    pub id: String,
    /// Where it stands.
    pub state: ModelState,
}

/// Bundles by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginCounts {
    /// May serve.
    pub ready: u32,
    /// Need a worker.
    pub needs_worker: u32,
    /// Refused.
    pub refused: u32,
    /// Quarantined.
    pub quarantined: u32,
    /// Shadowed.
    pub shadowed: u32,
    /// Switched off by the operator.
    #[serde(default)]
    pub disabled: u32,
    /// Have new files that are not taken (`plugins.list` says why); they are counted above as well.
    #[serde(default)]
    pub pending: u32,
}

/// Jobs that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobCounts {
    /// Wait.
    pub queued: u32,
    /// Run.
    pub running: u32,
}

/// One worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerHealth {
    /// The worker's name.
    pub worker: String,
    /// Whether it lives.
    pub alive: bool,
    /// Milliseconds since this row was last stamped.
    pub age_ms: u64,
}

/// Result of `health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthResult {
    /// The summary.
    pub status: HealthStatus,
    /// The summary in words, for example `loading all-minilm-l6-v2`.
    pub text: String,
    /// Milliseconds since the daemon's start.
    pub uptime_ms: u64,
    /// Lanes with a model loaded or loading.
    pub lanes: Vec<LaneHealth>,
    /// Models that were asked for since the start; `models.list` has all.
    pub models: Vec<ModelHealth>,
    /// Bundles by verdict.
    pub plugins: PluginCounts,
    /// Jobs that have not ended.
    pub jobs: JobCounts,
    /// Whether the database takes writes.
    pub store_ok: bool,
    /// Worker processes.
    pub workers: Vec<WorkerHealth>,
}

/// Params of `request.cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestCancelParams {
    /// The JSON-RPC id of a request of the same connection.
    pub id: Id,
}

/// Result of `request.cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestCancelResult {
    /// Whether such a request was in flight. Its own answer follows in any case: a result or `cancelled`.
    pub found: bool,
}

operation!(
    /// `server.info`.
    ServerInfo(ServerInfoParams) -> ServerInfoResult
);
operation!(
    /// `health`.
    Health(HealthParams) -> HealthResult
);
operation!(
    /// `request.cancel`.
    RequestCancel(RequestCancelParams) -> RequestCancelResult
);
