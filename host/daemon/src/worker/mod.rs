//! Supervised worker processes: engines that may abort, one process a lane.
//!
//! A lane whose bundle may not run in the daemon gets a [`engine::RemoteEngine`], which is an engine like any other to
//! the scheduler: the compute thread that calls it *is* the exchange. When a caller's deadline passes, the caller is
//! answered and the thread stays in the exchange until the reply is drained, so that permit, lease and stream are held
//! exactly as long as the worker may still be busy (WSUP-09, WSUP-10, WSUP-11).
//!
//! 1. [`launch`]: listen, start the process, check its HELLO, agree on a frame size. One budget for all of it.
//! 2. [`connection`]: whole frames over the socket, every wait with a bound.
//! 3. [`exchange`]: one request and its reply; anything unexpected is a [`fault::Fault`] of the generation.
//! 4. [`supervisor`]: a fault ends the generation once: kill, confirm the exit, count the death, start the next.
//! 5. [`output`]: what the worker prints, into the log (limited) and into the ring of last words (not limited).
//! 6. [`room`]: the supervisors of all lanes, made from the configuration, refreshed and stopped together.
//!
//! State: one [`supervisor::Supervisor`] a lane. Callers: `plugins` and `lane`. Not known here: models, requests, the
//! database; quarantine is kept through [`supervisor::Quarantine`].

pub mod connection;
pub mod engine;
pub mod exchange;
pub mod fault;
pub mod launch;
pub mod output;
pub mod room;
pub mod supervisor;

#[cfg(test)]
mod tests;
