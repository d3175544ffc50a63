//! What a probe found, as the store keeps it and the report shows it.
//!
//! State: none. Callers: `run.rs` writes, `pairs.rs` writes comparisons. The verdict's own types are not for the wire,
//! so each value is named here once. Not known here: SQL, JSON.

use synapse_certify::{Bound, Figure, Gate, GateResult, Outcome, PerfRow, Verdict, Workload as Timed};
use synapse_core::route::Workload;
use synapse_wire::client as wire;
use synapse_wire::client::{GateOutcome, GateReport, PerformanceFigures, PerformancePoint, ProbeFindings};

/// The findings of a verdict.
pub(super) fn of_verdict(verdict: &Verdict) -> ProbeFindings {
    ProbeFindings {
        gates: verdict.gates.iter().map(gate).collect(),
        shapes: verdict
            .shapes
            .iter()
            .map(|shape| wire::ShapeReport {
                items: shape.items,
                longest: shape.longest,
                tokens: shape.tokens,
                composition: shape.composition.to_owned(),
                max_abs: finite(shape.max_abs),
                min_cosine: finite(shape.min_cosine),
            })
            .collect(),
        classes: verdict
            .classes
            .iter()
            .map(|class| wire::SizeClass {
                name: class.name.clone(),
                from_items: class.from_items,
                to_items: class.to_items,
            })
            .collect(),
        batching: (!verdict.batching.is_empty()).then(|| verdict.batching.clone()),
        corpus: Some(verdict.corpus.to_string()),
        references: verdict.references.map(|digest| digest.to_string()),
        failure: None,
    }
}

/// The findings where nothing could be measured.
pub(super) fn of_failure(words: &str) -> ProbeFindings {
    ProbeFindings {
        failure: Some(words.to_owned()),
        ..ProbeFindings::default()
    }
}

/// One gate for the wire.
pub(crate) fn gate(result: &GateResult) -> GateReport {
    GateReport {
        gate: result.gate.name().to_owned(),
        outcome: match result.outcome {
            Outcome::Passed => GateOutcome::Passed,
            Outcome::Failed => GateOutcome::Failed,
            Outcome::NotApplicable => GateOutcome::NotApplicable,
            Outcome::NotRun => GateOutcome::NotRun,
        },
        required: result.gate != Gate::QueryBatch,
        figures: result.figures.iter().map(figure).collect(),
        note: result.note.clone(),
    }
}

fn figure(figure: &Figure) -> wire::Figure {
    let (at_least, at_most) = match figure.bound {
        Some(Bound::AtLeast(least)) => (Some(least), None),
        Some(Bound::AtMost(most)) => (None, Some(most)),
        None => (None, None),
    };
    wire::Figure {
        name: figure.name.to_owned(),
        measured: finite(figure.value),
        at_least,
        at_most,
    }
}

/// JSON has no other numbers.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// Why a lane is not certified, in one sentence: the gates that closed it, each with its worst figure.
pub(super) fn why_failed(findings: &ProbeFindings) -> String {
    if let Some(failure) = &findings.failure {
        return failure.clone();
    }
    let closes =
        |gate: &&GateReport| gate.required && !matches!(gate.outcome, GateOutcome::Passed | GateOutcome::NotApplicable);
    let clauses: Vec<String> = findings.gates.iter().filter(closes).map(clause).collect();
    match (clauses.is_empty(), &findings.batching) {
        (false, _) => clauses.join("; "),
        (true, Some(batching)) => batching.clone(),
        (true, None) => "not everything of the plan was tried".to_owned(),
    }
}

fn clause(gate: &GateReport) -> String {
    let name = &gate.gate;
    let worst = gate.figures.iter().find_map(|figure| {
        let bound = match (figure.at_least, figure.at_most) {
            (Some(least), _) if figure.measured.is_none_or(|value| value < least) => format!("at least {least}"),
            (_, Some(most)) if figure.measured.is_none_or(|value| value > most) => format!("at most {most}"),
            _ => return None,
        };
        let measured = figure.measured.map_or_else(|| "not finite".to_owned(), number);
        Some(format!("{} is {measured}, must be {bound}", figure.name))
    });
    match (worst, gate.note.as_str()) {
        (Some(figure), _) => format!("{name}: {figure}"),
        (None, "") => format!("{name}: {}", gate.outcome.as_str().replace('_', " ")),
        (None, note) => format!("{name}: {note}"),
    }
}

/// A measured number in at most five digits.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        format!("{value:.1e}")
    } else {
        let text = format!("{value:.5}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

const fn workload(timed: Timed) -> Workload {
    match timed {
        Timed::Query { .. } => Workload::Query,
        Timed::Batch { .. } => Workload::Batch,
        Timed::Pair { .. } => Workload::Rerank,
        Timed::Generation => Workload::Generate,
    }
}

/// Whether lanes are compared by this size: a usual question, a full batch.
fn stands(timed: Timed) -> bool {
    match timed {
        Timed::Query { tokens } => tokens == 32,
        Timed::Batch { items } => items == 32,
        Timed::Pair { .. } | Timed::Generation => true,
    }
}

/// The timed sizes of one kind of work.
pub(super) struct Speed {
    pub(super) workload: Workload,
    /// Tokens a second, larger than 0.
    pub(super) tokens_per_second: f64,
    pub(super) points: Vec<PerformancePoint>,
}

/// The timed sizes by kind of work; a kind that was not timed has none.
pub(super) fn speeds(rows: &[PerfRow]) -> Vec<Speed> {
    let speed = |kind: Workload| {
        let mine = || rows.iter().filter(move |row| workload(row.workload) == kind);
        let compared = mine().find(|row| stands(row.workload)).or_else(|| mine().next_back())?;
        let tokens_per_second = compared.tokens_per_second;
        (tokens_per_second.is_finite() && tokens_per_second > 0.0).then(|| Speed {
            workload: kind,
            tokens_per_second,
            points: mine().map(point).collect(),
        })
    };
    Workload::ALL.into_iter().filter_map(speed).collect()
}

fn point(row: &PerfRow) -> PerformancePoint {
    PerformancePoint {
        name: row.workload.name(),
        samples: row.samples,
        tokens_per_call: row.tokens_per_call,
        p50_ms: row.p50_ms,
        p95_ms: row.p95_ms,
        tokens_per_second: row.tokens_per_second,
    }
}

/// The figures that the store keeps beside a speed.
pub(super) fn figures(speed: &Speed, cold_load_ms: u64, rss_bytes: Option<u64>) -> PerformanceFigures {
    PerformanceFigures {
        cold_load_ms,
        rss_bytes,
        points: speed.points.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: Timed, tokens_per_second: f64) -> PerfRow {
        PerfRow {
            workload,
            samples: 30,
            tokens_per_call: 32.0,
            p50_ms: 1.0,
            p95_ms: 2.0,
            tokens_per_second,
        }
    }

    #[test]
    fn sizes_are_gathered_and_one_of_them_stands_for_all() {
        let rows = [
            row(Timed::Query { tokens: 8 }, 10.0),
            row(Timed::Query { tokens: 32 }, 20.0),
            row(Timed::Query { tokens: 512 }, 30.0),
            row(Timed::Batch { items: 1 }, 40.0),
            row(Timed::Batch { items: 8 }, 50.0),
            row(Timed::Generation, f64::NAN),
        ];
        let found: Vec<(&str, f64, usize)> = speeds(&rows)
            .iter()
            .map(|speed| (speed.workload.as_str(), speed.tokens_per_second, speed.points.len()))
            .collect();
        // No batch of 32 was timed: the largest stands. A speed that is no number is none.
        assert_eq!(found, [("query", 20.0, 3), ("batch", 50.0, 2)]);
    }

    #[test]
    fn a_closed_gate_is_named_with_its_worst_figure() {
        let figures = vec![
            Figure {
                name: "mean_cosine",
                value: 0.9995,
                bound: Some(Bound::AtLeast(0.999)),
            },
            Figure {
                name: "max_abs",
                value: 0.001,
                bound: Some(Bound::AtMost(1e-4)),
            },
        ];
        let of = |gates: Vec<GateResult>| ProbeFindings {
            gates: gates.iter().map(gate).collect(),
            ..ProbeFindings::default()
        };
        let bare = |gate, outcome, note: &str| GateResult::bare(gate, outcome, note);
        let query = bare(Gate::QueryBatch, Outcome::Failed, "queries differ");
        let both = vec![
            GateResult::of(Gate::Quality, figures, "text 7"),
            bare(Gate::Envelope, Outcome::Failed, "8 texts: out of memory"),
            bare(Gate::Finite, Outcome::NotRun, ""),
            bare(Gate::Placement, Outcome::NotApplicable, "none is claimed"),
            query.clone(),
        ];
        assert_eq!(
            why_failed(&of(both)),
            "quality: max_abs is 0.001, must be at most 0.0001; envelope: 8 texts: out of memory; finite: not run"
        );
        // The gate that closes nothing is no reason; then it is what the plan said about batches.
        let batching = ProbeFindings {
            batching: Some("one at a time".to_owned()),
            ..of(vec![query])
        };
        assert_eq!(why_failed(&batching), "one at a time");
        assert_eq!(why_failed(&of_failure("no such file")), "no such file");
    }

    #[test]
    fn numbers_that_json_does_not_have_are_left_out() {
        let nan = Figure {
            name: "max_abs",
            value: f64::NAN,
            bound: Some(Bound::AtMost(1e-4)),
        };
        let report = gate(&GateResult::of(Gate::Quality, vec![nan], ""));
        assert_eq!(
            (report.outcome, report.figures[0].measured),
            (GateOutcome::Failed, None)
        );
        assert_eq!(GateReport::from_text(&report.to_text()), Ok(report));
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.999_95, "0.99995"),
            (4.3e-6, "4.3e-6"),
            (12.5, "12.5"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
