//! The host's side of one engine call: cancellation, the deadline, and giving way to interactive calls.
//!
//! State: one [`Control`] per submitted call, shared by the caller who waits, the executor and the engine. Called by
//! the engine through [`CallControl`]. Not known here: the queue's order.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use synapse_core::engine::{CallControl, Flow};
use synapse_core::schedule::{Class, Ticket};

use super::executor::Shared;

/// One call's cancellation flag, deadline and place in its lane's queue.
#[derive(Debug)]
pub struct Control {
    lane: Weak<Shared>,
    class: Class,
    deadline: Instant,
    cancelled: AtomicBool,
    started: AtomicBool,
    ticket: AtomicU64,
    held_nanos: AtomicU64,
}

impl Control {
    pub(super) fn new(lane: Weak<Shared>, class: Class, deadline: Instant) -> Self {
        Self {
            lane,
            class,
            deadline,
            cancelled: AtomicBool::new(false),
            started: AtomicBool::new(false),
            ticket: AtomicU64::new(u64::MAX),
            held_nanos: AtomicU64::new(0),
        }
    }

    /// The end of the caller's interest.
    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Asks the engine to stop at its next checkpoint.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Whether the caller has given up, whatever the clock says.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Notes that the first quantum has begun.
    pub(super) fn mark_started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Whether the first quantum has begun: from then on `max_queue_ms` is kept.
    pub(super) fn has_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// The call's number in the queue now; written under the executor's lock.
    pub(super) fn set_ticket(&self, ticket: Ticket) {
        self.ticket.store(ticket.0, Ordering::Release);
    }

    /// The call's number in the queue now; read under the executor's lock.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.ticket.load(Ordering::Acquire))
    }

    /// Adds time for which the executor held the call at a checkpoint.
    pub(super) fn add_held(&self, held: Duration) {
        let nanos = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        self.held_nanos.fetch_add(nanos, Ordering::AcqRel);
    }

    /// The time held in this quantum so far.
    pub(super) fn held(&self) -> Duration {
        Duration::from_nanos(self.held_nanos.load(Ordering::Acquire))
    }

    /// Takes the time held since the last call of this.
    pub(super) fn take_held(&self) -> Duration {
        Duration::from_nanos(self.held_nanos.swap(0, Ordering::AcqRel))
    }
}

impl CallControl for Control {
    fn cancelled(&self) -> bool {
        self.is_cancelled() || Instant::now() >= self.deadline
    }

    fn checkpoint(&self, _done: u64, _total: u64) -> Flow {
        if self.class == Class::Bulk
            && let Some(lane) = self.lane.upgrade()
        {
            lane.give_way(self);
        }
        if self.cancelled() { Flow::Cancel } else { Flow::Continue }
    }
}
