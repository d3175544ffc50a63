//! A whole history of a daemon: arrivals, engine calls of random length, cancels, failures, unloads and restarts.
//!
//! State: the scheduler under test, the model beside it, the jobs that clients want done, what the engines are at.
//! Caller: the tests of `main.rs`. Everything follows from a seed, and nothing from a clock.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use synapse_core::engine::Preempt;
use synapse_core::job::{JobEvent, JobState};
use synapse_core::schedule::{
    AtCheckpoint, Call, Class, FlowId, LaneId, LaneLimits, LaneLoad, NotAdmitted, Packing, Policy, QuantumBounds,
    Reservation, Scheduler, Step, Tick, Ticket, Withdrawn, Worked,
};

use crate::chance::Chance;
use crate::model::{At, Model};

const MS: u64 = 1_000_000;
/// Lines of a history that a failing replay shows.
const SHOWN: usize = 60;
/// Steps after the last arrival within which everything must have ended.
const PATIENCE: usize = 200_000;

/// An engine behind a lane.
#[derive(Debug)]
struct Engine {
    id: LaneId,
    limits: LaneLimits,
    nanos_per_unit: u64,
    max_items: u32,
}

/// What a client wants done, once and completely, whatever happens to the daemon.
#[derive(Debug)]
struct Job {
    engine: usize,
    lengths: Vec<u32>,
    committed: Vec<bool>,
    state: JobState,
    weight: u32,
    /// Its account of served time, while it is live: its calls come one after another.
    flow: Option<FlowId>,
}

/// A request that was admitted and has not ended.
#[derive(Debug)]
struct Live {
    engine: usize,
    class: Class,
    job: Option<usize>,
    lengths: Vec<u32>,
    packing: Packing,
    cancelled: bool,
    /// The quantum in the engine.
    quantum: Option<Quantum>,
}

#[derive(Debug)]
struct Quantum {
    items: Vec<usize>,
    units: u64,
    nanos: u64,
    left: u64,
    /// When the hold at the checkpoint ends at the latest.
    held_until: Option<Tick>,
}

/// One history.
pub struct World {
    chance: Chance,
    policy: Policy,
    scheduler: Scheduler,
    model: Model,
    engines: Vec<Engine>,
    jobs: Vec<Job>,
    /// Live jobs that have items left and no call now.
    between: Vec<usize>,
    live: BTreeMap<Ticket, Live>,
    results: Vec<(Tick, LaneId, Reservation)>,
    wake: Option<Tick>,
    now: Tick,
    trace: Option<Vec<String>>,
}

impl World {
    /// A daemon with one to three engines.
    pub fn new(seed: u64, trace: bool) -> Self {
        let mut chance = Chance::new(seed);
        let policy = Policy {
            permits: u32::try_from(chance.within(1, 4)).expect("small"),
            ..Policy::default()
        };
        let mut world = Self {
            policy,
            scheduler: Scheduler::new(policy),
            model: Model::new(policy),
            engines: Vec::new(),
            jobs: Vec::new(),
            between: Vec::new(),
            live: BTreeMap::new(),
            results: Vec::new(),
            wake: None,
            now: Tick(0),
            trace: trace.then(Vec::new),
            chance: chance.clone(),
        };
        for _ in 0..chance.within(1, 3) {
            let engine = world.make_engine();
            world.engines.push(engine);
        }
        world
    }

    /// Runs `steps` events and then everything that is left.
    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.act();
            self.settle();
        }
        self.finish_up();
    }

    /// The last lines of the history, where it is traced.
    pub fn story(&self) -> String {
        let lines = self.trace.as_deref().unwrap_or_default();
        let mut story = String::new();
        for line in &lines[lines.len().saturating_sub(SHOWN)..] {
            let _ = writeln!(story, "{line}");
        }
        story
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12} µs  {}", now.0 / 1_000, line()));
        }
    }

    fn make_engine(&mut self) -> Engine {
        let chance = &mut self.chance;
        let (preempt, slots) = match chance.within(0, 2) {
            0 => (Preempt::Quantum, 1),
            1 => (Preempt::Share, chance.within(1, 4)),
            _ => (Preempt::Checkpoint, chance.within(1, 3)),
        };
        let depth = |chance: &mut Chance| usize::try_from(chance.within(1, 8)).expect("small");
        let limits = LaneLimits {
            slots: u32::try_from(slots).expect("small"),
            threads: u32::try_from(chance.within(1, 4)).expect("small"),
            preempt,
            interactive_depth: depth(chance),
            bulk_depth: depth(chance),
            control_depth: 2,
            bytes: chance.within(200, 600),
        };
        let nanos_per_unit = chance.scaled(1_000, 500_000);
        let max_items = u32::try_from(chance.within(1, 32)).expect("small");
        let id = self.scheduler.open(limits);
        self.model.open(id, limits);
        Engine {
            id,
            limits,
            nanos_per_unit,
            max_items,
        }
    }

    fn act(&mut self) {
        match self.chance.within(1, 100) {
            1..=28 => self.query(),
            29..=36 => self.small_batch(),
            37..=41 => self.new_job(),
            42..=44 => self.control(),
            45..=49 => self.cancel(),
            50 => self.reload(),
            51 if self.chance.happens(40) => self.restart(),
            _ => self.pass_time(),
        }
    }

    fn query(&mut self) {
        let items = if self.chance.happens(10) { 3 } else { 1 };
        let lengths = (0..items).map(|_| self.length(2_000)).collect();
        let patience = self.chance.scaled(1, 4_096) * MS;
        let more = self.chance.scaled(1, 4_096) * MS;
        self.offer_new(Class::Interactive, lengths, patience, patience + more);
    }

    fn small_batch(&mut self) {
        let items = self.chance.within(1, 24);
        let lengths = self.lengths(items);
        let deadline = self.chance.scaled(64, 32_768) * MS;
        self.offer_new(Class::Bulk, lengths, deadline, deadline);
    }

    fn control(&mut self) {
        let patience = self.chance.scaled(64, 8_192) * MS;
        self.offer_new(Class::Control, vec![1], patience, patience);
    }

    fn lengths(&mut self, items: u64) -> Vec<u32> {
        (0..items).map(|_| self.length(4_096)).collect()
    }

    fn length(&mut self, most: u64) -> u32 {
        u32::try_from(self.chance.scaled(1, most)).expect("small")
    }

    fn new_job(&mut self) {
        let items = self.chance.scaled(1, 200);
        let lengths = self.lengths(items);
        let job = Job {
            engine: self.chance.index(self.engines.len()),
            committed: vec![false; lengths.len()],
            lengths,
            state: JobState::FailedTransient,
            weight: u32::try_from(self.chance.within(1, 4)).expect("small"),
            flow: None,
        };
        self.jobs.push(job);
        self.submit(self.jobs.len() - 1);
    }

    /// A client submits its job, for the first time or again: what was committed is not computed anew.
    fn submit(&mut self, number: usize) {
        let job = &self.jobs[number];
        assert_eq!(job.state, JobState::FailedTransient, "a live or ended job is submitted");
        let weight = job.weight;
        let flow = self.scheduler.open_flow(weight);
        self.model.open_flow(flow, weight);
        self.jobs[number].flow = Some(flow);
        if self.next_call(number) {
            self.jobs[number].state = JobState::Queued;
        } else {
            self.close_flow(number);
        }
    }

    fn close_flow(&mut self, number: usize) {
        if let Some(flow) = self.jobs[number].flow.take() {
            self.scheduler.close_flow(flow);
            self.model.close_flow(flow);
        }
    }

    /// Offers some of the items that a live job has left.
    fn next_call(&mut self, number: usize) -> bool {
        let most = usize::try_from(self.chance.scaled(1, 200)).expect("small");
        let job = &self.jobs[number];
        let mut room = most;
        let elsewhere: Vec<bool> = job
            .committed
            .iter()
            .map(|done| {
                let here = !done && room > 0;
                room -= usize::from(here);
                !here
            })
            .collect();
        let (lengths, flow, engine) = (job.lengths.clone(), job.flow, job.engine);
        let packing = Packing::new(&lengths, &elsewhere);
        let far = self.now.after(1 << 50);
        let call = Call {
            class: Class::Bulk,
            start_by: far,
            deadline: far,
            // A job always fits alone, so that it comes to its end.
            bytes: self.chance.scaled(1, 200),
            units: packing.tokens_left(),
            flow,
        };
        self.offer(engine, call, Some(number), lengths, packing)
    }

    fn offer_new(&mut self, class: Class, lengths: Vec<u32>, patience: u64, deadline: u64) -> bool {
        let engine = self.chance.index(self.engines.len());
        let packing = Packing::new(&lengths, &[]);
        let call = Call {
            class,
            start_by: self.now.after(patience),
            deadline: self.now.after(deadline),
            // It may ask for more than there ever is.
            bytes: self.chance.scaled(1, 700),
            units: packing.tokens_left(),
            flow: None,
        };
        self.offer(engine, call, None, lengths, packing)
    }

    fn offer(&mut self, engine: usize, call: Call, job: Option<usize>, lengths: Vec<u32>, packing: Packing) -> bool {
        let (id, class) = (self.engines[engine].id, call.class);
        let before = self.scheduler.load(id);
        let outcome = self.scheduler.offer(self.now, id, call);
        self.model.check_offer(id, &call, &outcome);
        self.note(|| format!("offer {class:?} on {id:?} job {job:?} {call:?}: {outcome:?}"));
        match outcome {
            Ok(ticket) => {
                self.model.admitted(ticket, id, call);
                let live = Live {
                    engine,
                    class,
                    job,
                    lengths,
                    packing,
                    cancelled: false,
                    quantum: None,
                };
                assert!(self.live.insert(ticket, live).is_none());
                true
            }
            Err(refusal) => {
                assert_eq!(self.scheduler.load(id), before, "a refusal changes nothing");
                assert!(job.is_none() || !matches!(refusal.why, NotAdmitted::NeverFits { .. }));
                false
            }
        }
    }

    /// A caller leaves, or a client cancels its job.
    fn cancel(&mut self) {
        let Some(ticket) = self.any_live() else { return };
        let expected = match self.model.calls[&ticket].at {
            At::Waiting => Withdrawn::Waiting,
            At::Running { .. } => Withdrawn::Running,
        };
        assert_eq!(self.scheduler.withdraw(self.now, ticket), expected);
        self.note(|| format!("cancel {ticket:?}: {expected:?}"));
        if expected == Withdrawn::Waiting {
            self.end(ticket, JobEvent::Cancel);
            assert_eq!(self.scheduler.withdraw(self.now, ticket), Withdrawn::Unknown);
            return;
        }
        let leaves = self.chance.happens(50);
        let Some(live) = self.live.get_mut(&ticket) else { return };
        live.cancelled = true;
        // The engine is told at the checkpoint where it is held, and returns without being let go first.
        if leaves
            && let Some(quantum) = &mut live.quantum
            && quantum.held_until.take().is_some()
        {
            quantum.left = 0;
            self.quantum_ends(ticket);
        }
    }

    fn any_live(&mut self) -> Option<Ticket> {
        if self.live.is_empty() {
            return None;
        }
        let index = self.chance.index(self.live.len());
        self.live.keys().nth(index).copied()
    }

    /// A request is over for the scheduler and for its caller; a job goes on where it has items left.
    fn end(&mut self, ticket: Ticket, event: JobEvent) {
        let live = self.live.remove(&ticket).expect("an end of a request that is live");
        assert!(self.model.calls.remove(&ticket).is_some());
        let Some(number) = live.job else { return };
        let job = &mut self.jobs[number];
        if event == JobEvent::Finish && !job.committed.iter().all(|done| *done) {
            self.between.push(number);
            return;
        }
        job.state = job.state.on(event).expect("a job's state allows it");
        self.close_flow(number);
    }

    /// A model is unloaded and loaded again: what waits is answered, what runs goes on to its end.
    fn reload(&mut self) {
        let index = self.chance.index(self.engines.len());
        let id = self.engines[index].id;
        let waiting: Vec<Ticket> = {
            let calls = self.model.calls.iter();
            let here = calls.filter(|(_, held)| held.lane == id && held.at == At::Waiting);
            here.map(|(ticket, _)| *ticket).collect()
        };
        assert_eq!(
            self.scheduler.close(self.now, id),
            waiting,
            "closing answers what waits"
        );
        self.note(|| format!("close {id:?}: {waiting:?}"));
        self.model.lanes.get_mut(&id).expect("a lane").open = false;
        for ticket in waiting {
            self.end(ticket, JobEvent::FailTransient);
        }
        let limits = self.engines[index].limits;
        let fresh = self.scheduler.open(limits);
        self.model.open(fresh, limits);
        self.engines[index].id = fresh;
    }

    /// The daemon dies and starts again: direct calls are gone, jobs have failed for now.
    fn restart(&mut self) {
        self.note(|| String::from("restart"));
        self.scheduler = Scheduler::new(self.policy);
        let mut model = Model::new(self.policy);
        model.now = self.now;
        self.model = model;
        self.results.clear();
        self.live.clear();
        self.between.clear();
        for job in &mut self.jobs {
            job.state = job.state.on(JobEvent::Restart).expect("a restart is always allowed");
            job.flow = None;
        }
        for index in 0..self.engines.len() {
            let limits = self.engines[index].limits;
            let id = self.scheduler.open(limits);
            self.model.open(id, limits);
            self.engines[index].id = id;
        }
    }

    /// Carries out the scheduler's steps until it waits. Jobs between two calls go on first, where there is room.
    fn settle(&mut self) {
        for number in std::mem::take(&mut self.between) {
            if !self.next_call(number) {
                self.between.push(number);
            }
        }
        loop {
            match self.scheduler.next(self.now) {
                Step::Start(lane, ticket) => self.start(lane, ticket),
                Step::Reject(lane, ticket) => {
                    let held = self.model.calls[&ticket];
                    assert!(
                        held.lane == lane && held.at == At::Waiting && self.now > held.start_by,
                        "rule 1"
                    );
                    self.note(|| format!("reject {ticket:?}"));
                    self.end(ticket, JobEvent::FailTransient);
                }
                Step::Wait(wake) => {
                    self.model.check_settled();
                    self.model.check_wake(wake);
                    self.wake = wake;
                    break;
                }
            }
        }
        self.checkpoints();
        assert_eq!(self.scheduler.interactive_present(), self.model.interactive_present());
        for engine in &self.engines {
            assert_eq!(self.scheduler.load(engine.id), self.model.load(engine.id));
        }
    }

    fn start(&mut self, lane: LaneId, ticket: Ticket) {
        self.model.check_start(lane, ticket);
        let live = self.live.get_mut(&ticket).expect("a start of a request that is live");
        assert!(live.quantum.is_none(), "a quantum beside another of the same call");
        let engine = &self.engines[live.engine];
        let max_tokens = match live.class {
            Class::Bulk => self.scheduler.quantum_units(lane),
            Class::Interactive | Class::Control => 1_000,
        };
        let bounds = QuantumBounds {
            max_items: engine.max_items,
            max_tokens,
        };
        let items = live.packing.next(bounds).expect("a call with work left");
        let units: u64 = items.iter().map(|&item| u64::from(live.lengths[item])).sum();
        assert!(items.len() == 1 || units <= max_tokens, "rule 10");
        let spread = self.chance.within(70, 130);
        let nanos = (units * engine.nanos_per_unit * spread / 100).max(1);
        live.quantum = Some(Quantum {
            items,
            units,
            nanos,
            left: nanos,
            held_until: None,
        });
        if let Some(number) = live.job
            && self.jobs[number].state == JobState::Queued
        {
            self.jobs[number].state = JobState::Running;
        }
        self.note(|| format!("start {ticket:?} on {lane:?}: {units} units, {} µs", nanos / 1_000));
    }

    /// Engines on lanes with checkpoints ask whether to go on; held ones ask whenever anything has changed.
    fn checkpoints(&mut self) {
        let tickets: Vec<Ticket> = self.live.keys().copied().collect();
        for ticket in tickets {
            let live = &self.live[&ticket];
            let Some(quantum) = &live.quantum else { continue };
            let asks = self.engines[live.engine].limits.preempt == Preempt::Checkpoint || self.chance.happens(5);
            if !asks || quantum.held_until.is_none() && self.chance.happens(50) {
                continue;
            }
            let until = match self.scheduler.checkpoint(self.now, ticket) {
                AtCheckpoint::Go => None,
                AtCheckpoint::Hold(until) => Some(until),
            };
            self.model.check_hold(ticket, until);
            if let Some(quantum) = self.live.get_mut(&ticket).and_then(|live| live.quantum.as_mut()) {
                quantum.held_until = until;
            }
        }
    }

    /// Time passes to the next event, or to some moment before it.
    fn pass_time(&mut self) {
        let ends = self.live.values().filter_map(|live| live.quantum.as_ref());
        let ends = ends.map(|quantum| quantum.held_until.unwrap_or_else(|| self.now.after(quantum.left)));
        let next = ends
            .chain(self.wake)
            .chain(self.results.iter().map(|(at, ..)| *at))
            .min();
        let some = self.now.after(self.chance.scaled(1, 1_024) * MS);
        let to = next.map_or(some, |next| next.min(some)).max(self.now);
        let nanos = to.since(self.now);
        self.now = to;
        self.model.pass(to);
        let mut returned = Vec::new();
        for (ticket, live) in &mut self.live {
            if let Some(quantum) = &mut live.quantum
                && quantum.held_until.is_none()
            {
                quantum.left -= nanos;
                if quantum.left == 0 {
                    returned.push(*ticket);
                }
            }
        }
        for ticket in returned {
            self.quantum_ends(ticket);
        }
        self.read_results();
    }

    /// Clients fetch results that have waited.
    fn read_results(&mut self) {
        let (read, kept) = std::mem::take(&mut self.results)
            .into_iter()
            .partition(|(at, ..)| *at <= self.now);
        self.results = kept;
        for (_, id, reservation) in read {
            let lane = self.model.lanes.get_mut(&id).expect("a lane");
            lane.results -= reservation.bytes();
        }
    }

    fn quantum_ends(&mut self, ticket: Ticket) {
        let live = self.live.get_mut(&ticket).expect("a live request");
        let quantum = live.quantum.take().expect("a quantum in the engine");
        let failed = self.chance.happens(2);
        let worked = Worked {
            units: if failed { 0 } else { quantum.units },
            nanos: quantum.nanos,
        };
        self.model.charge(ticket, worked.nanos);
        if !failed && let Some(number) = live.job {
            for item in &quantum.items {
                let done = std::mem::replace(&mut self.jobs[number].committed[*item], true);
                assert!(!done, "item {item} of job {number} was computed after it was committed");
            }
        }
        let id = self.model.calls[&ticket].lane;
        let open = self.model.lanes[&id].open;
        let event = match (failed, live.cancelled, live.packing.is_empty()) {
            (_, true, _) => JobEvent::Cancel,
            (true, ..) => JobEvent::FailTransient,
            (false, false, true) => JobEvent::Finish,
            (false, false, false) if !open => JobEvent::FailTransient,
            (false, false, false) => {
                let left = live.packing.tokens_left();
                self.scheduler.go_on(self.now, ticket, worked, left);
                self.note(|| format!("go on {ticket:?}, {left} left"));
                self.model_goes_on(ticket);
                return;
            }
        };
        self.note(|| format!("finish {ticket:?}: {event:?}"));
        let reservation = self.scheduler.finish(self.now, ticket, worked);
        let reservation = reservation.expect("a running call gives its bytes to its result");
        assert_eq!(reservation.bytes(), self.model.calls[&ticket].call.bytes);
        self.end(ticket, event);
        assert!(
            self.scheduler.finish(self.now, ticket, worked).is_none(),
            "finished twice"
        );
        if event == JobEvent::Finish {
            let read = self.now.after(self.chance.scaled(1, 1_024) * MS);
            let lane = self.model.lanes.get_mut(&id).expect("a lane");
            lane.results += reservation.bytes();
            self.results.push((read, id, reservation));
        }
    }

    fn model_goes_on(&mut self, ticket: Ticket) {
        let now = self.now;
        let held = self.model.calls.get_mut(&ticket).expect("a live request");
        held.at = At::Waiting;
        held.since = now;
        held.start_by = held.call.deadline;
    }

    /// No more arrivals, except that clients submit their jobs until they are done.
    fn finish_up(&mut self) {
        for _ in 0..PATIENCE {
            let open = self.jobs.iter().position(|job| job.state == JobState::FailedTransient);
            if let Some(number) = open
                && self.chance.happens(30)
            {
                self.submit(number);
            }
            let over = self.live.is_empty() && self.between.is_empty() && self.results.is_empty();
            if open.is_none() && over {
                break;
            }
            self.pass_time();
            self.settle();
        }
        assert!(self.live.is_empty(), "requests are stuck: {:?}", self.model.calls);
        for job in &self.jobs {
            assert!(
                matches!(job.state, JobState::Done | JobState::Cancelled),
                "a job was lost: {job:?}"
            );
        }
        for engine in &self.engines {
            assert_eq!(
                self.scheduler.load(engine.id),
                LaneLoad::default(),
                "the budget returns to zero"
            );
        }
    }
}
