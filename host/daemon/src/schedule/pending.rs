//! Waiting for a submitted call, on the asynchronous side: start in time, deadline, cancellation.
//!
//! State: one [`Pending`] per call. Callers: the embedding path. The caller's wait ends at the deadline or at the
//! cancellation, whatever the engine does; the engine then stops at its next checkpoint (SCHED-17). Dropping a
//! [`Pending`] cancels its call. Not known here: what the work is.

use std::sync::Arc;
use std::time::Instant;

use synapse_core::engine::EngineError;
use synapse_core::schedule::Reservation;
use tokio::sync::oneshot;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::compute::Shared;
use super::control::Control;
use super::work::Made;

/// Why a call gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It could not start within its `max_queue_ms`.
    #[error("the lane could not start the work in time; try again in {retry_after_ms} ms")]
    NotStarted {
        /// When the work ahead should be done, in milliseconds.
        retry_after_ms: u64,
    },
    /// The caller's deadline passed.
    #[error("the deadline passed before the work was done")]
    Deadline,
    /// The caller cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(EngineError),
    /// The host's own code panicked around the call; the engine is not to be trusted any more.
    #[error("the call panicked: {0}")]
    Panicked(String),
    /// The lane closed: its model was unloaded, or the daemon stops.
    #[error("the lane closed: {0}")]
    Closed(String),
}

/// A call that was admitted and has not been answered yet.
#[derive(Debug)]
pub struct Pending<T> {
    answer: oneshot::Receiver<Result<Made<T>, CallError>>,
    control: Arc<Control>,
    shared: Arc<Shared>,
    start_by: Instant,
}

impl<T> Pending<T> {
    pub(super) const fn new(
        answer: oneshot::Receiver<Result<Made<T>, CallError>>,
        control: Arc<Control>,
        shared: Arc<Shared>,
        start_by: Instant,
    ) -> Self {
        Self {
            answer,
            control,
            shared,
            start_by,
        }
    }

    /// Waits for the result, at most until the deadline or the cancellation. The bytes of the result are the caller's to
    /// hold until it is gone.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn outcome(mut self, cancel: &CancellationToken) -> Result<(T, Option<Reservation>), CallError> {
        let deadline = self.control.deadline();
        let mut may_still_wait = true;
        loop {
            tokio::select! {
                biased;
                answer = &mut self.answer => {
                    let gone = |_| Err(CallError::Closed("its threads are gone".to_owned()));
                    return answer.unwrap_or_else(gone).map(|Made { output, bytes }| (output, bytes));
                }
                () = sleep_until(deadline.into()) => return Err(CallError::Deadline),
                () = cancel.cancelled() => return Err(CallError::Cancelled),
                () = sleep_until(self.start_by.into()), if may_still_wait => {
                    if let Some(retry_after_ms) = self.shared.give_up_waiting(&self.control) {
                        return Err(CallError::NotStarted { retry_after_ms });
                    }
                    may_still_wait = false;
                }
            }
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.shared.abandon(&self.control);
    }
}
