//! The author's own tests: known inputs with known results, from `conformance.toml`.

use synapse_plugin_api::Prompt;

use crate::bench::{Batch, Bench, Heard, count, greedy, went};
use crate::call::Call;
use crate::catalogue::{Check, Level, Run, Verdict, fail, skip};
use crate::subject::{Golden, Kind};

pub(crate) const CHECKS: &[Check] = &[Check {
    id: "own-tests",
    level: Level::Core,
    rules: &["PC-11"],
    says: "The author's own tests pass: known ids give known values, within their tolerance.",
    why: "The numeric version changes exactly when these values do.",
    fix: "If the values were meant to change, raise the numeric version and write the new ones down.",
    run: Run::Library(own),
}];

fn own(bench: &Bench) -> Verdict {
    let tests = bench.subject()?.tests;
    if tests.is_empty() {
        return skip("conformance.toml has no [[test]]");
    }
    bench.kinds(&Kind::ALL, |kind| {
        let tests: Vec<&Golden> = tests.iter().filter(|test| test.kind == kind).collect();
        if tests.is_empty() {
            return skip(format!("no test of kind {}", kind.name()));
        }
        let lane = bench.lane(kind)?;
        for test in tests {
            let mut batch = Batch::of(&test.ids);
            if !test.doc_starts.is_empty() {
                batch.doc_starts.clone_from(&test.doc_starts);
            }
            batch.type_ids = test.type_ids.concat();
            if kind == Kind::Generate {
                let most = count(test.expect_ids.len()).max(1);
                let (call, mut heard) = (Call::new(1).leaked(), Heard::default());
                let prompt = Prompt::ids(&test.ids[0]);
                let done = lane
                    .engine
                    .generate(call, lane.loaded.model, prompt, &greedy(most), &mut heard);
                went(&test.name, done)?;
                if heard.ids != test.expect_ids {
                    return fail(format!(
                        "{}: ids {:?}, expected {:?}",
                        test.name, heard.ids, test.expect_ids
                    ));
                }
                continue;
            }
            let values = went(&test.name, lane.batch(Call::new(1), &batch))?;
            let expected = test.expect.concat();
            if values.len() != expected.len() {
                return fail(format!(
                    "{}: {} values, expected {}",
                    test.name,
                    values.len(),
                    expected.len()
                ));
            }
            let far = |(a, b): (&f32, &f32)| (a - b).abs() > test.tolerance || a.is_nan();
            if let Some(at) = values.iter().zip(&expected).position(far) {
                let (found, expected) = (values[at], expected[at]);
                return fail(format!("{}: value {at} is {found}, expected {expected}", test.name));
            }
        }
        went("unload", lane.engine.unload(lane.loaded.model))
    })
}
