//! The order of work of the whole daemon: which call starts next on which lane, which is refused, when to look again.
//!
//! State: a [`Scheduler`] holds every lane, every call that waits or runs, and the pool of compute permits; the
//! daemon's executor owns it behind one lock, feeds it and carries out its [`Step`]s. The rules are those of the
//! module's header. Not known here: threads, engines, clocks; time is the argument `now`, and it never runs backwards.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::Reservation;
use super::call::{
    AtCheckpoint, Call, Class, FlowId, LaneId, LaneLimits, LaneLoad, LaneStatus, NotAdmitted, Order, PermitsLoad,
    Policy, Refusal, Step, Ticket, Withdrawn, Worked,
};
use super::flow::{Flows, Standing};
use super::lane::{Lane, rank};
use super::permits::Permits;
use super::speed::advice_ms;
use super::tick::Tick;

/// The most units of work that one call is taken to have, so that sums stay far from the numbers' end.
const MOST_UNITS: u64 = 1 << 40;

/// A call that waits or runs.
#[derive(Debug)]
struct Entry {
    lane: LaneId,
    call: Call,
    /// The call's own `start_by` before its first quantum, its deadline from then on.
    start_by: Tick,
    /// Since when it waits, for its rank.
    since: Tick,
    standing: Standing,
    units_left: u64,
    reservation: Reservation,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waiting,
    Running { began: Tick, held: bool },
}

/// The daemon's lanes, calls and permits.
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    permits: Permits,
    lanes: BTreeMap<LaneId, Lane>,
    calls: BTreeMap<Ticket, Entry>,
    flows: Flows,
    expiry: BTreeSet<(Tick, Ticket)>,
    /// Interactive calls over all lanes, waiting and running.
    interactive: usize,
    /// The largest virtual time at which a bulk call has started: where a newcomer stands.
    field: u64,
    clock: Tick,
    lanes_opened: u64,
    tickets_issued: u64,
}

impl Scheduler {
    /// No lanes, all permits free.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            permits: Permits::new(policy.permits),
            policy,
            lanes: BTreeMap::new(),
            calls: BTreeMap::new(),
            flows: Flows::default(),
            expiry: BTreeSet::new(),
            interactive: 0,
            field: 0,
            clock: Tick(0),
            lanes_opened: 0,
            tickets_issued: 0,
        }
    }

    /// Opens a lane. Bounds of 0 slots or threads count as 1.
    pub fn open(&mut self, limits: LaneLimits) -> LaneId {
        let id = LaneId(self.lanes_opened);
        self.lanes_opened += 1;
        self.lanes.insert(id, Lane::new(limits, &self.policy));
        id
    }

    /// Closes a lane: every waiting call is taken away and returned, oldest first; running calls stay until they
    /// finish. Nothing is admitted any more.
    pub fn close(&mut self, now: Tick, lane: LaneId) -> Vec<Ticket> {
        self.advance(now);
        let Some(closing) = self.lanes.get_mut(&lane) else {
            return Vec::new();
        };
        closing.closed = true;
        let waits = |(ticket, entry): (&Ticket, &Entry)| {
            (entry.lane == lane && entry.place == Place::Waiting).then_some(*ticket)
        };
        let waiting: Vec<Ticket> = self.calls.iter().filter_map(waits).collect();
        for ticket in &waiting {
            self.forget(*ticket);
        }
        self.drop_if_empty(lane);
        waiting
    }

    /// Opens a flow: bulk calls that share one account of served time. Twice the weight gets twice the time; 0 counts
    /// as 1.
    pub fn open_flow(&mut self, weight: u32) -> FlowId {
        self.flows.open(weight, self.field, self.tickets_issued)
    }

    /// Forgets a flow. Calls that it still has keep their place; an unknown flow changes nothing.
    pub fn close_flow(&mut self, flow: FlowId) {
        self.flows.close(flow);
    }

    /// Admits a call as a whole or not at all (API-05).
    ///
    /// # Errors
    /// [`Refusal`] names the bound and when to come back; nothing has changed then.
    pub fn offer(&mut self, now: Tick, lane: LaneId, call: Call) -> Result<Ticket, Refusal> {
        self.advance(now);
        let reservation = self.admit(lane, &call).inspect_err(|refusal| {
            if matches!(refusal.why, NotAdmitted::Late | NotAdmitted::TooBusy { .. }) {
                self.missed(lane);
            }
        })?;
        let ticket = Ticket(self.tickets_issued);
        self.tickets_issued += 1;
        let entry = Entry {
            lane,
            call,
            start_by: call.start_by,
            since: self.clock,
            standing: self
                .flows
                .standing(call.flow, self.field, self.policy.claim(), ticket.0),
            units_left: call.units.min(MOST_UNITS),
            reservation,
            place: Place::Waiting,
        };
        if call.class == Class::Interactive {
            self.interactive += 1;
        }
        if let Some(at) = self.lanes.get_mut(&lane) {
            at.add_backlog(call.class, entry.units_left);
            if call.class == Class::Interactive {
                at.queried(self.clock);
            }
        }
        self.calls.insert(ticket, entry);
        self.queue(ticket);
        Ok(ticket)
    }

    /// The next thing to do. Call until it says [`Step::Wait`].
    pub fn next(&mut self, now: Tick) -> Step {
        self.advance(now);
        if let Some(&(start_by, ticket)) = self.expiry.first()
            && start_by < self.clock
            && let Some(entry) = self.forget(ticket)
        {
            self.missed(entry.lane);
            return Step::Reject(entry.lane, ticket);
        }
        let chosen = match self.policy.order {
            Order::Fair => self.fairest(),
            Order::Arrival => self.control().or_else(|| self.oldest()),
        };
        match chosen {
            Some((lane, ticket)) => {
                self.start(ticket);
                Step::Start(lane, ticket)
            }
            None => Step::Wait(self.next_event()),
        }
    }

    /// Ends a call whose last quantum has returned, or that ends early. Its bytes are the caller's to hold until the
    /// result is gone. An unknown ticket changes nothing.
    pub fn finish(&mut self, now: Tick, ticket: Ticket, worked: Worked) -> Option<Reservation> {
        self.advance(now);
        self.stop(ticket, worked)?;
        let entry = self.forget(ticket)?;
        self.drop_if_empty(entry.lane);
        Some(entry.reservation)
    }

    /// Puts a call whose quantum has returned back into its queue, for its next one: `units_left` of work remain. It
    /// keeps its ticket and its bytes, and from here on waits until its deadline. An unknown ticket changes nothing.
    pub fn go_on(&mut self, now: Tick, ticket: Ticket, worked: Worked, units_left: u64) {
        self.advance(now);
        if self.stop(ticket, worked).is_none() {
            return;
        }
        let (clock, units_left) = (self.clock, units_left.min(MOST_UNITS));
        let Some(entry) = self.calls.get_mut(&ticket) else {
            return;
        };
        let done = entry.units_left;
        entry.units_left = units_left;
        entry.start_by = entry.call.deadline;
        entry.since = clock;
        let class = entry.call.class;
        if let Some(lane) = self.lanes.get_mut(&entry.lane) {
            lane.remove_backlog(class, done);
            lane.add_backlog(class, units_left);
        }
        self.queue(ticket);
    }

    /// What a running bulk call does at its checkpoint: it is held while interactive work is there, on any lane, until
    /// bulk work is due (SCHED-05, SCHED-06). Only calls on lanes whose engine calls checkpoints are ever held.
    pub fn checkpoint(&mut self, now: Tick, ticket: Ticket) -> AtCheckpoint {
        self.advance(now);
        let present = self.interactive;
        let Some(entry) = self.calls.get_mut(&ticket) else {
            return AtCheckpoint::Go;
        };
        let Place::Running { held, .. } = &mut entry.place else {
            return AtCheckpoint::Go;
        };
        let Some(lane) = self.lanes.get_mut(&entry.lane) else {
            return AtCheckpoint::Go;
        };
        let may_hold = entry.call.class == Class::Bulk && self.policy.order == Order::Fair;
        if may_hold && lane.should_hold(present) {
            if !std::mem::replace(held, true) {
                lane.hold();
            }
            return AtCheckpoint::Hold(self.clock.after(lane.credit()));
        }
        if std::mem::replace(held, false) {
            lane.release();
        }
        AtCheckpoint::Go
    }

    /// Takes a waiting call away: its caller has gone or cancelled.
    pub fn withdraw(&mut self, now: Tick, ticket: Ticket) -> Withdrawn {
        self.advance(now);
        match self.calls.get(&ticket).map(|entry| entry.place) {
            None => Withdrawn::Unknown,
            Some(Place::Running { .. }) => Withdrawn::Running,
            Some(Place::Waiting) => {
                let entry = self.forget(ticket);
                // Its caller saw the end of its patience a moment before this did.
                if let Some(late) = entry.filter(|entry| entry.start_by <= self.clock) {
                    self.missed(late.lane);
                }
                Withdrawn::Waiting
            }
        }
    }

    /// Interactive calls over all lanes, waiting and running: while there are none, no checkpoint holds.
    #[must_use]
    pub const fn interactive_present(&self) -> usize {
        self.interactive
    }

    /// Units of work (tokens) that the lane's next bulk quantum should have, from its measured speed.
    #[must_use]
    pub fn quantum_units(&self, lane: LaneId) -> u64 {
        let lane = self.lanes.get(&lane);
        let size = lane.map(|lane| lane.quantum_units(self.clock, &self.policy));
        size.unwrap_or(self.policy.first_quantum)
    }

    /// The lane's load now; nothing for a lane that is gone.
    #[must_use]
    pub fn load(&self, lane: LaneId) -> LaneLoad {
        self.lanes.get(&lane).map(Lane::load).unwrap_or_default()
    }

    /// How the lane does, of late and now; `None` for a lane that is gone.
    #[must_use]
    pub fn status(&self, now: Tick, lane: LaneId) -> Option<LaneStatus> {
        self.lanes.get(&lane).map(|lane| lane.status(now, &self.policy))
    }

    /// The pool of permits now.
    #[must_use]
    pub const fn permits(&self) -> PermitsLoad {
        self.permits.load()
    }

    /// Nanoseconds that so many units of bulk work take on the lane alone, where its speed was measured.
    #[must_use]
    pub fn bulk_nanos(&self, lane: LaneId, units: u64) -> Option<u64> {
        self.lanes.get(&lane)?.nanos(Class::Bulk, units)
    }

    /// When a call that cannot start in time should be offered again, in milliseconds: after the lane's work ahead, by
    /// its measured speed.
    #[must_use]
    pub fn retry_after_ms(&self, lane: LaneId, class: Class) -> u64 {
        advice_ms(self.lanes.get(&lane).and_then(|lane| lane.departure(class)))
    }

    /// Lets time pass up to `now`.
    fn advance(&mut self, now: Tick) {
        let nanos = now.since(self.clock);
        if nanos == 0 {
            return;
        }
        self.clock = now;
        let present = self.interactive > 0;
        for lane in self.lanes.values_mut() {
            lane.pass(nanos, present, &self.policy);
        }
    }

    /// A call came too late for its start, or would have.
    fn missed(&mut self, lane: LaneId) {
        let clock = self.clock;
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.starts.missed(clock);
        }
    }

    /// Checks every bound and takes the call's bytes.
    fn admit(&self, id: LaneId, call: &Call) -> Result<Reservation, Refusal> {
        let refuse = |why, retry_after_ms| Err(Refusal { why, retry_after_ms });
        let Some(lane) = self.lanes.get(&id).filter(|lane| !lane.closed) else {
            return refuse(NotAdmitted::Closed, 0);
        };
        if self.clock > call.start_by {
            return refuse(NotAdmitted::Late, advice_ms(lane.departure(call.class)));
        }
        let limit = lane.depth(call.class);
        if lane.waits(call.class) >= limit {
            return refuse(NotAdmitted::Depth { limit }, advice_ms(lane.departure(call.class)));
        }
        let patience = call.start_by.since(self.clock);
        if call.class == Class::Interactive
            && self.policy.order == Order::Fair
            && let Some(wait) = self.wait_for_slot(lane, call.deadline)
            && wait > patience
        {
            let expected_ms = wait.div_ceil(1_000_000);
            return refuse(NotAdmitted::TooBusy { expected_ms }, advice_ms(Some(wait - patience)));
        }
        let (asked, limit) = (call.bytes, lane.budget.limit());
        if asked > limit {
            return refuse(NotAdmitted::NeverFits { asked, limit }, 0);
        }
        lane.budget.reserve(asked).or_else(|free| {
            let retry_after_ms = advice_ms(lane.bytes_free_in(asked - free));
            refuse(NotAdmitted::Bytes { asked, free, limit }, retry_after_ms)
        })
    }

    /// Nanoseconds until an interactive call with this deadline could start, by measured speed; `None` where too little
    /// was measured to say.
    fn wait_for_slot(&self, lane: &Lane, deadline: Tick) -> Option<u64> {
        if lane.takes_calls() {
            return Some(0);
        }
        let mut slot_free = u64::MAX;
        for ticket in &lane.running {
            let entry = self.calls.get(ticket)?;
            let Place::Running { began, .. } = entry.place else {
                continue;
            };
            let units = match entry.call.class {
                Class::Interactive => entry.units_left,
                Class::Bulk => entry.units_left.min(lane.quantum_units(self.clock, &self.policy)),
                Class::Control => return None,
            };
            let left = lane
                .nanos(entry.call.class, units)?
                .saturating_sub(self.clock.since(began));
            slot_free = slot_free.min(left);
        }
        let ahead = lane.interactive.range(..=(deadline, Ticket(u64::MAX)));
        let units = ahead.filter_map(|(_, ticket)| self.calls.get(ticket).map(|entry| entry.units_left));
        let units = units.sum();
        let work = match units {
            0 => 0,
            units => lane.nanos(Class::Interactive, units)?,
        };
        (slot_free < u64::MAX).then(|| slot_free.saturating_add(work / u64::from(lane.limits.slots)))
    }

    /// The call that goes next by the rules: control, bulk that is due, the nearest query, the lowest bulk.
    fn fairest(&self) -> Option<(LaneId, Ticket)> {
        let bulk = self.bulk();
        let due = bulk.filter(|(_, _, due)| *due);
        let due = due.map(|(lane, ticket, _)| (lane, ticket));
        let queries_first = || self.query().or(bulk.map(|(lane, ticket, _)| (lane, ticket)));
        self.control().or(due).or_else(queries_first)
    }

    /// The call that has waited longest on a lane with a free slot, if the pool has permits for it. Nothing passes it.
    fn oldest(&self) -> Option<(LaneId, Ticket)> {
        let lanes = self.lanes.iter().filter(|(_, lane)| lane.takes_calls());
        let waiting = lanes.flat_map(|(id, lane)| {
            let query = lane.interactive.first().map(|(_, ticket)| *ticket);
            let bulk = lane.bulk.first().map(|(_, ticket)| *ticket);
            query.into_iter().chain(bulk).map(move |ticket| (*id, lane, ticket))
        });
        let arrival = |ticket: &Ticket| self.calls.get(ticket).map(|entry| (entry.standing.arrival, *ticket));
        let (id, lane, ticket) = waiting.min_by_key(|(_, _, ticket)| arrival(ticket))?;
        self.permits
            .admit_bulk(lane.limits.threads, false)
            .then_some((id, ticket))
    }

    /// A load or unload whose lane has come to rest.
    fn control(&self) -> Option<(LaneId, Ticket)> {
        let mut lanes = self.lanes.iter();
        lanes.find_map(|(id, lane)| {
            let first = lane.control.first()?;
            lane.running.is_empty().then_some((*id, *first))
        })
    }

    /// The query with the nearest deadline on a lane that has a slot for it.
    fn query(&self) -> Option<(LaneId, Ticket)> {
        let mut lanes = self.lanes.iter();
        lanes.find_map(|(id, lane)| {
            let (_, first) = lane.interactive.first()?;
            lane.takes_calls().then_some((*id, *first))
        })
    }

    /// The bulk call that is due, or else of the lowest rank, if the pool has permits for it, and whether it is due.
    /// Nothing passes it while it waits for permits: a call that needs many would wait for ever.
    fn bulk(&self) -> Option<(LaneId, Ticket, bool)> {
        let ready = self.lanes.iter().filter(|(_, lane)| lane.takes_bulk());
        let ready = ready.filter_map(|(id, lane)| lane.bulk.first().map(|first| (*id, lane, *first)));
        let (id, lane, (_, ticket)) = ready.min_by_key(|(_, lane, first)| (!lane.bulk_is_due(), *first))?;
        let due = lane.bulk_is_due();
        self.permits
            .admit_bulk(lane.limits.threads, due)
            .then_some((id, ticket, due))
    }

    /// The next moment at which `next` could say something else without any other event: a call expires, or bulk work
    /// that interactive calls withhold becomes due.
    fn next_event(&self) -> Option<Tick> {
        let expiry = self.expiry.first().map(|(start_by, _)| start_by.after(1));
        let withheld = |lane: &&Lane| {
            self.policy.order == Order::Fair
                && self.interactive > 0
                && !lane.bulk.is_empty()
                && lane.takes_bulk()
                && lane.runs(Class::Bulk) == 0
        };
        let due = self.lanes.values().filter(withheld).map(Lane::credit);
        let due = due.filter(|credit| *credit > 0).min();
        let due = due.map(|credit| self.clock.after(credit));
        expiry.into_iter().chain(due).min()
    }

    /// Puts a call into its class's queue.
    fn queue(&mut self, ticket: Ticket) {
        let Some(entry) = self.calls.get_mut(&ticket) else {
            return;
        };
        entry.place = Place::Waiting;
        self.expiry.insert((entry.start_by, ticket));
        let Some(lane) = self.lanes.get_mut(&entry.lane) else {
            return;
        };
        match entry.call.class {
            Class::Interactive => lane.interactive.insert((by_deadline(entry, self.policy.order), ticket)),
            Class::Bulk => lane.bulk.insert((by_service(entry, self.policy.order), ticket)),
            Class::Control => lane.control.insert(ticket),
        };
    }

    /// Takes a call out of its class's queue.
    fn unqueue(&mut self, ticket: Ticket) {
        let Some(entry) = self.calls.get(&ticket) else { return };
        self.expiry.remove(&(entry.start_by, ticket));
        let Some(lane) = self.lanes.get_mut(&entry.lane) else {
            return;
        };
        match entry.call.class {
            Class::Interactive => lane
                .interactive
                .remove(&(by_deadline(entry, self.policy.order), ticket)),
            Class::Bulk => lane.bulk.remove(&(by_service(entry, self.policy.order), ticket)),
            Class::Control => lane.control.remove(&ticket),
        };
    }

    /// A waiting call runs from here on.
    fn start(&mut self, ticket: Ticket) {
        self.unqueue(ticket);
        let clock = self.clock;
        let Some(entry) = self.calls.get_mut(&ticket) else {
            return;
        };
        entry.place = Place::Running {
            began: clock,
            held: false,
        };
        let (class, waited) = (entry.call.class, clock.since(entry.since));
        if class == Class::Bulk {
            self.field = self.field.max(entry.standing.virtual_time);
        }
        if let Some(lane) = self.lanes.get_mut(&entry.lane) {
            if class == Class::Interactive {
                lane.starts.started(clock, waited);
            }
            lane.enter(class, ticket);
            self.permits.take(class, lane.limits.threads);
        }
    }

    /// A running call has returned: its slot and permits are free, its work is measured and charged to it. `None` for
    /// a call that does not run.
    fn stop(&mut self, ticket: Ticket, worked: Worked) -> Option<()> {
        let entry = self.calls.get_mut(&ticket)?;
        let Place::Running { held, .. } = entry.place else {
            return None;
        };
        let class = entry.call.class;
        let lane = self.lanes.get_mut(&entry.lane)?;
        if held {
            lane.release();
        }
        lane.leave(class, ticket);
        lane.measured(class, worked.units, worked.nanos);
        self.permits.give_back(class, lane.limits.threads);
        let compute = worked.nanos.saturating_mul(u64::from(lane.limits.threads));
        self.flows.charge(entry.call.flow, &mut entry.standing, compute);
        Some(())
    }

    /// Drops a call that does not run; its bytes come back unless the caller keeps the entry.
    fn forget(&mut self, ticket: Ticket) -> Option<Entry> {
        if self.calls.get(&ticket)?.place == Place::Waiting {
            self.unqueue(ticket);
        }
        let entry = self.calls.remove(&ticket)?;
        if entry.call.class == Class::Interactive {
            self.interactive -= 1;
        }
        if let Some(lane) = self.lanes.get_mut(&entry.lane) {
            lane.remove_backlog(entry.call.class, entry.units_left);
        }
        Some(entry)
    }

    /// Forgets a closed lane once its last call has returned.
    fn drop_if_empty(&mut self, id: LaneId) {
        let gone = |lane: &Lane| lane.closed && lane.running.is_empty();
        if self.lanes.get(&id).is_some_and(gone) {
            self.lanes.remove(&id);
        }
    }
}

/// An interactive call's place in its queue.
const fn by_deadline(entry: &Entry, order: Order) -> Tick {
    match order {
        Order::Fair => entry.call.deadline,
        Order::Arrival => Tick(entry.standing.arrival),
    }
}

/// A bulk call's place in its queue.
const fn by_service(entry: &Entry, order: Order) -> u64 {
    match order {
        Order::Fair => rank(entry.standing.virtual_time, entry.since),
        Order::Arrival => entry.standing.arrival,
    }
}
