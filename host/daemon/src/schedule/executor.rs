//! One lane's threads: they take the calls that `core::schedule` hands out and run them, one quantum at a time.
//!
//! State: the lane's queue, the work of the waiting calls, the measured speed, behind one lock; `slots` OS threads.
//! Callers: `lane` (start, close), the embedding path (submit). A tokio worker never runs engine work (SCHED-11); it
//! takes the lock only for moments. Not known here: the order (`core::schedule`), engines, models.
//!
//! A call's life, each step proven by the test in brackets:
//! 1. it is admitted whole or refused with an honest delay [`refusals_name_the_bound_and_a_delay`];
//! 2. it starts by its `start_by` or is rejected [`a_call_that_cannot_start_in_time_is_rejected`];
//! 3. each quantum takes a slot; between two quanta the queue decides anew [`a_query_goes_between_two_quanta`];
//! 4. its caller may leave at any time; the engine is told at its next checkpoint [`a_caller_that_leaves_stops_the_call`];
//! 5. at a checkpoint a bulk call is held while interactive work is there, for a bounded time [`a_bulk_call_is_held_at_its_checkpoint`];
//! 6. a panic ends the call and not the thread [`a_panic_ends_one_call`];
//! 7. closing answers everything that waits and ends the threads [`closing_answers_what_waits`].

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use synapse_core::engine::CallContext;
use synapse_core::schedule::{Call, Class, LaneLimits, LaneQueue, NotAdmitted, Step, Tick, Ticket, Withdrawn};
use tokio::sync::oneshot;

use super::control::Control;
use super::pending::{CallError, Pending};
use super::rate::Rate;
use super::work::{Answered, CallSpec, Progress, Waiting, Work};
use crate::task::{Tasks, panic_message};

/// How one lane works.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The lane's name, for its threads.
    pub name: String,
    /// The queue's bounds; `slots` threads are started.
    pub limits: LaneLimits,
    /// Threads that one engine call may use, at least 1.
    pub threads_per_call: u32,
    /// The engine calls its checkpoint often, so bulk calls may be held there.
    pub preemptible: bool,
    /// The longest hold of one quantum.
    pub max_hold: Duration,
}

/// Why a call was not admitted. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No room, or no time.
    #[error("{why}")]
    NotAdmitted {
        /// The bound.
        why: NotAdmitted,
        /// When the work ahead should be done, in milliseconds.
        retry_after_ms: u64,
    },
    /// The lane is closing.
    #[error("the lane closed: {0}")]
    Closed(String),
}

/// A lane's load at one moment, for health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorLoad {
    /// Interactive calls waiting.
    pub interactive_waiting: usize,
    /// Bulk calls waiting.
    pub bulk_waiting: usize,
    /// Calls in the engine.
    pub running: usize,
    /// Bytes over waiting and running calls.
    pub bytes: u64,
}

/// One lane's queue and threads.
#[derive(Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Executor {
    /// Starts the lane's threads.
    ///
    /// # Errors
    /// The operating system refused a thread; none is left running.
    pub fn start(tasks: &Tasks, config: ExecutorConfig) -> io::Result<Self> {
        let slots = config.limits.slots.max(1);
        let bulk_depth = config.limits.bulk_depth;
        // A running bulk call comes back for its next quantum: there is always room for it, beyond the depth that
        // new calls are held to.
        let returning = usize::try_from(slots).unwrap_or(usize::MAX);
        let limits = LaneLimits {
            slots,
            bulk_depth: bulk_depth.saturating_add(returning),
            ..config.limits
        };
        let shared = Arc::new(Shared {
            origin: Instant::now(),
            slots,
            bulk_depth,
            threads_per_call: config.threads_per_call.max(1),
            hold: (config.preemptible && slots >= 2).then_some(config.max_hold),
            state: Mutex::new(State {
                queue: LaneQueue::new(limits),
                waiting: HashMap::new(),
                running: HashMap::new(),
                running_bulk: 0,
                backlog: 0,
                rate: Rate::default(),
                closed: None,
            }),
            offered: Condvar::new(),
            interactive_done: Condvar::new(),
            interactive: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let executor = Self {
            shared,
            threads: Mutex::new(Vec::new()),
        };
        for number in 0..slots {
            let shared = Arc::clone(&executor.shared);
            match tasks.thread(format!("lane-{number} {}", config.name), move || shared.serve()) {
                Ok(thread) => lock(&executor.threads).push(thread),
                Err(error) => {
                    executor.close("the lane could not start its threads", true);
                    executor.join();
                    return Err(error);
                }
            }
        }
        Ok(executor)
    }

    /// Admits a call as a whole or not at all (API-05).
    ///
    /// # Errors
    /// [`Refused`] names the bound and when to come back.
    pub fn submit<W: Work>(&self, spec: CallSpec, work: W) -> Result<Pending<W::Output>, Refused> {
        let (sender, answer) = oneshot::channel();
        let control = Arc::new(Control::new(Arc::downgrade(&self.shared), spec.class, spec.deadline));
        let waiting = Waiting {
            spec,
            control: Arc::clone(&control),
            work: Box::new(Answered { work, answer: sender }),
        };
        self.shared.admit(waiting)?;
        Ok(Pending::new(answer, control, Arc::clone(&self.shared), spec.start_by))
    }

    /// How many units of work the lane does in `nanos`, once it was measured.
    #[must_use]
    pub fn units_in(&self, nanos: u64) -> Option<u64> {
        self.shared.lock().rate.units_in(nanos)
    }

    /// The load now.
    #[must_use]
    pub fn load(&self) -> ExecutorLoad {
        let load = self.shared.lock().queue.load();
        ExecutorLoad {
            interactive_waiting: load.interactive_waiting,
            bulk_waiting: load.bulk_waiting,
            running: load.running,
            bytes: load.bytes,
        }
    }

    /// Refuses new calls and answers the waiting ones. A call in the engine goes on to the end of its quantum, or is
    /// cancelled at its next checkpoint. Does not wait.
    pub fn close(&self, why: &str, cancel_running: bool) {
        self.shared.close(why, cancel_running);
    }

    /// Waits until every thread has ended. Call [`Self::close`] first, and never from a tokio worker.
    pub fn join(&self) {
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // A panic of the loop itself was logged by the thread's own wrapper.
            let _ = thread.join();
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.close("the lane is gone", true);
    }
}

/// What the lane's threads and its callers share.
pub(super) struct Shared {
    origin: Instant,
    slots: u32,
    bulk_depth: usize,
    threads_per_call: u32,
    hold: Option<Duration>,
    state: Mutex<State>,
    /// A call was offered, a slot came free, or the lane closes.
    offered: Condvar,
    /// Interactive work is done, a held call was cancelled, or the lane closes.
    interactive_done: Condvar,
    /// Interactive calls waiting or running: lets a checkpoint see without the lock that nothing is there.
    interactive: AtomicUsize,
    closing: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

struct State {
    queue: LaneQueue,
    waiting: HashMap<Ticket, Waiting>,
    running: HashMap<Ticket, Arc<Control>>,
    running_bulk: usize,
    /// Units of work of all admitted calls that are not done.
    backlog: u64,
    rate: Rate,
    closed: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn tick(&self, at: Instant) -> Tick {
        let since = at.saturating_duration_since(self.origin).as_nanos();
        Tick(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn admit(&self, waiting: Waiting) -> Result<(), Refused> {
        let mut state = self.lock();
        if let Some(why) = &state.closed {
            return Err(Refused::Closed(why.clone()));
        }
        let full = waiting.spec.class == Class::Bulk && state.queue.load().bulk_waiting >= self.bulk_depth;
        let start_by = waiting.spec.start_by;
        let offered = if full {
            Err(NotAdmitted::Depth { limit: self.bulk_depth })
        } else {
            self.offer(&mut state, waiting, start_by).map_err(|(why, _)| why)
        };
        let retry_after_ms = state.rate.advice_ms(state.backlog, self.slots);
        drop(state);
        offered.map_err(|why| Refused::NotAdmitted { why, retry_after_ms })?;
        self.offered.notify_one();
        Ok(())
    }

    /// Puts a call, or its next quantum, into the queue; gives it back when there is no room.
    fn offer(&self, state: &mut State, waiting: Waiting, start_by: Instant) -> Result<(), (NotAdmitted, Waiting)> {
        let call = Call {
            class: waiting.spec.class,
            start_by: self.tick(start_by),
            deadline: self.tick(waiting.spec.deadline),
            bytes: waiting.spec.bytes,
        };
        let ticket = match state.queue.offer(self.tick(Instant::now()), call) {
            Ok(ticket) => ticket,
            Err(why) => return Err((why, waiting)),
        };
        waiting.control.set_ticket(ticket);
        state.backlog += waiting.work.units_left();
        state.waiting.insert(ticket, waiting);
        self.count_interactive(state);
        Ok(())
    }

    /// Forgets a call that waits.
    fn take(&self, state: &mut State, ticket: Ticket) -> Option<Waiting> {
        let waiting = state.waiting.remove(&ticket)?;
        state.backlog = state.backlog.saturating_sub(waiting.work.units_left());
        self.count_interactive(state);
        Some(waiting)
    }

    fn count_interactive(&self, state: &State) {
        let load = state.queue.load();
        let running = load.running.saturating_sub(state.running_bulk);
        let there = load.interactive_waiting + running;
        self.interactive.store(there, Ordering::Release);
        if there == 0 {
            self.interactive_done.notify_all();
        }
    }

    /// The body of each of the lane's threads.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            match state.queue.next(self.tick(Instant::now())) {
                Step::Start(ticket) => {
                    let Some(waiting) = state.waiting.remove(&ticket) else {
                        state.queue.finish(ticket);
                        continue;
                    };
                    if waiting.spec.class == Class::Bulk {
                        state.running_bulk += 1;
                    }
                    state.running.insert(ticket, Arc::clone(&waiting.control));
                    self.count_interactive(&state);
                    drop(state);
                    state = self.run(ticket, waiting);
                }
                Step::Reject(ticket) => {
                    if let Some(waiting) = self.take(&mut state, ticket) {
                        let retry_after_ms = state.rate.advice_ms(state.backlog, self.slots);
                        waiting.work.answer(Err(CallError::NotStarted { retry_after_ms }));
                    }
                }
                Step::Wait(until) => {
                    if state.closed.is_some() && state.waiting.is_empty() {
                        return;
                    }
                    state = self.wait(state, until);
                }
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, until: Option<Tick>) -> MutexGuard<'a, State> {
        let Some(until) = until else {
            return self.offered.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let now = self.tick(Instant::now());
        let pause = Duration::from_nanos(until.since(now));
        self.offered
            .wait_timeout(state, pause)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Runs one quantum outside the lock, and answers the call or offers its next quantum.
    fn run(&self, ticket: Ticket, mut waiting: Waiting) -> MutexGuard<'_, State> {
        let control = Arc::clone(&waiting.control);
        let units = waiting.work.units();
        let left = waiting.work.units_left();
        let began = Instant::now();
        let remaining = control.deadline().saturating_duration_since(began);
        let stepped = if control.is_cancelled() {
            Err(CallError::Cancelled)
        } else if remaining.is_zero() {
            Err(CallError::Deadline)
        } else {
            control.mark_started();
            let ctx = CallContext {
                request_id: waiting.spec.request,
                remaining: Some(remaining),
                threads: self.threads_per_call,
                control: control.as_ref(),
            };
            match catch_unwind(AssertUnwindSafe(|| waiting.work.step(&ctx))) {
                Ok(stepped) => stepped.map_err(CallError::Engine),
                Err(payload) => Err(CallError::Panicked(panic_message(payload.as_ref()))),
            }
        };
        let busy = began.elapsed().saturating_sub(control.take_held());

        let mut state = self.lock();
        state.queue.finish(ticket);
        state.running.remove(&ticket);
        if waiting.spec.class == Class::Bulk {
            state.running_bulk -= 1;
        }
        state.backlog = state.backlog.saturating_sub(left);
        if stepped.is_ok() {
            state
                .rate
                .measured(units, u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX));
        }
        let answer = match stepped {
            Ok(Progress::Done) => Some((waiting, Ok(()))),
            Err(error) => Some((waiting, Err(error))),
            Ok(Progress::More) => self.go_on(&mut state, waiting),
        };
        self.count_interactive(&state);
        self.offered.notify_one();
        let Some((waiting, outcome)) = answer else { return state };
        drop(state);
        waiting.work.answer(outcome);
        self.lock()
    }

    /// Offers the next quantum of a call whose last one has just ended; gives it back if it must end instead.
    fn go_on(&self, state: &mut State, waiting: Waiting) -> Option<(Waiting, Result<(), CallError>)> {
        if let Some(why) = &state.closed {
            let why = why.clone();
            return Some((waiting, Err(CallError::Closed(why))));
        }
        if waiting.control.is_cancelled() {
            return Some((waiting, Err(CallError::Cancelled)));
        }
        let deadline = waiting.spec.deadline;
        if Instant::now() >= deadline {
            return Some((waiting, Err(CallError::Deadline)));
        }
        // Its depth and bytes were given back under the same lock, so only a deadline that passes now refuses it.
        match self.offer(state, waiting, deadline) {
            Ok(()) => None,
            Err((_, waiting)) => Some((waiting, Err(CallError::Deadline))),
        }
    }

    /// Holds a bulk call at its checkpoint while interactive work is there. Wakes on cancellation, on closing, and when
    /// the quantum was held for `max_hold` in all; there is always a thread that is not held, since bulk leaves one
    /// slot free.
    pub(super) fn give_way(&self, control: &Control) {
        let Some(max_hold) = self.hold else { return };
        if self.interactive.load(Ordering::Acquire) == 0 {
            return;
        }
        let began = Instant::now();
        let allowed = max_hold.saturating_sub(control.held());
        let mut state = self.lock();
        loop {
            let held = began.elapsed();
            let nothing = self.interactive.load(Ordering::Acquire) == 0;
            if nothing || held >= allowed || control.is_cancelled() || self.closing.load(Ordering::Acquire) {
                break;
            }
            state = self
                .interactive_done
                .wait_timeout(state, allowed - held)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(state);
        control.add_held(began.elapsed());
    }

    /// Takes a call away that has not started; the delay after which to come back, or `None` if it has started.
    pub(super) fn give_up_waiting(&self, control: &Control) -> Option<u64> {
        let mut state = self.lock();
        if control.has_started() {
            return None;
        }
        let ticket = control.ticket();
        if state.queue.withdraw(ticket) != Withdrawn::Waiting {
            return None;
        }
        drop(self.take(&mut state, ticket));
        Some(state.rate.advice_ms(state.backlog, self.slots))
    }

    /// The caller is gone: a waiting call is forgotten, a running one is told.
    pub(super) fn abandon(&self, control: &Control) {
        control.cancel();
        let mut state = self.lock();
        let ticket = control.ticket();
        let forgotten = match state.queue.withdraw(ticket) {
            Withdrawn::Waiting => self.take(&mut state, ticket),
            Withdrawn::Running => {
                self.interactive_done.notify_all();
                None
            }
            Withdrawn::Unknown => None,
        };
        drop(state);
        // Dropped outside the lock: the work may hold large buffers.
        drop(forgotten);
    }

    fn close(&self, why: &str, cancel_running: bool) {
        let mut state = self.lock();
        if state.closed.is_none() {
            state.closed = Some(why.to_owned());
        }
        self.closing.store(true, Ordering::Release);
        if cancel_running {
            for control in state.running.values() {
                control.cancel();
            }
        }
        let tickets = state.queue.drain();
        let waiting: Vec<Waiting> = tickets
            .into_iter()
            .filter_map(|ticket| self.take(&mut state, ticket))
            .collect();
        self.offered.notify_all();
        self.interactive_done.notify_all();
        drop(state);
        for waiting in waiting {
            waiting.work.answer(Err(CallError::Closed(why.to_owned())));
        }
    }
}

/// Locks without minding a poisoned lock: no code of the lane panics while it holds one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
