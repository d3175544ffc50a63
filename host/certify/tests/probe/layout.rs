//! Which calls a plan makes: inside the row's bounds, to their corners, with texts that are timed once.

use std::collections::BTreeSet;
use std::time::Duration;

use synapse_certify::{Options, Plan, Step, StepOutput, Work};
use synapse_core::fingerprint::EnvelopeBounds;

use crate::hand::{Call, FULL, Hand, Out, subject};

fn steps(kind: &str, bounds: EnvelopeBounds) -> Vec<(Step, Vec<u32>)> {
    steps_with(kind, bounds, FULL)
}

fn steps_with(kind: &str, bounds: EnvelopeBounds, options: Options) -> Vec<(Step, Vec<u32>)> {
    let mut subject = subject(kind);
    subject.row.bounds = bounds;
    let mut plan = Plan::new(subject, options).expect("fits");
    let mut hand = Hand::new(|_: &Call<'_>, _: Out<'_>| {});
    let mut steps = Vec::new();
    let mut last = (0, 0);
    while let Some(step) = plan.next() {
        let output = hand.compute(&step);
        let tokens = match &output {
            StepOutput::Rows { tokens, .. } | StepOutput::Scores { tokens, .. } => tokens.clone(),
            _ => Vec::new(),
        };
        plan.answer(step.id, output).expect("the open step");
        steps.push((step, tokens));
        let progress = plan.progress();
        assert!(
            progress.0 > last.0 && progress.0 <= progress.1,
            "{progress:?} after {last:?}"
        );
        last = progress;
    }
    assert_eq!(last.0, last.1, "all is done");
    steps
}

const fn bounds(max_tokens: u32, max_batch: u32, max_batch_tokens: u32) -> EnvelopeBounds {
    EnvelopeBounds {
        max_tokens,
        max_batch,
        max_batch_tokens,
        max_sequences: max_batch,
    }
}

/// A call beyond the row would fail a sound engine.
///
/// Proves CERT-01.
#[test]
fn no_call_is_beyond_the_row() {
    let rows = [
        bounds(512, 64, 16_384),
        bounds(512, 64, 512),
        bounds(64, 3, 100),
        bounds(64, 1, 64),
        bounds(16, 64, 64),
        bounds(2_048, 8, 4_096),
    ];
    for row in rows {
        for kind in ["embed", "rerank"] {
            for (step, tokens) in steps(kind, row) {
                let (items, longest, all) = (tokens.len(), tokens.iter().max(), tokens.iter().sum::<u32>());
                let fits = items <= row.max_batch as usize
                    && longest.is_none_or(|longest| *longest <= row.max_tokens)
                    && all <= row.max_batch_tokens;
                assert!(
                    fits,
                    "{kind} {row:?}: {items} items, {longest:?}, {all} tokens, {:?}",
                    step.id
                );
            }
        }
    }
}

/// The corners: the shortest and the longest text, the most items, the most tokens; every length up to 64.
///
/// Proves CERT-02.
#[test]
fn the_corners_of_the_row_are_tried() {
    let steps = steps("embed", bounds(512, 64, 16_384));
    let tokens: Vec<&Vec<u32>> = steps.iter().map(|(_, tokens)| tokens).collect();
    let alone: BTreeSet<u32> = tokens
        .iter()
        .filter(|tokens| tokens.len() == 1)
        .map(|tokens| tokens[0])
        .collect();
    for length in (3..=64).chain([127, 128, 129, 255, 256, 257, 511, 512]) {
        assert!(alone.contains(&length), "no text of {length} tokens alone");
    }
    assert!(
        tokens
            .iter()
            .any(|tokens| tokens.len() == 64 && tokens.iter().sum::<u32>() == 16_384)
    );
    let large = steps
        .iter()
        .filter(|(_, tokens)| tokens.iter().sum::<u32>() > 3_072)
        .count();
    assert!(large <= 2, "{large} calls are longer than a quantum");
    let all: u32 = tokens.iter().map(|tokens| tokens.iter().sum::<u32>()).sum();
    assert!(
        all < 80_000 && steps.len() < 600,
        "{all} tokens in {} steps: a probe would take minutes",
        steps.len()
    );
}

/// A lane that cannot give way in the middle of a call is asked for no more than it does in the time of a call, or for one
/// item; every series is still there, and every batch size up to the most items.
///
/// Proves CERT-02.
#[test]
fn a_lane_that_cannot_give_way_gets_short_calls() {
    let row = bounds(512, 64, 16_384);
    // The hand-made engine takes a microsecond a token.
    let options = Options {
        call_time: Some(Duration::from_micros(600)),
        ..FULL
    };
    let steps = steps_with("embed", row, options);
    let sizes: BTreeSet<usize> = steps.iter().map(|(_, tokens)| tokens.len()).collect();
    for (step, tokens) in &steps {
        assert!(tokens.iter().sum::<u32>() <= 600, "step {:?}: {tokens:?}", step.id);
    }
    for size in [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64] {
        assert!(sizes.contains(&size), "no call of {size} items: {sizes:?}");
    }
    // Three batches of 32 texts of 32 tokens each, in calls of at most 18 texts.
    let timed: Vec<usize> = steps[steps.len() - 6..]
        .iter()
        .map(|(_, tokens)| tokens.len())
        .collect();
    assert_eq!(timed, [18, 14].repeat(3));
    let all: u32 = steps.iter().map(|(_, tokens)| tokens.iter().sum::<u32>()).sum();
    assert!(all < 60_000, "{all} tokens: a slow engine would take minutes");
}

/// Timed texts are all different, also in their first words, and nothing else is made of them.
///
/// Proves CERT-20.
#[test]
fn timed_texts_are_used_once() {
    let steps = steps("embed", bounds(512, 64, 16_384));
    let mut seen = BTreeSet::new();
    let timed = |step: &Step| match &step.work {
        Work::Embed(items) => items.clone(),
        _ => Vec::new(),
    };
    // The timed calls come last: queries of 8, 32, 128 and 512 tokens, and 3 batches each of 1, 8 and 32.
    const QUERIES: usize = 30 + 30 + 10 + 5;
    let from = steps.len() - (QUERIES + 3 * 3);
    for (step, _) in &steps[from..] {
        for item in timed(step) {
            let begin: Vec<&str> = item.text.split(' ').take(2).collect();
            assert!(seen.insert(begin.join(" ")), "{:?} again", begin);
        }
    }
    assert_eq!(seen.len(), QUERIES + 3 * (1 + 8 + 32));
    for (step, _) in &steps[..from] {
        for item in timed(step) {
            let begin: Vec<&str> = item.text.split(' ').take(2).collect();
            assert!(
                !seen.contains(&begin.join(" ")),
                "{begin:?} was computed before it was timed"
            );
        }
    }
}

/// A subject's thread counts are tried where the claim is made.
#[test]
fn thread_counts_are_tried() {
    let counts = |steps: &[(Step, Vec<u32>)]| -> BTreeSet<u32> { steps.iter().map(|(step, _)| step.threads).collect() };
    assert_eq!(
        counts(&steps("embed", bounds(512, 64, 16_384))),
        BTreeSet::from([1, 2, 4])
    );
}
