//! How an author says that a call failed.
//!
//! Owns no state. A struct, not an enum, because the contract's codes are an open list; the shims turn it into
//! [`crate::api::EngineError`] field by field.

use std::fmt;

use crate::api::{EngineError, EngineState, ErrorCode};

/// A failed call: a code of the contract, what it leaves behind, and one message that says what was wrong, what was
/// expected and what to do. Never put input text into the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What went wrong.
    pub code: ErrorCode,
    /// What may still be used.
    pub state: EngineState,
    /// For people.
    pub message: String,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident = $code:ident;)*) => {
        impl Error {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(message: impl Into<String>) -> Self {
                Self::new(ErrorCode::$code, message)
            })*
        }
    };
}

constructors! {
    /// The call broke the contract: shapes, ranges, an unknown model.
    invalid_argument = INVALID_ARGUMENT;
    /// A setting is unknown or out of range; name it.
    config_invalid = CONFIG_INVALID;
    /// The artifact is not what its format or record says.
    artifact_invalid = ARTIFACT_INVALID;
    /// The engine lacks the operation, the architecture or the build option.
    unsupported = UNSUPPORTED;
    /// Memory could not be had.
    out_of_memory = OUT_OF_MEMORY;
    /// An item is longer than the loaded model takes.
    input_too_long = INPUT_TOO_LONG;
    /// The result is not finite.
    non_finite = NON_FINITE;
    /// The deadline passed inside the engine.
    deadline_exceeded = DEADLINE_EXCEEDED;
    /// The device was lost or refused the work.
    device = DEVICE;
    /// The grammar does not parse.
    grammar_invalid = GRAMMAR_INVALID;
    /// The build has no grammar support.
    grammar_unavailable = GRAMMAR_UNAVAILABLE;
    /// Anything else that is the engine's own fault.
    internal = INTERNAL;
}

impl Error {
    /// An error that leaves engine and model usable.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            state: EngineState::USABLE,
            message: message.into(),
        }
    }

    /// The host asked the call to end. [`crate::Call::checkpoint`] makes it.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::new(ErrorCode::CANCELLED, "the host asked the call to end")
    }

    /// The same error after which the model must be unloaded.
    #[must_use]
    pub fn model_bad(mut self) -> Self {
        self.state = EngineState::MODEL_BAD;
        self
    }

    /// The same error after which the engine must not be called again in this process.
    #[must_use]
    pub fn engine_bad(mut self) -> Self {
        self.state = EngineState::ENGINE_BAD;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        Self {
            code: error.code,
            state: error.state,
            message: error.message.into(),
        }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Self {
            code: error.code,
            state: error.state,
            message: error.message.into_string(),
        }
    }
}
