//! Runs engine calls on the lanes' own threads, in the order that `synapse_core::schedule` decides.
//!
//! State: one [`Compute`], the scheduler of the whole daemon, and one [`Executor`] per loaded lane, with its threads.
//! Callers: `lane` makes executors, operations submit work and await it. Not known here: models, tokens, vectors, JSON.

mod compute;
mod control;
mod executor;
mod pending;
#[cfg(test)]
mod tests;
mod work;

pub use self::compute::{Compute, Flow};
pub use self::control::Control;
pub use self::executor::{Executor, ExecutorConfig, ExecutorLoad, Refused};
pub use self::pending::{CallError, Pending};
pub use self::work::{CallSpec, Progress, Work};
pub use synapse_core::schedule::QuantumBounds;
