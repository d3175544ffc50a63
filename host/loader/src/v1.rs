//! ABI v1 as the host sees it: the plugin's objects behind the traits of `synapse_core::engine`.
//!
//! State: per engine, the models that are loaded and whether the engine failed for good. Callers: [`crate::Plugin`]
//! makes the adapters, the daemon's compute threads call them through the core traits. Not known here: discovery,
//! trust, scheduling.
//!
//! What a plugin returns is checked before it is believed: texts are cut and cleaned, counts are bounded, handles are
//! known ones. An engine that panicked, or that says that it must not be called again, is never called again: every
//! later call is answered here, and the object is leaked rather than dropped.

mod adapter;
mod call;
mod convert;
mod host;

pub(crate) use adapter::{embed, generate, rerank};
pub(crate) use convert::{descriptor, error};
pub(crate) use host::HostState;
