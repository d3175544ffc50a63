//! Runs engine calls on the lanes' own threads, in the order that `synapse_core::schedule` decides.
//!
//! State: one [`Executor`] per loaded lane, with its threads and its queue. Callers: `lane` makes executors, the
//! embedding path submits work and awaits it. Not known here: models, tokens, vectors, JSON.

mod control;
mod executor;
mod pending;
mod quanta;
mod rate;
#[cfg(test)]
mod tests;
mod work;

pub use self::control::Control;
pub use self::executor::{Executor, ExecutorConfig, ExecutorLoad, Refused};
pub use self::pending::{CallError, Pending};
pub use self::quanta::{QuantumBounds, cut};
pub use self::work::{CallSpec, Progress, Work};
