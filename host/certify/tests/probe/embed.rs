//! Each deviation of an embedding engine, and the gates that see it.

use synapse_certify::{Depth, Gate, Level, Observation, Options, Outcome, Plan, StepId, StepOutput, Subject, Verdict};

use crate::hand::{Call, FULL, Hand, Out, closed, drive, of, subject};

/// The verdict over an engine whose rows `spoil` changes: by position in the call.
fn verdict(edit: impl Fn(&mut Subject), mut spoil: impl FnMut(&Call<'_>, usize, &mut Vec<f32>)) -> Verdict {
    let mut subject = subject("embed");
    edit(&mut subject);
    let mut hand = Hand::new(|call: &Call<'_>, out: Out<'_>| {
        if let Out::Row(at, row) = out {
            spoil(call, at, row);
        }
    });
    drive(subject, FULL, |step| hand.compute(step))
}

fn exact(_: &mut Subject) {}

fn loose(subject: &mut Subject) {
    subject.f32_exact = false;
}

fn shift(row: &mut [f32], by: f32) {
    row.iter_mut().step_by(2).for_each(|value| *value += by);
}

fn sizes(verdict: &Verdict) -> Vec<(Option<&str>, u32, u32)> {
    let classes = verdict.classes.iter();
    classes
        .map(|class| (class.name.as_deref(), class.from_items, class.to_items))
        .collect()
}

/// Proves CERT-02, CERT-03, CERT-13.
#[test]
fn a_sound_engine_passes_everything() {
    let verdict = verdict(exact, |_, _, _| {});
    assert_eq!(closed(&verdict), [""; 0], "{:?}", verdict.gates);
    assert!(verdict.is_certified() && verdict.hot_path());
    assert_eq!(verdict.level, Level::Reference);
    assert!(verdict.references.is_some() && verdict.batching.is_empty());
    assert_eq!(sizes(&verdict), [(None, 1, 64)]);
    let passed = [
        Gate::Envelope,
        Gate::Finite,
        Gate::Quality,
        Gate::ShapeInvariance,
        Gate::QueryBatch,
        Gate::ThreadInvariance,
        Gate::Repeatability,
        Gate::VariedText,
    ];
    assert_eq!(of(&verdict, Outcome::Passed), passed);
    let names: Vec<String> = verdict.perf.iter().map(|row| row.workload.name()).collect();
    assert_eq!(
        names,
        ["query_8", "query_32", "query_128", "batch_1", "batch_8", "batch_32"]
    );
    for row in &verdict.perf {
        let samples = match row.workload.name().as_str() {
            "query_8" | "query_32" => 30,
            "query_128" => 10,
            _ => 3,
        };
        assert_eq!(row.samples, samples, "{row:?}");
        assert!(
            row.p50_ms > 0.0 && row.p95_ms >= row.p50_ms && row.tokens_per_second > 0.0,
            "{row:?}"
        );
    }
    let kept = verdict.kept.expect("every text has a row");
    assert_eq!(kept.values.len(), 255 * 16);
}

/// Every tested shape is in the report with its deviation, corners included.
///
/// Proves CERT-02.
#[test]
fn the_report_lists_every_shape() {
    let verdict = verdict(loose, |call, at, row| {
        if call.tokens.len() == 33 && at == 32 {
            shift(row, 1e-3);
        }
    });
    let deviant: Vec<_> = verdict.shapes.iter().filter(|shape| shape.max_abs > 0.0).collect();
    assert!(
        !deviant.is_empty() && deviant.iter().all(|shape| shape.items == 33),
        "{deviant:?}"
    );
    for size in [2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64] {
        assert!(
            verdict.shapes.iter().any(|shape| shape.items == size),
            "no batch of {size}"
        );
    }
    let composition = |name: &str| verdict.shapes.iter().filter(|shape| shape.composition == name).count();
    for name in ["corpus", "ramp", "even", "mixed", "corner"] {
        assert!(composition(name) > 0, "no {name}");
    }
    let most = verdict.shapes.iter().max_by_key(|shape| shape.tokens).expect("shapes");
    assert_eq!(
        (most.items, most.tokens),
        (64, 8_192),
        "the most items with the most tokens"
    );
    assert!(
        verdict
            .shapes
            .iter()
            .any(|shape| shape.longest == 256 && shape.composition == "corner")
    );
}

/// An engine that is wrong in the same way everywhere agrees with itself: only the references show it.
#[test]
fn a_drift_fails_quality_alone() {
    let drifting = |_: &Call<'_>, _: usize, row: &mut Vec<f32>| shift(row, 1e-3);
    assert_eq!(closed(&verdict(exact, drifting)), ["quality"]);
    assert_eq!(closed(&verdict(loose, drifting)), [""; 0], "a cosine does not see it");
    let halved = |_: &Call<'_>, _: usize, row: &mut Vec<f32>| row[..8].fill(0.0);
    let verdict = verdict(loose, halved);
    assert_eq!(closed(&verdict), ["quality"]);
    let quality = verdict.gate(Gate::Quality).expect("has one");
    let failing: Vec<&str> = quality.figures.iter().filter(|f| !f.holds()).map(|f| f.name).collect();
    assert_eq!(failing, ["mean_cosine", "min_cosine", "worst_decile_top10_overlap"]);
    assert!(quality.note.starts_with("farthest: "), "{}", quality.note);
}

/// A wrong scale is a wrong vector where vectors are served as computed.
#[test]
fn a_wrong_scale_fails_where_nothing_is_normalised() {
    let scaled = |_: &Call<'_>, _: usize, row: &mut Vec<f32>| row.iter_mut().for_each(|value| *value *= 1.01);
    assert_eq!(closed(&verdict(exact, scaled)), ["quality"]);
}

/// Without references the level is `consistent`, and the same drift cannot be seen.
#[test]
fn without_references_the_level_is_consistent() {
    let none = |subject: &mut Subject| subject.references = None;
    let verdict = verdict(none, |_, _, row| shift(row, 1e-3));
    assert_eq!((verdict.level, verdict.references), (Level::Consistent, None));
    assert!(verdict.is_certified() && verdict.hot_path());
    assert_eq!(
        verdict.gate(Gate::Quality).map(|result| result.outcome),
        Some(Outcome::NotApplicable)
    );
}

/// An f32-exact engine keeps within 1e-5; of another the bound is recorded.
#[test]
fn what_a_batch_moves_is_bounded_or_recorded() {
    let moved = |call: &Call<'_>, at: usize, row: &mut Vec<f32>| {
        if call.tokens.len() > 1 && at > 0 {
            shift(row, 2e-4);
        }
    };
    let strict = verdict(exact, moved);
    assert_eq!(closed(&strict), ["shape_invariance"]);
    assert!(!strict.is_certified() && strict.classes.is_empty() && strict.batching.contains("not batchable"));
    let recorded = verdict(loose, moved);
    assert!(recorded.is_certified(), "{:?}", recorded.gates);
    assert_eq!(sizes(&recorded), [(None, 1, 64)]);
    let figures = &recorded.gate(Gate::ShapeInvariance).expect("has one").figures;
    assert!(
        figures[0].name == "max_abs" && figures[0].bound.is_none() && figures[0].value > 1e-5,
        "{figures:?}"
    );
}

/// An engine that computes otherwise from nine items on: two classes, or no certificate, never one profile.
///
/// Proves FPR-04.
#[test]
fn a_profile_is_split_by_batch_size_or_fails() {
    let from_nine = |call: &Call<'_>, _: usize, row: &mut Vec<f32>| {
        if call.tokens.len() > 8 {
            shift(row, 0.03);
        }
    };
    let split = verdict(loose, from_nine);
    assert_eq!(sizes(&split), [(Some("items_1_8"), 1, 8), (Some("items_9_64"), 9, 64)]);
    assert!(split.is_certified() && split.hot_path(), "{:?}", split.gates);
    assert!(split.batching.starts_with("split by batch size") && split.batching.contains("1 to 8, 9 to 64"));
    assert_eq!(closed(&verdict(exact, from_nine)), ["shape_invariance"]);
    // A class far from the references is dropped, the sound one stays.
    let wrong = verdict(loose, |call, _, row| {
        if call.tokens.len() > 8 {
            row.reverse();
        }
    });
    assert_eq!(sizes(&wrong), [(Some("items_1_8"), 1, 8)]);
    // A size that agrees with nothing is of no class, and ends the one before it.
    let hole = verdict(loose, |call, _, row| {
        if call.tokens.len() == 8 || call.tokens.len() == 9 {
            let beside_a_long_one = call.tokens.iter().any(|tokens| *tokens > 64);
            shift(row, if beside_a_long_one { 0.1 } else { -0.1 });
        }
    });
    assert_eq!(sizes(&hole), [(Some("items_1_5"), 1, 5), (Some("items_16_64"), 16, 64)]);
}

/// What dynamic quantisation does: scales are taken from whatever is in the call.
///
/// Proves FPR-04, CERT-02.
#[test]
fn rows_that_depend_on_their_neighbours_are_not_batchable() {
    let verdict = verdict(loose, |call, _, row| {
        if call.tokens.len() > 1 {
            let step = f32::from(u8::try_from(call.content % 7).expect("is small")) - 3.0;
            shift(row, 0.03 * step + 0.01);
        }
    });
    assert_eq!(sizes(&verdict), [(Some("items_1"), 1, 1)]);
    assert!(verdict.batching.starts_with("not batchable: "), "{}", verdict.batching);
    assert!(verdict.batching.contains("single items only"), "{}", verdict.batching);
}

/// The engine's own words are in the report.
#[test]
fn an_engine_that_says_one_at_a_time_is_not_batchable() {
    let says = |subject: &mut Subject| subject.one_at_a_time = Some("its scales are dynamic".to_owned());
    let verdict = verdict(says, |_, _, _| {});
    assert!(verdict.is_certified());
    assert!(verdict.batching.contains("not batchable") && verdict.batching.contains("its scales are dynamic"));
}

/// A deviation of the query path alone disables the hot path, and nothing else.
///
/// Proves FPR-05, CERT-03.
#[test]
fn a_deviating_query_path_disables_the_hot_path_only() {
    for edit in [exact, loose] {
        let verdict = verdict(edit, |call, _, row| {
            if call.step.as_query {
                shift(row, 0.05);
            }
        });
        assert_eq!(closed(&verdict), ["query_batch"]);
        assert!(verdict.is_certified() && !verdict.hot_path());
        assert_eq!(sizes(&verdict), [(None, 1, 64)]);
    }
}

/// The claim is tried with 1, 2 and the most threads, down to the bit; without the claim nothing is tried.
#[test]
fn a_wrong_claim_of_thread_invariance_closes_the_lane() {
    let spoil = |threads: u32| {
        move |call: &Call<'_>, _: usize, row: &mut Vec<f32>| {
            if call.step.threads == threads {
                row[3] = f32::from_bits(row[3].to_bits() ^ 1);
            }
        }
    };
    for threads in [1, 4] {
        assert_eq!(
            closed(&verdict(exact, spoil(threads))),
            ["thread_invariance"],
            "{threads}"
        );
    }
    let silent = verdict(|subject| subject.thread_invariant = false, spoil(1));
    assert!(silent.is_certified());
    let gate = silent.gate(Gate::ThreadInvariance).expect("has one");
    assert_eq!(gate.outcome, Outcome::NotApplicable);
}

#[test]
fn a_call_that_differs_when_it_is_made_again_fails() {
    for (edit, by) in [(exact as fn(&mut Subject), 1e-3), (loose, 0.05)] {
        let verdict = verdict(edit, |call, _, row| {
            if call.before >= 2 {
                shift(row, by);
            }
        });
        let closed = closed(&verdict);
        assert!(closed.contains(&"repeatability"), "{closed:?}");
        assert!(
            closed
                .iter()
                .all(|gate| ["repeatability", "thread_invariance"].contains(gate)),
            "{closed:?}"
        );
    }
}

/// Proves CERT-02.
#[test]
fn one_length_without_numbers_fails_and_is_named() {
    let verdict = verdict(exact, |call, at, row| {
        if call.tokens[at] == 7 {
            row[0] = f32::NAN;
        }
    });
    assert_eq!(closed(&verdict), ["finite"]);
    let gate = verdict.gate(Gate::Finite).expect("has one");
    assert!(gate.note.starts_with("an item of 7 tokens"), "{}", gate.note);
    assert!(gate.figures[0].value > 1.0 && verdict.kept.is_none());
}

/// A shape inside the envelope that the engine refuses is no certificate; the rest is still measured.
///
/// Proves CERT-01.
#[test]
fn a_refused_shape_fails_the_envelope() {
    let mut hand = Hand::new(|_: &Call<'_>, _: Out<'_>| {});
    let verdict = drive(subject("embed"), FULL, |step| match hand.compute(step) {
        StepOutput::Rows { tokens, .. } if tokens.iter().sum::<u32>() > 8_000 => StepOutput::Failed {
            message: "out of memory".to_owned(),
        },
        output => output,
    });
    assert_eq!(closed(&verdict), ["envelope"]);
    let gate = verdict.gate(Gate::Envelope).expect("has one");
    assert_eq!(
        gate.note,
        "a call of 64 items, the longest of 128 tokens: out of memory"
    );
}

/// Rows of another length or number are an engine's failure, and an engine that only fails is not asked for ever.
#[test]
fn an_engine_that_fails_is_given_up() {
    let failures: [fn(StepOutput) -> StepOutput; 4] = [
        |_| StepOutput::Failed {
            message: "no".to_owned(),
        },
        |_| StepOutput::Scores {
            scores: vec![1.0],
            tokens: vec![3],
            elapsed: std::time::Duration::ZERO,
        },
        |output| match output {
            StepOutput::Rows { rows, tokens, elapsed } => {
                let rows = rows.into_iter().map(|row| row[..8].to_vec()).collect();
                StepOutput::Rows { rows, tokens, elapsed }
            }
            other => other,
        },
        |output| match output {
            StepOutput::Rows { tokens, elapsed, .. } => StepOutput::Rows {
                rows: Vec::new(),
                tokens,
                elapsed,
            },
            other => other,
        },
    ];
    for failure in failures {
        let mut calls = 0;
        let mut hand = Hand::new(|_: &Call<'_>, _: Out<'_>| {});
        let verdict = drive(subject("embed"), FULL, |step| {
            calls += 1;
            failure(hand.compute(step))
        });
        assert!(!verdict.is_certified() && calls < 10, "{calls} calls");
        assert_eq!(
            verdict.gate(Gate::Envelope).map(|gate| gate.outcome),
            Some(Outcome::Failed)
        );
        assert_eq!(
            verdict.gate(Gate::Quality).map(|gate| gate.outcome),
            Some(Outcome::NotRun)
        );
    }
}

/// What was not run is not passed.
///
/// Proves CERT-11.
#[test]
fn an_unfinished_plan_certifies_nothing() {
    for calls in [0, 10, 300] {
        let mut plan = Plan::new(subject("embed"), FULL).expect("fits");
        let mut hand = Hand::new(|_: &Call<'_>, _: Out<'_>| {});
        for _ in 0..calls {
            let step = plan.next().expect("more than that");
            let output = hand.compute(&step);
            plan.answer(step.id, output).expect("the open step");
        }
        let verdict = plan.finish(Observation::default());
        assert!(!verdict.is_certified() && !verdict.hot_path(), "after {calls} calls");
        assert!(of(&verdict, Outcome::NotRun).contains(&Gate::ShapeInvariance));
    }
}

/// A sample is for tests of what drives a plan: it passes every gate and certifies nothing.
#[test]
fn a_sample_certifies_nothing() {
    let options = Options {
        depth: Depth::Sample,
        ..FULL
    };
    let mut hand = Hand::new(|_: &Call<'_>, _: Out<'_>| {});
    let mut calls = 0;
    let verdict = drive(subject("embed"), options, |step| {
        calls += 1;
        hand.compute(step)
    });
    assert_eq!(closed(&verdict), [""; 0], "{:?}", verdict.gates);
    assert_eq!(verdict.depth, Depth::Sample);
    assert!(!verdict.is_certified() && !verdict.hot_path());
    assert!(calls < 150, "{calls}");
}

/// CERT-15's gate: a low share fails whatever the vectors are, and so does a missing one.
///
/// Proves CERT-15.
#[test]
fn placement_counts_where_the_engine_reports_it() {
    for (reports, share, outcome) in [
        (false, None, Outcome::NotApplicable),
        (true, None, Outcome::Failed),
        (true, Some(0.89), Outcome::Failed),
        (true, Some(f64::NAN), Outcome::Failed),
        (true, Some(0.9), Outcome::Passed),
    ] {
        let mut subject = subject("embed");
        subject.reports_placement = reports;
        let mut plan = Plan::new(subject, FULL).expect("fits");
        let mut hand = Hand::new(|_: &Call<'_>, _: Out<'_>| {});
        while let Some(step) = plan.next() {
            let output = hand.compute(&step);
            plan.answer(step.id, output).expect("the open step");
        }
        let verdict = plan.finish(Observation { placement_share: share });
        assert_eq!(
            verdict.gate(Gate::Placement).map(|gate| gate.outcome),
            Some(outcome),
            "{share:?}"
        );
        assert_eq!(verdict.is_certified(), outcome != Outcome::Failed);
    }
}

/// Each step is answered once, in order.
#[test]
fn an_answer_out_of_order_is_refused_and_changes_nothing() {
    let mut plan = Plan::new(subject("embed"), FULL).expect("fits");
    let failed = || StepOutput::Failed { message: String::new() };
    assert!(plan.answer(StepId(0), failed()).is_err(), "nothing was asked");
    let step = plan.next().expect("a step");
    let error = plan.answer(StepId(7), failed()).expect_err("another step");
    assert!(error.to_string().contains("step 7 was answered"), "{error}");
    let mut hand = Hand::new(|_: &Call<'_>, _: Out<'_>| {});
    let output = hand.compute(&step);
    plan.answer(step.id, output.clone()).expect("the open step");
    assert!(plan.answer(step.id, output).is_err(), "twice");
    assert_eq!(plan.progress().0, 1);
}

/// References of another model are refused before anything runs.
#[test]
fn references_that_do_not_fit_are_refused() {
    type Edit = fn(&mut Subject);
    let edits: [(Edit, &str); 3] = [
        (|subject| subject.record.dims = 32, "vectors of 16 values"),
        (|subject| subject.record.normalize = true, "normalized is false"),
        (
            |subject| subject.references = Some(crate::hand::references("rerank")),
            "another kind",
        ),
    ];
    for (edit, word) in edits {
        let mut subject = subject("embed");
        edit(&mut subject);
        let error = Plan::new(subject, FULL).expect_err(word);
        assert!(error.to_string().contains(word), "{error}");
    }
}
