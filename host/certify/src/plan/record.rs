//! What came out of a plan's calls, by item.
//!
//! State: every answer so far. Callers: [`super::Plan`] fills it, the gates read it. A row with a value that is not finite
//! is no row: it is counted, and takes no part in any comparison.

use std::collections::BTreeMap;
use std::time::Duration;

use super::StepOutput;
use super::layout::{Ask, Layout, Series};

/// One call and what came of it.
#[derive(Debug)]
pub(super) struct Answered {
    pub ask: Ask,
    /// Tokens of each item; empty where the call failed.
    pub tokens: Vec<u32>,
    /// A row of each item, `None` where it is not finite; empty where the call failed or generated.
    pub rows: Vec<Option<Vec<f32>>>,
    /// What was generated, and of how many tokens.
    pub text: Option<(String, u32)>,
    pub elapsed: Duration,
    /// Why there is nothing.
    pub failure: Option<String>,
}

impl Answered {
    pub(super) fn of(ask: Ask, output: StepOutput, layout: &Layout) -> Self {
        let mut answered = Self {
            ask,
            tokens: Vec::new(),
            rows: Vec::new(),
            text: None,
            elapsed: Duration::ZERO,
            failure: None,
        };
        let items = answered.ask.items.len();
        let finite = |row: Vec<f32>| row.iter().all(|value| value.is_finite()).then_some(row);
        match output {
            StepOutput::Rows { rows, tokens, elapsed } => {
                let dims = layout.dims();
                let wrong = rows.iter().find(|row| row.len() != dims).map(Vec::len);
                if let Some(found) = wrong {
                    answered.failure = Some(format!("a row of {found} values, expected {dims}"));
                } else if rows.len() != items || tokens.len() != items {
                    answered.failure = Some(format!("{} rows for {items} texts", rows.len()));
                } else {
                    answered.rows = rows.into_iter().map(finite).collect();
                    (answered.tokens, answered.elapsed) = (tokens, elapsed);
                }
            }
            StepOutput::Scores {
                scores,
                tokens,
                elapsed,
            } => {
                if dims_of_scores(layout) && scores.len() == items && tokens.len() == items {
                    answered.rows = scores.into_iter().map(|score| finite(vec![score])).collect();
                    (answered.tokens, answered.elapsed) = (tokens, elapsed);
                } else {
                    answered.failure = Some(format!("{} scores for {items} items", scores.len()));
                }
            }
            StepOutput::Text { text, tokens, elapsed } => {
                answered.text = Some((text, tokens));
                answered.elapsed = elapsed;
            }
            StepOutput::Failed { message } => answered.failure = Some(message),
        }
        answered
    }

    /// Tokens of all items.
    pub(super) fn all_tokens(&self) -> u64 {
        self.tokens.iter().map(|tokens| u64::from(*tokens)).sum()
    }

    /// Items with their rows.
    pub(super) fn rows_by_item(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let pairs = self.ask.items.iter().zip(&self.rows);
        pairs.filter_map(|(item, row)| Some((*item, row.as_deref()?)))
    }

    /// The call in words: `a call of 8 items, the longest of 130 tokens`.
    pub(super) fn words(&self, layout: &Layout) -> String {
        let cut = self.ask.items.iter().map(|item| layout.item(*item).cut).max();
        let longest = self.tokens.iter().max().copied().or(cut).unwrap_or(0);
        let items = self.ask.items.len();
        let plural = if items == 1 { "item" } else { "items" };
        format!("a call of {items} {plural}, the longest of {longest} tokens")
    }
}

fn dims_of_scores(layout: &Layout) -> bool {
    layout.dims() == 1
}

/// Every answer so far.
#[derive(Debug, Default)]
pub(super) struct Record {
    answers: Vec<Answered>,
}

impl Record {
    pub(super) fn take(&mut self, answered: Answered) {
        self.answers.push(answered);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Answered> {
        self.answers.iter()
    }

    pub(super) fn of(&self, series: Series) -> impl Iterator<Item = &Answered> {
        self.answers
            .iter()
            .filter(move |answered| answered.ask.series == series)
    }

    pub(super) fn failures(&self) -> usize {
        self.answers
            .iter()
            .filter(|answered| answered.failure.is_some())
            .count()
    }

    /// Token counts of the corpus; 0 for an item without a row.
    pub(super) fn tokens(&self) -> Vec<u32> {
        let mut tokens = Vec::new();
        for answered in self.of(Series::Alone) {
            for ((item, count), row) in answered.ask.items.iter().zip(&answered.tokens).zip(&answered.rows) {
                if tokens.len() <= *item {
                    tokens.resize(*item + 1, 0);
                }
                tokens[*item] = if row.is_some() { (*count).max(1) } else { 0 };
            }
        }
        tokens
    }

    /// Nanoseconds of a token in the first series, over all of its calls; `None` before any.
    pub(super) fn nanos_per_token(&self) -> Option<u64> {
        let (mut nanos, mut tokens) = (0_u64, 0_u64);
        for answered in self.of(Series::Alone) {
            nanos = nanos.saturating_add(u64::try_from(answered.elapsed.as_nanos()).unwrap_or(u64::MAX));
            tokens = tokens.saturating_add(answered.all_tokens());
        }
        nanos.checked_div(tokens)
    }

    /// The rows of a series, by item.
    pub(super) fn rows(&self, series: Series) -> BTreeMap<usize, &[f32]> {
        self.of(series).flat_map(Answered::rows_by_item).collect()
    }
}
