//! The host's side of a call inside the worker: cancellation in, progress out.
//!
//! State: which exchanges were cancelled, and what was last reported. Callers: the engines, through
//! `synapse_core::engine::CallControl`. A checkpoint never parks here: only the daemon schedules.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use synapse_core::engine::{CallControl, Flow};
use synapse_wire::worker::WorkerMessage;
use synapse_wire::worker::message::Phase;

use super::link::Link;

/// The least time between two progress messages.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Which exchange the daemon cancelled. There is one at a time, so it is the last request that came, or none: a CANCEL
/// with any other number is ignored, and takes nothing from one that follows.
#[derive(Debug, Default)]
pub struct Cancelled {
    /// The last request that came. Written by the reading thread alone.
    last: AtomicU64,
    cancelled: AtomicU64,
}

/// No request has this number: everything is cancelled.
const ALL: u64 = u64::MAX;

impl Cancelled {
    /// A request came.
    pub fn begin(&self, req_id: u64) {
        self.last.store(req_id, Ordering::Relaxed);
    }

    /// Cancels one exchange. Called by the reading thread.
    pub fn cancel(&self, req_id: u64) {
        if req_id == self.last.load(Ordering::Relaxed) {
            self.cancelled.store(req_id, Ordering::Release);
        }
    }

    /// Cancels everything: the daemon is gone, and no CANCEL follows.
    pub fn cancel_all(&self) {
        self.cancelled.store(ALL, Ordering::Release);
    }

    fn covers(&self, req_id: u64) -> bool {
        let cancelled = self.cancelled.load(Ordering::Acquire);
        cancelled == req_id || cancelled == ALL
    }
}

#[derive(Debug)]
struct Reported {
    completed: u64,
    total: Option<u64>,
    at: Instant,
}

/// One exchange's control.
#[derive(Debug)]
pub struct Control<'a> {
    link: &'a Link,
    cancelled: &'a Cancelled,
    req_id: u64,
    phase: Phase,
    reported: Mutex<Reported>,
}

impl<'a> Control<'a> {
    /// The control of the exchange `req_id`.
    #[must_use]
    pub fn new(link: &'a Link, cancelled: &'a Cancelled, req_id: u64, phase: Phase) -> Self {
        let reported = Mutex::new(Reported {
            completed: 0,
            total: None,
            at: Instant::now(),
        });
        Self {
            link,
            cancelled,
            req_id,
            phase,
            reported,
        }
    }

    /// The message of a checkpoint that is worth one: strictly more work than before, at most every 100 ms, with the
    /// total of the first report.
    fn report(&self, done: u64, total: u64) -> Option<WorkerMessage> {
        let mut last = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if done <= last.completed || last.at.elapsed() < PROGRESS_EVERY {
            return None;
        }
        if last.completed == 0 {
            last.total = (total >= done).then_some(total);
        }
        if last.total.is_some_and(|total| done > total) {
            return None;
        }
        last.completed = done;
        last.at = Instant::now();
        Some(WorkerMessage::Progress {
            req_id: self.req_id,
            phase: self.phase,
            completed: done,
            total: last.total,
        })
    }
}

impl CallControl for Control<'_> {
    fn cancelled(&self) -> bool {
        self.cancelled.covers(self.req_id)
    }

    fn checkpoint(&self, done: u64, total: u64) -> Flow {
        if let Some(message) = self.report(done, total) {
            // A daemon that is gone is noticed by the reader.
            let _ = self.link.send(&message, None);
        }
        if self.cancelled() { Flow::Cancel } else { Flow::Continue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_touches_its_own_exchange_only() {
        let cancelled = Cancelled::default();
        cancelled.begin(2);
        for other in [1, 3, u64::MAX] {
            cancelled.cancel(other);
            assert!(![1, 2, 3].into_iter().any(|id| cancelled.covers(id)), "CANCEL {other}");
        }
        cancelled.cancel(2);
        assert!(cancelled.covers(2));
        assert!(
            !cancelled.covers(1) && !cancelled.covers(3),
            "finished and later exchanges are not touched"
        );
        cancelled.begin(3);
        assert!(!cancelled.covers(3));
        cancelled.cancel(3);
        assert!(cancelled.covers(3));
        cancelled.cancel_all();
        assert!(cancelled.covers(1) && cancelled.covers(4));
    }
}
