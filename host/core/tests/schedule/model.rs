//! What the scheduler should know, kept as plainly as possible, and the rules that each of its steps must obey.
//!
//! State: every request of one history with its standing, and each lane's account of withheld time. Caller: the
//! simulation, which tells it what happens. The numbers of the rules are those of the header of `core::schedule`.

use std::collections::BTreeMap;

use synapse_core::engine::Preempt;
use synapse_core::schedule::{
    Call, Class, FlowId, LaneId, LaneLimits, LaneLoad, NotAdmitted, Policy, Refusal, Tick, Ticket,
};

/// Where a request stands at the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Waiting,
    Running { held: bool },
}

/// A request that the scheduler holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub call: Call,
    pub lane: LaneId,
    pub at: At,
    /// The last moment for its next start.
    pub start_by: Tick,
    pub since: Tick,
    /// Quanta that it was given.
    pub turns: u32,
    /// What its last quantum was charged with; at first what its flow had been given beyond the field.
    pub last_charge: u64,
    /// Its share.
    pub weight: u32,
    /// What it and its flow were given, over the weight.
    pub served: u64,
}

/// The account of a flow.
#[derive(Clone, Copy, Debug)]
struct FlowModel {
    weight: u32,
    served: u64,
}

/// One lane's bounds and account.
#[derive(Clone, Debug)]
pub struct LaneModel {
    pub limits: LaneLimits,
    pub open: bool,
    /// Bytes of results that wait for their readers.
    pub results: u64,
    /// Nanoseconds for which bulk may still be withheld.
    pub credit: u64,
}

/// Everything that the scheduler should know.
#[derive(Debug)]
pub struct Model {
    policy: Policy,
    pub now: Tick,
    pub calls: BTreeMap<Ticket, Held>,
    pub lanes: BTreeMap<LaneId, LaneModel>,
    flows: BTreeMap<FlowId, FlowModel>,
    /// The most that any bulk call had been given when it started: where a newcomer stands.
    field: u64,
}

const WITHHELD_PER_WORK: u64 = 4;
const PATIENCE: u64 = 800_000_000;
/// What a flow may be behind the field when it comes back, for each permit of the pool.
const CLAIM: u64 = 400_000_000;

impl Model {
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            now: Tick(0),
            calls: BTreeMap::new(),
            lanes: BTreeMap::new(),
            flows: BTreeMap::new(),
            field: 0,
        }
    }

    pub fn open_flow(&mut self, id: FlowId, weight: u32) {
        let flow = FlowModel {
            weight,
            served: self.field,
        };
        assert!(self.flows.insert(id, flow).is_none(), "a flow's number twice");
    }

    pub fn close_flow(&mut self, id: FlowId) {
        assert!(self.flows.remove(&id).is_some(), "a flow that is not open");
    }

    /// A quantum has returned: its compute, over the weight, is on the account of the call and of its flow.
    pub fn charge(&mut self, ticket: Ticket, nanos: u64) {
        let held = self.calls.get_mut(&ticket).expect("a request that ran");
        let threads = u64::from(self.lanes[&held.lane].limits.threads);
        held.last_charge = nanos * threads / u64::from(held.weight);
        held.served += held.last_charge;
        if let Some(flow) = held.call.flow {
            self.flows.get_mut(&flow).expect("an open flow").served += held.last_charge;
        }
    }

    pub fn open(&mut self, id: LaneId, limits: LaneLimits) {
        let lane = LaneModel {
            limits,
            open: true,
            results: 0,
            credit: PATIENCE,
        };
        assert!(self.lanes.insert(id, lane).is_none(), "a lane's number twice");
    }

    fn on(&self, lane: LaneId) -> impl Iterator<Item = (&Ticket, &Held)> {
        self.calls.iter().filter(move |(_, held)| held.lane == lane)
    }

    fn waits(&self, lane: LaneId, class: Class) -> usize {
        let waiting = |held: &Held| held.at == At::Waiting && held.call.class == class;
        self.on(lane).filter(|(_, held)| waiting(held)).count()
    }

    fn runs(&self, lane: LaneId, class: Class) -> usize {
        let running = |held: &Held| held.at != At::Waiting && held.call.class == class;
        self.on(lane).filter(|(_, held)| running(held)).count()
    }

    fn running(&self, lane: LaneId) -> usize {
        self.on(lane).filter(|(_, held)| held.at != At::Waiting).count()
    }

    pub fn interactive_present(&self) -> usize {
        let interactive = |held: &&Held| held.call.class == Class::Interactive;
        self.calls.values().filter(interactive).count()
    }

    fn bytes(&self, lane: LaneId) -> u64 {
        self.on(lane).map(|(_, held)| held.call.bytes).sum::<u64>() + self.lanes[&lane].results
    }

    pub fn load(&self, lane: LaneId) -> LaneLoad {
        LaneLoad {
            interactive_waiting: self.waits(lane, Class::Interactive),
            bulk_waiting: self.waits(lane, Class::Bulk),
            control_waiting: self.waits(lane, Class::Control),
            interactive_running: self.runs(lane, Class::Interactive),
            bulk_running: self.runs(lane, Class::Bulk),
            control_running: self.runs(lane, Class::Control),
            bytes: self.bytes(lane),
        }
    }

    /// Rule 4's account: bulk that works earns credit, bulk that interactive calls withhold spends it.
    pub fn pass(&mut self, to: Tick) {
        let nanos = to.since(self.now);
        self.now = to;
        let present = self.interactive_present() > 0;
        let ids: Vec<LaneId> = self.lanes.keys().copied().collect();
        for id in ids {
            let at = |at: At| {
                let bulk = |held: &Held| held.call.class == Class::Bulk && held.at == at;
                self.on(id).any(|(_, held)| bulk(held))
            };
            let works = at(At::Running { held: false });
            let withheld = present && (at(At::Waiting) || at(At::Running { held: true }));
            let lane = self.lanes.get_mut(&id).expect("a lane");
            if works {
                lane.credit = (lane.credit + nanos * WITHHELD_PER_WORK).min(PATIENCE);
            } else if withheld {
                lane.credit = lane.credit.saturating_sub(nanos);
            }
        }
    }

    fn due(&self, lane: LaneId) -> bool {
        self.lanes[&lane].credit == 0
    }

    fn slots(&self, lane: LaneId) -> usize {
        usize::try_from(self.lanes[&lane].limits.slots).expect("small")
    }

    fn takes_calls(&self, lane: LaneId) -> bool {
        let control = self.waits(lane, Class::Control) + self.runs(lane, Class::Control);
        control == 0 && self.running(lane) < self.slots(lane)
    }

    fn takes_bulk(&self, lane: LaneId) -> bool {
        let slots = self.slots(lane);
        let bulk_slots = if slots == 1 { 1 } else { slots - 1 };
        self.takes_calls(lane) && self.runs(lane, Class::Bulk) < bulk_slots
    }

    fn permits(&self, class: impl Fn(Class) -> bool) -> u64 {
        let running = self.calls.values().filter(|held| held.at != At::Waiting);
        let counted = running.filter(|held| class(held.call.class));
        counted
            .map(|held| u64::from(self.lanes[&held.lane].limits.threads))
            .sum()
    }

    /// Rule 8: whether the pool has permits for a bulk call of this lane.
    fn fits(&self, lane: LaneId) -> bool {
        let due = self.due(lane);
        let held = self.permits(|class| !due || class == Class::Bulk);
        let wanted = u64::from(self.lanes[&lane].limits.threads);
        held == 0 || held + wanted <= u64::from(self.policy.permits)
    }

    /// Rules 1 and 9: an offer is admitted exactly when every bound has room, and a refusal names one that has none.
    pub fn check_offer(&self, lane: LaneId, call: &Call, outcome: &Result<Ticket, Refusal>) {
        let at = &self.lanes[&lane];
        let depth = match call.class {
            Class::Interactive => at.limits.interactive_depth,
            Class::Bulk => at.limits.bulk_depth,
            Class::Control => at.limits.control_depth,
        };
        let free = at.limits.bytes - self.bytes(lane);
        let late = self.now > call.start_by;
        let full = self.waits(lane, call.class) >= depth;
        let fits = call.bytes <= free;
        match outcome {
            Ok(_) => assert!(
                at.open && !late && !full && fits,
                "rule 9: admitted beyond a bound: {call:?}"
            ),
            Err(refusal) => {
                match refusal.why {
                    NotAdmitted::Closed => assert!(!at.open),
                    NotAdmitted::Late => assert!(late),
                    NotAdmitted::Depth { limit } => assert!(full && limit == depth),
                    NotAdmitted::NeverFits { .. } => assert!(call.bytes > at.limits.bytes),
                    NotAdmitted::Bytes { asked, free: said, .. } => {
                        assert!(!fits && asked == call.bytes && said == free, "{refusal:?}");
                    }
                    NotAdmitted::TooBusy { .. } => {
                        assert_eq!(call.class, Class::Interactive);
                        assert!(!self.takes_calls(lane), "rule 1: a free lane is never too busy");
                    }
                }
                let advice = refusal.retry_after_ms;
                let hopeless = matches!(refusal.why, NotAdmitted::Closed | NotAdmitted::NeverFits { .. });
                assert!(
                    if hopeless {
                        advice == 0
                    } else {
                        (5..=60_000).contains(&advice)
                    },
                    "{refusal:?}"
                );
            }
        }
    }

    pub fn admitted(&mut self, ticket: Ticket, lane: LaneId, call: Call) {
        let field = self.field;
        let (weight, served) = match call.flow {
            None => (1, field),
            Some(flow) => {
                let flow = self.flows.get_mut(&flow).expect("an open flow");
                let claim = CLAIM * u64::from(self.policy.permits);
                flow.served = flow.served.max(field.saturating_sub(claim));
                (flow.weight, flow.served)
            }
        };
        let held = Held {
            call,
            lane,
            at: At::Waiting,
            start_by: call.start_by,
            since: self.now,
            turns: 0,
            last_charge: served.saturating_sub(field),
            weight,
            served,
        };
        assert!(self.calls.insert(ticket, held).is_none(), "a ticket twice");
    }

    /// Every rule about what may start now; then it runs.
    pub fn check_start(&mut self, lane: LaneId, ticket: Ticket) {
        let held = *self
            .calls
            .get(&ticket)
            .expect("started: a request that nobody waits for");
        assert_eq!(held.at, At::Waiting, "started twice");
        assert_eq!(held.lane, lane, "started on another lane");
        assert!(self.now <= held.start_by, "rule 1: started after its time");
        match held.call.class {
            Class::Control => assert_eq!(self.running(lane), 0, "rule 7: control runs alone"),
            Class::Interactive => self.check_query(lane, ticket, &held),
            Class::Bulk => {
                self.check_bulk(lane, ticket, &held);
                self.field = self.field.max(held.served);
            }
        }
        if held.call.class != Class::Control {
            assert!(self.takes_calls(lane), "rules 6 and 7: no slot, or control goes first");
        }
        let held = self.calls.get_mut(&ticket).expect("it is there");
        held.at = At::Running { held: false };
        held.turns += 1;
    }

    fn check_query(&self, lane: LaneId, ticket: Ticket, held: &Held) {
        let queries = |held: &Held| held.call.class == Class::Interactive && held.at == At::Waiting;
        for (other, waiting) in self.on(lane).filter(|(_, held)| queries(held)) {
            let order = (held.call.deadline, ticket) <= (waiting.call.deadline, *other);
            assert!(order, "rule 2: a nearer deadline waits");
        }
        let bulk_waits = |id: &LaneId| self.waits(*id, Class::Bulk) > 0 && self.takes_bulk(*id) && self.due(*id);
        let due: Vec<LaneId> = self.lanes.keys().copied().filter(bulk_waits).collect();
        let passed_over = due == [lane] && self.fits(lane);
        assert!(!passed_over, "rule 4: bulk is due and could have started");
    }

    fn check_bulk(&self, lane: LaneId, ticket: Ticket, held: &Held) {
        assert!(self.takes_bulk(lane), "rule 6: the last slot is interactive");
        assert!(self.fits(lane), "rule 8: bulk overdraws the pool");
        if !self.due(lane) {
            let startable = |id: &LaneId| self.waits(*id, Class::Interactive) > 0 && self.takes_calls(*id);
            assert!(!self.lanes.keys().any(startable), "rule 2: a query could have started");
        }
        // A newcomer gets past one that waits only as far as that one's last quantum was long, and the next call of a
        // flow as far as its claim.
        let claim = self.field.saturating_sub(held.served);
        let waiting = |held: &Held| held.call.class == Class::Bulk && held.at == At::Waiting;
        for (other, passed) in self.on(lane).filter(|(_, held)| waiting(held)) {
            let rank = |held: &Held, ticket| (held.served + held.since.0, ticket);
            assert!(
                rank(held, ticket) <= rank(passed, *other),
                "rule 3: one that was given less, or waits longer, is passed over"
            );
            let ahead = held.turns == 0 && *other != ticket;
            let allowed = passed.since.after(passed.last_charge).after(claim);
            assert!(!ahead || held.since <= allowed, "rule 3: a bulk call does not age");
        }
    }

    /// Rule 5: whether a running bulk call may be held at its checkpoint.
    pub fn check_hold(&mut self, ticket: Ticket, until: Option<Tick>) {
        let held = self.calls[&ticket];
        let lane = &self.lanes[&held.lane];
        let may = held.call.class == Class::Bulk && lane.limits.preempt == Preempt::Checkpoint;
        match until {
            Some(until) => {
                assert!(may && self.interactive_present() > 0, "rule 5: held for nobody");
                assert_eq!(
                    until,
                    self.now.after(lane.credit),
                    "rule 4: held for longer than may be"
                );
                assert!(lane.credit > 0, "rule 4: bulk is due and is held");
            }
            None if may && lane.credit > 0 && lane.limits.slots >= 2 && self.waits(held.lane, Class::Control) == 0 => {
                assert_eq!(
                    self.interactive_present(),
                    0,
                    "rule 5: not held although a query is there"
                );
            }
            None => {}
        }
        let running = At::Running { held: until.is_some() };
        self.calls.get_mut(&ticket).expect("it is there").at = running;
    }

    /// What must hold whenever the scheduler says that there is nothing to do.
    pub fn check_settled(&self) {
        for held in self.calls.values().filter(|held| held.at == At::Waiting) {
            assert!(self.now <= held.start_by, "rule 1: a call waits past its time");
        }
        let mut candidates = Vec::new();
        for id in self.lanes.keys().copied() {
            let queries = self.waits(id, Class::Interactive) > 0;
            assert!(
                !(queries && self.takes_calls(id)),
                "rule 2: a query waits beside a free slot"
            );
            let control = self.waits(id, Class::Control) > 0 && self.running(id) == 0;
            assert!(!control, "rule 7: control waits at rest");
            if self.waits(id, Class::Bulk) > 0 && self.takes_bulk(id) {
                candidates.push(id);
            }
        }
        let idle = !candidates.is_empty() && candidates.iter().all(|id| self.fits(*id));
        assert!(!idle, "rule 8: bulk waits although every candidate fits");
    }

    /// Whether the end of someone's patience, or of a lane's credit, comes at `wake` or later: nothing is slept through.
    pub fn check_wake(&self, wake: Option<Tick>) {
        let waiting = self.calls.values().filter(|held| held.at == At::Waiting);
        let expiry = waiting.map(|held| held.start_by.after(1)).min();
        let withheld = |id: &&LaneId| {
            let lane = self.takes_bulk(**id) && self.waits(**id, Class::Bulk) > 0 && self.runs(**id, Class::Bulk) == 0;
            lane && self.interactive_present() > 0 && !self.due(**id)
        };
        let due = self.lanes.keys().filter(withheld).map(|id| self.lanes[id].credit).min();
        let due = due.map(|credit| self.now.after(credit));
        assert_eq!(
            wake,
            expiry.into_iter().chain(due).min(),
            "the scheduler sleeps too long or too short"
        );
    }
}
