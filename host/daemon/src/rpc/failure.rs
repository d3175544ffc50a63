//! A typed failure of one request, job or item, made from a row of the table of public errors.
//!
//! State: none. Callers: every operation makes [`ServiceError`]s; `reply` writes them; the registry of jobs keeps them.
//! Not known here: which codes there are; `error.rs` has the table.

use std::fmt;

use synapse_wire::client::{Class, ErrorCode, ErrorDetail, Failure};

use super::error::{INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, row};

/// A typed failure of one request, job or item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceError {
    code: ErrorCode,
    integer: i32,
    class: Class,
    retry_after_ms: Option<u64>,
    safe: bool,
    message: String,
    detail: Option<Box<ErrorDetail>>,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServiceError {}

/// Constructors that take a message: what was wrong, what was expected, what to do.
macro_rules! constructors {
    ($($(#[$meta:meta])* $name:ident => $code:ident;)*) => {
        impl ServiceError {
            $($(#[$meta])*
            #[must_use]
            pub fn $name(message: impl Into<String>) -> Self {
                Self::new(ErrorCode::$code, message)
            })*
        }
    };
}

constructors! {
    /// The parameters say something that cannot be (-32602).
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
    /// The request key was used with another payload.
    idempotency_conflict => IdempotencyConflict;
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
    /// A failure with the number, class and delay of `code`'s row.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let row = row(&code);
        Self {
            integer: row.integer,
            class: row.class,
            retry_after_ms: row.retry_after_ms,
            safe: row.safe_to_retry_same_request,
            message: message.into(),
            detail: None,
            code,
        }
    }

    /// The line is not JSON (-32700).
    #[must_use]
    pub fn parse_error(message: impl Into<String>) -> Self {
        Self {
            integer: PARSE_ERROR,
            ..Self::new(ErrorCode::InvalidRequest, message)
        }
    }

    /// The JSON is no request, or not one that may stand here (-32600).
    #[must_use]
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self {
            integer: INVALID_REQUEST,
            ..Self::new(ErrorCode::InvalidRequest, message)
        }
    }

    /// No such method (-32601).
    #[must_use]
    pub fn method_not_found(message: impl Into<String>) -> Self {
        Self {
            integer: METHOD_NOT_FOUND,
            ..Self::new(ErrorCode::InvalidRequest, message)
        }
    }

    /// The request was cancelled.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::new(ErrorCode::Cancelled, "the request was cancelled")
    }

    /// The daemon is stopping.
    #[must_use]
    pub fn shutting_down() -> Self {
        Self::new(
            ErrorCode::ShuttingDown,
            "the daemon is stopping; start it again with `synapse serve`, then retry",
        )
    }

    /// Makes the failure permanent: the same request will fail again (ERR-06).
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.class = Class::Permanent;
        self.retry_after_ms = None;
        self.safe = false;
        self
    }

    /// Makes the failure transient: the same request may succeed after so many milliseconds.
    #[must_use]
    pub fn transient(mut self, retry_after_ms: u64) -> Self {
        self.class = Class::Transient;
        self.retry_after_ms = Some(retry_after_ms);
        self.safe = true;
        self
    }

    /// Sets the delay after which a retry makes sense, in milliseconds. A permanent failure has none (ERR-04).
    #[must_use]
    pub fn retry_after(mut self, milliseconds: u64) -> Self {
        if self.class == Class::Transient {
            self.retry_after_ms = Some(milliseconds);
        }
        self
    }

    /// Adds facts to `error.data.detail`. Never a text, token or vector of the caller (LOG-11).
    #[must_use]
    pub fn detail(mut self, fill: impl FnOnce(&mut ErrorDetail)) -> Self {
        fill(self.detail.get_or_insert_default());
        self
    }

    /// The public code.
    #[must_use]
    pub const fn code(&self) -> &ErrorCode {
        &self.code
    }

    /// The JSON-RPC integer.
    #[must_use]
    pub const fn integer(&self) -> i32 {
        self.integer
    }

    /// Whether trying again later can help.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// When to try again, in milliseconds; transient failures only.
    #[must_use]
    pub const fn retry_after_ms(&self) -> Option<u64> {
        self.retry_after_ms
    }

    /// Whether the very same request may be sent again without doing anything twice.
    #[must_use]
    pub const fn safe_to_retry_same_request(&self) -> bool {
        self.safe
    }

    /// What was wrong, what was expected, what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The facts.
    #[must_use]
    pub fn facts(&self) -> Option<&ErrorDetail> {
        self.detail.as_deref()
    }

    /// The failure as it stands inside a result: of one item of a batch, or of a job.
    #[must_use]
    pub fn failure(&self) -> Failure {
        Failure {
            code: self.code.clone(),
            message: self.message.clone(),
            class: self.class,
            retry_after_ms: self.retry_after_ms,
            safe_to_retry_same_request: self.safe,
            detail: self.detail.clone(),
        }
    }
}
