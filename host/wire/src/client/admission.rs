//! `admission.status`: how busy the lanes are (API-25, SCHED-01).
//!
//! No state. It is advice: what is shown is of the moment, and no request is admitted or refused by it. What a request may
//! wait is its own `max_queue_ms` and `deadline_ms`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::method::operation;

/// Params of `admission.status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdmissionStatusParams {}

/// One queue of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueStatus {
    /// Calls that wait.
    pub waiting: u32,
    /// Calls that may wait; the next one is refused with `queue_full`.
    pub max_waiting: u32,
    /// Calls in the engine, or held at a checkpoint.
    pub running: u32,
}

/// How long the last quanta of bulk work took, in microseconds of engine time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuantumTimes {
    /// The median.
    pub p50: u64,
    /// 95 percent took no longer.
    pub p95: u64,
    /// Quanta that this is taken from, at most 128.
    pub count: u32,
}

/// One lane whose model is in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneAdmission {
    /// The lane, `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// Queries, small batches and small reranks, by deadline.
    pub interactive: QueueStatus,
    /// Everything larger, a quantum at a time.
    pub bulk: QueueStatus,
    /// Work on the lane itself: probes.
    pub control: QueueStatus,
    /// Bytes of queued inputs, running calls, and results that wait for their readers.
    pub bytes: u64,
    /// Bytes that there may be; a call beyond them is refused with `queue_full`.
    pub byte_budget: u64,
    /// No call of the last minute came too late for its start, or was refused because it would have.
    pub meeting_deadlines: bool,
    /// The median wait of interactive calls for their start, in microseconds, over the last minute and at most 64 calls;
    /// absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_delay_p50_us: Option<u64>,
    /// Tokens of the next quantum of bulk work.
    pub quantum_tokens: u64,
    /// The last quanta of bulk work; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum_us: Option<QuantumTimes>,
    /// Tokens a second in bulk calls; absent before anything was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk_tokens_per_s: Option<u64>,
    /// Whether the lane's certificate is of another machine, bundle or configuration; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certification_stale: Option<bool>,
    /// Whether the lane's performance rows are; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub performance_stale: Option<bool>,
}

/// The daemon's compute permits: threads that compute at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PermitStatus {
    /// Permits that there are.
    pub total: u32,
    /// Held by bulk calls.
    pub bulk: u32,
    /// Held by interactive and control calls, which may overdraw the total.
    pub others: u32,
}

/// Result of `admission.status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionStatusResult {
    /// The lanes whose models are in memory, by name.
    pub lanes: Vec<LaneAdmission>,
    /// The daemon's compute permits.
    pub permits: PermitStatus,
}

operation!(
    /// `admission.status`.
    AdmissionStatus(AdmissionStatusParams) -> AdmissionStatusResult
);
