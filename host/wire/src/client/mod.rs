//! The client wire: everything that a program which talks to the daemon reads or writes.
//!
//! No state. Each operation is a unit type that implements [`Operation`] and so ties its [`Method`] name to the type
//! of its params and of its result. Request types refuse unknown fields by name; response types ignore what they do
//! not know, and enums in responses have an `unknown` value, so that an older client can talk to a newer daemon.

pub mod admission;
pub mod alias;
pub mod batch_job;
pub mod constraints;
pub mod embed;
pub mod envelope;
pub mod error;
pub mod explain;
pub mod job;
mod kept;
pub mod method;
pub mod model;
pub mod oneshot;
pub mod plugin;
pub mod probe;
pub mod rerank;
pub mod served;
pub mod server;
pub mod text;
pub mod vector;

pub use admission::{
    AdmissionStatus, AdmissionStatusParams, AdmissionStatusResult, LaneAdmission, PermitStatus, QuantumTimes,
    QueueStatus,
};
pub use alias::{
    AliasEntry, AliasOrigin, AliasState, AliasesCheckIndex, AliasesCheckIndexParams, AliasesCheckIndexResult,
    AliasesDeclare, AliasesDeclareParams, AliasesList, AliasesListParams, AliasesResult, AliasesRetract,
    AliasesRetractParams, IndexState, MAX_PROVENANCE,
};
pub use batch_job::{
    EmbedJobOptions, JobAppend, JobAppendParams, JobAppendResult, JobCreate, JobCreateParams, JobOperation, JobPage,
    JobPageResult, JobPages, JobResultParams, JobSeal, RerankJobOptions, ScorePage,
};
pub use constraints::Constraints;
pub use embed::{
    BatchItem, EmbedBatch, EmbedBatchParams, EmbedBatchResult, EmbedQuery, EmbedQueryParams, EmbedReply, Provenance,
    Role,
};
pub use envelope::{
    EnvelopeError, EnvelopeFault, Id, ParamsError, Request, Response, Stamp, Stamped, encode_error, encode_request,
    encode_result, parse_params, parse_request, parse_response,
};
pub use error::{Class, ErrorCode, ErrorData, ErrorDetail, ErrorObject, Failure};
pub use explain::{ExplainedLane, ModelsExplain, ModelsExplainParams, ModelsExplainResult, Workload};
pub use job::{
    JobAccepted, JobCancel, JobKind, JobList, JobListParams, JobListResult, JobParams, JobProgress, JobResult,
    JobState, JobStatus, JobView, JobWait, LoadOutcome, PullOutcome,
};
pub use kept::StoredError;
pub use method::{Method, Operation};
pub use model::{
    LaneEntry, LaneStatus, ModelEntry, ModelKind, ModelLoad, ModelParams, ModelState, ModelStatus, ModelStatusResult,
    ModelUnload, ModelUnloadResult, ModelsList, ModelsListParams, ModelsListResult, ModelsPull, ModelsPullParams,
    ModelsRemove, ModelsRemoveResult, PullSource,
};
pub use oneshot::{FinishReason, MicrollmOneshot, MicrollmOneshotParams, MicrollmOneshotResult};
pub use plugin::{
    PluginChange, PluginChangeKind, PluginEngine, PluginEntry, PluginPending, PluginStatus, PluginsList,
    PluginsListParams, PluginsListResult, PluginsRescan, PluginsRescanParams, PluginsRescanResult,
};
pub use probe::{
    CertificateKey, Figure, GateOutcome, GateReport, LaneReport, LaneVerdict, MachineFact, MachineReport, PairReport,
    PerformanceFigures, PerformancePoint, PerformanceRow, ProbeFindings, ProbeOutcome, ProbeReport, ProbeReportParams,
    ProbeReportResult, ProbeStart, ProbeStartParams, ProbeState, ProbeStatus, ProbeStatusParams, ProbeStatusResult,
    ProbedAt, ProbedLane, ShapeReport, SizeClass, WorkloadAssignment,
};
pub use rerank::{RerankReply, RerankScore, RerankScoreParams, RerankScoreResult, ScoreKind};
pub use served::{ItemOutcome, Placement, ServedBy};
pub use server::{
    Health, HealthParams, HealthResult, HealthStatus, JobCounts, LaneHealth, Limits, ModelHealth, PluginCounts,
    RequestCancel, RequestCancelParams, RequestCancelResult, ServerInfo, ServerInfoParams, ServerInfoResult,
    WorkerHealth,
};
pub use text::{InvalidText, Text, TextTokenize, TokenizeParams, TokenizeResult};
pub use vector::{Encoding, Vector, VectorError};
