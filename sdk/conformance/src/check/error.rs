//! How a plugin fails (PC-44 to PC-48).

use synapse_plugin_api::{EngineError, EngineState, ErrorCode, Prompt};

use crate::bench::{Bench, Engine, Heard, greedy, said};
use crate::call::Call;
use crate::catalogue::{Check, Level, Run, Stop, Verdict, fail, skip};
use crate::check::compute::{NOBODY, probe};
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "error-contained",
        level: Level::Core,
        rules: &["PC-44"],
        says: "Settings that are no JSON object, and ids of extensions of any form, never end the process.",
        why: "A panic that reaches the boundary ends the host.",
        fix: "Use the SDK, or catch_unwind in every function that crosses the boundary, destructors included.",
        run: Run::Library(contained),
    },
    Check {
        id: "error-values",
        level: Level::Core,
        rules: &["PC-44", "PC-47"],
        says: "Every error has a code and a state of the contract, and PANIC comes with engine_bad.",
        why: "A host treats a code that it does not know as internal, and a state as the end of the engine.",
        fix: "Use the codes of ErrorCode, or one of your own from 0x80000000; the states are three.",
        run: Run::Library(values),
    },
    Check {
        id: "error-state",
        level: Level::Core,
        rules: &["PC-45", "PC-46"],
        says: "A call that broke the contract leaves engine and model usable.",
        why: "engine_bad ends the engine for everybody, model_bad the model: a bad request is neither.",
        fix: "Keep engine_bad for a state that you cannot vouch for, model_bad for a lost device context.",
        run: Run::Library(state),
    },
    Check {
        id: "error-message",
        level: Level::Core,
        rules: &["PC-48"],
        says: "A message has 1 to 4,096 bytes, without control characters; it and the log hold nothing of the input.",
        why: "It ends in logs and replies.",
        fix: "Say what was wrong, what was expected and what to do; name keys and counts, not texts.",
        run: Run::Library(message),
    },
];

/// What a user typed, and no message may repeat.
const SECRET: &str = "Xylophon-77-Kirschkern";

/// What is no settings object, or none that anybody has.
fn odd_settings() -> Vec<String> {
    let deep = "[".repeat(2000) + &"]".repeat(2000);
    let long = format!("{{\"no-such-setting\":\"{}\"}}", "x".repeat(65_000));
    ["", "[1,2", "null", "\"text\"", "{\"a\":{\"b\":1}}"]
        .map(str::to_owned)
        .into_iter()
        .chain([deep, long])
        .collect()
}

fn contained(bench: &Bench) -> Verdict {
    let module = bench.module()?;
    let mut accepted = Vec::new();
    for kind in Kind::ALL {
        for settings in odd_settings() {
            if let Ok(Some(engine)) = bench.make_with(kind, &settings)? {
                accepted.push(engine);
            }
        }
    }
    for id in odd_ids() {
        let _ = module.extension()(id.as_str().into());
    }
    drop(accepted);
    Ok(())
}

/// Ids of extensions that nobody has.
pub(crate) fn odd_ids() -> Vec<String> {
    let ids = [
        "",
        "/",
        "synapse.chat",
        "synapse.chat/",
        "synapse.chat/1x",
        "synapse.chat/999",
        "x.none/9",
        "\0",
        "ä/1",
    ];
    ids.map(str::to_owned)
        .into_iter()
        .chain(["long.".repeat(4000) + "/1"])
        .collect()
}

/// One error of each kind that a host can provoke, with what provoked it.
fn provoked(bench: &Bench) -> Result<Vec<(String, EngineError)>, Stop> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        for settings in odd_settings() {
            if let Err(error) = bench.make_with(kind, &settings)? {
                let shown: String = settings.chars().take(20).collect();
                found.push((format!("{} with the settings {shown}", kind.name()), error));
            }
        }
    }
    let verdict = bench.lanes(&Kind::ALL, |_| Ok(()));
    if let Err(stop) = verdict
        && found.is_empty()
    {
        return skip(stop.message);
    }
    Ok(found)
}

/// Errors of calls on one lane.
fn of_calls(lane: &crate::bench::Lane<'_>) -> Vec<(&'static str, EngineError)> {
    let mut found = Vec::new();
    let mut keep = |what, result: Result<Vec<f32>, EngineError>| {
        if let Err(error) = result {
            found.push((what, error));
        }
    };
    let batch = crate::bench::Batch::of(&lane.items(80, &[4]));
    let mut out = vec![0.0; lane.out_len(1)];
    let dims = lane.loaded.dims;
    keep(
        "a call on a handle that never was",
        lane.engine
            .compute(Call::new(1).leaked(), NOBODY, &batch, &mut out, dims),
    );
    let long = vec![vec![0; lane.loaded.max_tokens as usize + 1]];
    if lane.kind != Kind::Generate {
        keep("an item that is too long", lane.values(&long));
    }
    keep("a load of no files", {
        let files = crate::bench::artifact(&[]);
        let config = crate::bench::runtime_config(&lane.spec);
        lane.engine
            .load(Call::new(1).leaked(), &files, &config)
            .map(|_| Vec::new())
    });
    found
}

fn values(bench: &Bench) -> Verdict {
    let check = |what: &str, error: &EngineError| {
        let code = error.code.0;
        if !(ErrorCode::INVALID_ARGUMENT.0..=ErrorCode::INTERNAL.0).contains(&code) && code < 0x8000_0000 {
            return fail(format!(
                "{what}: code {code}, which is neither the contract's nor a third party's"
            ));
        }
        if error.state.0 > EngineState::ENGINE_BAD.0 {
            return fail(format!("{what}: state {}, expected 0 to 2", error.state.0));
        }
        if error.code == ErrorCode::PANIC && error.state != EngineState::ENGINE_BAD {
            return fail(format!(
                "{what}: PANIC with state {}, expected engine_bad",
                error.state.0
            ));
        }
        Ok(())
    };
    for (what, error) in provoked(bench)? {
        check(&what, &error)?;
    }
    Ok(())
}

fn state(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let before = probe(lane)?;
        for (what, error) in of_calls(lane) {
            if error.state != EngineState::USABLE {
                return fail(format!("{what}: {}, expected a usable engine", said(&error)));
            }
        }
        if probe(lane)? == before {
            Ok(())
        } else {
            fail("other values after calls that were refused")
        }
    })
}

fn message(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let mut errors = of_calls(lane);
        if let (Kind::Generate, Engine::Generate(_)) = (lane.kind, &lane.engine) {
            let options = synapse_plugin_api::GenerateOptions {
                top_p: 7.0,
                stop: vec![SECRET.into()].into(),
                ..greedy(4)
            };
            let prompt = Prompt::text(SECRET);
            let call = Call::new(1).leaked();
            let result = lane
                .engine
                .generate(call, lane.loaded.model, prompt, &options, &mut Heard::default());
            errors.extend(result.err().map(|error| ("a generation with top_p 7", error)));
        }
        for (what, error) in errors {
            let text = error.message.as_str();
            if text.is_empty() || text.len() > 4096 {
                return fail(format!(
                    "{what}: a message of {} bytes, expected 1 to 4,096",
                    text.len()
                ));
            }
            if text.chars().any(|c| c.is_control() && c != '\n') {
                return fail(format!(
                    "{what}: the message holds control characters: {}",
                    text.escape_debug()
                ));
            }
            if text.contains(SECRET) {
                return fail(format!("{what}: the message repeats the input"));
            }
        }
        if bench.host.logs().iter().any(|line| line.contains(SECRET)) {
            return fail("a log line repeats the input");
        }
        Ok(())
    })
}
