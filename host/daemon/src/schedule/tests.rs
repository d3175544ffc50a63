//! The executor against scripted work: real threads, no engine, every step released by the test.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use synapse_core::engine::{CallContext, EngineError, EngineErrorCode, EngineState, Flow, Preempt};
use synapse_core::schedule::{Class, LaneLimits, NotAdmitted, Policy};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::task::Tasks;

/// A bound that only a hang reaches.
const HANG: Duration = Duration::from_secs(60);

/// What one quantum does on the lane's thread.
type Quantum = Box<dyn FnMut(&CallContext<'_>) -> Result<(), EngineError> + Send>;

/// Work of equal quanta of one unit each.
struct Scripted {
    quanta: u64,
    run: Quantum,
}

impl Work for Scripted {
    type Output = &'static str;

    fn next_quantum(&mut self, _: u64) -> u64 {
        1
    }

    fn units_left(&self) -> u64 {
        self.quanta
    }

    fn step(&mut self, ctx: &CallContext<'_>) -> Result<Progress, EngineError> {
        (self.run)(ctx)?;
        self.quanta -= 1;
        Ok(if self.quanta == 0 {
            Progress::Done
        } else {
            Progress::More
        })
    }

    fn finish(self) -> Self::Output {
        "made"
    }
}

/// A gate on the lane's thread: says that it is reached, and waits to be opened.
struct Gate {
    reached: Receiver<()>,
    open: SyncSender<()>,
}

impl Gate {
    fn new() -> (Self, impl Fn() + Send + 'static) {
        let (tell, reached) = sync_channel(64);
        let (open, opened) = sync_channel(64);
        let pass = move || {
            tell.send(()).unwrap();
            opened.recv_timeout(HANG).unwrap();
        };
        (Self { reached, open }, pass)
    }

    fn wait(&self) {
        self.reached.recv_timeout(HANG).unwrap();
    }

    fn open(&self) {
        self.open.send(()).unwrap();
    }
}

fn limits(slots: u32) -> LaneLimits {
    LaneLimits {
        slots,
        threads: 2,
        preempt: Preempt::Checkpoint,
        interactive_depth: 1,
        bulk_depth: 1,
        bytes: 1_000,
        ..LaneLimits::default()
    }
}

/// A scheduler with two permits, whose bulk work is held for `max_hold` at most.
fn compute(max_hold: Duration) -> Compute {
    Compute::new(Policy {
        permits: 2,
        quantum_nanos: u64::try_from(max_hold.as_nanos() / 4).unwrap(),
        ..Policy::default()
    })
}

fn open(compute: &Compute, limits: LaneLimits) -> Executor {
    let config = ExecutorConfig {
        name: "toy".to_owned(),
        limits,
    };
    Executor::start(&Tasks::new(tokio::runtime::Handle::current()), compute, config).unwrap()
}

fn start(limits: LaneLimits, max_hold: Duration) -> Executor {
    open(&compute(max_hold), limits)
}

fn spec(class: Class) -> CallSpec {
    let deadline = Instant::now() + HANG;
    CallSpec {
        request: 7,
        class,
        start_by: deadline,
        deadline,
        bytes: 10,
        flow: None,
    }
}

fn work(quanta: u64, mut run: impl FnMut() + Send + 'static) -> Scripted {
    Scripted {
        quanta,
        run: Box::new(move |_| {
            run();
            Ok(())
        }),
    }
}

async fn outcome<T>(pending: Pending<T>) -> Result<T, CallError> {
    let outcome = tokio::time::timeout(HANG, pending.outcome(&CancellationToken::new()))
        .await
        .unwrap();
    outcome.map(|(made, _)| made)
}

fn refused<T>(outcome: Result<Pending<T>, Refused>) -> Refused {
    outcome.map(drop).unwrap_err()
}

/// Proves SCHED-13, API-05.
#[tokio::test]
async fn refusals_name_the_bound_and_a_delay() {
    let lane = start(limits(1), HANG);
    let (gate, pass) = Gate::new();
    let running = lane.submit(spec(Class::Interactive), work(1, pass)).unwrap();
    gate.wait();
    let waiting = lane.submit(spec(Class::Interactive), work(1, || ())).unwrap();
    let before = lane.load();

    let why = refused(lane.submit(spec(Class::Interactive), work(1, || ())));
    let Refused::NotAdmitted {
        why: NotAdmitted::Depth { limit: 1 },
        retry_after_ms,
    } = why
    else {
        panic!("{why}")
    };
    assert!(retry_after_ms > 0);
    let big = |bytes| CallSpec {
        bytes,
        ..spec(Class::Bulk)
    };
    let why = refused(lane.submit(big(981), work(1, || ())));
    assert!(
        matches!(
            why,
            Refused::NotAdmitted {
                why: NotAdmitted::Bytes { free: 980, .. },
                ..
            }
        ),
        "{why}"
    );
    let why = refused(lane.submit(big(1_001), work(1, || ())));
    assert!(
        matches!(
            why,
            Refused::NotAdmitted {
                why: NotAdmitted::NeverFits { .. },
                ..
            }
        ),
        "{why}"
    );
    assert_eq!(lane.load(), before, "a refusal changes nothing");

    gate.open();
    assert_eq!(outcome(running).await, Ok("made"));
    assert_eq!(outcome(waiting).await, Ok("made"));
    assert_eq!(lane.load(), ExecutorLoad::default(), "everything is given back");
}

/// Proves SCHED-03.
#[tokio::test]
async fn a_call_that_cannot_start_in_time_is_rejected() {
    let lane = start(limits(1), HANG);
    let (gate, pass) = Gate::new();
    let running = lane.submit(spec(Class::Interactive), work(1, pass)).unwrap();
    gate.wait();
    let soon = CallSpec {
        start_by: Instant::now() + Duration::from_millis(20),
        ..spec(Class::Interactive)
    };
    let never: Scripted = work(1, || panic!("must not start"));
    let rejected = outcome(lane.submit(soon, never).unwrap()).await;
    assert!(
        matches!(rejected, Err(CallError::NotStarted { retry_after_ms: 1.. })),
        "{rejected:?}"
    );
    assert_eq!(lane.load().interactive_waiting, 0);
    gate.open();
    assert_eq!(outcome(running).await, Ok("made"));
}

/// Proves SCHED-05, SCHED-15.
#[tokio::test]
async fn a_query_goes_between_two_quanta() {
    let lane = start(limits(1), HANG);
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap_or_else(PoisonError::into_inner).push(name)
    };
    let (gate, pass) = Gate::new();
    let bulk_note = note("bulk");
    let bulk = lane
        .submit(
            spec(Class::Bulk),
            work(3, move || {
                pass();
                bulk_note();
            }),
        )
        .unwrap();
    gate.wait();
    let query = lane.submit(spec(Class::Interactive), work(1, note("query"))).unwrap();
    // A bulk call that came later does not overtake the one that is being worked off, nor fill its place.
    let later = lane.submit(spec(Class::Bulk), work(1, note("later"))).unwrap();
    let why = refused(lane.submit(spec(Class::Bulk), work(1, || ())));
    assert!(
        matches!(
            why,
            Refused::NotAdmitted {
                why: NotAdmitted::Depth { limit: 1 },
                ..
            }
        ),
        "{why}"
    );
    for _ in 0..3 {
        gate.open();
    }
    assert_eq!(outcome(query).await, Ok("made"));
    assert_eq!(outcome(later).await, Ok("made"));
    assert_eq!(outcome(bulk).await, Ok("made"));
    // Bulk calls take turns by quantum, in order of arrival at the queue.
    assert_eq!(*order.lock().unwrap(), ["bulk", "query", "later", "bulk", "bulk"]);
    assert_eq!(lane.load(), ExecutorLoad::default());
}

/// Proves SCHED-17.
#[tokio::test]
async fn a_caller_that_leaves_stops_the_call() {
    let lane = start(limits(1), HANG);
    let (gate, pass) = Gate::new();
    let (told, cancelled) = sync_channel(1);
    let until_cancelled = Scripted {
        quanta: 1,
        run: Box::new(move |ctx| {
            pass();
            let flow = ctx.control.checkpoint(1, 2);
            told.send((ctx.control.cancelled(), flow)).unwrap();
            Err(EngineError {
                code: EngineErrorCode::Cancelled,
                state: EngineState::Usable,
                message: "stopped".to_owned(),
                crash: None,
            })
        }),
    };
    let deadline = Instant::now() + Duration::from_millis(20);
    let short = CallSpec {
        start_by: deadline,
        deadline,
        ..spec(Class::Interactive)
    };
    let pending = lane.submit(short, until_cancelled).unwrap();
    gate.wait();
    // The caller is answered while the engine is still at work.
    assert_eq!(outcome(pending).await, Err(CallError::Deadline));
    assert_eq!(lane.load().running, 1);
    gate.open();
    assert_eq!(cancelled.recv_timeout(HANG).unwrap(), (true, Flow::Cancel));

    // A cancelled request leaves at once too, and a waiting one is forgotten without being run.
    let (gate, pass) = Gate::new();
    let running = lane.submit(spec(Class::Interactive), work(1, pass)).unwrap();
    gate.wait();
    let waiting = lane
        .submit(spec(Class::Interactive), work(1, || panic!("must not start")))
        .unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    assert_eq!(waiting.outcome(&cancel).await.unwrap_err(), CallError::Cancelled);
    assert_eq!(lane.load().interactive_waiting, 0);
    gate.open();
    assert_eq!(outcome(running).await, Ok("made"));
}

/// Proves SCHED-11.
#[tokio::test]
async fn at_most_slots_calls_are_in_the_engine_at_once() {
    let lane = start(
        LaneLimits {
            interactive_depth: 64,
            ..limits(2)
        },
        HANG,
    );
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let both = Arc::new(std::sync::Barrier::new(2));
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let (now, most, both) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&both));
            let call = work(1, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Passes only when two calls are here together.
                both.wait();
                now.fetch_sub(1, Ordering::SeqCst);
            });
            lane.submit(spec(Class::Interactive), call).unwrap()
        })
        .collect();
    for call in calls {
        assert_eq!(outcome(call).await, Ok("made"));
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_bulk_call_is_held_at_its_checkpoint() {
    let hold = |max_hold| async move {
        let lane = start(limits(2), max_hold);
        let (before, pass) = Gate::new();
        let (passed_tx, passed) = sync_channel(1);
        let bulk = Scripted {
            quanta: 1,
            run: Box::new(move |ctx| {
                pass();
                assert_eq!(ctx.control.checkpoint(1, 2), Flow::Continue);
                passed_tx.send(()).unwrap();
                Ok(())
            }),
        };
        let bulk = lane.submit(spec(Class::Bulk), bulk).unwrap();
        before.wait();
        let (query_gate, query_pass) = Gate::new();
        let query = lane.submit(spec(Class::Interactive), work(1, query_pass)).unwrap();
        query_gate.wait();
        before.open();
        if max_hold == HANG {
            let early = passed.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "the bulk call went on beside the query");
            query_gate.open();
            passed.recv_timeout(HANG).unwrap();
        } else {
            // The hold is bounded: the bulk call goes on although the query is still there.
            passed.recv_timeout(HANG).unwrap();
            query_gate.open();
        }
        assert_eq!(outcome(query).await, Ok("made"));
        assert_eq!(outcome(bulk).await, Ok("made"));
    };
    hold(HANG).await;
    hold(Duration::from_millis(20)).await;
}

/// The pool is the daemon's: a bulk call takes both permits, so that of another lane waits for it; a query does not.
#[tokio::test]
async fn bulk_calls_of_two_lanes_take_turns() {
    let compute = compute(HANG);
    let quantum = LaneLimits {
        preempt: Preempt::Quantum,
        ..limits(1)
    };
    let (first, second) = (open(&compute, quantum), open(&compute, quantum));
    let (gate, pass) = Gate::new();
    let running = first.submit(spec(Class::Bulk), work(1, pass)).unwrap();
    gate.wait();
    let (other_gate, other_pass) = Gate::new();
    let waiting = second.submit(spec(Class::Bulk), work(1, other_pass)).unwrap();
    let query = second.submit(spec(Class::Interactive), work(1, || ())).unwrap();
    assert_eq!(outcome(query).await, Ok("made"));
    assert_eq!((second.load().bulk_waiting, second.load().running), (1, 0));
    assert!(matches!(other_gate.reached.try_recv(), Err(TryRecvError::Empty)));
    gate.open();
    assert_eq!(outcome(running).await, Ok("made"));
    other_gate.wait();
    other_gate.open();
    assert_eq!(outcome(waiting).await, Ok("made"));
}

/// A query of one lane holds the bulk call of another at its checkpoint, and lets it go when it ends.
#[tokio::test]
async fn a_query_holds_the_bulk_call_of_another_lane() {
    let compute = compute(HANG);
    let (indexing, asking) = (open(&compute, limits(2)), open(&compute, limits(1)));
    let (before, pass) = Gate::new();
    let (passed_tx, passed) = sync_channel(1);
    let bulk = Scripted {
        quanta: 1,
        run: Box::new(move |ctx| {
            pass();
            assert_eq!(ctx.control.checkpoint(1, 2), Flow::Continue);
            passed_tx.send(()).unwrap();
            Ok(())
        }),
    };
    let bulk = indexing.submit(spec(Class::Bulk), bulk).unwrap();
    before.wait();
    let (query_gate, query_pass) = Gate::new();
    let query = asking.submit(spec(Class::Interactive), work(1, query_pass)).unwrap();
    query_gate.wait();
    before.open();
    let early = passed.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "the bulk call went on beside the query");
    query_gate.open();
    passed.recv_timeout(HANG).unwrap();
    assert_eq!(outcome(query).await, Ok("made"));
    assert_eq!(outcome(bulk).await, Ok("made"));
}

/// Proves SCHED-06. Bulk work that waits for the permits of a long query on another lane gets its turn all the same:
/// a thread wakes for the moment at which it is due.
#[tokio::test]
async fn bulk_work_that_is_due_starts_beside_a_query() {
    let compute = compute(Duration::from_millis(20));
    let (indexing, asking) = (open(&compute, limits(1)), open(&compute, limits(1)));
    let (gate, pass) = Gate::new();
    let query = asking.submit(spec(Class::Interactive), work(1, pass)).unwrap();
    gate.wait();
    let bulk = indexing.submit(spec(Class::Bulk), work(1, || ())).unwrap();
    assert_eq!(outcome(bulk).await, Ok("made"));
    gate.open();
    assert_eq!(outcome(query).await, Ok("made"));
}

#[tokio::test]
async fn a_panic_ends_one_call() {
    let lane = start(limits(1), HANG);
    let broken = lane
        .submit(spec(Class::Interactive), work(1, || panic!("a defect")))
        .unwrap();
    assert_eq!(outcome(broken).await, Err(CallError::Panicked("a defect".to_owned())));
    let next = lane.submit(spec(Class::Interactive), work(1, || ())).unwrap();
    assert_eq!(outcome(next).await, Ok("made"));
}

#[tokio::test]
async fn closing_answers_what_waits() {
    let lane = start(limits(1), HANG);
    let (gate, pass) = Gate::new();
    let running = lane.submit(spec(Class::Interactive), work(1, pass)).unwrap();
    gate.wait();
    let waiting = lane
        .submit(spec(Class::Interactive), work(1, || panic!("must not start")))
        .unwrap();
    lane.close("unloaded", false);
    assert_eq!(outcome(waiting).await, Err(CallError::Closed("unloaded".to_owned())));
    assert_eq!(
        refused(lane.submit(spec(Class::Bulk), work(1, || ()))),
        Refused::Closed("unloaded".to_owned())
    );
    gate.open();
    // What ran is answered; its second quantum would not have been.
    assert_eq!(outcome(running).await, Ok("made"));
    lane.join();
    assert!(matches!(gate.reached.try_recv(), Err(TryRecvError::Disconnected)));
}
