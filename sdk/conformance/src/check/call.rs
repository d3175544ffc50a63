//! How a call behaves: threads, deadlines, checkpoints, cancellation (PC-35 to PC-43).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use synapse_plugin_api::{ErrorCode, Flow, Preempt};

use crate::bench::{Batch, Bench, Lane, refused, said, went};
use crate::call::{Call, Seen, process_cpu, thread_cpu};
use crate::catalogue::{Check, Level, Run, Stop, Verdict, fail, skip, warn};
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "call-parallel",
        level: Level::Core,
        rules: &["PC-35"],
        says: "max_concurrency calls on one model at once give what they give alone, with control calls beside them.",
        why: "The host plans by this number.",
        fix: "Keep no buffer of a call in the model or in statics, or lower max_concurrency.",
        run: Run::Library(parallel),
    },
    Check {
        id: "call-any-thread",
        level: Level::Core,
        rules: &["PC-36"],
        says: "Calls come from changing plain threads with a stack of 2 MiB and no async runtime.",
        why: "Engines bring their own runtime; the host's threads are its own.",
        fix: "Keep no thread-local state between calls, and start a runtime of your own if you need one.",
        run: Run::Library(any_thread),
    },
    Check {
        id: "call-threads",
        level: Level::Full,
        rules: &["PC-37"],
        says: "A call with a budget of one thread computes on the calling thread alone.",
        why: "The pool of threads is shared by all lanes.",
        fix: "Pass the call's threads on to your pool; set the runtime's own thread count to it.",
        run: Run::Library(budget),
    },
    Check {
        id: "call-deadline",
        level: Level::Core,
        rules: &["PC-38"],
        says: "A deadline that moves later during the call is not missed.",
        why: "The host held the call for a query; that time is not the call's.",
        fix: "Ask for the deadline each time you compare it; do not keep it.",
        run: Run::Library(deadline),
    },
    Check {
        id: "call-watchers",
        level: Level::Core,
        rules: &["PC-39"],
        says: "Nothing uses a call's context after the call returned.",
        why: "The context dies with the call.",
        fix: "Join whoever polls cancelled() before you return, on the error path too.",
        run: Run::Library(watchers),
    },
    Check {
        id: "call-checkpoint-thread",
        level: Level::Core,
        rules: &["PC-40"],
        says: "Checkpoints are reached by the calling thread only.",
        why: "The host may hold it there; a held helper would hold a lock or a barrier.",
        fix: "Let helpers poll a flag of your own, and call checkpoint between blocks on the caller's thread.",
        run: Run::Library(checkpoint_thread),
    },
    Check {
        id: "call-progress",
        level: Level::Core,
        rules: &["PC-41"],
        says: "done never decreases or passes total, and total stays the same within a call.",
        why: "Only advancing progress proves life.",
        fix: "Count finished work once, and fix the total before the first checkpoint.",
        run: Run::Library(progress),
    },
    Check {
        id: "call-pace",
        level: Level::Perf,
        rules: &["PC-42"],
        says: "A row that says checkpoint reaches one at least every 5 ms of processor time.",
        why: "A query waits for milliseconds of bulk work, not for a quantum.",
        fix: "Cut the work into row blocks (Call::pace, row_blocks).",
        run: Run::Library(pace),
    },
    Check {
        id: "call-checkpoints",
        level: Level::Core,
        rules: &["PC-42", "PC-13"],
        says: "A row that says checkpoint reaches checkpoints in a call of many items.",
        why: "Without one, a bulk call never gives way.",
        fix: "Call checkpoint between items and between row blocks, or say preempt = quantum.",
        run: Run::Library(checkpoints),
    },
    Check {
        id: "call-cancel",
        level: Level::Core,
        rules: &["PC-43"],
        says: "A checkpoint that says anything but continue ends the call soon, with CANCELLED, and the next call is right.",
        why: "Whoever left must not cost more work; the values of flow may grow.",
        fix: "Return CANCELLED as soon as a checkpoint gives another value than CONTINUE.",
        run: Run::Library(cancel),
    },
];

/// A batch that takes a while: 32 items of the longest.
fn bulk(lane: &Lane<'_>) -> Batch {
    let items = lane.items(40, &[usize::MAX; 32]);
    Batch::of(&items)
}

/// Runs a bulk call and gives what it noted.
fn watched(lane: &Lane<'_>, call: Call) -> Result<Seen, Stop> {
    let call = call.leaked();
    went("a batch", lane.batch_in(call, &bulk(lane)))?;
    Ok(call.seen())
}

fn gives_way(lane: &Lane<'_>) -> Verdict {
    if lane.support.preempt == Preempt::CHECKPOINT {
        Ok(())
    } else {
        skip("the row does not say preempt = checkpoint")
    }
}

fn parallel(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let at_once = lane.loaded.max_concurrency.clamp(1, 8) as usize;
        let batches: Vec<Batch> = (0..at_once)
            .map(|nth| Batch::of(&lane.items(50 + nth as u64, &[20, 33])))
            .collect();
        let mut expected = Vec::new();
        for batch in &batches {
            expected.push(went("a batch alone", lane.batch(Call::new(1), batch))?);
        }
        let inside = Arc::new(AtomicUsize::new(0));
        let verdicts = std::thread::scope(|scope| {
            let runs: Vec<_> = batches
                .iter()
                .zip(&expected)
                .map(|(batch, expected)| {
                    let inside = Arc::clone(&inside);
                    scope.spawn(move || {
                        // At its first checkpoint each waits for the others, a moment at most.
                        let call = Call::new(1).hook(move |_, nth| {
                            if nth == 1 {
                                inside.fetch_add(1, Ordering::SeqCst);
                                let started = Instant::now();
                                while inside.load(Ordering::SeqCst) < at_once
                                    && started.elapsed() < Duration::from_secs(1)
                                {
                                    std::thread::sleep(Duration::from_millis(1));
                                }
                            }
                        });
                        let mut verdict = Ok(());
                        let mut call = Some(call);
                        for _ in 0..8 {
                            let call = call.take().unwrap_or_else(|| Call::new(1));
                            match lane.batch(call, batch) {
                                Ok(values) if close(&values, expected) => {}
                                Ok(_) => {
                                    verdict = fail(format!("other values with {at_once} calls at once than alone"))
                                }
                                Err(error) => verdict = fail(format!("a call beside others: {}", said(&error))),
                            }
                        }
                        verdict
                    })
                })
                .collect();
            // Control calls beside them.
            let control = lane.load(|_| {}).and_then(|second| {
                let _ = lane.engine.memory();
                lane.engine.unload(second.model)
            });
            let mut verdicts: Vec<Verdict> = runs
                .into_iter()
                .map(|run| run.join().unwrap_or_else(|_| fail("unwound")))
                .collect();
            verdicts.push(went("a load and an unload beside calls", control));
            verdicts
        });
        verdicts.into_iter().collect()
    })
}

fn close(a: &[f32], b: &[f32]) -> bool {
    let scale = b
        .iter()
        .fold(0.0f32, |max, value| max.max(value.abs()))
        .max(f32::MIN_POSITIVE);
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= scale * 1e-4)
}

fn any_thread(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let items = lane.items(60, &[16, 40]);
        let expected = went("a batch", lane.values(&items))?;
        for nth in 0..8 {
            let run = || lane.values(&items);
            let result = std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().stack_size(2 << 20);
                thread.spawn_scoped(scope, run).map(std::thread::ScopedJoinHandle::join)
            });
            let Ok(Ok(result)) = result else {
                return fail("the kit's own thread");
            };
            let values = went(&format!("a call on thread {nth}"), result)?;
            if !close(&values, &expected) {
                return fail(format!("other values on thread {nth}"));
            }
        }
        Ok(())
    })
}

fn budget(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        // Loaded for one thread too: a runtime may size its pool at load.
        let single = went("a load for one thread", lane.load(|config| config.threads = 1))?.model;
        let batch = bulk(lane);
        let one = || {
            let mut out = vec![0.0; lane.out_len(batch.len())];
            let call = Call::new(1).leaked();
            went(
                "a batch",
                lane.engine.compute(call, single, &batch, &mut out, lane.loaded.dims),
            )
        };
        // Pools are made at the first call.
        one()?;
        let started = (thread_cpu(), process_cpu());
        for _ in 0..4 {
            one()?;
        }
        let own = thread_cpu().saturating_sub(started.0).as_millis();
        let others = process_cpu().saturating_sub(started.1).as_millis().saturating_sub(own);
        went("unload", lane.engine.unload(single))?;
        if others > own / 4 + 20 {
            return fail(format!(
                "on a budget of one thread the calling thread used {own} ms and others {others} ms"
            ));
        }
        Ok(())
    })
}

fn deadline(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let host = bench.host;
        let first = host.now_ns() + 50_000_000;
        let call = Call::new(2).deadline(first).hook(move |call, nth| {
            if nth == 1 {
                // Held past the deadline as it was, which moves by more than that.
                while host.now_ns() <= first {
                    std::thread::sleep(Duration::from_millis(5));
                }
                call.move_deadline(host.now_ns() + 3_600_000_000_000);
            }
        });
        let call = call.leaked();
        let result = lane.batch_in(call, &bulk(lane));
        if call.seen().checkpoints == 0 {
            return skip("the call reached no checkpoint, so it cannot be held");
        }
        went("a call that was held while its deadline moved", result).map(|_| ())
    })
}

fn watchers(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let calls = [
            Call::new(2).leaked(),
            Call::new(2).cancel_at(1, Flow::CANCEL.0).leaked(),
        ];
        for call in calls {
            // Whether it ends well does not matter here.
            let _ = lane.batch_in(call, &bulk(lane));
        }
        std::thread::sleep(Duration::from_millis(200));
        match calls.iter().map(|call| call.seen().late).sum::<u64>() {
            0 => Ok(()),
            late => fail(format!("a context was used {late} times after its call returned")),
        }
    })
}

fn checkpoint_thread(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| match watched(lane, Call::new(2))?.wrong_thread {
        0 => Ok(()),
        wrong => fail(format!("{wrong} checkpoints on a thread that is not the caller's")),
    })
}

fn progress(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| match watched(lane, Call::new(2))?.progress {
        None => Ok(()),
        Some(what) => fail(what),
    })
}

fn checkpoints(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        gives_way(lane)?;
        match watched(lane, Call::new(1))?.checkpoints {
            0 => fail("a call of many items reached no checkpoint"),
            _ => Ok(()),
        }
    })
}

fn pace(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        gives_way(lane)?;
        // The best of three: the processor's own hiccups are not the engine's.
        let mut longest = Duration::MAX;
        for _ in 0..3 {
            longest = longest.min(watched(lane, Call::new(1))?.longest);
        }
        let ms = longest.as_secs_f64() * 1e3;
        if longest > Duration::from_millis(50) {
            return fail(format!(
                "{ms:.1} ms of processor time between two checkpoints, expected at most 5"
            ));
        }
        if longest > Duration::from_millis(5) {
            return warn(format!(
                "{ms:.1} ms of processor time between two checkpoints, expected at most 5"
            ));
        }
        Ok(())
    })
}

fn cancel(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let batch = bulk(lane);
        let right = went("a batch", lane.values(&lane.items(70, &[9])))?;
        let mut reached = false;
        for flow in [Flow::CANCEL.0, 77] {
            let call = Call::new(2).cancel_at(1, flow).leaked();
            let result = lane.batch_in(call, &batch);
            let seen = call.seen();
            if seen.checkpoints == 0 {
                continue;
            }
            reached = true;
            refused(
                &format!("a call whose checkpoint said {flow}"),
                &result,
                &[ErrorCode::CANCELLED],
            )?;
            if seen.after_cancel > 4 {
                return fail(format!("{} more checkpoints after one said {flow}", seen.after_cancel));
            }
        }
        if !reached {
            return skip("the call reached no checkpoint");
        }
        let again = went("a call after a cancelled one", lane.values(&lane.items(70, &[9])))?;
        if close(&again, &right) {
            Ok(())
        } else {
            fail("other values after a cancelled call")
        }
    })
}
