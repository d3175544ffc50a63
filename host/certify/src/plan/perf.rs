//! How fast it was: each timed text used once (CERT-20, OQ-26).
//!
//! State: [`Latencies`] holds the calls of one workload. Callers: the verdict, benchmarks. An engine may keep what it
//! computed for a text, and no flag of some switches that off: a text that is timed twice makes every figure worthless, so
//! it is refused.

use std::collections::BTreeSet;
use std::time::Duration;

use super::layout::{Layout, Series};
use super::record::{Answered, Record};
use crate::figures::{count, mean, percentile};
use crate::gate::{Bound, Figure, Gate, GateResult, Outcome};
use crate::verdict::{PerfRow, Workload};

/// A text was timed before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text {text:?} was timed before: an engine may have kept its result; vary the texts")]
pub struct Repeated {
    /// The beginning of the text.
    pub text: String,
}

/// The timed calls of one workload.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    seen: BTreeSet<String>,
    milliseconds: Vec<f64>,
    tokens: Vec<f64>,
}

impl Latencies {
    /// Adds a call over `texts`.
    ///
    /// # Errors
    /// [`Repeated`]: one of them was timed before; the call is not counted.
    pub fn add<'t>(
        &mut self,
        texts: impl IntoIterator<Item = &'t str>,
        tokens: u64,
        elapsed: Duration,
    ) -> Result<(), Repeated> {
        for text in texts {
            if !self.seen.insert(text.to_owned()) {
                return Err(Repeated {
                    text: text.chars().take(40).collect(),
                });
            }
        }
        self.milliseconds.push(elapsed.as_secs_f64() * 1e3);
        self.tokens
            .push(u32::try_from(tokens).map_or(f64::from(u32::MAX), f64::from));
        Ok(())
    }

    /// The figures; `None` without a call.
    #[must_use]
    pub fn row(&self, workload: Workload) -> Option<PerfRow> {
        let samples = u32::try_from(self.milliseconds.len())
            .ok()
            .filter(|samples| *samples > 0)?;
        let seconds: f64 = self.milliseconds.iter().sum::<f64>() / 1e3;
        Some(PerfRow {
            workload,
            samples,
            tokens_per_call: mean(&self.tokens),
            p50_ms: percentile(&self.milliseconds, 50),
            p95_ms: percentile(&self.milliseconds, 95),
            tokens_per_second: if seconds > 0.0 {
                self.tokens.iter().sum::<f64>() / seconds
            } else {
                0.0
            },
        })
    }
}

/// What was computed so far of a batch that is timed in several calls.
#[derive(Default)]
struct Part {
    items: Vec<usize>,
    tokens: u64,
    elapsed: Duration,
}

impl Part {
    fn add(&mut self, answered: &Answered) {
        let generated = answered.text.as_ref().map(|(_, tokens)| u64::from(*tokens));
        self.items.extend(&answered.ask.items);
        self.tokens += generated.unwrap_or_else(|| answered.all_tokens());
        self.elapsed += answered.elapsed;
    }
}

/// The figures of a plan, and whether its texts were varied.
pub(super) fn perf(layout: &Layout, record: &Record) -> (Vec<PerfRow>, GateResult) {
    let mut rows = Vec::new();
    let (mut timed, mut repeated) = (0, 0);
    let mut note = String::new();
    for (workload, items) in layout.workloads() {
        let mut latencies = Latencies::default();
        let mut part = Part::default();
        for answered in record
            .of(Series::Timed(workload))
            .filter(|answered| answered.failure.is_none())
        {
            part.add(answered);
            if part.items.len() < items {
                continue;
            }
            let Part { items, tokens, elapsed } = std::mem::take(&mut part);
            let texts = items.iter().map(|item| &*layout.item(*item).text);
            timed += 1;
            if let Err(again) = latencies.add(texts, tokens, elapsed) {
                repeated += 1;
                note = again.to_string();
            }
        }
        rows.extend(latencies.row(workload));
    }
    if timed == 0 {
        return (
            rows,
            GateResult::bare(Gate::VariedText, Outcome::NotRun, "nothing was timed"),
        );
    }
    let figures = vec![
        Figure {
            name: "repeated_calls",
            value: count(repeated),
            bound: Some(Bound::AtMost(0.0)),
        },
        Figure {
            name: "timed_calls",
            value: count(timed),
            bound: None,
        },
    ];
    (rows, GateResult::of(Gate::VariedText, figures, note))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves CERT-20.
    #[test]
    fn a_repeated_text_is_refused_and_not_counted() {
        let mut latencies = Latencies::default();
        let ms = Duration::from_millis;
        assert_eq!(latencies.row(Workload::Generation), None);
        latencies.add(["a", "b"], 8, ms(10)).expect("new");
        latencies.add(["c"], 4, ms(30)).expect("new");
        let again = latencies.add(["d", "a"], 8, ms(1)).expect_err("timed before");
        assert!(again.to_string().contains("\"a\" was timed before"), "{again}");
        let row = latencies.row(Workload::Batch { items: 2 }).expect("two calls");
        assert_eq!((row.samples, row.p50_ms, row.p95_ms), (2, 10.0, 30.0));
        assert!(
            (row.tokens_per_call - 6.0).abs() < 1e-9 && (row.tokens_per_second - 300.0).abs() < 1e-6,
            "{row:?}"
        );
    }
}
