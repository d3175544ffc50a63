//! The rules of the lane queue under random histories, against a plain model of what waits and runs.
//!
//! Histories are sequences of offers, finishes, withdrawals and jumps in time; proptest shrinks a failing one. The
//! numbers are those of the rules in `schedule`'s header.

use std::collections::BTreeMap;

use proptest::prelude::*;
use synapse_core::schedule::{
    Call, Class, LaneLimits, LaneLoad, LaneQueue, NotAdmitted, Step, Tick, Ticket, Withdrawn,
};

#[derive(Clone, Copy, Debug)]
enum Action {
    Offer {
        class: Class,
        patience: u64,
        deadline: u64,
        bytes: u64,
    },
    Finish(usize),
    Withdraw(usize),
    Pass(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let class = prop_oneof![6 => Just(Class::Interactive), 4 => Just(Class::Bulk), 1 => Just(Class::Control)];
    let offer = (class, 0..60u64, 0..60u64, 0..40u64).prop_map(|(class, patience, more, bytes)| Action::Offer {
        class,
        patience,
        deadline: patience + more,
        bytes,
    });
    prop_oneof![
        5 => offer,
        3 => (0..8usize).prop_map(Action::Finish),
        1 => (0..8usize).prop_map(Action::Withdraw),
        3 => (0..30u64).prop_map(Action::Pass),
    ]
}

fn limits() -> impl Strategy<Value = LaneLimits> {
    (1..4u32, 1..6usize, 1..6usize, 40..120u64, 5..40u64).prop_map(|(slots, interactive, bulk, bytes, aging)| {
        LaneLimits {
            slots,
            interactive_depth: interactive,
            bulk_depth: bulk,
            control_depth: 2,
            bytes,
            bulk_aging: aging,
        }
    })
}

/// What the queue should hold, kept as plainly as possible.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<Ticket, (Call, Tick)>,
    running: BTreeMap<Ticket, Call>,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.waiting.values().map(|(call, _)| call.bytes).sum::<u64>()
            + self.running.values().map(|c| c.bytes).sum::<u64>()
    }

    fn waits(&self, class: Class) -> usize {
        self.waiting.values().filter(|(call, _)| call.class == class).count()
    }

    fn runs(&self, class: Class) -> usize {
        self.running.values().filter(|call| call.class == class).count()
    }

    fn load(&self) -> LaneLoad {
        LaneLoad {
            interactive_waiting: self.waits(Class::Interactive),
            bulk_waiting: self.waits(Class::Bulk),
            control_waiting: self.waits(Class::Control),
            running: self.running.len(),
            bytes: self.bytes(),
        }
    }

    fn check_admission(&self, now: Tick, call: &Call, limits: &LaneLimits, result: &Result<Ticket, NotAdmitted>) {
        let depth = match call.class {
            Class::Interactive => limits.interactive_depth,
            Class::Bulk => limits.bulk_depth,
            Class::Control => limits.control_depth,
        };
        let fits = now <= call.start_by && self.waits(call.class) < depth && self.bytes() + call.bytes <= limits.bytes;
        assert_eq!(result.is_ok(), fits, "{result:?}");
    }

    fn check_start(&self, now: Tick, ticket: Ticket, limits: &LaneLimits) {
        let (call, since) = self.waiting[&ticket];
        assert!(now <= call.start_by, "rule 1: started after its time");
        let others = || self.waiting.iter().filter(move |(other, _)| **other != ticket);
        let aged = |(call, since): &(Call, Tick)| call.class == Class::Bulk && now.since(*since) >= limits.bulk_aging;
        let slots = usize::try_from(limits.slots).expect("small");
        match call.class {
            Class::Control => assert!(self.running.is_empty(), "rule 5: control runs alone"),
            Class::Interactive => {
                let first = others().filter(|(_, (c, _))| c.class == Class::Interactive);
                for (other, (c, _)) in first {
                    assert!(
                        (call.deadline, ticket) < (c.deadline, *other),
                        "rule 2: an earlier deadline waits"
                    );
                }
                let bulk_slots = if slots >= 2 { slots - 1 } else { 1 };
                let passed_over = others().any(|(_, entry)| aged(entry)) && self.runs(Class::Bulk) < bulk_slots;
                assert!(!passed_over, "rule 3: an aged bulk call waits and could run");
            }
            Class::Bulk => {
                assert!(
                    others().all(|(o, (c, _))| c.class != Class::Bulk || *o > ticket),
                    "rule 3: arrival order"
                );
                let interactive = others().any(|(_, (c, _))| c.class == Class::Interactive);
                assert!(
                    aged(&(call, since)) || !interactive,
                    "rule 2: an interactive call waits"
                );
                assert!(
                    slots == 1 || self.runs(Class::Bulk) < slots - 1,
                    "rule 4: the last slot is interactive"
                );
            }
        }
        if call.class != Class::Control {
            assert!(
                self.waits(Class::Control) == 0 && self.runs(Class::Control) == 0,
                "rule 5: control goes first"
            );
        }
        assert!(self.running.len() < slots || call.class == Class::Control);
    }
}

struct Run {
    queue: LaneQueue,
    model: Model,
    limits: LaneLimits,
    now: Tick,
}

impl Run {
    fn new(limits: LaneLimits) -> Self {
        Self {
            queue: LaneQueue::new(limits),
            model: Model::default(),
            limits,
            now: Tick(1_000),
        }
    }

    /// Carries out steps until the queue waits; gives the moment that it waits for.
    fn settle(&mut self) -> Option<Tick> {
        loop {
            match self.queue.next(self.now) {
                Step::Start(ticket) => {
                    self.model.check_start(self.now, ticket, &self.limits);
                    let (call, _) = self.model.waiting.remove(&ticket).expect("a waiting call");
                    self.model.running.insert(ticket, call);
                }
                Step::Reject(ticket) => {
                    let (call, _) = self.model.waiting.remove(&ticket).expect("a waiting call");
                    assert!(self.now > call.start_by, "rule 1: rejected before its time");
                }
                Step::Wait(until) => {
                    let first = self.model.waiting.values().map(|(call, _)| call.start_by).min();
                    assert_eq!(
                        until,
                        first.map(|tick| tick.after(1)),
                        "the wake-up is the first expiry"
                    );
                    let late = self.model.waiting.values().any(|(call, _)| call.start_by < self.now);
                    assert!(!late, "rule 1: a call waits past its time");
                    if self.model.running.is_empty() {
                        assert!(self.model.waiting.is_empty(), "an idle lane keeps a call waiting");
                    }
                    return until;
                }
            }
            assert_eq!(self.queue.load(), self.model.load());
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Offer {
                class,
                patience,
                deadline,
                bytes,
            } => {
                let call = Call {
                    class,
                    start_by: self.now.after(patience),
                    deadline: self.now.after(deadline),
                    bytes,
                };
                let result = self.queue.offer(self.now, call);
                self.model.check_admission(self.now, &call, &self.limits, &result);
                if let Ok(ticket) = result {
                    assert!(
                        self.model.waiting.insert(ticket, (call, self.now)).is_none(),
                        "a ticket twice"
                    );
                }
            }
            Action::Finish(index) => {
                let ticket = self.model.running.keys().nth(index).copied();
                if let Some(ticket) = ticket {
                    self.queue.finish(ticket);
                    self.model.running.remove(&ticket);
                }
            }
            Action::Withdraw(index) => {
                let waiting = self
                    .model
                    .waiting
                    .keys()
                    .chain(self.model.running.keys())
                    .nth(index)
                    .copied();
                let Some(ticket) = waiting else { return };
                let expected = match self.model.waiting.remove(&ticket) {
                    Some(_) => Withdrawn::Waiting,
                    None => Withdrawn::Running,
                };
                assert_eq!(self.queue.withdraw(ticket), expected);
            }
            Action::Pass(nanos) => self.now = self.now.after(nanos),
        }
        assert_eq!(self.queue.load(), self.model.load());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Proves SCHED-02, SCHED-03, SCHED-05, SCHED-13. The rules hold at every step of every history, every admitted
    /// call is started, rejected or withdrawn exactly once, and the lane's bytes return to 0.
    #[test]
    fn rules_hold_in_random_histories(limits in limits(), actions in prop::collection::vec(action(), 1..120)) {
        let mut run = Run::new(limits);
        for action in actions {
            run.act(action);
            run.settle();
        }
        for _ in 0..1_000 {
            if run.model.waiting.is_empty() && run.model.running.is_empty() {
                break;
            }
            run.act(Action::Finish(0));
            if let Some(until) = run.settle()
                && run.model.running.is_empty()
            {
                run.now = until;
                run.settle();
            }
        }
        prop_assert_eq!(run.queue.load(), LaneLoad::default());
    }
}

fn call(class: Class, start_by: u64) -> Call {
    Call {
        class,
        start_by: Tick(start_by),
        deadline: Tick(start_by),
        bytes: 1,
    }
}

/// A query stream that always has the next query ready still lets bulk work through.
#[test]
fn steady_queries_do_not_starve_bulk() {
    let mut queue = LaneQueue::new(LaneLimits {
        bulk_aging: 100,
        ..LaneLimits::default()
    });
    let bulk = queue.offer(Tick(0), call(Class::Bulk, 1_000_000)).expect("room");
    let mut query = queue.offer(Tick(0), call(Class::Interactive, 1_000)).expect("room");
    let mut started_bulk = None;
    for turn in 0..100u64 {
        let now = Tick(turn * 10);
        let Step::Start(ticket) = queue.next(now) else {
            panic!("the lane is free at {now:?}")
        };
        if ticket == bulk {
            started_bulk = Some(now);
            break;
        }
        assert_eq!(ticket, query);
        query = queue.offer(now, call(Class::Interactive, now.0 + 1_000)).expect("room");
        queue.finish(ticket);
    }
    assert_eq!(
        started_bulk,
        Some(Tick(100)),
        "at the first free moment after its 100 ns"
    );
}

/// A lane that closes gives back what waits, oldest first, and forgets what runs when it returns.
#[test]
fn drain_takes_what_waits() {
    let mut queue = LaneQueue::new(LaneLimits::default());
    let running = queue.offer(Tick(0), call(Class::Bulk, 10)).expect("room");
    assert_eq!(queue.next(Tick(0)), Step::Start(running));
    let bulk = queue.offer(Tick(0), call(Class::Bulk, 10)).expect("room");
    let query = queue.offer(Tick(0), call(Class::Interactive, 10)).expect("room");
    assert!(queue.interactive_waits());
    assert_eq!(queue.drain(), vec![bulk, query]);
    assert_eq!(queue.withdraw(running), Withdrawn::Running);
    queue.finish(running);
    queue.finish(running);
    assert_eq!(queue.withdraw(running), Withdrawn::Unknown);
    assert_eq!(queue.load(), LaneLoad::default());
}

/// A load may say that more calls can run at once; bulk then leaves the last slot free.
#[test]
fn slots_follow_the_loaded_model() {
    let mut queue = LaneQueue::new(LaneLimits {
        slots: 0,
        ..LaneLimits::default()
    });
    let first = queue.offer(Tick(0), call(Class::Bulk, 10)).expect("room");
    let second = queue.offer(Tick(0), call(Class::Bulk, 10)).expect("room");
    assert_eq!(queue.next(Tick(0)), Step::Start(first), "0 slots count as 1");
    assert_eq!(queue.next(Tick(0)), Step::Wait(Some(Tick(11))));
    queue.set_slots(2);
    assert_eq!(
        queue.next(Tick(0)),
        Step::Wait(Some(Tick(11))),
        "the second slot is interactive"
    );
    let query = queue.offer(Tick(0), call(Class::Interactive, 10)).expect("room");
    assert_eq!(queue.next(Tick(0)), Step::Start(query));
    queue.set_slots(4);
    assert_eq!(queue.next(Tick(0)), Step::Start(second));
}
