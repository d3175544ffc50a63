//! The report as text: golden, and never wider than a terminal.

use std::path::Path;

use synapse_client::wire::LaneVerdict;
use unicode_width::UnicodeWidthStr;

use super::samples::{lane, report, whole};
use super::*;

/// Compares with `golden/<name>`, or writes it when `SYNAPSE_BLESS=1`.
fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/command/probe/golden")
        .join(name);
    if std::env::var_os("SYNAPSE_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "golden/{name} is not what the code says; run the test again with SYNAPSE_BLESS=1 and look at the change\n{text}"
    );
}

/// Proves API-22: the whole report, as text and as JSON, for review.
#[test]
fn the_report_is_the_golden_one() {
    let report = whole();
    assert_golden("report.txt", &render(&report, Detail::Every, Style::plain()));
    let json = serde_json::to_string_pretty(&report).unwrap();
    assert_golden("report.json", &format!("{json}\n"));
}

/// Whatever the names and words, no line is wider than a terminal of 100 columns.
#[test]
fn no_line_is_wider_than_100_columns() {
    let mut report = whole();
    for lane in &mut report.lanes {
        lane.lane = format!(
            "{}-of-a-model-with-a-very-long-name@engine-of-some-length:variant",
            lane.model
        );
        lane.reason = Some("a reason of many words ".repeat(12));
    }
    report.machine.words = "Some operating system ".repeat(9);
    for detail in [Detail::Failed, Detail::Every] {
        let text = render(&report, detail, Style::plain());
        let widest = text.lines().max_by_key(|line| line.width()).unwrap();
        assert!(widest.width() <= 100, "{widest}");
    }
}

#[test]
fn a_short_report_shows_what_failed_and_no_more() {
    let text = render(&whole(), Detail::Failed, Style::plain());
    assert!(text.contains("max_abs 0.001 (at most 1.0e-4)"), "{text}");
    assert!(!text.contains("thread_invariance"), "{text}");
    assert!(text.contains("queries are not served"), "{text}");
    let certified = report(vec![lane("owned", LaneVerdict::Certified)]);
    assert!(!render(&certified, Detail::Failed, Style::plain()).contains("WHY"));
}

#[test]
fn without_a_model_it_says_how_to_get_one() {
    assert!(render(&report(Vec::new()), Detail::Every, Style::plain()).contains("synapse setup"));
}
