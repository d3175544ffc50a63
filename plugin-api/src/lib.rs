//! The frozen ABI between a Synapse host and its engine plugins, version 1.0.0.
//!
//! Owns no state. Known to the loader, the plugin SDK, the conformance kit, the plugins and the tests; it knows
//! nothing of ours. The contract in prose, rule by rule, is `docs/plugin-contract.md`.
//!
//! # What is where
//! - [`magic`]: the bytes that a host reads before it opens a library;
//! - [`module`]: the root module, the one object that a library exports through abi_stable;
//! - [`engine`]: the three traits, [`EmbedEngine`], [`RerankEngine`], [`GenerateEngine`];
//! - [`load`], [`batch`], [`generate`], [`call`], [`error`], [`identity`], [`host`]: what crosses in their methods;
//! - [`layout`]: all of it as text, for the golden file and for refusals;
//! - [`ext`]: the extension tables, the only way in which version 1 grows.
//!
//! # Version rule
//! From 1.0.0 on nothing here changes: no field, method, constant's value, name or module of a type. abi_stable
//! refuses a plugin whose types have fewer fields than the host's, so an added method would refuse every older
//! plugin. New things are new types in [`ext`], found by id; the crate's minor version counts them.
//!
//! # Threading tags
//! Every method of an engine carries one of these tags:
//! - `[control]`: the host serialises these calls per engine, beside any number of `[compute]` calls;
//! - `[compute]`: at most [`LoadedModel::max_concurrency`] at once per model, on plain OS threads without an async
//!   runtime;
//! - `[any]`: any thread, at any time, quickly, without blocking.
//!
//! # Units
//! Sizes are bytes, times are nanoseconds of the host's monotonic clock, token ids are `i32`, vectors are row-major
//! `f32`. Text is UTF-8. Strings made by the other side are untrusted.

#![expect(
    non_camel_case_types,
    reason = "abi_stable names the handles of prefix types and trait objects so"
)]
#![expect(
    non_local_definitions,
    reason = "abi_stable's trait macro writes impls inside a module"
)]

pub use abi_stable;

pub mod batch;
pub mod call;
pub mod engine;
pub mod error;
pub mod ext;
pub mod generate;
pub mod host;
pub mod identity;
pub mod layout;
pub mod load;
pub mod magic;
pub mod module;

pub use batch::{PairBatch, ScoresOut, TokenBatch, VectorsOut};
pub use call::{CallContext, Flow};
pub use engine::{
    EmbedEngine, EmbedEngine_TO, EmbedEngineObject, GenerateEngine, GenerateEngine_TO, GenerateEngineObject,
    RerankEngine, RerankEngine_TO, RerankEngineObject,
};
pub use error::{EngineError, EngineState, ErrorCode};
pub use ext::{ExtensionHeader, ExtensionMismatch, ExtensionRef, ExtensionTable};
pub use generate::{FinishReason, GenerateOptions, Generated, Prompt, PromptKind, TokenSink};
pub use host::{HostServices, LogLevel, MetricKind};
pub use identity::{Descriptor, EngineIdentity, EngineKind, EngineSupport, Preempt};
pub use load::{ArtifactFile, KeyValue, LoadedModel, MemoryReport, ModelRef, RuntimeConfig, ValidatedArtifact};
pub use magic::{MagicError, PluginMagic};
pub use module::{SynapsePlugin, SynapsePlugin_Ref};

/// The ABI's major version: one frozen set of types.
pub const ABI_MAJOR: u32 = 1;

/// The ABI's minor version: counts the extension tables that this crate knows. A host accepts every minor.
pub const ABI_MINOR: u32 = 0;

/// Which library lays out the types that cross. Part of the magic: another layout library is another ABI.
pub const VENDOR_TAG: &str = "abi_stable-0.11.3";
