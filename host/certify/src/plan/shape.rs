//! Does the batch around a text move its vector, and if so, which batch sizes are one space (CERT-02, FPR-04)?
//!
//! State: none. Caller: the verdict. An engine that declares f32-exact has to keep within [`EXACT`] everywhere. Of another
//! the deviation is recorded; beyond the alias gate its profile is split by this rule:
//! 1. For each tried batch size, the rows of all its calls have to agree text by text (minimum cosine of the alias gate):
//!    otherwise what stands beside a text moves it, and that size is of no class.
//! 2. From one item upwards, a size joins the class before it when its rows agree with all of that class; otherwise it
//!    begins a class of its own.
//! 3. A class reaches from its smallest to its largest tried size. Sizes between two classes belong to neither.
//! 4. A class whose rows are not near the references (bounds of the quality gate) is dropped.

use std::collections::BTreeMap;

use super::layout::Series;
use super::record::Answered;
use super::weigh::{Evidence, at_least, at_most, recorded};
use crate::alias::{LEAST_COSINE, LEAST_OVERLAP};
use crate::figures::{Scale, deviation, mean};
use crate::gate::{Gate, GateResult, Outcome};
use crate::verdict::{ShapeClass, ShapeFigure};

/// Largest difference of a value that a batch may make where the engine is f32-exact.
pub(super) const EXACT: f64 = 1e-5;
/// The same for scores of engines that are not.
pub(super) const SCORE_LOOSE: f64 = 1e-2;
/// A class' rows against the references, as the quality gate.
const MEAN_COSINE: f64 = 0.999;
const MIN_COSINE: f64 = 0.99;

/// What the batches showed.
pub(super) struct Shapes {
    pub figures: Vec<ShapeFigure>,
    pub gate: GateResult,
    pub classes: Vec<ShapeClass>,
    pub batching: String,
}

/// The series whose calls hold several items.
const BATCHES: [(Series, &str); 5] = [
    (Series::Corpus, "corpus"),
    (Series::Ramp, "ramp"),
    (Series::Even, "even"),
    (Series::Mixed, "mixed"),
    (Series::Corner, "corner"),
];

pub(super) fn shapes(evidence: &Evidence<'_>) -> Shapes {
    let most = evidence.layout.max_batch();
    let whole = |batching: String| (vec![class(None, 1, most)], batching);
    let mut figures = Vec::new();
    for (series, composition) in BATCHES {
        let calls = evidence
            .record
            .of(series)
            .filter(|answered| answered.ask.items.len() > 1);
        figures.extend(calls.filter_map(|answered| figure(evidence, answered, composition)));
    }
    let one_at_a_time = evidence.subject.one_at_a_time.as_ref();
    let batching = one_at_a_time.map_or_else(String::new, |words| {
        format!("not batchable: the engine computes each item alone, {words}")
    });
    if figures.is_empty() {
        let (gate, classes, batching) = if evidence.base.is_empty() {
            let gate = GateResult::bare(Gate::ShapeInvariance, Outcome::NotRun, "no text has a row");
            (gate, Vec::new(), String::new())
        } else if most == 1 {
            let note = "the envelope has batches of one item only";
            let gate = GateResult::bare(Gate::ShapeInvariance, Outcome::NotApplicable, note);
            (gate, vec![class(None, 1, 1)], batching)
        } else {
            let gate = GateResult::bare(Gate::ShapeInvariance, Outcome::NotRun, "no batch has rows");
            (gate, Vec::new(), String::new())
        };
        return Shapes {
            figures,
            gate,
            classes,
            batching,
        };
    }
    let max_abs = figures.iter().map(|figure| figure.max_abs).fold(0.0, f64::max);
    let min_cosine = figures.iter().map(|figure| figure.min_cosine).fold(1.0, f64::min);
    let worst = figures.iter().max_by(|a, b| a.max_abs.total_cmp(&b.max_abs));
    let note = worst.map_or_else(String::new, |worst| {
        let (items, longest) = (worst.items, worst.longest);
        format!(
            "largest in a call of {items} items, the longest of {longest} tokens ({})",
            worst.composition
        )
    });
    let tried = recorded("shapes", crate::figures::count(figures.len()));
    if evidence.subject.f32_exact {
        let measured = vec![
            at_most("max_abs", max_abs, EXACT),
            recorded("min_cosine", min_cosine),
            tried,
        ];
        let gate = GateResult::of(Gate::ShapeInvariance, measured, note);
        let (classes, batching) = match gate.outcome {
            Outcome::Passed => whole(batching),
            _ => (
                Vec::new(),
                "not batchable: a text's vector depends on the batch around it".to_owned(),
            ),
        };
        return Shapes {
            figures,
            gate,
            classes,
            batching,
        };
    }
    let measured = if evidence.scale == Scale::Score {
        vec![at_most("max_abs", max_abs, SCORE_LOOSE), tried]
    } else {
        let batch = evidence.record.rows(Series::Corpus);
        let overlap = mean(&evidence.overlaps(&evidence.base, &batch));
        vec![
            recorded("max_abs", max_abs),
            at_least("min_cosine", min_cosine, LEAST_COSINE),
            at_least("mean_top10_overlap", overlap, LEAST_OVERLAP),
            tried,
        ]
    };
    let mut gate = GateResult::of(Gate::ShapeInvariance, measured, note);
    if gate.outcome == Outcome::Passed {
        let (classes, batching) = whole(batching);
        return Shapes {
            figures,
            gate,
            classes,
            batching,
        };
    }
    let classes = split(evidence);
    let batching = words(&classes, most);
    if !classes.is_empty() {
        gate.outcome = Outcome::Passed;
    }
    gate.note = format!("{batching}; {}", gate.note);
    Shapes {
        figures,
        gate,
        classes,
        batching,
    }
}

/// A generator takes one prompt a call.
pub(super) fn of_generator(evidence: &Evidence<'_>) -> Shapes {
    Shapes {
        figures: Vec::new(),
        gate: GateResult::bare(Gate::ShapeInvariance, Outcome::NotApplicable, "one prompt a call"),
        classes: vec![class(None, 1, evidence.layout.max_batch())],
        batching: String::new(),
    }
}

fn figure(evidence: &Evidence<'_>, answered: &Answered, composition: &'static str) -> Option<ShapeFigure> {
    let mut compared = false;
    let (mut max_abs, mut min_cosine) = (0.0_f64, 1.0_f64);
    for (item, row) in answered.rows_by_item() {
        let Some(base) = evidence.base.get(&item) else {
            continue;
        };
        let found = deviation(row, base, evidence.scale);
        max_abs = max_abs.max(found.max_abs);
        min_cosine = min_cosine.min(found.cosine);
        compared = true;
    }
    compared.then(|| ShapeFigure {
        items: u32::try_from(answered.ask.items.len()).unwrap_or(u32::MAX),
        longest: answered.tokens.iter().max().copied().unwrap_or(0),
        tokens: answered.all_tokens(),
        composition,
        max_abs,
        min_cosine,
    })
}

fn class(name: Option<String>, from_items: u32, to_items: u32) -> ShapeClass {
    ShapeClass {
        name,
        from_items,
        to_items,
    }
}

/// The rows of one batch size.
type Rows<'a> = Vec<(usize, &'a [f32])>;

/// The rule of this file's documentation.
fn split(evidence: &Evidence<'_>) -> Vec<ShapeClass> {
    let mut sizes: BTreeMap<u32, Rows<'_>> = BTreeMap::new();
    for series in [Series::Even, Series::Mixed, Series::Corner] {
        for answered in evidence.record.of(series) {
            let size = u32::try_from(answered.ask.items.len()).unwrap_or(u32::MAX);
            sizes.entry(size).or_default().extend(answered.rows_by_item());
        }
    }
    let tried: Vec<usize> = sizes.values().flatten().map(|(item, _)| *item).collect();
    let alone = evidence.base.iter().filter(|(item, _)| tried.contains(item));
    sizes
        .entry(1)
        .or_default()
        .extend(alone.map(|(item, row)| (*item, *row)));
    let near = |a: &[f32], b: &[f32]| {
        let found = deviation(a, b, evidence.scale);
        match evidence.scale {
            Scale::Score => found.max_abs <= SCORE_LOOSE,
            Scale::Unit | Scale::Raw => found.cosine >= LEAST_COSINE,
        }
    };
    let agree = |a: &Rows<'_>, b: &Rows<'_>| {
        let same = a
            .iter()
            .flat_map(|x| b.iter().filter(move |y| x.0 == y.0).map(move |y| (x.1, y.1)));
        same.into_iter().all(|(x, y)| near(x, y))
    };
    let mut classes: Vec<(u32, u32, Vec<&Rows<'_>>)> = Vec::new();
    let mut open = false;
    for (size, rows) in &sizes {
        if !agree(rows, rows) {
            open = false;
            continue;
        }
        match classes.last_mut() {
            Some((_, to, members)) if open && members.iter().all(|member| agree(member, rows)) => {
                *to = *size;
                members.push(rows);
            }
            _ => classes.push((*size, *size, vec![rows])),
        }
        open = true;
    }
    // Batches of other compositions moved a text, although these sizes agree: only single items are left.
    if let [(1, to, _)] = classes.as_mut_slice()
        && sizes.keys().all(|size| size <= to)
    {
        *to = 1;
        classes[0].2.truncate(1);
    }
    let sound = |members: &[&Rows<'_>]| {
        let cosines: Vec<f64> = members
            .iter()
            .flat_map(|rows| rows.iter())
            .filter_map(|(item, row)| Some(deviation(row, evidence.reference(*item)?, evidence.scale).cosine))
            .collect();
        cosines.is_empty() || mean(&cosines) >= MEAN_COSINE && cosines.iter().all(|cosine| *cosine >= MIN_COSINE)
    };
    classes
        .into_iter()
        .filter(|(_, _, members)| sound(members))
        .map(|(from, to, _)| {
            let name = if from == to {
                format!("items_{from}")
            } else {
                format!("items_{from}_{to}")
            };
            class(Some(name), from, to)
        })
        .collect()
}

fn words(classes: &[ShapeClass], most: u32) -> String {
    let ranges: Vec<String> = classes
        .iter()
        .map(|class| match (class.from_items, class.to_items) {
            (from, to) if from == to => format!("{from}"),
            (from, to) => format!("{from} to {to}"),
        })
        .collect();
    match classes {
        [] => {
            "not batchable: a text's vector depends on what is computed with it, and no batch size agrees with itself"
                .to_owned()
        }
        [only] if only.to_items == 1 => {
            "not batchable: a text's vector depends on what is computed with it; single items only".to_owned()
        }
        _ => format!(
            "split by batch size, one vector space each: {} of 1 to {most} items",
            ranges.join(", ")
        ),
    }
}
