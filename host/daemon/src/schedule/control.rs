//! The host's side of one engine call: cancellation, the deadline, and giving way to interactive calls.
//!
//! State: one [`Control`] per submitted call, shared by the caller who waits, the executor and the engine. Called by
//! the engine through [`CallControl`]. Not known here: the queue's order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use synapse_core::engine::{CallControl, Flow};
use synapse_core::schedule::{Class, LaneId, Ticket};

use super::compute::Shared;

/// One call's cancellation flag, deadline and place in its lane's queue.
#[derive(Debug)]
pub struct Control {
    shared: Weak<Shared>,
    lane: LaneId,
    class: Class,
    deadline: Instant,
    cancelled: AtomicBool,
    started: AtomicBool,
    ticket: AtomicU64,
    held_nanos: AtomicU64,
}

impl Control {
    pub(super) fn new(shared: &Arc<Shared>, lane: LaneId, class: Class, deadline: Instant) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            lane,
            class,
            deadline,
            cancelled: AtomicBool::new(false),
            started: AtomicBool::new(false),
            ticket: AtomicU64::new(u64::MAX),
            held_nanos: AtomicU64::new(0),
        }
    }

    /// The lane that it was submitted to.
    pub(super) const fn lane(&self) -> LaneId {
        self.lane
    }

    /// Interactive or bulk.
    pub(super) const fn class(&self) -> Class {
        self.class
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

    /// The call's number; written under the scheduler's lock.
    pub(super) fn set_ticket(&self, ticket: Ticket) {
        self.ticket.store(ticket.0, Ordering::Release);
    }

    /// The call's number; read under the scheduler's lock.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.ticket.load(Ordering::Acquire))
    }

    /// Adds time for which the executor held the call at a checkpoint.
    pub(super) fn add_held(&self, held: Duration) {
        let nanos = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        self.held_nanos.fetch_add(nanos, Ordering::AcqRel);
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
            && let Some(shared) = self.shared.upgrade()
        {
            shared.give_way(self);
        }
        if self.cancelled() { Flow::Cancel } else { Flow::Continue }
    }
}
