//! Each rule of the scheduler alone, in the shortest history that shows it.
//!
//! State: none. The engines here take the time that their test says; nothing is random.

use std::collections::BTreeMap;

use synapse_core::engine::Preempt;
use synapse_core::schedule::{
    AtCheckpoint, Call, Class, LaneId, LaneLimits, LaneLoad, NotAdmitted, Order, Policy, Scheduler, Step, Tick, Ticket,
    Withdrawn, Worked,
};

const MS: u64 = 1_000_000;

fn call(class: Class, start_by_ms: u64) -> Call {
    Call {
        class,
        start_by: Tick(0).after_ms(start_by_ms),
        deadline: Tick(0).after_ms(start_by_ms),
        bytes: 1,
        units: 1_000,
        flow: None,
    }
}

fn one_lane(limits: LaneLimits) -> (Scheduler, LaneId) {
    let mut scheduler = Scheduler::new(Policy::default());
    let lane = scheduler.open(limits);
    (scheduler, lane)
}

fn worked(millis: u64) -> Worked {
    Worked {
        units: 1_000,
        nanos: millis * MS,
    }
}

fn started(scheduler: &mut Scheduler, now: Tick) -> Ticket {
    match scheduler.next(now) {
        Step::Start(_, ticket) => ticket,
        step => panic!("nothing starts at {now:?}: {step:?}"),
    }
}

fn waits(scheduler: &mut Scheduler, now: Tick) {
    let step = scheduler.next(now);
    assert!(matches!(step, Step::Wait(_)), "{step:?}");
}

/// Proves SCHED-06. Ten seconds of queries, the next one always there, on an engine that can neither stop nor share:
/// bulk has a fifth of the time, and no query waits behind two quanta.
#[test]
fn saturating_queries_leave_bulk_its_share() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    let far = 1_000_000;
    let bulk = scheduler.offer(Tick(0), lane, call(Class::Bulk, far)).expect("room");
    for _ in 0..2 {
        scheduler
            .offer(Tick(0), lane, call(Class::Interactive, far))
            .expect("room");
    }
    let (mut now, mut bulk_nanos, mut quanta_in_a_row) = (Tick(0), 0, 0);
    while now < Tick(0).after_ms(10_000) {
        let ticket = started(&mut scheduler, now);
        if ticket == bulk {
            now = now.after_ms(200);
            bulk_nanos += 200 * MS;
            quanta_in_a_row += 1;
            assert_eq!(quanta_in_a_row, 1, "a query waited behind two quanta");
            scheduler.go_on(now, ticket, worked(200), 1_000);
        } else {
            now = now.after_ms(20);
            quanta_in_a_row = 0;
            assert!(scheduler.finish(now, ticket, worked(20)).is_some());
            scheduler.offer(now, lane, call(Class::Interactive, far)).expect("room");
        }
    }
    let share = bulk_nanos * 100 / now.0;
    assert_eq!(share, 20, "percent of the time");
}

/// Proves SCHED-06. The same stream on an engine with checkpoints: the bulk call is held while a query is there, and
/// goes on beside the queries once it was held for long enough.
#[test]
fn held_bulk_work_keeps_its_share_and_queries_start_at_once() {
    let (mut scheduler, lane) = one_lane(LaneLimits {
        slots: 2,
        preempt: Preempt::Checkpoint,
        ..LaneLimits::default()
    });
    let bulk = scheduler
        .offer(Tick(0), lane, call(Class::Bulk, 1_000_000))
        .expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), bulk);
    let mut query = scheduler
        .offer(Tick(0), lane, call(Class::Interactive, 1_000_000))
        .expect("room");
    let (mut worked_nanos, mut query_began) = (0, Tick(0));
    assert_eq!(started(&mut scheduler, Tick(0)), query, "at once, beside the bulk call");
    // One checkpoint a millisecond of the bulk call's work or hold; each query takes 50 ms.
    for millis in 1..=10_000 {
        let now = Tick(0).after_ms(millis);
        if let AtCheckpoint::Go = scheduler.checkpoint(now, bulk) {
            worked_nanos += MS;
        }
        if now.since(query_began) == 50 * MS {
            assert!(scheduler.finish(now, query, worked(50)).is_some());
            query = scheduler
                .offer(now, lane, call(Class::Interactive, 1_000_000))
                .expect("room");
            assert_eq!(started(&mut scheduler, now), query, "at once");
            query_began = now;
        }
    }
    let share = worked_nanos / (100 * MS);
    assert!((18..=25).contains(&share), "{share} percent of the time");
    assert!(scheduler.finish(Tick(0).after_ms(10_000), query, worked(50)).is_some());
    assert_eq!(scheduler.checkpoint(Tick(0).after_ms(10_000), bulk), AtCheckpoint::Go);
}

/// A bulk call of one lane gives way to the query of another: the permits are the daemon's.
#[test]
fn preemption_crosses_lanes() {
    let (mut scheduler, first) = one_lane(LaneLimits {
        slots: 2,
        preempt: Preempt::Checkpoint,
        ..LaneLimits::default()
    });
    let second = scheduler.open(LaneLimits::default());
    let bulk = scheduler.offer(Tick(0), first, call(Class::Bulk, 9_000)).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), bulk);
    let query = scheduler
        .offer(Tick(0), second, call(Class::Interactive, 9_000))
        .expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), query, "a query overdraws the pool");
    let other = scheduler
        .offer(Tick(0), second, call(Class::Bulk, 9_000))
        .expect("room");
    let until = Tick(0).after_ms(800);
    assert_eq!(scheduler.checkpoint(Tick(0), bulk), AtCheckpoint::Hold(until));
    assert!(scheduler.finish(Tick(MS), query, worked(1)).is_some());
    assert_eq!(scheduler.checkpoint(Tick(MS), bulk), AtCheckpoint::Go);
    waits(&mut scheduler, Tick(MS));
    assert!(scheduler.finish(Tick(2 * MS), bulk, worked(2)).is_some());
    assert_eq!(
        started(&mut scheduler, Tick(2 * MS)),
        other,
        "once the pool has a permit"
    );
}

/// Proves SCHED-06. Two jobs that always have work share the time by weight, whatever the length of their quanta.
#[test]
fn jobs_share_by_weight() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    let mut offer = |weight| {
        let job = Call {
            flow: Some(scheduler.open_flow(weight)),
            ..call(Class::Bulk, 10_000_000)
        };
        scheduler.offer(Tick(0), lane, job).expect("room")
    };
    let (light, heavy) = (offer(1), offer(3));
    let (mut now, mut given) = (Tick(0), [0_u64; 2]);
    for _ in 0..2_000 {
        let ticket = started(&mut scheduler, now);
        let (index, millis) = if ticket == light { (0, 170) } else { (1, 230) };
        assert!(ticket == light || ticket == heavy);
        now = now.after_ms(millis);
        given[index] += millis;
        scheduler.go_on(now, ticket, worked(millis), 1_000);
    }
    let quarter = given[0] * 1_000 / (given[0] + given[1]);
    assert!(
        (240..=260).contains(&quarter),
        "{quarter} thousandths for a quarter of the weight"
    );
}

/// Proves SCHED-06. A job that comes call by call is charged for all of them: three jobs whose calls have one quantum each
/// share by weight too.
#[test]
fn served_time_counts_on_from_call_to_call() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    let flows = [1, 2, 3].map(|weight| scheduler.open_flow(weight));
    let job = |index: usize| Call {
        flow: Some(flows[index]),
        ..call(Class::Bulk, 10_000_000)
    };
    let mut waiting = BTreeMap::new();
    for index in 0..3 {
        waiting.insert(scheduler.offer(Tick(0), lane, job(index)).expect("room"), index);
    }
    let (mut now, mut shares) = (Tick(0), [0_u64; 3]);
    for _ in 0..3_000 {
        let ticket = started(&mut scheduler, now);
        let index = waiting.remove(&ticket).expect("a job's call");
        now = now.after_ms(100);
        shares[index] += 100;
        // The next call is there before the scheduler looks again.
        assert!(scheduler.finish(now, ticket, worked(100)).is_some());
        waiting.insert(scheduler.offer(now, lane, job(index)).expect("room"), index);
    }
    let sixth: u64 = shares.iter().sum::<u64>() / 6;
    for (share, weight) in shares.into_iter().zip(1..) {
        let expected = sixth * weight;
        assert!(
            share.abs_diff(expected) * 20 <= expected,
            "weight {weight}: {share} ms of {shares:?}"
        );
    }
}

/// A plain queue, for benchmarks: everything waits for what came before it, and a job keeps its place.
#[test]
fn in_order_of_arrival_a_query_waits_for_the_whole_job() {
    let mut scheduler = Scheduler::new(Policy {
        order: Order::Arrival,
        ..Policy::default()
    });
    let lane = scheduler.open(LaneLimits {
        slots: 2,
        threads: 1,
        preempt: Preempt::Checkpoint,
        ..LaneLimits::default()
    });
    let far = 1_000_000;
    let job = Call {
        flow: Some(scheduler.open_flow(1)),
        ..call(Class::Bulk, far)
    };
    let first = scheduler.offer(Tick(0), lane, job).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), first);
    let query = scheduler
        .offer(Tick(1), lane, call(Class::Interactive, far))
        .expect("room");
    let other = scheduler.offer(Tick(2), lane, call(Class::Bulk, far)).expect("room");
    assert_eq!(scheduler.checkpoint(Tick(3), first), AtCheckpoint::Go);
    waits(&mut scheduler, Tick(3));
    scheduler.go_on(Tick(MS), first, worked(1), 1_000);
    assert_eq!(started(&mut scheduler, Tick(MS)), first, "its next quantum");
    // The job's next call comes before the query starts.
    assert!(scheduler.finish(Tick(2 * MS), first, worked(1)).is_some());
    let second = scheduler.offer(Tick(2 * MS), lane, job).expect("room");
    for expected in [second, query, other] {
        assert_eq!(started(&mut scheduler, Tick(3 * MS)), expected);
        assert!(scheduler.finish(Tick(3 * MS), expected, worked(1)).is_some());
    }
    waits(&mut scheduler, Tick(3 * MS));
}

/// Proves SCHED-06. fault-reports 93: twenty jobs of one quantum each come while a long one runs, and are through long
/// before it; and a stream of newcomers, each with its one quantum, does not keep the long one from its turn.
#[test]
fn small_jobs_pass_a_long_one_and_do_not_starve_it() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    let far = 10_000_000;
    let long = scheduler.offer(Tick(0), lane, call(Class::Bulk, far)).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), long);
    let small: Vec<Ticket> = (0..20)
        .map(|_| scheduler.offer(Tick(1), lane, call(Class::Bulk, far)).expect("room"))
        .collect();
    let mut now = Tick(0).after_ms(200);
    scheduler.go_on(now, long, worked(200), 1_000_000);
    for expected in small {
        assert_eq!(started(&mut scheduler, now), expected);
        now = now.after_ms(200);
        assert!(scheduler.finish(now, expected, worked(200)).is_some());
        scheduler
            .offer(now, lane, call(Class::Bulk, far))
            .expect("room for a newcomer");
    }
    // The twenty newcomers came after the long job had waited: it has aged past all but the first.
    let first = started(&mut scheduler, now);
    now = now.after_ms(200);
    assert!(scheduler.finish(now, first, worked(200)).is_some());
    let second = started(&mut scheduler, now);
    assert!(first == long || second == long, "the long job waits behind newcomers");
}

/// Proves SCHED-06. A flow that was away while others worked for ten seconds comes back with a claim to two quanta, and
/// takes turns with them after that.
#[test]
fn nobody_saves_up_a_claim() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    let (away, busy) = (scheduler.open_flow(1), scheduler.open_flow(1));
    let quantum = |flow| Call {
        flow: Some(flow),
        ..call(Class::Bulk, 10_000_000)
    };
    let mut now = Tick(0);
    for _ in 0..100 {
        let ticket = scheduler.offer(now, lane, quantum(busy)).expect("room");
        assert_eq!(started(&mut scheduler, now), ticket);
        now = now.after_ms(100);
        assert!(scheduler.finish(now, ticket, worked(100)).is_some());
    }
    let mut waiting = BTreeMap::new();
    for flow in [away, busy] {
        waiting.insert(scheduler.offer(now, lane, quantum(flow)).expect("room"), flow);
    }
    let mut turns = [0_u32; 2];
    for _ in 0..20 {
        let ticket = started(&mut scheduler, now);
        let flow = waiting.remove(&ticket).expect("a call");
        turns[usize::from(flow == busy)] += 1;
        now = now.after_ms(100);
        assert!(scheduler.finish(now, ticket, worked(100)).is_some());
        waiting.insert(scheduler.offer(now, lane, quantum(flow)).expect("room"), flow);
    }
    assert_eq!(turns, [12, 8], "400 ms more, in quanta of 100 ms");
}

/// Proves SCHED-03. A lane that is known to be busy for longer than a query may wait says so at once, with the time
/// after which it would not be.
#[test]
fn a_query_that_cannot_start_in_time_is_refused_when_it_is_offered() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    let query = |start_by_ms| call(Class::Interactive, start_by_ms);
    // Nothing was measured yet: it is admitted, and rejected when its time is over.
    let first = scheduler.offer(Tick(0), lane, query(10)).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), first);
    let unknown = scheduler.offer(Tick(0), lane, query(10)).expect("room");
    assert_eq!(scheduler.next(Tick(0)), Step::Wait(Some(Tick(10 * MS + 1))));
    assert_eq!(scheduler.next(Tick(10 * MS + 1)), Step::Reject(lane, unknown));
    let now = Tick(0).after_ms(100);
    assert!(scheduler.finish(now, first, worked(100)).is_some());
    // 100 ms a query: one runs for 40 ms, one waits, so a third starts in 160 ms.
    let running = scheduler.offer(now, lane, query(500)).expect("room");
    assert_eq!(started(&mut scheduler, now), running);
    let now = now.after_ms(40);
    let waiting = scheduler.offer(now, lane, query(400)).expect("room");
    let refusal = scheduler
        .offer(
            now,
            lane,
            Call {
                start_by: now.after_ms(150),
                ..query(500)
            },
        )
        .expect_err("busy");
    assert_eq!(refusal.why, NotAdmitted::TooBusy { expected_ms: 160 });
    assert_eq!(refusal.retry_after_ms, 10);
    assert!(
        scheduler
            .offer(
                now,
                lane,
                Call {
                    start_by: now.after_ms(160),
                    ..query(500)
                }
            )
            .is_ok()
    );
    // One with a nearer deadline goes before the one that waits.
    let nearer = Call {
        start_by: now.after_ms(60),
        deadline: now.after_ms(60),
        ..query(0)
    };
    let nearer = scheduler.offer(now, lane, nearer).expect("in time");
    let now = now.after_ms(60);
    assert!(scheduler.finish(now, running, worked(100)).is_some());
    assert_eq!(started(&mut scheduler, now), nearer);
    assert_eq!(scheduler.withdraw(now, waiting), Withdrawn::Waiting);
}

/// Proves SCHED-13. Every refusal names its bound and a delay that follows from the measured speed.
#[test]
fn refusals_say_when_to_come_back() {
    let (mut scheduler, lane) = one_lane(LaneLimits {
        bulk_depth: 2,
        bytes: 100,
        ..LaneLimits::default()
    });
    let bulk = |bytes| Call {
        bytes,
        ..call(Class::Bulk, 100_000)
    };
    let first = scheduler.offer(Tick(0), lane, bulk(10)).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), first);
    scheduler.go_on(Tick(0).after_ms(300), first, worked(300), 2_000);
    let now = Tick(0).after_ms(300);
    let second = scheduler.offer(now, lane, bulk(70)).expect("room");
    // 600 and 300 ms of work wait: a call leaves every 450 ms.
    let refusal = scheduler.offer(now, lane, bulk(1)).expect_err("two wait");
    assert_eq!(
        (refusal.why, refusal.retry_after_ms),
        (NotAdmitted::Depth { limit: 2 }, 450)
    );
    assert_eq!(started(&mut scheduler, now), second);
    // 10 bytes too many of the 80 that leave within 900 ms.
    let refusal = scheduler.offer(now, lane, bulk(30)).expect_err("no room");
    let full = NotAdmitted::Bytes {
        asked: 30,
        free: 20,
        limit: 100,
    };
    assert_eq!((refusal.why, refusal.retry_after_ms), (full, 113));
    let refusal = scheduler.offer(now, lane, bulk(101)).expect_err("never");
    assert_eq!(
        (refusal.why, refusal.retry_after_ms),
        (NotAdmitted::NeverFits { asked: 101, limit: 100 }, 0)
    );
    let refusal = scheduler.offer(now, lane, call(Class::Bulk, 299)).expect_err("late");
    assert_eq!(refusal.why, NotAdmitted::Late);
    let refusal = scheduler.offer(now, LaneId(7), bulk(1)).expect_err("no such lane");
    assert_eq!((refusal.why, refusal.retry_after_ms), (NotAdmitted::Closed, 0));
}

/// Proves SCHED-04, SCHED-13. The bytes of a call are held until its result is gone, and the size of a quantum follows
/// what was measured.
#[test]
fn bytes_go_with_the_result_and_quanta_follow_the_speed() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    assert_eq!(scheduler.quantum_units(lane), 3_072);
    let bulk = Call {
        bytes: 40,
        ..call(Class::Bulk, 1_000)
    };
    let ticket = scheduler.offer(Tick(0), lane, bulk).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), ticket);
    let result = scheduler.finish(Tick(100 * MS), ticket, worked(100)).expect("it ran");
    assert_eq!(
        scheduler.quantum_units(lane),
        2_000,
        "1,000 tokens in 100 ms, 200 ms wanted"
    );
    assert_eq!(scheduler.load(lane).bytes, 40, "a result waits for its reader");
    drop(result);
    assert_eq!(scheduler.load(lane), LaneLoad::default());
}

/// Proves SCHED-04, SCHED-05. While queries come, a quantum that cannot give way is half as long, since a query may have to
/// wait for its end; one that can is not, nor where no query came for a while.
#[test]
fn a_quantum_is_brief_where_a_query_would_wait_for_it() {
    for (preempt, while_queried) in [
        (Preempt::Quantum, 1_000),
        (Preempt::Checkpoint, 2_000),
        (Preempt::Share, 2_000),
    ] {
        let (mut scheduler, lane) = one_lane(LaneLimits {
            preempt,
            ..LaneLimits::default()
        });
        let ticket = scheduler.offer(Tick(0), lane, call(Class::Bulk, 1_000)).expect("room");
        assert_eq!(started(&mut scheduler, Tick(0)), ticket);
        scheduler.finish(Tick(100 * MS), ticket, worked(100));
        assert_eq!(scheduler.quantum_units(lane), 2_000, "no query came");
        let query = scheduler
            .offer(Tick(100 * MS), lane, call(Class::Interactive, 1_000))
            .expect("room");
        assert_eq!(scheduler.quantum_units(lane), while_queried, "{preempt:?}");
        assert_eq!(started(&mut scheduler, Tick(100 * MS)), query);
        scheduler.finish(Tick(110 * MS), query, worked(10));
        let status = scheduler.status(Tick(10_100 * MS), lane).expect("it is open");
        assert_eq!(status.quantum_units, while_queried, "{preempt:?}: ten seconds later");
        let status = scheduler.status(Tick(10_101 * MS), lane).expect("it is open");
        assert_eq!(status.quantum_units, 2_000, "{preempt:?}: no query came for longer");
    }
}

/// Proves SCHED-09. A load waits for the end of the quantum, nothing starts past it, and it is alone.
#[test]
fn control_comes_at_the_end_of_a_quantum() {
    let (mut scheduler, lane) = one_lane(LaneLimits {
        slots: 2,
        preempt: Preempt::Checkpoint,
        ..LaneLimits::default()
    });
    let bulk = scheduler.offer(Tick(0), lane, call(Class::Bulk, 9_000)).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), bulk);
    let control = scheduler
        .offer(Tick(1), lane, call(Class::Control, 9_000))
        .expect("room");
    let query = scheduler
        .offer(Tick(1), lane, call(Class::Interactive, 9_000))
        .expect("room");
    waits(&mut scheduler, Tick(1));
    assert_eq!(
        scheduler.checkpoint(Tick(1), bulk),
        AtCheckpoint::Go,
        "a hold would keep the load waiting"
    );
    scheduler.go_on(Tick(MS), bulk, worked(1), 1_000);
    assert_eq!(started(&mut scheduler, Tick(MS)), control);
    waits(&mut scheduler, Tick(MS));
    assert!(scheduler.finish(Tick(2 * MS), control, Worked::default()).is_some());
    assert_eq!(started(&mut scheduler, Tick(2 * MS)), query);
    waits(&mut scheduler, Tick(2 * MS));
    assert!(scheduler.finish(Tick(3 * MS), query, worked(1)).is_some());
    assert_eq!(started(&mut scheduler, Tick(3 * MS)), bulk);
}

/// A lane that closes gives back what waits, oldest first, and forgets what runs when it returns.
#[test]
fn closing_takes_what_waits() {
    let (mut scheduler, lane) = one_lane(LaneLimits::default());
    let running = scheduler.offer(Tick(0), lane, call(Class::Bulk, 10)).expect("room");
    assert_eq!(started(&mut scheduler, Tick(0)), running);
    let bulk = scheduler.offer(Tick(0), lane, call(Class::Bulk, 10)).expect("room");
    let query = scheduler
        .offer(Tick(0), lane, call(Class::Interactive, 10))
        .expect("room");
    assert_eq!(scheduler.close(Tick(0), lane), [bulk, query]);
    assert_eq!(scheduler.withdraw(Tick(0), running), Withdrawn::Running);
    assert!(scheduler.finish(Tick(1), running, worked(1)).is_some());
    assert!(scheduler.finish(Tick(1), running, worked(1)).is_none());
    assert_eq!(scheduler.withdraw(Tick(1), running), Withdrawn::Unknown);
    assert_eq!(
        (scheduler.load(lane), scheduler.interactive_present()),
        (LaneLoad::default(), 0)
    );
}
