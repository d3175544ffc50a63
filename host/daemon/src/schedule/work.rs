//! What a lane's thread runs: one request's work, a quantum at a time, and the way back to its caller.
//!
//! State: none of its own. `lane` and its kinds of engines implement [`Work`]; the executor holds it without its type.
//! Not known here: the queue, threads.

use std::sync::Arc;
use std::time::Instant;

use synapse_core::engine::{CallContext, EngineError};
use synapse_core::schedule::{Class, FlowId, Reservation};
use tokio::sync::oneshot;

use super::control::Control;
use super::pending::CallError;

/// What a call asks of the queue.
#[derive(Clone, Copy, Debug)]
pub struct CallSpec {
    /// The request's number, for the engine's logs.
    pub request: u64,
    /// Interactive or bulk.
    pub class: Class,
    /// The last moment for its first quantum to start.
    pub start_by: Instant,
    /// The end of its caller's interest.
    pub deadline: Instant,
    /// Bytes that it holds until its result is gone.
    pub bytes: u64,
    /// The flow that it belongs to: the calls of a job.
    pub flow: Option<FlowId>,
}

/// Whether a call is done after a quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another quantum follows.
    More,
    /// That was the last.
    Done,
}

/// What a call does on the lane's thread.
pub trait Work: Send + 'static {
    /// What the caller gets.
    type Output: Send + 'static;

    /// Cuts the next quantum, of `max_units` of work at most where it can be cut so, and gives its units (tokens).
    fn next_quantum(&mut self, max_units: u64) -> u64;

    /// Units of work of all quanta that are left.
    fn units_left(&self) -> u64;

    /// Runs the quantum that was cut. Called on a plain thread, outside any lock.
    ///
    /// # Errors
    /// The engine's error ends the call.
    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError>;

    /// What was made, after the last quantum.
    fn finish(self) -> Self::Output;
}

/// A call that waits for a slot.
pub(super) struct Waiting {
    pub spec: CallSpec,
    pub control: Arc<Control>,
    pub work: Box<dyn AnyWork>,
}

/// [`Work`] with its way back to the caller, without its type.
pub(super) trait AnyWork: Send {
    fn next_quantum(&mut self, max_units: u64) -> u64;
    fn units_left(&self) -> u64;
    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError>;
    /// Answers the caller; a result takes the call's bytes with it.
    fn answer(self: Box<Self>, outcome: Result<Option<Reservation>, CallError>);
}

/// A result, with the bytes that it holds until it is taken.
#[derive(Debug)]
pub(super) struct Made<T> {
    pub output: T,
    pub bytes: Option<Reservation>,
}

pub(super) struct Answered<W: Work> {
    pub work: W,
    pub answer: oneshot::Sender<Result<Made<W::Output>, CallError>>,
}

impl<W: Work> AnyWork for Answered<W> {
    fn next_quantum(&mut self, max_units: u64) -> u64 {
        self.work.next_quantum(max_units)
    }

    fn units_left(&self) -> u64 {
        self.work.units_left()
    }

    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError> {
        self.work.step(ctx)
    }

    fn answer(self: Box<Self>, outcome: Result<Option<Reservation>, CallError>) {
        let Self { work, answer } = *self;
        let made = outcome.map(|bytes| Made {
            output: work.finish(),
            bytes,
        });
        // The caller may have left.
        let _ = answer.send(made);
    }
}
