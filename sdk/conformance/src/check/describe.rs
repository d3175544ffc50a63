//! What a plugin says of itself, and how its engines are made and end (PC-08 to PC-17).

use std::time::{Duration, Instant};

use synapse_plugin_api::{ErrorCode, Preempt};

use crate::bench::Bench;
use crate::bench::{Batch, Engine, engine_kind, refused, said, went};
use crate::call::Call;
use crate::catalogue::{Check, Level, Run, Verdict, fail, skip, warn};
use crate::json;
use crate::process;
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "describe-stable",
        level: Level::Core,
        rules: &["PC-10"],
        says: "describe gives the same answer every time, on every thread, within a second.",
        why: "The answer is kept by the bundle's digest and never asked for again.",
        fix: "Build the descriptor from constants: no clock, no device, no environment.",
        run: Run::Library(stable),
    },
    Check {
        id: "describe-identity",
        level: Level::Core,
        rules: &["PC-11"],
        says: "Each engine has the descriptor's identity; build flags are sorted, and name neither target nor compiler.",
        why: "The identity is part of every vector's fingerprint: it changes exactly when bits can change.",
        fix: "Give one Identity to the plugin; let flags name what changes the arithmetic, and nothing else.",
        run: Run::Library(identity),
    },
    Check {
        id: "describe-kinds",
        level: Level::Core,
        rules: &["PC-12", "PC-15"],
        says: "Each kind in the descriptor has an engine, and no other kind has one.",
        why: "Lanes are made from the descriptor.",
        fix: "List a row for each kind that you register, and register what you list.",
        run: Run::Library(kinds),
    },
    Check {
        id: "describe-unlisted",
        level: Level::Core,
        rules: &["PC-12"],
        says: "A format or dtype that is not in the descriptor is refused at load.",
        why: "Other arithmetic under the same fingerprint would mix two spaces.",
        fix: "Compare the settings' format and dtype with your rows, and answer UNSUPPORTED.",
        run: Run::Library(unlisted),
    },
    Check {
        id: "describe-preempt",
        level: Level::Core,
        rules: &["PC-13"],
        says: "A model of a row that says checkpoint or share takes at least two calls at once.",
        why: "While a bulk call is held at a checkpoint, a query runs on the same model.",
        fix: "Raise max_concurrency to 2 or more, or say preempt = quantum.",
        run: Run::Library(preempt),
    },
    Check {
        id: "describe-threads",
        level: Level::Full,
        rules: &["PC-14"],
        says: "A row that says thread_invariant gives the same bits on one thread and on two.",
        why: "The claim spares a split of the numeric profile; a wrong one mixes two spaces.",
        fix: "Sum in an order that does not depend on the number of threads, or drop the claim.",
        run: Run::Library(thread_invariant),
    },
    Check {
        id: "make-settings",
        level: Level::Core,
        rules: &["PC-15"],
        says: "A setting that the engine does not know is CONFIG_INVALID, and named.",
        why: "A setting that nobody reads is a mistake of the operator.",
        fix: "List your keys (config_keys), and refuse the others by name.",
        run: Run::Library(settings),
    },
    Check {
        id: "make-drop",
        level: Level::Core,
        rules: &["PC-16"],
        says: "An engine that was used can be dropped when no call runs, with a model loaded.",
        why: "A host drops engines at its end, whatever is loaded.",
        fix: "Join threads and free memory in Drop, without asking the host to unload first.",
        run: Run::Library(dropped),
    },
    Check {
        id: "shutdown-threads",
        level: Level::Core,
        rules: &["PC-17", "PC-54"],
        says: "shutdown can come twice, and after it no thread of the plugin is left.",
        why: "Exit must not race with running threads.",
        fix: "Keep the handles of your threads, tell them to end and join them in shutdown.",
        run: Run::Library(shutdown),
    },
    Check {
        id: "exit-clean",
        level: Level::Core,
        rules: &["PC-08"],
        says: "After everything, the process that holds the library ends in order, with code 0.",
        why: "The library stays mapped until the end: its destructors run there.",
        fix: "Look for static destructors, atexit handlers and thread-local values that touch freed state.",
        run: Run::ToTheEnd(exit),
    },
];

fn stable(bench: &Bench) -> Verdict {
    let started = Instant::now();
    let first = bench.describe()?;
    let took = started.elapsed();
    for nth in 2..=5 {
        let module = bench.module()?;
        let again = std::thread::scope(|scope| scope.spawn(|| module.describe()()).join());
        match again {
            Ok(again) if again == first => {}
            Ok(again) => {
                return fail(format!(
                    "answer {nth} differs from the first: {again:?} after {first:?}"
                ));
            }
            Err(_) => return fail("describe unwound"),
        }
    }
    if took > Duration::from_secs(1) {
        return warn(format!(
            "the library took {} ms to open and describe, expected at most 1,000",
            took.as_millis()
        ));
    }
    Ok(())
}

fn identity(bench: &Bench) -> Verdict {
    let described = bench.describe()?.identity;
    let flags: Vec<&str> = described.build_flags.iter().map(|flag| flag.as_str()).collect();
    if !flags.is_sorted_by(|a, b| a < b) {
        return fail(format!("build flags {flags:?}, expected them sorted and each once"));
    }
    if let Some(flag) = flags.iter().find(|flag| {
        ["rustc", "linux-gnu", "apple-darwin", "windows-"]
            .iter()
            .any(|word| flag.contains(word))
    }) {
        return fail(format!(
            "build flag {flag:?} names a target or a compiler; bits do not depend on it"
        ));
    }
    if described.version.is_empty() {
        return fail("the numeric version is empty");
    }
    bench.kinds(&Kind::ALL, |kind| {
        let engine = bench.engine(kind)?;
        let found = engine.identity();
        if found != described {
            return fail(format!("the engine says {found:?}, the descriptor {described:?}"));
        }
        Ok(())
    })
}

fn kinds(bench: &Bench) -> Verdict {
    let rows = bench.describe()?.supports;
    bench.kinds(&Kind::ALL, |kind| {
        let listed = rows.iter().any(|row| row.kind == engine_kind(kind));
        match (listed, bench.make(kind)?) {
            (true, Ok(Some(_))) | (false, Ok(None)) => Ok(()),
            (true, Ok(None)) => fail("the descriptor lists it, and there is no engine"),
            (false, Ok(Some(_))) => fail("there is an engine, and the descriptor does not list it"),
            (true, Err(error)) => fail(format!("the engine is not made: {}", said(&error))),
            (false, Err(error)) => fail(format!("{}, expected no engine and no error", said(&error))),
        }
    })
}

fn unlisted(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let codes = [ErrorCode::UNSUPPORTED];
        let other = lane.load(|config| config.format = "no-such-format".into());
        refused("a load with format no-such-format", &other, &codes)?;
        let other = lane.load(|config| config.dtype = "f7".into());
        refused("a load with dtype f7", &other, &codes)
    })
}

fn preempt(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let (preempt, at_once) = (lane.support.preempt, lane.loaded.max_concurrency);
        if at_once == 0 {
            return fail("max_concurrency is 0, expected at least 1");
        }
        if matches!(preempt, Preempt::CHECKPOINT | Preempt::SHARE) && at_once < 2 {
            return fail(format!(
                "preempt is {} and max_concurrency {at_once}, expected at least 2",
                preempt.0
            ));
        }
        Ok(())
    })
}

fn thread_invariant(bench: &Bench) -> Verdict {
    bench.lanes(&[Kind::Embed, Kind::Rerank], |lane| {
        if !lane.support.thread_invariant {
            return skip("no claim of thread invariance");
        }
        let batch = Batch::of(&lane.items(1, &[1, 3, 17, 64, 128]));
        let bits = |threads: u32| -> Result<Vec<u32>, _> {
            let values = went("a batch", lane.batch(Call::new(threads), &batch))?;
            Ok::<_, crate::catalogue::Stop>(values.iter().map(|value| value.to_bits()).collect())
        };
        let (one, two) = (bits(1)?, bits(2)?);
        match one.iter().zip(&two).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => fail(format!("value {at} is other bits on two threads than on one")),
        }
    })
}

fn settings(bench: &Bench) -> Verdict {
    let key = "no-such-setting";
    let mut settings = bench.job.settings.clone();
    settings.push((key.to_owned(), "1".to_owned()));
    let rows = bench.describe()?.supports;
    bench.kinds(&Kind::ALL, |kind| {
        if !rows.iter().any(|row| row.kind == engine_kind(kind)) {
            return skip(format!("no {} engine", kind.name()));
        }
        let made = bench.make_with(kind, &json::settings(&settings))?;
        refused(
            "an unknown setting",
            &made.as_ref().map(|_| ()).map_err(Clone::clone),
            &[ErrorCode::CONFIG_INVALID],
        )?;
        match made {
            Err(error) if !error.message.contains(key) => {
                fail(format!("the refusal does not name the setting {key}: {}", said(&error)))
            }
            _ => Ok(()),
        }
    })
}

fn dropped(bench: &Bench) -> Verdict {
    bench.kinds(&Kind::ALL, |kind| {
        let lane = bench.lane(kind)?;
        went("a batch", lane.values(&lane.items(2, &[8])))?;
        let engine: Engine = lane.engine;
        drop(engine);
        Ok(())
    })
}

/// Loads, computes, unloads and drops every kind, then shuts the plugin down.
fn whole_life(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        went("a batch", lane.values(&lane.items(3, &[8, 16]))).map(|_| ())
    })?;
    let module = bench.module()?;
    module.shutdown()();
    module.shutdown()();
    Ok(())
}

fn shutdown(bench: &Bench) -> Verdict {
    let before = process::threads();
    whole_life(bench)?;
    // A thread that was joined may take a moment to vanish from the list.
    let started = Instant::now();
    loop {
        let after: Vec<String> = process::threads()
            .into_iter()
            .filter(|id| !before.contains(id))
            .collect();
        if after.is_empty() {
            return Ok(());
        }
        if started.elapsed() > Duration::from_secs(2) {
            return fail(format!(
                "{} threads are left two seconds after shutdown, expected none",
                after.len()
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn exit(bench: &Bench) -> Verdict {
    whole_life(bench)
}
