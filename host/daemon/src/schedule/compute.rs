//! What the lanes share: the scheduler of the whole daemon, and the work of the calls that it holds.
//!
//! State: one lock over the scheduler, every lane's calls, and the moments to wake for. Callers: the executors of the
//! lanes, whose threads, submitters and waiters all come through here. A tokio worker takes the lock only for moments.
//! Not known here: the order (`core::schedule`), engines, models.
//!
//! Whoever changes what the scheduler knows carries out its steps before it lets go of the lock ([`Guard::pump`]): a
//! started call is put before its lane's threads, a rejected one is answered.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use synapse_core::schedule::{
    AtCheckpoint, Call, Class, FlowId, LaneId, LaneLimits, PermitsLoad, Policy, Refusal, Reservation, Scheduler, Step,
    Tick, Ticket, Withdrawn, Worked,
};

use super::control::Control;
use super::executor::Refused;
use super::pending::CallError;
use super::work::Waiting;

/// The daemon's scheduler. Cheap to clone; every clone is the same.
#[derive(Clone, Debug)]
pub struct Compute {
    shared: Arc<Shared>,
}

/// A flow while it is open.
#[derive(Debug)]
pub struct Flow {
    shared: Arc<Shared>,
    id: FlowId,
}

impl Flow {
    /// Its number, for calls.
    #[must_use]
    pub const fn id(&self) -> FlowId {
        self.id
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.shared.lock().scheduler.close_flow(self.id);
    }
}

/// The lock, and what is told without it.
pub(super) struct Shared {
    origin: Instant,
    state: Mutex<State>,
    /// A held bulk call may go on, or must: interactive work has ended, a load waits, a call is cancelled.
    let_go: Condvar,
    /// Interactive calls waiting or running: a checkpoint sees without the lock that nothing is there.
    interactive: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("interactive", &self.interactive)
            .finish_non_exhaustive()
    }
}

/// What the lock guards.
pub(super) struct State {
    pub(super) scheduler: Scheduler,
    lanes: HashMap<LaneId, LaneState>,
    /// The moment that the waiting threads wake for.
    wake: Option<Tick>,
}

/// A call in the hands of a thread.
pub(super) struct Taken {
    pub(super) ticket: Ticket,
    pub(super) waiting: Waiting,
    /// Units of work of its next quantum, by the lane's measured speed.
    pub(super) max_units: u64,
}

/// One lane's calls.
pub(super) struct LaneState {
    waiting: HashMap<Ticket, Waiting>,
    /// Started by the scheduler, not yet taken by a thread.
    ready: VecDeque<(Ticket, Waiting)>,
    running: HashMap<Ticket, Arc<Control>>,
    pub(super) closed: Option<String>,
    /// Threads that serve the lane; the last one forgets it.
    threads: usize,
    /// A call is ready, a moment to wake for has changed, or the lane closes.
    changed: Arc<Condvar>,
}

impl LaneState {
    /// Whether the lane's threads have nothing more to come.
    pub(super) fn is_over(&self) -> bool {
        self.closed.is_some() && self.ready.is_empty() && self.waiting.is_empty()
    }
}

impl Compute {
    /// A scheduler without lanes.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            shared: Arc::new(Shared {
                origin: Instant::now(),
                state: Mutex::new(State {
                    scheduler: Scheduler::new(policy),
                    lanes: HashMap::new(),
                    wake: None,
                }),
                let_go: Condvar::new(),
                interactive: AtomicUsize::new(0),
            }),
        }
    }

    /// Opens a flow: calls that are served as one, with this weight among the bulk work of all lanes. It closes when the
    /// handle is dropped.
    #[must_use]
    pub fn open_flow(&self, weight: u32) -> Flow {
        let id = self.shared.lock().scheduler.open_flow(weight);
        Flow {
            shared: Arc::clone(&self.shared),
            id,
        }
    }

    /// The pool of compute permits now.
    #[must_use]
    pub fn permits(&self) -> PermitsLoad {
        self.shared.lock().scheduler.permits()
    }

    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    pub(super) fn lock(&self) -> Guard<'_> {
        // A poisoned lock holds nothing half done: no code panics while it holds it.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { shared: self, state }
    }

    pub(super) fn tick(&self, at: Instant) -> Tick {
        let since = at.saturating_duration_since(self.origin).as_nanos();
        Tick(u64::try_from(since).unwrap_or(u64::MAX))
    }

    pub(super) fn open(&self, limits: LaneLimits) -> LaneId {
        let mut state = self.lock();
        let id = state.scheduler.open(limits);
        let lane = LaneState {
            waiting: HashMap::new(),
            ready: VecDeque::new(),
            running: HashMap::new(),
            closed: None,
            threads: 0,
            changed: Arc::default(),
        };
        state.lanes.insert(id, lane);
        id
    }

    /// Holds a bulk call at its checkpoint for as long as the scheduler says. Wakes on cancellation and on closing;
    /// the lane always has a thread that is not held, since bulk leaves one slot free.
    pub(super) fn give_way(&self, control: &Control) {
        if self.interactive.load(Ordering::Acquire) == 0 {
            return;
        }
        let began = Instant::now();
        let mut guard = self.lock();
        while !control.is_cancelled() && !guard.is_closed(control.lane()) {
            let now = Instant::now();
            let AtCheckpoint::Hold(until) = guard.scheduler.checkpoint(self.tick(now), control.ticket()) else {
                break;
            };
            let pause = Duration::from_nanos(until.since(self.tick(now)));
            guard = guard.wait_to_be_let_go(pause);
        }
        drop(guard);
        control.add_held(began.elapsed());
    }

    /// Takes a call away that has not started; the delay after which to come back, or `None` if it has started.
    pub(super) fn give_up_waiting(&self, control: &Control) -> Option<u64> {
        let mut guard = self.lock();
        if control.has_started() {
            return None;
        }
        let forgotten = guard.withdraw(control)?;
        let retry_after_ms = guard.scheduler.retry_after_ms(control.lane(), control.class());
        drop(guard);
        drop(forgotten);
        Some(retry_after_ms)
    }

    /// The caller is gone: a waiting call is forgotten, a running one is told.
    pub(super) fn abandon(&self, control: &Control) {
        control.cancel();
        let mut guard = self.lock();
        let forgotten = guard.withdraw(control);
        if forgotten.is_none() {
            self.let_go.notify_all();
        }
        drop(guard);
        // Dropped outside the lock: the work may hold large buffers.
        drop(forgotten);
    }
}

/// The lock, held.
pub(super) struct Guard<'a> {
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl<'a> Guard<'a> {
    fn now(&self) -> Tick {
        self.shared.tick(Instant::now())
    }

    pub(super) fn lane(&mut self, id: LaneId) -> Option<&mut LaneState> {
        self.state.lanes.get_mut(&id)
    }

    fn is_closed(&self, id: LaneId) -> bool {
        self.state.lanes.get(&id).is_none_or(|lane| lane.closed.is_some())
    }

    /// Offers a call to its lane.
    pub(super) fn offer(&mut self, waiting: Waiting) -> Result<(), Refused> {
        let (id, now) = (waiting.control.lane(), self.now());
        match self.state.lanes.get(&id).map(|lane| &lane.closed) {
            Some(None) => {}
            Some(Some(why)) => return Err(Refused::Closed(why.clone())),
            None => return Err(Refused::Closed(String::from("its threads are gone"))),
        }
        let call = Call {
            class: waiting.spec.class,
            start_by: self.shared.tick(waiting.spec.start_by),
            deadline: self.shared.tick(waiting.spec.deadline),
            bytes: waiting.spec.bytes,
            units: waiting.work.units_left(),
            flow: waiting.spec.flow,
        };
        let offered = self.scheduler.offer(now, id, call);
        let ticket = offered.map_err(|Refusal { why, retry_after_ms }| Refused::NotAdmitted { why, retry_after_ms })?;
        waiting.control.set_ticket(ticket);
        if let Some(lane) = self.lane(id) {
            lane.waiting.insert(ticket, waiting);
        }
        self.pump();
        Ok(())
    }

    /// The next call for one of the lane's threads; it runs from here on.
    pub(super) fn take(&mut self, id: LaneId) -> Option<Taken> {
        let lane = self.lane(id)?;
        let (ticket, waiting) = lane.ready.pop_front()?;
        lane.running.insert(ticket, Arc::clone(&waiting.control));
        let max_units = match waiting.spec.class {
            Class::Bulk => self.scheduler.quantum_units(id),
            Class::Interactive | Class::Control => u64::MAX,
        };
        Some(Taken {
            ticket,
            waiting,
            max_units,
        })
    }

    /// A call's quantum has returned and another follows.
    pub(super) fn go_on(&mut self, ticket: Ticket, worked: Worked, waiting: Waiting) {
        let (id, now) = (waiting.control.lane(), self.now());
        self.scheduler.go_on(now, ticket, worked, waiting.work.units_left());
        if let Some(lane) = self.lane(id) {
            lane.running.remove(&ticket);
            lane.waiting.insert(ticket, waiting);
        }
        self.pump();
    }

    /// A call's last quantum has returned; its bytes are those of its result from here on.
    pub(super) fn finish(&mut self, ticket: Ticket, worked: Worked, id: LaneId) -> Option<Reservation> {
        let now = self.now();
        let reservation = self.scheduler.finish(now, ticket, worked);
        if let Some(lane) = self.lane(id) {
            lane.running.remove(&ticket);
        }
        self.pump();
        reservation
    }

    /// Carries out the scheduler's steps, as far as it has any.
    pub(super) fn pump(&mut self) {
        let now = self.now();
        let wake = loop {
            match self.state.scheduler.next(now) {
                Step::Start(id, ticket) => self.ready(id, ticket),
                Step::Reject(id, ticket) => self.reject(id, ticket),
                Step::Wait(wake) => break wake,
            }
        };
        let sooner = wake.is_some_and(|wake| self.wake.is_none_or(|armed| wake < armed));
        self.wake = wake;
        if sooner {
            for lane in self.lanes.values() {
                lane.changed.notify_one();
            }
        }
        let present = self.scheduler.interactive_present();
        self.shared.interactive.store(present, Ordering::Release);
        if present == 0 {
            self.shared.let_go.notify_all();
        }
    }

    fn ready(&mut self, id: LaneId, ticket: Ticket) {
        let Some(lane) = self.lane(id) else { return };
        if let Some(waiting) = lane.waiting.remove(&ticket) {
            lane.ready.push_back((ticket, waiting));
            lane.changed.notify_one();
        }
    }

    fn reject(&mut self, id: LaneId, ticket: Ticket) {
        let Some(waiting) = self.lane(id).and_then(|lane| lane.waiting.remove(&ticket)) else {
            return;
        };
        let error = if waiting.control.has_started() {
            CallError::Deadline
        } else {
            let retry_after_ms = self.scheduler.retry_after_ms(id, waiting.spec.class);
            CallError::NotStarted { retry_after_ms }
        };
        waiting.work.answer(Err(error));
    }

    /// Takes a waiting call away; `None` if it runs or is gone.
    fn withdraw(&mut self, control: &Control) -> Option<Waiting> {
        let now = self.now();
        let ticket = control.ticket();
        if self.scheduler.withdraw(now, ticket) != Withdrawn::Waiting {
            return None;
        }
        let waiting = self.lane(control.lane())?.waiting.remove(&ticket);
        self.pump();
        waiting
    }

    /// Closes a lane: what waited is the caller's to answer, and what runs is told if `cancel_running`.
    pub(super) fn close(&mut self, id: LaneId, why: &str, cancel_running: bool) -> Vec<Waiting> {
        let now = self.now();
        let tickets = self.scheduler.close(now, id);
        let Some(lane) = self.state.lanes.get_mut(&id) else {
            return Vec::new();
        };
        if lane.closed.is_none() {
            lane.closed = Some(why.to_owned());
        }
        if cancel_running {
            lane.running.values().for_each(|control| control.cancel());
            lane.ready.iter().for_each(|(_, waiting)| waiting.control.cancel());
        }
        let waiting: Vec<Waiting> = tickets
            .iter()
            .filter_map(|ticket| lane.waiting.remove(ticket))
            .collect();
        lane.changed.notify_all();
        self.shared.let_go.notify_all();
        if lane.threads == 0 {
            self.state.lanes.remove(&id);
        }
        self.pump();
        waiting
    }

    /// One more thread serves the lane.
    pub(super) fn thread_begins(&mut self, id: LaneId) {
        if let Some(lane) = self.lane(id) {
            lane.threads += 1;
        }
    }

    /// One thread less serves the lane; a closed lane is forgotten with its last.
    pub(super) fn thread_ends(&mut self, id: LaneId) {
        if let Some(lane) = self.lane(id) {
            lane.threads -= 1;
            if lane.threads == 0 && lane.closed.is_some() {
                self.state.lanes.remove(&id);
            }
        }
    }

    /// Lets go of the lock until something changes on the lane, or until the moment to wake for.
    pub(super) fn wait_for_change(mut self, id: LaneId) -> Guard<'a> {
        let Some(changed) = self.lane(id).map(|lane| Arc::clone(&lane.changed)) else {
            return self;
        };
        let pause = self.wake.map(|wake| Duration::from_nanos(wake.since(self.now())));
        self.wait(&changed, pause)
    }

    fn wait_to_be_let_go(self, pause: Duration) -> Guard<'a> {
        let shared = self.shared;
        self.wait(&shared.let_go, Some(pause))
    }

    fn wait(self, signal: &Condvar, pause: Option<Duration>) -> Guard<'a> {
        let Guard { shared, state } = self;
        let state = match pause {
            None => signal.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(pause) => {
                let waited = signal.wait_timeout(state, pause);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        Guard { shared, state }
    }
}
