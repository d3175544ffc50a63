//! The gates over what a plan's calls gave, except the one of batches.
//!
//! State: [`Evidence`] borrows a plan's answers for one weighing. Caller: the verdict. The bounds are those of DECISIONS,
//! "gates". A gate without data is not run, and so not passed.

use std::collections::BTreeMap;

use synapse_catalog::Kind;

use super::Observation;
use super::layout::{Layout, Run, Series};
use super::record::{Answered, Record};
use super::shape::{EXACT, SCORE_LOOSE};
use crate::alias::{LEAST_COSINE, LEAST_OVERLAP};
use crate::figures::{RowPair, Scale, count, deviation, mean, overlaps, tau, worst_decile};
use crate::gate::{Bound, Figure, Gate, GateResult, Outcome};
use crate::references::ReferenceValues;
use crate::subject::Subject;

/// Largest difference from the reference where the engine is f32-exact.
const EXACT_QUALITY: f64 = 1e-4;
/// The least share of the work on the engine's own device.
const LEAST_PLACEMENT: f64 = 0.9;

pub(super) const fn at_least(name: &'static str, value: f64, least: f64) -> Figure {
    Figure {
        name,
        value,
        bound: Some(Bound::AtLeast(least)),
    }
}

pub(super) const fn at_most(name: &'static str, value: f64, most: f64) -> Figure {
    Figure {
        name,
        value,
        bound: Some(Bound::AtMost(most)),
    }
}

pub(super) const fn recorded(name: &'static str, value: f64) -> Figure {
    Figure {
        name,
        value,
        bound: None,
    }
}

/// Everything that the gates look at.
pub(super) struct Evidence<'a> {
    pub subject: &'a Subject,
    pub layout: &'a Layout,
    pub record: &'a Record,
    pub scale: Scale,
    /// Each item's row alone, through the batch path.
    pub base: BTreeMap<usize, &'a [f32]>,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(subject: &'a Subject, layout: &'a Layout, record: &'a Record) -> Self {
        let mut base = record.rows(Series::Alone);
        base.extend(record.rows(Series::Length));
        let scale = match subject.record.kind {
            Kind::Rerank => Scale::Score,
            _ if subject.record.normalize => Scale::Unit,
            _ => Scale::Raw,
        };
        Self {
            subject,
            layout,
            record,
            scale,
            base,
        }
    }

    /// The reference of an item of the corpus. Where the lane's bound is shorter than the references' cut, a text that
    /// reaches it was cut in another place, and has none.
    pub(super) fn reference(&self, item: usize) -> Option<&'a [f32]> {
        let references = self.subject.references.as_ref()?;
        if item >= self.layout.corpus_items {
            return None;
        }
        let cut = self.layout.item(item).cut;
        if cut < references.max_tokens {
            let answered = self
                .record
                .of(Series::Alone)
                .find(|answered| answered.ask.items == [item])?;
            if answered.tokens.first().is_none_or(|tokens| *tokens >= cut) {
                return None;
            }
        }
        references.row(item)
    }

    /// Overlap of each query's nearest ten texts between two sets of rows.
    pub(super) fn overlaps(&self, a: &BTreeMap<usize, &[f32]>, b: &BTreeMap<usize, &[f32]>) -> Vec<f64> {
        let pair = |item: usize| -> RowPair<'_> { (a.get(&item).copied(), b.get(&item).copied()) };
        let texts: Vec<RowPair<'_>> = (0..self.layout.texts).map(pair).collect();
        let queries: Vec<RowPair<'_>> = (self.layout.texts..self.layout.corpus_items).map(pair).collect();
        overlaps(&queries, &texts)
    }

    fn references(&self) -> BTreeMap<usize, &'a [f32]> {
        let items = 0..self.layout.corpus_items;
        items.filter_map(|item| Some((item, self.reference(item)?))).collect()
    }

    fn text(&self, item: usize) -> String {
        let text: String = self.layout.item(item).text.chars().take(24).collect();
        format!("{text:?}")
    }
}

/// Largest difference, cosines and the worst item between rows and what they should be.
struct Compared {
    max_abs: f64,
    cosines: Vec<f64>,
    worst: usize,
}

fn compare(rows: &BTreeMap<usize, &[f32]>, expected: &BTreeMap<usize, &[f32]>, scale: Scale) -> Option<Compared> {
    let mut compared = Compared {
        max_abs: -1.0,
        cosines: Vec::new(),
        worst: 0,
    };
    for (item, row) in rows {
        let Some(base) = expected.get(item) else {
            continue;
        };
        let found = deviation(row, base, scale);
        if found.max_abs > compared.max_abs {
            (compared.max_abs, compared.worst) = (found.max_abs, *item);
        }
        compared.cosines.push(found.cosine);
    }
    (!compared.cosines.is_empty()).then_some(compared)
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(1.0, f64::min)
}

/// Every call was answered as the envelope promises.
pub(super) fn envelope(evidence: &Evidence<'_>) -> GateResult {
    let calls = evidence.record.all().count();
    if calls == 0 {
        return GateResult::bare(Gate::Envelope, Outcome::NotRun, "no call was made");
    }
    let failed: Vec<&Answered> = evidence
        .record
        .all()
        .filter(|answered| answered.failure.is_some())
        .collect();
    let note = failed.first().map_or_else(String::new, |answered| {
        let failure: String = answered
            .failure
            .iter()
            .flat_map(|text| text.chars())
            .take(200)
            .collect();
        format!("{}: {failure}", answered.words(evidence.layout))
    });
    let figures = vec![
        at_most("failed_calls", count(failed.len()), 0.0),
        recorded("calls", count(calls)),
    ];
    GateResult::of(Gate::Envelope, figures, note)
}

/// Every value is finite.
pub(super) fn finite(evidence: &Evidence<'_>) -> GateResult {
    if evidence.subject.record.kind == Kind::Generate {
        return GateResult::bare(Gate::Finite, Outcome::NotApplicable, "a generator gives text");
    }
    let rows: usize = evidence.record.all().map(|answered| answered.rows.len()).sum();
    if rows == 0 {
        return GateResult::bare(Gate::Finite, Outcome::NotRun, "no call gave rows");
    }
    let mut lost = 0;
    let mut note = String::new();
    for answered in evidence.record.all() {
        for (position, row) in answered.rows.iter().enumerate() {
            if row.is_none() {
                lost += 1;
                if note.is_empty() {
                    let (tokens, call) = (answered.tokens[position], answered.words(evidence.layout));
                    note = format!("an item of {tokens} tokens, in {call}");
                }
            }
        }
    }
    let figures = vec![
        at_most("non_finite_rows", count(lost), 0.0),
        recorded("rows", count(rows)),
    ];
    GateResult::of(Gate::Finite, figures, note)
}

/// Rows are near those of an independent implementation.
pub(super) fn quality(evidence: &Evidence<'_>) -> GateResult {
    let Some(references) = &evidence.subject.references else {
        return GateResult::bare(Gate::Quality, Outcome::NotApplicable, "the record names no references");
    };
    if matches!(references.values, ReferenceValues::Beginnings(_)) {
        return GateResult::bare(
            Gate::Quality,
            Outcome::NotApplicable,
            "answers are compared under generation",
        );
    }
    let expected = evidence.references();
    let Some(found) = compare(&evidence.base, &expected, evidence.scale) else {
        return GateResult::bare(Gate::Quality, Outcome::NotRun, "no text has both a row and a reference");
    };
    let exact = evidence.subject.f32_exact;
    let largest = match (exact, evidence.scale) {
        (true, _) => at_most("max_abs", found.max_abs, EXACT_QUALITY),
        (false, Scale::Score) => at_most("max_abs", found.max_abs, SCORE_LOOSE),
        (false, _) => recorded("max_abs", found.max_abs),
    };
    let mut figures = Vec::new();
    if evidence.scale != Scale::Score {
        figures.push(at_least("mean_cosine", mean(&found.cosines), 0.999));
        figures.push(at_least("min_cosine", smallest(&found.cosines), 0.99));
        let overlaps = evidence.overlaps(&expected, &evidence.base);
        figures.push(at_least("worst_decile_top10_overlap", worst_decile(&overlaps), 0.9));
    }
    figures.push(largest);
    figures.push(recorded("texts", count(found.cosines.len())));
    GateResult::of(
        Gate::Quality,
        figures,
        format!("farthest: {}", evidence.text(found.worst)),
    )
}

/// The query path against each text alone, and against the batches where those are of the same space.
pub(super) fn query_batch(evidence: &Evidence<'_>, one_space: bool) -> GateResult {
    if evidence.subject.record.kind != Kind::Embed {
        return GateResult::bare(Gate::QueryBatch, Outcome::NotApplicable, "there is one path only");
    }
    let query = evidence.record.rows(Series::Query);
    let Some(alone) = compare(&query, &evidence.base, evidence.scale) else {
        return GateResult::bare(Gate::QueryBatch, Outcome::NotRun, "no text went both paths");
    };
    let batches = evidence.record.rows(Series::Corpus);
    let batch = compare(&query, &batches, evidence.scale).filter(|_| one_space);
    let cosine = batch
        .as_ref()
        .map_or(1.0, |batch| smallest(&batch.cosines))
        .min(smallest(&alone.cosines));
    let far = batch.as_ref().map_or(0.0, |batch| batch.max_abs).max(alone.max_abs);
    // What a query finds: the nearest of the texts as a batch computes them, for the query of either path.
    let against = if batch.is_some() { &batches } else { &evidence.base };
    let mut found = against.clone();
    found.extend(query.range(evidence.layout.texts..));
    let overlap = mean(&evidence.overlaps(against, &found));
    let figures = vec![
        at_least("min_cosine", cosine, LEAST_COSINE),
        at_least("mean_top10_overlap", overlap, LEAST_OVERLAP),
        recorded("max_abs", far),
        recorded("texts", count(alone.cosines.len())),
    ];
    GateResult::of(
        Gate::QueryBatch,
        figures,
        format!("farthest: {}", evidence.text(alone.worst)),
    )
}

/// Pairs of runs of the same call.
fn runs<'a>(evidence: &'a Evidence<'_>, wanted: impl Fn(Run) -> bool) -> Vec<(&'a Answered, &'a Answered)> {
    let series = |answered: &Answered| match answered.ask.series {
        Series::Trial(number, run) => Some((number, run)),
        _ => None,
    };
    let trials = || evidence.record.all().filter(|answered| answered.failure.is_none());
    let first = |number: u32| trials().find(|answered| series(answered) == Some((number, Run::First)));
    trials()
        .filter_map(|answered| {
            let (number, run) = series(answered)?;
            wanted(run).then_some((first(number)?, answered))
        })
        .collect()
}

fn largest(pairs: &[(&Answered, &Answered)], scale: Scale) -> (f64, f64, usize) {
    let (mut far, mut cosine, mut bits) = (0.0_f64, 1.0_f64, 0);
    for (first, again) in pairs {
        for (a, b) in first.rows.iter().zip(&again.rows) {
            if let (Some(a), Some(b)) = (a, b) {
                let found = deviation(b, a, scale);
                far = far.max(found.max_abs);
                cosine = cosine.min(found.cosine);
            }
            bits += usize::from(a != b);
        }
    }
    (far, cosine, bits)
}

/// The same call again.
pub(super) fn repeatability(evidence: &Evidence<'_>) -> GateResult {
    if evidence.subject.record.kind == Kind::Generate {
        return GateResult::bare(
            Gate::Repeatability,
            Outcome::NotApplicable,
            "answers are compared under generation",
        );
    }
    let pairs = runs(evidence, |run| run == Run::Again);
    if pairs.is_empty() {
        return GateResult::bare(Gate::Repeatability, Outcome::NotRun, "no call was made twice");
    }
    let (far, cosine, bits) = largest(&pairs, evidence.scale);
    let mut figures = match (evidence.subject.f32_exact, evidence.scale) {
        (true, _) => vec![at_most("max_abs", far, EXACT)],
        (false, Scale::Score) => vec![at_most("max_abs", far, SCORE_LOOSE)],
        (false, _) => vec![at_least("min_cosine", cosine, LEAST_COSINE), recorded("max_abs", far)],
    };
    figures.push(recorded("differing_rows", count(bits)));
    GateResult::of(Gate::Repeatability, figures, "")
}

/// The claim is that nothing moves at all, so not a bit may.
pub(super) fn thread_invariance(evidence: &Evidence<'_>) -> GateResult {
    let gate = Gate::ThreadInvariance;
    if !evidence.subject.thread_invariant {
        return GateResult::bare(
            gate,
            Outcome::NotApplicable,
            "not declared: the thread class is in the profile",
        );
    }
    if evidence.subject.record.kind == Kind::Generate {
        return GateResult::bare(gate, Outcome::NotApplicable, "answers are compared under generation");
    }
    let pairs = runs(evidence, |run| matches!(run, Run::Threads(_)));
    if pairs.is_empty() {
        return GateResult::bare(gate, Outcome::NotRun, "no call was made with another thread count");
    }
    let (far, _, bits) = largest(&pairs, evidence.scale);
    let mut counts: Vec<String> = Vec::new();
    for (first, again) in &pairs {
        for threads in [first.ask.threads, again.ask.threads].map(|threads| threads.to_string()) {
            if !counts.contains(&threads) {
                counts.push(threads);
            }
        }
    }
    let figures = vec![at_most("differing_rows", count(bits), 0.0), recorded("max_abs", far)];
    GateResult::of(gate, figures, format!("{} threads", counts.join(", ")))
}

/// Candidates in the reference's order; without a reference, alone in the order that they have together.
pub(super) fn rerank_order(evidence: &Evidence<'_>) -> GateResult {
    if evidence.subject.record.kind != Kind::Rerank {
        return GateResult::bare(Gate::RerankOrder, Outcome::NotApplicable, "the model gives no scores");
    }
    let margin = 2.0
        * if evidence.subject.f32_exact {
            EXACT_QUALITY
        } else {
            SCORE_LOOSE
        };
    let references = evidence.references();
    let batches = evidence.record.rows(Series::Corpus);
    let expected = if references.is_empty() { &batches } else { &references };
    let mut taus = Vec::new();
    let mut worst = String::new();
    for set in &evidence.layout.sets {
        let both = set
            .clone()
            .filter_map(|item| Some((evidence.base.get(&item)?[0], expected.get(&item)?[0])));
        let (found, wanted): (Vec<f32>, Vec<f32>) = both.unzip();
        if found.len() < 2 {
            continue;
        }
        let tau = tau(&found, &wanted, margin);
        if taus.iter().all(|other| tau < *other) {
            let query = evidence.layout.item(set.start).query.as_deref().unwrap_or_default();
            worst = format!("lowest: {query:?}");
        }
        taus.push(tau);
    }
    if taus.is_empty() {
        return GateResult::bare(Gate::RerankOrder, Outcome::NotRun, "no set has its scores");
    }
    let figures = vec![
        at_least("min_tau", smallest(&taus), 1.0),
        recorded("sets", count(taus.len())),
    ];
    GateResult::of(Gate::RerankOrder, figures, worst)
}

/// Answers are the same each time, with every thread count where that is declared, and begin as the reference's.
pub(super) fn generation(evidence: &Evidence<'_>) -> GateResult {
    if evidence.subject.record.kind != Kind::Generate {
        return GateResult::bare(Gate::Generation, Outcome::NotApplicable, "the model generates nothing");
    }
    let answer = |answered: &Answered| answered.text.clone().map(|(text, _)| (answered.ask.items[0], text));
    let firsts: BTreeMap<usize, String> = evidence.record.of(Series::Alone).filter_map(answer).collect();
    if firsts.is_empty() {
        return GateResult::bare(Gate::Generation, Outcome::NotRun, "nothing was generated");
    }
    let (mut differing, mut repeats) = (0, 0);
    let mut note = String::new();
    for answered in evidence
        .record
        .all()
        .filter(|answered| matches!(answered.ask.series, Series::Trial(..)))
    {
        let Some((item, text)) = answer(answered) else {
            continue;
        };
        repeats += 1;
        if firsts.get(&item) != Some(&text) {
            differing += 1;
            note = format!("differs with {} threads: {}", answered.ask.threads, evidence.text(item));
        }
    }
    let mut figures = vec![
        at_most("differing_answers", count(differing), 0.0),
        recorded("repeats", count(repeats)),
    ];
    if let Some(references) = &evidence.subject.references
        && let ReferenceValues::Beginnings(beginnings) = &references.values
    {
        let wrong = beginnings.iter().enumerate().filter(|(item, beginning)| {
            let answer = firsts.get(item);
            answer.is_some_and(|answer| !answer.starts_with(beginning.as_str()))
        });
        let wrong: Vec<usize> = wrong.map(|(item, _)| item).collect();
        figures.push(at_most("wrong_beginnings", count(wrong.len()), 0.0));
        if let Some(item) = wrong.first() {
            note = format!("begins otherwise than the reference: {}", evidence.text(*item));
        }
    }
    if repeats == 0 {
        return GateResult::bare(Gate::Generation, Outcome::NotRun, "no answer was asked for twice");
    }
    GateResult::of(Gate::Generation, figures, note)
}

/// The share of the work on the engine's device; absent data fails (CERT-15).
pub(super) fn placement(subject: &Subject, observation: Observation) -> GateResult {
    match (subject.reports_placement, observation.placement_share) {
        (false, _) => GateResult::bare(Gate::Placement, Outcome::NotApplicable, "the engine reports none"),
        (true, None) => GateResult::bare(Gate::Placement, Outcome::Failed, "the engine reported no share"),
        (true, Some(share)) => {
            let figures = vec![at_least("placement_share", share, LEAST_PLACEMENT)];
            GateResult::of(Gate::Placement, figures, "")
        }
    }
}
