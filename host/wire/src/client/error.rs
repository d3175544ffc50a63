//! The error contract: stable string codes, their class, and what accompanies an error (ERR-01..05).
//!
//! No state. Which integer, class and meaning belongs to which code is one table in `daemon/rpc/error.rs` (rendered to
//! docs/errors.md); this file only knows the names and the shape. Clients decide by `code`, and by `class` where they
//! do not know the code.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// A stable error code. The list is frozen, but open for readers: a code of a newer daemon arrives as
        /// [`ErrorCode::Other`], and the error's [`Class`] says how to treat it.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
            /// A code that this version does not know.
            Other(String),
        }

        impl ErrorCode {
            /// Every code of this version, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as it stands on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(name) => name,
                }
            }
        }

        impl From<&str> for ErrorCode {
            fn from(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    other => Self::Other(other.to_owned()),
                }
            }
        }
    };
}

error_codes! {
    /// The line is not one JSON object, the envelope or the params are wrong, or the operation is unknown.
    InvalidRequest = "invalid_request";
    /// A bound on waiting work is reached.
    QueueFull = "queue_full";
    /// The request's deadline passed.
    DeadlineExceeded = "deadline_exceeded";
    /// The model is being loaded.
    ModelLoading = "model_loading";
    /// No lane may serve this model.
    NotCertified = "not_certified";
    /// A lane exists, but not in the numeric space that was asked for.
    SubstitutionRejected = "substitution_rejected";
    /// A model file is not what its record says.
    ArtifactInvalid = "artifact_invalid";
    /// The engine failed in a way that ended it.
    EngineCrashed = "engine_crashed";
    /// A probe must run first.
    ProbeRequired = "probe_required";
    /// The index spans a numeric space that was retracted.
    MigrationRequired = "migration_required";
    /// The daemon restarted since the job was accepted.
    ModuleRestarted = "module_restarted";
    /// The build has no grammar support.
    GrammarUnavailableInBuild = "grammar_unavailable_in_build";
    /// A device shape is being compiled.
    ShapeCompiling = "shape_compiling";
    /// The Neural Engine refused for lack of resources.
    AneResourcesExhausted = "ane_resources_exhausted";
    /// The Neural Engine's temporary space is low.
    AneTempSpaceLow = "ane_temp_space_low";
    /// The catalog has no such model or lane.
    UnknownModel = "unknown_model";
    /// The model is in the catalog, but its files are not here.
    ModelNotInstalled = "model_not_installed";
    /// A text has more tokens than the model takes, and truncation was refused.
    InputTooLong = "input_too_long";
    /// A text is not valid Unicode.
    InvalidText = "invalid_text";
    /// The engine's output holds a value that is not finite.
    NonFiniteOutput = "non_finite_output";
    /// A size cap is exceeded; `detail` names it.
    LimitExceeded = "limit_exceeded";
    /// This daemon, model or engine does not offer it.
    Unsupported = "unsupported";
    /// The request or the job was cancelled.
    Cancelled = "cancelled";
    /// No such job, or it has expired.
    UnknownJob = "unknown_job";
    /// The same `request_key` came with another payload.
    IdempotencyConflict = "idempotency_conflict";
    /// A source could not deliver the files.
    DownloadFailed = "download_failed";
    /// A file or the database could not be read or written.
    StorageFailed = "storage_failed";
    /// The plugin that would serve this was refused.
    PluginRefused = "plugin_refused";
    /// The daemon is stopping.
    ShuttingDown = "shutting_down";
    /// A fault of the daemon itself.
    Internal = "internal";
    /// A gate in the configuration is closed; `detail.config` names it.
    Disabled = "disabled";
    /// Grammars are switched off in the configuration.
    GrammarDisabled = "grammar_disabled";
    /// The grammar does not parse.
    GrammarInvalid = "grammar_invalid";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?.as_str()))
    }
}

impl JsonSchema for ErrorCode {
    fn schema_name() -> Cow<'static, str> {
        "ErrorCode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let known: Vec<&str> = Self::ALL.iter().map(Self::as_str).collect();
        json_schema!({
            "description": "A stable error code. The listed codes are those of this version; treat a code that you do not know by its class.",
            "type": "string",
            "examples": known
        })
    }
}

/// Whether trying again later can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It may succeed later; `retry_after_ms` says when to try.
    Transient,
    /// It will fail again until something is changed.
    Permanent,
}

/// Facts about an error, each present only where it applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ErrorDetail {
    /// A machine-readable reason within the code, for example `epoch_mismatch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The request field that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The name of the cap that was exceeded, as in `server.info.limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The cap's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum: Option<u64>,
    /// What the request had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<u64>,
    /// The model concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The lane concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// The plugin concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// The job that works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The configuration field that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Where an engine failed: `load`, `call`, `panic`, `timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The engine's own code, in the plugin contract's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_code: Option<String>,
    /// The last output of a worker, at most 8 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
    /// The alias table's epoch now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_epoch: Option<u64>,
    /// The fingerprint that would have served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The pair of fingerprints that was retracted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retracted_pair: Option<[String; 2]>,
    /// The fingerprint to rebuild an index for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuild_target: Option<String>,
}

/// An error inside a result: of one item of a batch, or of a job that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// What happened.
    pub code: ErrorCode,
    /// What was wrong, what was expected, what to do. For people; programs read `code`.
    pub message: String,
    /// Whether trying again can help.
    pub class: Class,
    /// Transient errors only: when to try again, in milliseconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whether the very same request may be sent again without doing anything twice.
    pub safe_to_retry_same_request: bool,
    /// Further facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<ErrorDetail>>,
}

/// `error.data` of a failed request (ERR-05).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorData {
    /// What happened.
    pub code: ErrorCode,
    /// Whether trying again can help.
    pub class: Class,
    /// Transient errors only: when to try again, in milliseconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whether the very same request may be sent again without doing anything twice.
    pub safe_to_retry_same_request: bool,
    /// The daemon's start number (API-13).
    pub module_generation: u64,
    /// The daemon's name for this request; its log lines carry it too.
    pub request_id: String,
    /// Further facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<ErrorDetail>>,
}

/// `error` of a failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorObject {
    /// The JSON-RPC integer: -32700 (not JSON), -32600 (not a request), -32601 (unknown method), -32602 (wrong
    /// params), otherwise one of -32000..-32099, fixed per code.
    pub code: i32,
    /// What was wrong, what was expected, what to do. For people; programs read `data.code`.
    pub message: String,
    /// The typed part.
    pub data: ErrorData,
}
