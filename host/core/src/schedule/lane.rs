//! One lane as the scheduler sees it: what waits, what runs, how long bulk was withheld, how fast the lane is.
//!
//! State: a [`Lane`] per open lane, owned by the scheduler, which keeps the calls themselves. Not known here: the other
//! lanes, the permits, any call's bytes.

use std::collections::BTreeSet;

use super::budget::Budget;
use super::call::{Class, LaneLimits, LaneLoad, LaneStatus, Order, Policy, Ticket};
use super::speed::{QuantumSize, Speed};
use super::starts::{Quanta, Starts};
use super::tick::Tick;
use crate::engine::Preempt;

/// Queries that came longer ago say nothing about the next, in nanoseconds.
const RECENT_NANOS: u64 = 10_000_000_000;

/// One lane.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) limits: LaneLimits,
    pub(super) budget: Budget,
    /// By deadline.
    pub(super) interactive: BTreeSet<(Tick, Ticket)>,
    /// By rank: see [`rank`].
    pub(super) bulk: BTreeSet<(u64, Ticket)>,
    /// By arrival.
    pub(super) control: BTreeSet<Ticket>,
    pub(super) running: BTreeSet<Ticket>,
    pub(super) closed: bool,
    quantum: QuantumSize,
    pub(super) starts: Starts,
    quanta: Quanta,
    runs: [usize; 3],
    held: usize,
    /// Nanoseconds for which interactive work may still withhold the lane from bulk work.
    credit: u64,
    /// When the last interactive call came.
    last_query: Option<Tick>,
    speeds: [Speed; 3],
    /// Units of work of the lane's calls, by class.
    backlog: [u64; 3],
}

const fn index(class: Class) -> usize {
    match class {
        Class::Interactive => 0,
        Class::Bulk => 1,
        Class::Control => 2,
    }
}

/// A bulk call's place in the order: the time that it was served, over its weight, and the moment since which it waits.
/// The lower goes first, so a call's share follows its weight, and one that waits ages: nothing that arrives later than
/// its own last turn was long gets past it.
pub(super) const fn rank(virtual_time: u64, since: Tick) -> u64 {
    virtual_time.saturating_add(since.0)
}

impl Lane {
    pub(super) fn new(limits: LaneLimits, policy: &Policy) -> Self {
        Self {
            limits: LaneLimits {
                slots: limits.slots.max(1),
                threads: limits.threads.max(1),
                ..limits
            },
            budget: Budget::new(limits.bytes),
            interactive: BTreeSet::new(),
            bulk: BTreeSet::new(),
            control: BTreeSet::new(),
            running: BTreeSet::new(),
            closed: false,
            quantum: QuantumSize::new(policy.first_quantum, policy.quantum_nanos),
            starts: Starts::default(),
            quanta: Quanta::default(),
            runs: [0; 3],
            held: 0,
            credit: policy.patience(),
            last_query: None,
            speeds: [Speed::default(); 3],
            backlog: [0; 3],
        }
    }

    /// Lets time pass: bulk work earns credit, a turn that interactive work withholds costs it.
    pub(super) fn pass(&mut self, nanos: u64, interactive: bool, policy: &Policy) {
        if self.works_on_bulk() {
            let earned = nanos.saturating_mul(policy.withheld_per_work());
            self.credit = self.credit.saturating_add(earned).min(policy.patience());
        } else if interactive && (self.held > 0 || !self.bulk.is_empty()) {
            self.credit = self.credit.saturating_sub(nanos);
        }
    }

    /// Whether bulk work was withheld for as long as may be: its turn comes before that of a query.
    pub(super) const fn bulk_is_due(&self) -> bool {
        self.credit == 0
    }

    /// Nanoseconds until [`Self::bulk_is_due`], while interactive work is there.
    pub(super) const fn credit(&self) -> u64 {
        self.credit
    }

    fn works_on_bulk(&self) -> bool {
        self.runs(Class::Bulk) > self.held
    }

    /// Whether a call may start at all: a load or unload that waits or runs has the lane to itself (SCHED-09).
    pub(super) fn takes_calls(&self) -> bool {
        self.control.is_empty() && self.runs(Class::Control) == 0 && self.running.len() < self.slots()
    }

    /// Whether a bulk call may start: where several calls run at once, one slot stays interactive.
    pub(super) fn takes_bulk(&self) -> bool {
        let slots = self.slots();
        let bulk_slots = if slots >= 2 { slots - 1 } else { 1 };
        self.takes_calls() && self.runs(Class::Bulk) < bulk_slots
    }

    /// Whether holding this lane's bulk calls lets a query in, here or elsewhere: `present` interactive calls are there
    /// over all lanes.
    pub(super) fn should_hold(&self, present: usize) -> bool {
        // A query that waits for this lane's only slot waits for the bulk call itself.
        let helped = if self.slots() >= 2 {
            present
        } else {
            present.saturating_sub(self.interactive.len())
        };
        self.limits.preempt == Preempt::Checkpoint && helped > 0 && self.control.is_empty() && self.credit > 0
    }

    pub(super) fn slots(&self) -> usize {
        usize::try_from(self.limits.slots).unwrap_or(usize::MAX)
    }

    pub(super) const fn runs(&self, class: Class) -> usize {
        self.runs[index(class)]
    }

    pub(super) fn enter(&mut self, class: Class, ticket: Ticket) {
        self.running.insert(ticket);
        self.runs[index(class)] += 1;
    }

    pub(super) fn leave(&mut self, class: Class, ticket: Ticket) {
        if self.running.remove(&ticket) {
            self.runs[index(class)] -= 1;
        }
    }

    pub(super) const fn hold(&mut self) {
        self.held += 1;
    }

    pub(super) const fn release(&mut self) {
        self.held -= 1;
    }

    pub(super) fn add_backlog(&mut self, class: Class, units: u64) {
        self.backlog[index(class)] += units;
    }

    pub(super) fn remove_backlog(&mut self, class: Class, units: u64) {
        self.backlog[index(class)] -= units;
    }

    pub(super) fn measured(&mut self, class: Class, units: u64, nanos: u64) {
        self.speeds[index(class)].measured(units, nanos);
        if class == Class::Bulk {
            if units > 0 {
                self.quanta.measured(nanos);
            }
            self.quantum.follow(self.speeds[index(class)]);
        }
    }

    /// Nanoseconds that `units` take in this class, where it was measured.
    pub(super) fn nanos(&self, class: Class, units: u64) -> Option<u64> {
        self.speeds[index(class)].nanos(units)
    }

    /// An interactive call has come.
    pub(super) const fn queried(&mut self, now: Tick) {
        self.last_query = Some(now);
    }

    /// Units of work of the next bulk quantum, by measured speed: fewer where a query may have to wait for its end.
    pub(super) fn quantum_units(&self, now: Tick, policy: &Policy) -> u64 {
        let whole = self.quantum.units();
        let queried = self.last_query.is_some_and(|at| now.since(at) <= RECENT_NANOS);
        if !queried || self.limits.preempt != Preempt::Quantum || policy.order == Order::Arrival {
            return whole;
        }
        let speed = self.speeds[index(Class::Bulk)];
        whole.min(speed.units_in(policy.brief_quantum_nanos).unwrap_or(whole))
    }

    /// How it does, of late and at `now`.
    pub(super) fn status(&self, now: Tick, policy: &Policy) -> LaneStatus {
        LaneStatus {
            load: self.load(),
            limits: self.limits,
            meeting_deadlines: self.starts.on_time(now),
            start_delay_nanos: self.starts.median(now),
            quantum_units: self.quantum_units(now, policy),
            units_per_second: self.speeds[index(Class::Bulk)].units_in(1_000_000_000),
            quantum_times: self.quanta.times(),
        }
    }

    /// Calls that wait and run in a class.
    fn count(&self, class: Class) -> usize {
        self.waits(class) + self.runs(class)
    }

    /// Nanoseconds of the work of a class that is not done; `None` where it was never measured.
    fn backlog_nanos(&self, class: Class) -> Option<u64> {
        match self.backlog[index(class)] {
            0 => Some(0),
            units => self.nanos(class, units),
        }
    }

    /// Nanoseconds from one call of a class leaving the lane to the next, by measured speed: when a full queue has a
    /// place.
    pub(super) fn departure(&self, class: Class) -> Option<u64> {
        let calls = u64::try_from(self.count(class)).unwrap_or(u64::MAX).max(1);
        Some(self.backlog_nanos(class)? / calls)
    }

    /// Nanoseconds until the work ahead has given back `bytes`, by measured speed.
    pub(super) fn bytes_free_in(&self, bytes: u64) -> Option<u64> {
        let classes = [Class::Interactive, Class::Bulk];
        let work = classes
            .into_iter()
            .map(|class| self.backlog_nanos(class))
            .sum::<Option<u64>>()?;
        let used = self.budget.used().max(1);
        let share = u128::from(work) * u128::from(bytes) / u128::from(used);
        Some(u64::try_from(share).unwrap_or(u64::MAX))
    }

    pub(super) fn waits(&self, class: Class) -> usize {
        match class {
            Class::Interactive => self.interactive.len(),
            Class::Bulk => self.bulk.len(),
            Class::Control => self.control.len(),
        }
    }

    pub(super) const fn depth(&self, class: Class) -> usize {
        match class {
            Class::Interactive => self.limits.interactive_depth,
            Class::Bulk => self.limits.bulk_depth,
            Class::Control => self.limits.control_depth,
        }
    }

    pub(super) fn load(&self) -> LaneLoad {
        LaneLoad {
            interactive_waiting: self.interactive.len(),
            bulk_waiting: self.bulk.len(),
            control_waiting: self.control.len(),
            interactive_running: self.runs(Class::Interactive),
            bulk_running: self.runs(Class::Bulk),
            control_running: self.runs(Class::Control),
            bytes: self.budget.used(),
        }
    }
}
