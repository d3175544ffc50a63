//! The report of a probe as tables, none wider than 100 columns.
//!
//! No state. Figures are shown as measured, each beside its bound. Callers: `probe run`, `probe report`, `setup`.

use synapse_client::wire::{
    Figure, GateOutcome, GateReport, LaneReport, LaneVerdict, PairReport, PerformanceRow, ProbeReportResult,
};

use crate::style::{Style, Tone, bytes, clean, duration};
use crate::table::{Cell, Table};

/// How much of the gates is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Those that failed.
    Failed,
    /// Every one, and every pair.
    Every,
}

/// The whole report.
pub fn render(report: &ProbeReportResult, detail: Detail, style: Style) -> String {
    let mut text = machine(report).render(style);
    if report.lanes.is_empty() {
        text.push_str("\nno model is installed; `synapse setup` brings the default one and probes it\n");
        return text;
    }
    text.push('\n');
    text.push_str(&lanes(&report.lanes).render(style));
    let parts = [
        reasons(&report.lanes),
        gates(&report.lanes, detail),
        pairs(&report.pairs),
        work(report),
    ];
    for table in parts.into_iter().flatten() {
        text.push('\n');
        text.push_str(&table.render(style));
    }
    text
}

fn machine(report: &ProbeReportResult) -> Table {
    let mut facts = Table::facts();
    facts.fact("machine", &report.machine.words);
    facts.fact("profile", &report.machine.hash);
    let threads = match report.threads {
        1 => "1 thread a call".to_owned(),
        threads => format!("{threads} threads a call"),
    };
    facts.fact("knob", format!("{}: {threads}", report.knob));
    facts
}

/// One line a lane: a query is the median of one of 32 tokens.
fn lanes(lanes: &[LaneReport]) -> Table {
    let mut table = Table::new(&["LANE", "VERDICT", "LEVEL", "LOAD", "MEMORY", "QUERY", "BATCHES"]);
    for lane in lanes {
        let query = row(lane, "query")
            .or_else(|| row(lane, "rerank"))
            .or_else(|| row(lane, "generate"));
        let load = query.map_or("-".to_owned(), |row| duration(row.figures.cold_load_ms));
        let memory = query
            .and_then(|row| row.figures.rss_bytes)
            .map_or("-".to_owned(), bytes);
        table.row(vec![
            (&lane.lane).into(),
            verdict(lane),
            lane.level.as_deref().unwrap_or("-").into(),
            load.into(),
            memory.into(),
            query.and_then(median).unwrap_or_else(|| "-".to_owned()).into(),
            row(lane, "batch").map_or("-".to_owned(), speed).into(),
        ]);
    }
    table
}

fn row<'r>(lane: &'r LaneReport, workload: &str) -> Option<&'r PerformanceRow> {
    lane.performance.iter().find(|row| row.workload == workload)
}

/// The median of a usual call: a query of 32 tokens where one was timed.
fn median(row: &PerformanceRow) -> Option<String> {
    let usual = row.figures.points.iter().find(|point| point.name == "query_32");
    let point = usual.or_else(|| row.figures.points.last())?;
    Some(format!("{:.1} ms", point.p50_ms))
}

fn speed(row: &PerformanceRow) -> String {
    format!("{:.0} tokens/s", row.tokens_per_second)
}

fn verdict(lane: &LaneReport) -> Cell {
    let tone = match lane.verdict {
        LaneVerdict::Certified => Tone::Good,
        LaneVerdict::Failed => Tone::Bad,
        _ => Tone::Notice,
    };
    Cell::new(tone, lane.verdict.as_str())
}

/// Why each closed lane is closed, and what each open one may not do.
fn reasons(lanes: &[LaneReport]) -> Option<Table> {
    let mut table = Table::new(&["LANE", "WHY"]);
    let mut any = false;
    for lane in lanes {
        let queries = lane.hot_path == Some(false) && lane.verdict == LaneVerdict::Certified;
        let no_queries =
            queries.then(|| "queries are not served: their vectors differ from those of batches".to_owned());
        let batching = lane.findings.as_ref().and_then(|findings| findings.batching.clone());
        for words in [lane.reason.clone(), no_queries, batching].into_iter().flatten() {
            any = true;
            table.row(vec![(&lane.lane).into(), words.into()]);
        }
    }
    any.then_some(table)
}

fn gates(lanes: &[LaneReport], detail: Detail) -> Option<Table> {
    let mut table = Table::new(&["LANE", "GATE", "OUTCOME", "MEASURED"]);
    let mut any = false;
    for lane in lanes {
        let found = lane.findings.iter().flat_map(|findings| &findings.gates);
        for gate in found.filter(|gate| detail == Detail::Every || gate.outcome == GateOutcome::Failed) {
            any = true;
            table.row(vec![
                (&lane.lane).into(),
                (&gate.gate).into(),
                outcome(gate.outcome),
                measured(gate).into(),
            ]);
        }
    }
    any.then_some(table)
}

fn outcome(outcome: GateOutcome) -> Cell {
    let tone = match outcome {
        GateOutcome::Passed => Tone::Good,
        GateOutcome::Failed => Tone::Bad,
        GateOutcome::NotApplicable => Tone::Quiet,
        _ => Tone::Notice,
    };
    Cell::new(tone, &outcome.as_str().replace('_', " "))
}

/// The figures with their bounds, then the words.
fn measured(gate: &GateReport) -> String {
    let figures: Vec<String> = gate.figures.iter().map(figure).collect();
    let figures = figures.join(", ");
    match (figures.is_empty(), gate.note.is_empty()) {
        (_, true) => figures,
        (true, false) => gate.note.clone(),
        (false, false) => format!("{figures}; {}", gate.note),
    }
}

fn figure(figure: &Figure) -> String {
    let value = figure.measured.map_or_else(|| "not finite".to_owned(), number);
    let bound = match (figure.at_least, figure.at_most) {
        (Some(least), _) => format!(" (at least {})", number(least)),
        (None, Some(most)) => format!(" (at most {})", number(most)),
        (None, None) => String::new(),
    };
    format!("{} {value}{bound}", figure.name)
}

/// A number in as few digits as tell it from its bound.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        return format!("{value:.1e}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn pairs(pairs: &[PairReport]) -> Option<Table> {
    let mut table = Table::new(&["PAIR", "SHAPE", "EQUIVALENT", "MEASURED"]);
    for pair in pairs {
        let holds = if pair.holds {
            Cell::new(Tone::Good, "yes")
        } else {
            Cell::new(Tone::Notice, "no")
        };
        // Both lanes are of one model; its name stands in the table above.
        let [first, second] = &pair
            .lanes
            .each_ref()
            .map(|lane| lane.split_once('@').map_or(lane.as_str(), |at| at.1));
        let unit = if pair.normalized { "unit" } else { "raw" };
        table.row(vec![
            format!("{first} and {second}").into(),
            format!("{} {unit}", pair.dims).into(),
            holds,
            measured(&pair.gate).into(),
        ]);
    }
    (!pairs.is_empty()).then_some(table)
}

/// Which lane gets which work.
fn work(report: &ProbeReportResult) -> Option<Table> {
    let mut table = Table::new(&["MODEL", "WORK", "GOES TO"]);
    for assignment in &report.assignments {
        table.row(vec![
            (&assignment.model).into(),
            (&assignment.workload).into(),
            clean(&assignment.lane).into(),
        ]);
    }
    (!report.assignments.is_empty()).then_some(table)
}

#[cfg(test)]
#[path = "table_samples.rs"]
pub mod samples;
#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
