//! Rerankers and generators: each deviation, and the gates that see it.

use synapse_certify::{Gate, Level, Outcome, Subject, Verdict};

use crate::hand::{Call, FULL, Hand, Out, closed, drive, of, subject};

fn scores(edit: impl Fn(&mut Subject), mut spoil: impl FnMut(&Call<'_>, usize, &mut f32)) -> Verdict {
    let mut subject = subject("rerank");
    edit(&mut subject);
    let mut hand = Hand::new(|call: &Call<'_>, out: Out<'_>| {
        if let Out::Row(at, row) = out {
            spoil(call, at, &mut row[0]);
        }
    });
    drive(subject, FULL, |step| hand.compute(step))
}

fn texts(edit: impl Fn(&mut Subject), mut spoil: impl FnMut(&Call<'_>, &mut String)) -> Verdict {
    let mut subject = subject("generate");
    edit(&mut subject);
    let mut hand = Hand::new(|call: &Call<'_>, out: Out<'_>| {
        if let Out::Text(text) = out {
            spoil(call, text);
        }
    });
    drive(subject, FULL, |step| hand.compute(step))
}

fn exact(_: &mut Subject) {}

#[test]
fn a_sound_reranker_passes() {
    let verdict = scores(exact, |_, _, _| {});
    assert_eq!(closed(&verdict), [""; 0], "{:?}", verdict.gates);
    assert!(verdict.is_certified() && verdict.hot_path() && verdict.kept.is_none());
    assert_eq!(
        of(&verdict, Outcome::NotApplicable),
        [Gate::QueryBatch, Gate::Generation, Gate::Placement]
    );
    assert!(
        verdict
            .perf
            .iter()
            .all(|row| row.samples >= 10 && row.workload.name().starts_with("pair_"))
    );
    assert!(verdict.perf.len() == 2 && verdict.shapes.len() > 10);
}

/// The sign, the order, the batch and the number: what each gate of a reranker sees.
#[test]
fn each_deviation_of_scores_has_its_gate() {
    let sign = scores(exact, |_, _, score| *score = -*score);
    assert_eq!(closed(&sign), ["quality", "rerank_order"]);
    let loose = |subject: &mut Subject| subject.f32_exact = false;
    let near = scores(loose, |_, _, score| *score += 5e-3);
    assert_eq!(closed(&near), [""; 0], "{:?}", near.gates);
    assert_eq!(closed(&scores(exact, |_, _, score| *score += 5e-3)), ["quality"]);
    let by_place = scores(exact, |_, at, score| *score += if at % 2 == 1 { 1e-3 } else { 0.0 });
    assert_eq!(closed(&by_place), ["shape_invariance"]);
    let lost = scores(exact, |call, at, score| {
        if call.tokens[at] == 30 {
            *score = f32::INFINITY;
        }
    });
    assert_eq!(closed(&lost), ["finite"]);
    let none = |subject: &mut Subject| subject.references = None;
    let sign = scores(none, |_, _, score| *score = -*score);
    assert!(
        sign.is_certified() && sign.level == Level::Consistent,
        "nothing independent is there"
    );
    let batch = scores(none, |call, _, score| {
        *score = if call.tokens.len() > 1 { -*score } else { *score }
    });
    assert_eq!(closed(&batch), ["shape_invariance", "rerank_order"]);
}

#[test]
fn a_sound_generator_passes() {
    let verdict = texts(exact, |_, _| {});
    assert_eq!(closed(&verdict), [""; 0], "{:?}", verdict.gates);
    assert!(verdict.is_certified() && verdict.hot_path() && verdict.level == Level::Reference);
    assert_eq!(
        of(&verdict, Outcome::Passed),
        [Gate::Envelope, Gate::Generation, Gate::VariedText]
    );
    assert_eq!(verdict.perf.len(), 1);
}

#[test]
fn each_deviation_of_a_generator_fails_generation() {
    let again = texts(exact, |call, text| {
        if call.before > 0 {
            text.push('!');
        }
    });
    let threads = texts(exact, |call, text| {
        if call.step.threads == 4 {
            text.push('!');
        }
    });
    let other = texts(exact, |_, text| text.insert(0, '!'));
    for (verdict, figure) in [
        (again, "differing_answers"),
        (threads, "differing_answers"),
        (other, "wrong_beginnings"),
    ] {
        assert_eq!(closed(&verdict), ["generation"]);
        let gate = verdict.gate(Gate::Generation).expect("has one");
        let failing: Vec<&str> = gate.figures.iter().filter(|f| !f.holds()).map(|f| f.name).collect();
        assert_eq!(failing, [figure]);
        assert!(!gate.note.is_empty());
    }
    let silent = texts(
        |subject| subject.thread_invariant = false,
        |call, text| {
            if call.step.threads == 4 {
                text.push('!');
            }
        },
    );
    assert!(silent.is_certified(), "not declared, so not tried");
}
