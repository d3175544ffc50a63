//! Probes: what each lane was measured to be on this machine, and how to measure it (API-21, API-22).
//!
//! No state. `daemon/probe` runs the measurements and keeps them; what is measured and what it takes to pass is
//! `synapse-certify`'s. Figures are stored, not only verdicts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ErrorCode;
use super::job::{JobAccepted, JobView};
use super::kept::kept_as_text;
use super::method::operation;
use super::model::ModelKind;

/// Params of `probe.start`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeStartParams {
    /// Models (every lane of each that can serve here) or lanes, `MODEL@ENGINE[:VARIANT]`; default: every lane that can
    /// serve an installed model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

/// Params of `probe.status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeStatusParams {
    /// The job; default: the newest probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
}

/// Result of `probe.status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeStatusResult {
    /// The job; absent where this run of the daemon has had no probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobView>,
    /// Its lanes, in the order in which they are probed.
    pub lanes: Vec<ProbedLane>,
}

/// Where one lane of a probe stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    /// Its turn has not come.
    Waiting,
    /// It is being loaded or measured.
    Running,
    /// It passed; its certificate is written.
    Certified,
    /// It failed; it stays closed.
    Failed,
    /// The probe ended before its turn, or in the middle of it; nothing was written.
    Dropped,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ProbeState {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Certified => "certified",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
            Self::Unknown => "unknown",
        }
    }
}

/// One lane of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbedLane {
    /// The lane, `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// Where it stands.
    pub state: ProbeState,
    /// The certificate's level, `reference` or `consistent`, of a lane that passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Why it failed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a finished probe gave: the result of its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeOutcome {
    /// Every lane with its verdict, in the order in which they were probed.
    pub probed: Vec<ProbedLane>,
}

/// Params of `probe.report`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeReportParams {
    /// Models or lanes to show; default: every lane of every installed model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

/// Result of `probe.report`: the whole measured table, from memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeReportResult {
    /// This machine as certificates know it.
    pub machine: MachineReport,
    /// The knob that the daemon was started with; a change of the setting counts from the next start on (CERT-14).
    pub knob: String,
    /// Threads that one engine call may use under that knob.
    pub threads: u32,
    /// The lanes, by model and in the catalog's order.
    pub lanes: Vec<LaneReport>,
    /// Pairs of lanes whose vectors were compared, for indexes that hold both.
    pub pairs: Vec<PairReport>,
    /// Which lane each kind of work goes to, for each model with a certified lane.
    pub assignments: Vec<WorkloadAssignment>,
}

/// This machine (CERT-04).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineReport {
    /// The machine in one line.
    pub words: String,
    /// SHA-256 over the facts, lower-case hex. Each lane's own profile has its engine's build besides.
    pub hash: String,
    /// The facts that are hashed.
    pub facts: Vec<MachineFact>,
}

/// One fact of the machine profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineFact {
    /// Its name, for example `os_build`.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Where a lane stands with its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneVerdict {
    /// It holds a certificate for exactly this machine, model, bundle and configuration.
    Certified,
    /// Its last probe failed.
    Failed,
    /// What certificate it has is for another machine profile, bundle, model or configuration.
    Stale,
    /// It was never probed.
    Unprobed,
    /// It cannot serve here at all; `reason` says why.
    Unusable,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl LaneVerdict {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Certified => "certified",
            Self::Failed => "failed",
            Self::Stale => "stale",
            Self::Unprobed => "unprobed",
            Self::Unusable => "unusable",
            Self::Unknown => "unknown",
        }
    }
}

/// One lane of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LaneReport {
    /// The lane, `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// The model.
    pub model: String,
    /// What the model is for.
    pub kind: ModelKind,
    /// Where the lane stands.
    pub verdict: LaneVerdict,
    /// The certificate's level, `reference` or `consistent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Whether queries may be served by the lane: false where a query's vector differs from the same text's in a batch
    /// (CERT-03). Absent without a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_path: Option<bool>,
    /// The certificate that is there is for something else than runs now.
    pub certification_stale: bool,
    /// The measured times that are there are for something else than runs now.
    pub performance_stale: bool,
    /// What stands between the lane and its service: `probe_required` (ERR-15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocking_reason: Option<ErrorCode>,
    /// Why it is not certified, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the certificate is bound to now; absent for a lane that cannot serve here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<CertificateKey>,
    /// When and where the findings were made; absent where the lane was never probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probed: Option<ProbedAt>,
    /// What the probe found; absent where the lane was never probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub findings: Option<ProbeFindings>,
    /// The measured times, one row for each kind of work and knob (OQ-26).
    pub performance: Vec<PerformanceRow>,
}

/// What a certificate is bound to: a change of any part closes the lane until a probe (CERT-12).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateKey {
    /// The machine with the engine's build, lower-case hex (CERT-04).
    pub machine_profile_hash: String,
    /// The numeric space with the record's defaults, lower-case hex.
    pub numeric_profile_id: String,
    /// SHA-256 over the model's files, lower-case hex.
    pub model_digest: String,
    /// SHA-256 of the plugin bundle, lower-case hex.
    pub bundle_digest: String,
    /// The bundle's package version.
    pub engine_version: String,
    /// SHA-256 over the settings that the engine runs with, lower-case hex.
    pub runtime_config_hash: String,
}

/// When and where a lane was probed (CERT-13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbedAt {
    /// Milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// The machine profile then.
    pub machine_profile_hash: String,
    /// The operating system's build then.
    pub os_build: String,
    /// The daemon's start number then.
    pub module_generation: u64,
}

/// What a probe found on one lane, apart from times. Kept in the store as it is here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeFindings {
    /// The gates, each with its figures.
    pub gates: Vec<GateReport>,
    /// Every shape of the envelope that was tried (CERT-02).
    pub shapes: Vec<ShapeReport>,
    /// The sizes of batches that may be served, each a numeric space of its own; more than one is a profile that was
    /// split (FPR-04).
    pub classes: Vec<SizeClass>,
    /// Why the lane may not serve batches, or not every size of its envelope; absent where it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batching: Option<String>,
    /// SHA-256 of the texts that were tried; absent where the model could not even be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corpus: Option<String>,
    /// SHA-256 of the independent implementation's vectors; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub references: Option<String>,
    /// Why nothing was measured, where the engine could not be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// What a gate came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateOutcome {
    /// Every figure is within its bound.
    Passed,
    /// One is not, or one that must be there is missing.
    Failed,
    /// The engine does not claim it, or the model has no such thing.
    NotApplicable,
    /// The probe ended before it.
    NotRun,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

impl GateOutcome {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotApplicable => "not_applicable",
            Self::NotRun => "not_run",
            Self::Unknown => "unknown",
        }
    }
}

/// One gate: what was asked, what was measured, whether it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GateReport {
    /// The gate's name, for example `shape_invariance`.
    pub gate: String,
    /// What it came to.
    pub outcome: GateOutcome,
    /// Whether a lane that fails it stays closed. `query_batch` is the one that is not required: failing it keeps
    /// queries from the lane, and nothing else.
    pub required: bool,
    /// The figures, each with its bound where it has one.
    pub figures: Vec<Figure>,
    /// What was found, for people: the worst text or shape, or why nothing was tried.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// One measured figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// What was measured, for example `min_cosine`.
    pub name: String,
    /// How much it is; absent where it is no finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The least that it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The most that it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

/// One tried shape, and how far its vectors were from those of the same texts alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShapeReport {
    /// Items of the engine call.
    pub items: u32,
    /// Tokens of its longest item.
    pub longest: u32,
    /// Tokens of all items.
    pub tokens: u64,
    /// How it was put together: `even`, `mixed`, `ramp`, `corner`, `corpus`.
    pub composition: String,
    /// The largest difference of a value; absent where it is no finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_abs: Option<f64>,
    /// The smallest cosine; absent where it is no finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_cosine: Option<f64>,
}

/// A range of batch sizes whose vectors are of one space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SizeClass {
    /// What enters the numeric profile; absent where the profile is not split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The fewest items of a call.
    pub from_items: u32,
    /// The most items of a call.
    pub to_items: u32,
}

/// Measured times of one kind of work under one knob (OQ-26).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PerformanceRow {
    /// The kind of work: `query`, `batch`, `rerank` or `generate`.
    pub workload: String,
    /// The knob that it was measured under.
    pub knob: String,
    /// The threads of each call.
    pub threads: u32,
    /// Tokens a second: what lanes of one model are compared by at this work.
    pub tokens_per_second: f64,
    /// Milliseconds since 1970-01-01 UTC.
    pub measured_ms: u64,
    /// The figures.
    pub figures: PerformanceFigures,
}

/// The figures of a [`PerformanceRow`]. Kept in the store as it is here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PerformanceFigures {
    /// Milliseconds of the load, from its start to a model that serves.
    pub cold_load_ms: u64,
    /// Bytes of resident memory of the process that holds the model; absent where the system does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// Each size that was timed.
    pub points: Vec<PerformancePoint>,
}

/// Measured times of one size of call, each call with texts of its own (CERT-20).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PerformancePoint {
    /// What was timed, for example `query_32` (a query of 32 tokens) or `batch_8` (calls of 8 texts of 32 tokens).
    pub name: String,
    /// Calls that were timed.
    pub samples: u32,
    /// Tokens of one call, the mean over all.
    pub tokens_per_call: f64,
    /// The median of a call, in milliseconds.
    pub p50_ms: f64,
    /// The 95th percentile of a call, in milliseconds.
    pub p95_ms: f64,
    /// Tokens a second over all calls; generated ones where something is generated.
    pub tokens_per_second: f64,
}

/// Two lanes whose vectors were compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairReport {
    /// The lanes.
    pub lanes: [String; 2],
    /// Their fingerprints.
    pub fingerprints: [String; 2],
    /// The length of the vectors as served; a pair holds for one shape.
    pub dims: u32,
    /// Whether they are scaled to length 1.
    pub normalized: bool,
    /// Whether vectors of the one may stand beside those of the other now.
    pub holds: bool,
    /// The comparison.
    pub gate: GateReport,
}

kept_as_text!(
    ProbeFindings = "findings of a probe",
    PerformanceFigures = "times of a probe",
    GateReport = "comparison of two lanes"
);

/// Where one kind of work of a model goes, by its measured figures (CERT-13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadAssignment {
    /// The model.
    pub model: String,
    /// The kind of work, as in [`PerformanceRow::workload`].
    pub workload: String,
    /// The knob under which that holds.
    pub knob: String,
    /// The lane.
    pub lane: String,
}

operation!(
    /// `probe.start`.
    ProbeStart(ProbeStartParams) -> JobAccepted
);
operation!(
    /// `probe.status`.
    ProbeStatus(ProbeStatusParams) -> ProbeStatusResult
);
operation!(
    /// `probe.report`.
    ProbeReport(ProbeReportParams) -> ProbeReportResult
);
