//! Who an engine is and what it serves.
//!
//! Owns no state. Made by plugins, read by the loader, which turns it into the host's own types.

use abi_stable::{
    StableAbi,
    std_types::{RString, RVec},
};

use crate::load::KeyValue;

/// The numeric identity of an engine build. It enters the numeric profile, so two builds that can give different
/// bits must differ here, and two that cannot must not.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct EngineIdentity {
    /// The engine's name, `[a-z0-9-]`, 1 to 64 bytes, for example `owned`.
    pub engine: RString,
    /// The numeric version: bumped exactly when output bits can change. Not the package version.
    pub version: RString,
    /// Numerically relevant build flags, sorted, without duplicates. Never a target or a compiler.
    pub build_flags: RVec<RString>,
}

/// A kind of work. An open integer: a host ignores support rows of a kind that it does not know.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct EngineKind(pub u32);

impl EngineKind {
    /// Token ids to one vector per item.
    pub const EMBED: Self = Self(1);
    /// Query and document pairs to one raw score per pair.
    pub const RERANK: Self = Self(2);
    /// A prompt to a continuation.
    pub const GENERATE: Self = Self(3);
}

/// How a bulk call gives way to an interactive one. An open integer: a host treats an unknown value as
/// [`Preempt::QUANTUM`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct Preempt(pub u32);

impl Preempt {
    /// The engine can do neither of the others: the host cuts work into quanta.
    pub const QUANTUM: Self = Self(0);
    /// The engine calls [`crate::CallContext::checkpoint`] at least every 5 ms of CPU work; the host may hold a bulk
    /// call there. Needs [`crate::LoadedModel::max_concurrency`] of 2 or more.
    pub const CHECKPOINT: Self = Self(1);
    /// The engine runs several calls on one model at once.
    pub const SHARE: Self = Self(2);
}

/// One combination that the plugin serves.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct EngineSupport {
    /// The kind of work.
    pub kind: EngineKind,
    /// How a bulk call gives way.
    pub preempt: Preempt,
    /// The artifact's format, for example `safetensors`, `onnx`, `gguf`.
    pub format: RString,
    /// The arithmetic type, for example `f32`.
    pub dtype: RString,
    /// Declares that output bits do not depend on the thread budget. The probe tries to disprove it.
    pub thread_invariant: bool,
    /// Declares exact f32 arithmetic: the gates then demand a maximal absolute difference of 1e-4.
    pub f32_exact: bool,
}

/// What a plugin says about itself. Constant for the life of the library: a host may keep it by the file's digest.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
pub struct Descriptor {
    /// The plugin's id: equal to the magic's and to the bundle's directory name.
    pub id: RString,
    /// The package version (semver): equal to the magic's.
    pub package_version: RString,
    /// The identity that every engine object of this plugin reports.
    pub identity: EngineIdentity,
    /// Every combination served, in any order, without duplicates.
    pub supports: RVec<EngineSupport>,
    /// Further facts by key. A host ignores keys that it does not know.
    pub extra: RVec<KeyValue>,
}
