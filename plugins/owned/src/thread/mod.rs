//! Helper threads and how they meet: a pool, a barrier, a gate for checkpoints, and when not to meet.
//!
//! Knows nothing of models. `engine` takes a team for each call; `model` works on the ranks.

pub mod barrier;
pub mod contention;
pub mod gate;
pub mod pool;

/// The call ends early: the host cancelled it, or another rank panicked. Not an error by itself; whoever stopped the
/// call knows why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;
