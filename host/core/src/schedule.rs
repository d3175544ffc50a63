//! The order of work on one lane: which call starts next, which is refused, and when to look again (SCHED-01..06).
//!
//! State: a [`LaneQueue`] is one lane's waiting and running calls; the daemon's executor owns it behind a lock, feeds
//! it and carries out its [`Step`]s. Not known here: threads, engines, clocks; time is the argument `now`.
//!
//! The rules, each with a property test below:
//! 1. A call starts no later than its `start_by`, or it is rejected; it never waits for its deadline (SCHED-03).
//! 2. Interactive calls start in order of deadline, and before bulk (SCHED-02, SCHED-05).
//! 3. Bulk calls start in order of arrival, and one that has waited for `bulk_aging` goes before interactive ones, so a
//!    steady stream of queries cannot starve it (SCHED-06).
//! 4. Where a lane runs several calls at once, bulk leaves one slot to interactive calls.
//! 5. Control (load, unload) starts when nothing runs, before everything else, and alone (SCHED-07, SCHED-09).
//! 6. Depth per class and bytes over waiting and running calls are bounded (SCHED-13).
//!
//! A long bulk request is offered one quantum at a time: the next one when the last has finished.

use std::collections::{BTreeMap, BTreeSet};

/// A moment, in nanoseconds since an origin of the caller's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// The moment `nanos` later, at most the end of time.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The moment `millis` later, at most the end of time.
    #[must_use]
    pub const fn after_ms(self, millis: u64) -> Self {
        self.after(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds from `earlier` to here, 0 if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A queue class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Someone waits for the answer: queries and small batches.
    Interactive,
    /// Throughput work, one quantum at a time.
    Bulk,
    /// Loads and unloads of this lane's model.
    Control,
}

/// The bounds of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// Calls that may run at once (the loaded model's `max_concurrency`), at least 1.
    pub slots: u32,
    /// Interactive calls that may wait.
    pub interactive_depth: usize,
    /// Bulk calls that may wait.
    pub bulk_depth: usize,
    /// Control calls that may wait.
    pub control_depth: usize,
    /// Bytes over waiting and running calls.
    pub bytes: u64,
    /// Nanoseconds after which a waiting bulk call goes before interactive ones.
    pub bulk_aging: u64,
}

impl Default for LaneLimits {
    fn default() -> Self {
        Self {
            slots: 1,
            interactive_depth: 256,
            bulk_depth: 256,
            control_depth: 16,
            bytes: 512 << 20,
            bulk_aging: 1_000_000_000,
        }
    }
}

/// A call offered to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its class.
    pub class: Class,
    /// The last moment at which it may start: receipt + `max_queue_ms`, never after `deadline`.
    pub start_by: Tick,
    /// The end of its caller's interest.
    pub deadline: Tick,
    /// Bytes that it holds while it waits and runs: ids, output and the engine's share.
    pub bytes: u64,
}

/// A call's number on its lane: ascending in order of admission, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Why an offer was not admitted. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// As many calls of the class wait as may.
    #[error("{limit} calls of this class already wait on the lane; retry when some have finished")]
    Depth {
        /// The bound.
        limit: usize,
    },
    /// The lane's byte budget has no room.
    #[error("the call needs {asked} bytes, the lane has {free} of {limit} free; retry when others have finished")]
    Bytes {
        /// Bytes of the offer.
        asked: u64,
        /// Bytes free now.
        free: u64,
        /// The bound.
        limit: u64,
    },
    /// The call could not even run alone.
    #[error("the call needs {asked} bytes, more than the lane's whole budget of {limit}; send less at a time")]
    NeverFits {
        /// Bytes of the offer.
        asked: u64,
        /// The bound.
        limit: u64,
    },
    /// `start_by` has passed.
    #[error("the call's time to start had passed before it reached the lane")]
    Late,
}

/// What the executor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start this call now; it counts as running until [`LaneQueue::finish`].
    Start(Ticket),
    /// Refuse this call: its `start_by` has passed. It is gone from the lane.
    Reject(Ticket),
    /// Nothing to do before an offer, a finish or, if given, this moment.
    Wait(Option<Tick>),
}

/// What a withdrawal met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The call waited and is gone.
    Waiting,
    /// The call runs: cancel it through its context, and [`LaneQueue::finish`] it when it has returned.
    Running,
    /// No such call: it finished, was rejected or withdrawn before.
    Unknown,
}

/// A lane's load at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLoad {
    /// Interactive calls waiting.
    pub interactive_waiting: usize,
    /// Bulk calls waiting.
    pub bulk_waiting: usize,
    /// Control calls waiting.
    pub control_waiting: usize,
    /// Calls running, of any class.
    pub running: usize,
    /// Bytes over waiting and running calls.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Admitted {
    call: Call,
    since: Tick,
}

/// One lane's waiting and running calls.
#[derive(Debug)]
pub struct LaneQueue {
    limits: LaneLimits,
    issued: u64,
    waiting: BTreeMap<Ticket, Admitted>,
    interactive: BTreeSet<(Tick, Ticket)>,
    bulk: BTreeSet<Ticket>,
    control: BTreeSet<Ticket>,
    expiry: BTreeSet<(Tick, Ticket)>,
    running: BTreeMap<Ticket, Call>,
    bytes: u64,
}

impl LaneQueue {
    /// An empty lane. `slots` of 0 counts as 1.
    #[must_use]
    pub fn new(limits: LaneLimits) -> Self {
        Self {
            limits: LaneLimits {
                slots: limits.slots.max(1),
                ..limits
            },
            issued: 0,
            waiting: BTreeMap::new(),
            interactive: BTreeSet::new(),
            bulk: BTreeSet::new(),
            control: BTreeSet::new(),
            expiry: BTreeSet::new(),
            running: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Sets the number of calls that may run at once, when a load has said it. Calls that run go on.
    pub fn set_slots(&mut self, slots: u32) {
        self.limits.slots = slots.max(1);
    }

    /// Admits a call as a whole or not at all (API-05).
    ///
    /// # Errors
    /// [`NotAdmitted`]; nothing has changed then.
    pub fn offer(&mut self, now: Tick, call: Call) -> Result<Ticket, NotAdmitted> {
        if now > call.start_by {
            return Err(NotAdmitted::Late);
        }
        let (depth, limit) = match call.class {
            Class::Interactive => (self.interactive.len(), self.limits.interactive_depth),
            Class::Bulk => (self.bulk.len(), self.limits.bulk_depth),
            Class::Control => (self.control.len(), self.limits.control_depth),
        };
        if depth >= limit {
            return Err(NotAdmitted::Depth { limit });
        }
        let limit = self.limits.bytes;
        if call.bytes > limit {
            return Err(NotAdmitted::NeverFits {
                asked: call.bytes,
                limit,
            });
        }
        let free = limit.saturating_sub(self.bytes);
        if call.bytes > free {
            return Err(NotAdmitted::Bytes {
                asked: call.bytes,
                free,
                limit,
            });
        }
        let ticket = Ticket(self.issued);
        self.issued += 1;
        self.bytes += call.bytes;
        self.waiting.insert(ticket, Admitted { call, since: now });
        self.expiry.insert((call.start_by, ticket));
        match call.class {
            Class::Interactive => self.interactive.insert((call.deadline, ticket)),
            Class::Bulk => self.bulk.insert(ticket),
            Class::Control => self.control.insert(ticket),
        };
        Ok(ticket)
    }

    /// The next thing to do. Call until it says [`Step::Wait`].
    pub fn next(&mut self, now: Tick) -> Step {
        if let Some(&(start_by, ticket)) = self.expiry.first()
            && start_by < now
        {
            let entry = self.leave_queue(ticket).expect("expiry holds waiting tickets only");
            self.bytes -= entry.call.bytes;
            return Step::Reject(ticket);
        }
        match self.choose(now) {
            Some(ticket) => {
                let entry = self
                    .leave_queue(ticket)
                    .expect("the class queues hold waiting tickets only");
                self.running.insert(ticket, entry.call);
                Step::Start(ticket)
            }
            None => Step::Wait(self.next_event()),
        }
    }

    /// Gives back the slot and the bytes of a call that has returned. An unknown ticket changes nothing.
    pub fn finish(&mut self, ticket: Ticket) {
        if let Some(call) = self.running.remove(&ticket) {
            self.bytes -= call.bytes;
        }
    }

    /// Takes a waiting call away: its caller has gone or cancelled.
    pub fn withdraw(&mut self, ticket: Ticket) -> Withdrawn {
        if let Some(entry) = self.leave_queue(ticket) {
            self.bytes -= entry.call.bytes;
            return Withdrawn::Waiting;
        }
        if self.running.contains_key(&ticket) {
            Withdrawn::Running
        } else {
            Withdrawn::Unknown
        }
    }

    /// Every waiting call, oldest first, taken away: the lane closes. Running calls stay until they finish.
    pub fn drain(&mut self) -> Vec<Ticket> {
        let tickets: Vec<Ticket> = self.waiting.keys().copied().collect();
        for ticket in &tickets {
            self.withdraw(*ticket);
        }
        tickets
    }

    /// Whether an interactive call waits: a bulk call that runs should give way at its next checkpoint.
    #[must_use]
    pub fn interactive_waits(&self) -> bool {
        !self.interactive.is_empty()
    }

    /// The lane's load now.
    #[must_use]
    pub fn load(&self) -> LaneLoad {
        LaneLoad {
            interactive_waiting: self.interactive.len(),
            bulk_waiting: self.bulk.len(),
            control_waiting: self.control.len(),
            running: self.running.len(),
            bytes: self.bytes,
        }
    }

    fn leave_queue(&mut self, ticket: Ticket) -> Option<Admitted> {
        let entry = self.waiting.remove(&ticket)?;
        self.expiry.remove(&(entry.call.start_by, ticket));
        match entry.call.class {
            Class::Interactive => self.interactive.remove(&(entry.call.deadline, ticket)),
            Class::Bulk => self.bulk.remove(&ticket),
            Class::Control => self.control.remove(&ticket),
        };
        Some(entry)
    }

    fn choose(&self, now: Tick) -> Option<Ticket> {
        if let Some(control) = self.control.first() {
            // Nothing starts past a waiting load or unload, so that it comes to its turn.
            return self.running.is_empty().then_some(*control);
        }
        if self.runs(Class::Control) > 0 {
            return None;
        }
        let slots = usize::try_from(self.limits.slots).unwrap_or(usize::MAX);
        if self.running.len() >= slots {
            return None;
        }
        let bulk_slots = if slots >= 2 { slots - 1 } else { 1 };
        let bulk = self
            .bulk
            .first()
            .copied()
            .filter(|_| self.runs(Class::Bulk) < bulk_slots);
        let aged = bulk.filter(|ticket| now.since(self.waiting[ticket].since) >= self.limits.bulk_aging);
        let interactive = self.interactive.first().map(|(_, ticket)| *ticket);
        aged.or(interactive).or(bulk)
    }

    fn runs(&self, class: Class) -> usize {
        self.running.values().filter(|call| call.class == class).count()
    }

    /// The next moment at which `next` could say something else without an offer or a finish: the first expiry.
    /// Aging alone frees no slot, so it is not an event.
    fn next_event(&self) -> Option<Tick> {
        self.expiry.first().map(|(start_by, _)| start_by.after(1))
    }
}
