//! One lane's threads: they take the calls that `core::schedule` starts and run them, one quantum at a time.
//!
//! State: `slots` OS threads; the calls are in [`Compute`], with those of every other lane. Callers: `lane` (start,
//! close), the operations (submit). A tokio worker never runs engine work (SCHED-11). Not known here: the order
//! (`core::schedule`), engines, models.
//!
//! A call's life, each step proven by the test in brackets:
//! 1. it is admitted whole or refused with an honest delay [`refusals_name_the_bound_and_a_delay`];
//! 2. it starts by its `start_by` or is rejected [`a_call_that_cannot_start_in_time_is_rejected`];
//! 3. each quantum takes a slot; between two quanta the queue decides anew [`a_query_goes_between_two_quanta`];
//! 4. its caller may leave at any time; the engine is told at its next checkpoint [`a_caller_that_leaves_stops_the_call`];
//! 5. at a checkpoint a bulk call is held while interactive work is there, on this lane or another, for a bounded time
//!    [`a_bulk_call_is_held_at_its_checkpoint`];
//! 6. bulk calls of all lanes share one pool of permits [`bulk_calls_of_two_lanes_take_turns`];
//! 7. a panic ends the call and not the thread [`a_panic_ends_one_call`];
//! 8. closing answers everything that waits and ends the threads [`closing_answers_what_waits`].

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use synapse_core::engine::CallContext;
use synapse_core::schedule::{LaneId, LaneLimits, LaneStatus, NotAdmitted, Worked};
use tokio::sync::oneshot;

use super::compute::{Compute, Guard, Shared, Taken};
use super::control::Control;
use super::pending::{CallError, Pending};
use super::work::{Answered, CallSpec, Progress, Waiting, Work};
use crate::task::{Tasks, panic_message};

/// How one lane works.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The lane's name, for its threads.
    pub name: String,
    /// The queue's bounds, the threads of one call, how it gives way; `slots` threads are started.
    pub limits: LaneLimits,
}

/// Why a call was not admitted. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No room, or no time.
    #[error("{why}")]
    NotAdmitted {
        /// The bound.
        why: NotAdmitted,
        /// When the same call should find room, in milliseconds.
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
    /// Bytes over waiting and running calls and results that wait for their readers.
    pub bytes: u64,
}

/// One lane's place in the scheduler, and its threads.
#[derive(Debug)]
pub struct Executor {
    compute: Compute,
    lane: LaneId,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Executor {
    /// Opens a lane and starts its threads.
    ///
    /// # Errors
    /// The operating system refused a thread; none is left running.
    pub fn start(tasks: &Tasks, compute: &Compute, config: ExecutorConfig) -> io::Result<Self> {
        let limits = LaneLimits {
            slots: config.limits.slots.max(1),
            threads: config.limits.threads.max(1),
            ..config.limits
        };
        let shared = compute.shared();
        let executor = Self {
            compute: compute.clone(),
            lane: shared.open(limits),
            threads: Mutex::new(Vec::new()),
        };
        for number in 0..limits.slots {
            let (shared, lane) = (Arc::clone(shared), executor.lane);
            shared.lock().thread_begins(lane);
            let serving = Arc::clone(&shared);
            let body = move || serve(&serving, lane, limits.threads);
            match tasks.thread(format!("lane-{number} {}", config.name), body) {
                Ok(thread) => lock(&executor.threads).push(thread),
                Err(error) => {
                    shared.lock().thread_ends(lane);
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
        let shared = self.compute.shared();
        let control = Arc::new(Control::new(shared, self.lane, spec.class, spec.deadline));
        let waiting = Waiting {
            spec,
            control: Arc::clone(&control),
            work: Box::new(Answered { work, answer: sender }),
        };
        shared.lock().offer(waiting)?;
        Ok(Pending::new(answer, control, Arc::clone(shared), spec.start_by))
    }

    /// Units of work (tokens) that a quantum of bulk work should have on this lane, by its measured speed (SCHED-04).
    #[must_use]
    pub fn quantum_units(&self) -> u64 {
        self.compute.shared().lock().scheduler.quantum_units(self.lane)
    }

    /// Nanoseconds that so many units of bulk work take on this lane alone, where its speed was measured.
    #[must_use]
    pub fn bulk_nanos(&self, units: u64) -> Option<u64> {
        self.compute.shared().lock().scheduler.bulk_nanos(self.lane, units)
    }

    /// How the lane does, of late and now; `None` once it is gone.
    #[must_use]
    pub fn status(&self) -> Option<LaneStatus> {
        let shared = self.compute.shared();
        let now = shared.tick(Instant::now());
        shared.lock().scheduler.status(now, self.lane)
    }

    /// The load now.
    #[must_use]
    pub fn load(&self) -> ExecutorLoad {
        let load = self.compute.shared().lock().scheduler.load(self.lane);
        ExecutorLoad {
            interactive_waiting: load.interactive_waiting,
            bulk_waiting: load.bulk_waiting,
            running: load.running(),
            bytes: load.bytes,
        }
    }

    /// Refuses new calls and answers the waiting ones. A call in the engine goes on to the end of its quantum, or is
    /// cancelled at its next checkpoint. Does not wait.
    pub fn close(&self, why: &str, cancel_running: bool) {
        let waiting = self.compute.shared().lock().close(self.lane, why, cancel_running);
        for waiting in waiting {
            waiting.work.answer(Err(CallError::Closed(why.to_owned())));
        }
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

/// The body of each of the lane's threads.
fn serve(shared: &Shared, lane: LaneId, threads: u32) {
    let mut guard = shared.lock();
    loop {
        guard.pump();
        if let Some(taken) = guard.take(lane) {
            drop(guard);
            guard = run(shared, threads, taken);
        } else if guard.lane(lane).is_none_or(|lane| lane.is_over()) {
            guard.thread_ends(lane);
            return;
        } else {
            guard = guard.wait_for_change(lane);
        }
    }
}

/// Runs one quantum outside the lock, and answers the call or puts it back for its next quantum.
fn run(shared: &Shared, threads: u32, taken: Taken) -> Guard<'_> {
    let Taken {
        ticket,
        mut waiting,
        max_units,
    } = taken;
    let control = Arc::clone(&waiting.control);
    let mut units = 0;
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
            threads,
            control: control.as_ref(),
        };
        let quantum = || {
            units = waiting.work.next_quantum(max_units);
            waiting.work.step(&ctx)
        };
        match catch_unwind(AssertUnwindSafe(quantum)) {
            Ok(stepped) => stepped.map_err(CallError::Engine),
            Err(payload) => Err(CallError::Panicked(panic_message(payload.as_ref()))),
        }
    };
    let busy = began.elapsed().saturating_sub(control.take_held());
    let worked = Worked {
        units: if stepped.is_ok() { units } else { 0 },
        nanos: u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX),
    };

    let mut guard = shared.lock();
    let outcome = match stepped {
        Ok(Progress::Done) => Ok(()),
        Err(error) => Err(error),
        Ok(Progress::More) => match ends_early(&mut guard, &control) {
            Some(error) => Err(error),
            None => {
                guard.go_on(ticket, worked, waiting);
                return guard;
            }
        },
    };
    let reservation = guard.finish(ticket, worked, control.lane());
    drop(guard);
    waiting.work.answer(outcome.map(|()| reservation));
    shared.lock()
}

/// Why a call whose quantum has just ended gets no other.
fn ends_early(guard: &mut Guard<'_>, control: &Control) -> Option<CallError> {
    let closed = guard.lane(control.lane()).and_then(|lane| lane.closed.clone());
    if let Some(why) = closed {
        return Some(CallError::Closed(why));
    }
    if control.is_cancelled() {
        return Some(CallError::Cancelled);
    }
    (Instant::now() >= control.deadline()).then_some(CallError::Deadline)
}

/// Locks without minding a poisoned lock: the list of threads is never half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
