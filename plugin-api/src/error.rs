//! Why an engine call failed, and what it leaves behind.
//!
//! Owns no state. Made by plugins, read by the loader. Knows nothing of the public error codes: the host maps these
//! codes in one table of its own.

use abi_stable::{StableAbi, std_types::RString};

/// What went wrong. An open integer: a host treats a code that it does not know as [`ErrorCode::INTERNAL`].
///
/// Values below 0x8000_0000 belong to this crate, the others to third parties.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// The call broke the contract: shapes, ranges, an unknown model.
    pub const INVALID_ARGUMENT: Self = Self(1);
    /// A setting is unknown or out of range. The message names it.
    pub const CONFIG_INVALID: Self = Self(2);
    /// The artifact is not what its format or record says.
    pub const ARTIFACT_INVALID: Self = Self(3);
    /// The engine lacks the operation, the architecture or the build option.
    pub const UNSUPPORTED: Self = Self(4);
    /// Memory could not be had.
    pub const OUT_OF_MEMORY: Self = Self(5);
    /// An item is longer than [`crate::LoadedModel::max_tokens`].
    pub const INPUT_TOO_LONG: Self = Self(6);
    /// The result is not finite.
    pub const NON_FINITE: Self = Self(7);
    /// The host asked the call to end.
    pub const CANCELLED: Self = Self(8);
    /// The deadline passed inside the engine.
    pub const DEADLINE_EXCEEDED: Self = Self(9);
    /// The device was lost or refused the work.
    pub const DEVICE: Self = Self(10);
    /// The grammar does not parse.
    pub const GRAMMAR_INVALID: Self = Self(11);
    /// The build has no grammar support.
    pub const GRAMMAR_UNAVAILABLE: Self = Self(12);
    /// The author's code panicked and the SDK contained it. Always with [`EngineState::ENGINE_BAD`].
    pub const PANIC: Self = Self(13);
    /// Anything else that the engine calls its own fault.
    pub const INTERNAL: Self = Self(14);

    /// The code's stable name in snake case, as the worker protocol writes it; `other` for a code that is not ours.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::INVALID_ARGUMENT => "invalid_argument",
            Self::CONFIG_INVALID => "config_invalid",
            Self::ARTIFACT_INVALID => "artifact_invalid",
            Self::UNSUPPORTED => "unsupported",
            Self::OUT_OF_MEMORY => "out_of_memory",
            Self::INPUT_TOO_LONG => "input_too_long",
            Self::NON_FINITE => "non_finite",
            Self::CANCELLED => "cancelled",
            Self::DEADLINE_EXCEEDED => "deadline_exceeded",
            Self::DEVICE => "device",
            Self::GRAMMAR_INVALID => "grammar_invalid",
            Self::GRAMMAR_UNAVAILABLE => "grammar_unavailable",
            Self::PANIC => "panic",
            Self::INTERNAL => "internal",
            _ => "other",
        }
    }
}

/// What an error leaves behind. An open integer: a host treats an unknown value as [`EngineState::ENGINE_BAD`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct EngineState(pub u32);

impl EngineState {
    /// Engine and model may be used again.
    pub const USABLE: Self = Self(0);
    /// The model must be unloaded; the engine may be used.
    pub const MODEL_BAD: Self = Self(1);
    /// The engine must not be called again in this process; every model handle of it is void.
    pub const ENGINE_BAD: Self = Self(2);
}

/// A failed engine call.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct EngineError {
    /// What went wrong.
    pub code: ErrorCode,
    /// What may still be used.
    pub state: EngineState,
    /// What was wrong, what was expected, what to do: UTF-8, at most 4,096 bytes of it are kept. Never input text.
    pub message: RString,
}

impl EngineError {
    /// An error that leaves engine and model usable.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<RString>) -> Self {
        Self {
            code,
            state: EngineState::USABLE,
            message: message.into(),
        }
    }

    /// The same error with another state.
    #[must_use]
    pub fn with_state(mut self, state: EngineState) -> Self {
        self.state = state;
        self
    }
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for EngineError {}
