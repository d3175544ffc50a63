//! The table of public errors: every code a client can see, with its number, class and advice.
//!
//! State: none. Callers: every operation makes a [`ServiceError`] here; `rpc/reply.rs` writes it; docs/errors.md is
//! generated from [`TABLE`]. The errors of the other crates become public codes here and nowhere else. Not known
//! here: connections and requests.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// A public error code (ERR-01, ERR-02, DECISIONS "errors"). The set is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// The request itself is malformed.
    InvalidRequest,
    /// No such model in the catalog.
    UnknownModel,
    /// The model's files are not on this machine.
    ModelNotInstalled,
    /// The model is being loaded.
    ModelLoading,
    /// The text has more tokens than the model takes and may not be cut.
    InputTooLong,
    /// The text is not valid Unicode.
    InvalidText,
    /// A limit of the daemon was passed.
    LimitExceeded,
    /// The model or engine cannot do what was asked.
    Unsupported,
    /// No room to accept more work now.
    QueueFull,
    /// The deadline passed.
    DeadlineExceeded,
    /// The request was cancelled.
    Cancelled,
    /// No lane of the model is certified for what was asked.
    NotCertified,
    /// A lane exists, but not the numeric space that was required.
    SubstitutionRejected,
    /// A probe must run first.
    ProbeRequired,
    /// An index spans a retracted pair of spaces.
    MigrationRequired,
    /// A model file is not what its record says.
    ArtifactInvalid,
    /// The engine failed.
    EngineCrashed,
    /// The engine gave a number that is not finite.
    NonFiniteOutput,
    /// The daemon restarted while the job was open.
    ModuleRestarted,
    /// No such job.
    UnknownJob,
    /// The request key was used with another payload.
    IdempotencyConflict,
    /// A download failed.
    DownloadFailed,
    /// The disk or the database failed.
    StorageFailed,
    /// The engine bundle was refused.
    PluginRefused,
    /// The daemon is stopping.
    ShuttingDown,
    /// A gate in the configuration is closed.
    Disabled,
    /// A defect of the daemon.
    Internal,
    /// The grammar gate is closed.
    GrammarDisabled,
    /// The grammar does not parse.
    GrammarInvalid,
    /// This build has no grammar sampling.
    GrammarUnavailableInBuild,
    /// A shape is being compiled.
    ShapeCompiling,
    /// The Neural Engine has no resources left.
    AneResourcesExhausted,
    /// Too little space for the Neural Engine's temporary files.
    AneTempSpaceLow,
}

/// Whether a later attempt can succeed without a change by the caller (ERR-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A later attempt can succeed.
    Transient,
    /// It will not succeed until something changes.
    Permanent,
}

/// A typed failure of one request, job or item.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceError {
    code: Code,
    message: String,
    retry_after_ms: Option<u64>,
    detail: BTreeMap<&'static str, Value>,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServiceError {}

macro_rules! constructors {
    ($($(#[$meta:meta])* $name:ident => $code:ident;)*) => {
        impl ServiceError {
            $($(#[$meta])*
            #[must_use]
            pub fn $name(message: impl Into<String>) -> Self {
                Self::new(Code::$code, message)
            })*
        }
    };
}

constructors! {
    /// The parameters are well-formed JSON but say something that cannot be (-32602).
    invalid_params => InvalidRequest;
    /// The catalog has no such model.
    unknown_model => UnknownModel;
    /// The model's files are not on this machine.
    model_not_installed => ModelNotInstalled;
    /// The model is being loaded; try again.
    model_loading => ModelLoading;
    /// The text is longer than the model takes, and truncation is off.
    input_too_long => InputTooLong;
    /// The text is not valid Unicode.
    invalid_text => InvalidText;
    /// A limit was passed; the message names it.
    limit_exceeded => LimitExceeded;
    /// The model or engine cannot do this.
    unsupported => Unsupported;
    /// No room now; try again.
    queue_full => QueueFull;
    /// The deadline passed.
    deadline_exceeded => DeadlineExceeded;
    /// No certified lane.
    not_certified => NotCertified;
    /// Another numeric space than the required one.
    substitution_rejected => SubstitutionRejected;
    /// A probe must run first (or the model is quarantined).
    probe_required => ProbeRequired;
    /// A model file is not what its record says.
    artifact_invalid => ArtifactInvalid;
    /// The engine failed.
    engine_crashed => EngineCrashed;
    /// The engine's output holds a number that is not finite.
    non_finite_output => NonFiniteOutput;
    /// No such job, or it has expired.
    unknown_job => UnknownJob;
    /// A download failed.
    download_failed => DownloadFailed;
    /// The disk or the database failed.
    storage_failed => StorageFailed;
    /// The engine bundle was refused.
    plugin_refused => PluginRefused;
    /// A gate in the configuration is closed.
    disabled => Disabled;
    /// A defect of the daemon; the log has more.
    internal => Internal;
}

impl ServiceError {
    /// A failure with the class, advice and delay of `code`'s row.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after_ms: None,
            detail: BTreeMap::new(),
        }
    }

    /// The request was cancelled.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::new(Code::Cancelled, "the request was cancelled")
    }

    /// The daemon is stopping.
    #[must_use]
    pub fn shutting_down() -> Self {
        Self::new(
            Code::ShuttingDown,
            "the daemon is stopping; start it again with `synapse serve`, then retry",
        )
    }

    /// Sets the delay after which a retry makes sense, in milliseconds. Ignored for a permanent error (ERR-04).
    #[must_use]
    pub fn retry_after(mut self, milliseconds: u64) -> Self {
        self.retry_after_ms = Some(milliseconds);
        self
    }

    /// Adds one fact to `error.data.detail`. Never a text, token or vector of the caller (LOG-11).
    #[must_use]
    pub fn detail(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.detail.insert(key, value.into());
        self
    }

    /// The public code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// What was wrong, what was expected, what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}
