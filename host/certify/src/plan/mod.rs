//! A probe as a value: it says what to compute, takes what came out, and weighs it in the end.
//!
//! State: a [`Plan`] holds the steps that are left and the outputs so far. Caller: the daemon's probe. Not known here:
//! engines, tokenizers, clocks. Sequence: see the crate's documentation.

use std::sync::Arc;
use std::time::Duration;

use crate::subject::{Options, Subject};
use crate::verdict::Verdict;

/// A step's number in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub u32);

/// A text to embed. No template is applied: role `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextItem {
    /// The text.
    pub text: Arc<str>,
    /// Cut to this many tokens, special tokens included; never beyond the row's bound. It may be above the record's
    /// `max_tokens`: the whole envelope is tried.
    pub max_tokens: u32,
}

/// A query with one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairItem {
    /// The query.
    pub query: Arc<str>,
    /// The candidate.
    pub document: Arc<str>,
    /// The pair is cut to this many tokens, special tokens included.
    pub max_tokens: u32,
}

/// What one engine call computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Texts, all in one call.
    Embed(Vec<TextItem>),
    /// Pairs, all in one call.
    Rerank(Vec<PairItem>),
    /// A greedy continuation (temperature 0) of one user message under the model's chat template.
    Generate {
        /// The message.
        prompt: Arc<str>,
        /// Tokens to generate at most.
        max_tokens: u32,
    },
}

/// One engine call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number, for [`Plan::answer`].
    pub id: StepId,
    /// What is computed.
    pub work: Work,
    /// The thread budget of the call.
    pub threads: u32,
    /// Through the query path (`embed_one`). Otherwise through the batch path (`embed_batch`), one item too: the two
    /// are compared.
    pub as_query: bool,
    /// About how many tokens, for the scheduler.
    pub tokens: u64,
}

/// What came out of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutput {
    /// The engine's rows before normalisation, in the step's order.
    Rows {
        /// One row an item.
        rows: Vec<Vec<f32>>,
        /// Tokens of each item after truncation.
        tokens: Vec<u32>,
        /// Time inside the engine.
        elapsed: Duration,
    },
    /// Raw scores, in the step's order.
    Scores {
        /// One score a pair.
        scores: Vec<f32>,
        /// Tokens of each pair after truncation.
        tokens: Vec<u32>,
        /// Time inside the engine.
        elapsed: Duration,
    },
    /// What was generated.
    Text {
        /// The text.
        text: String,
        /// Tokens generated.
        tokens: u32,
        /// Time inside the engine.
        elapsed: Duration,
    },
    /// The engine failed, or the host refused what it gave.
    Failed {
        /// The error in words.
        message: String,
    },
}

/// What only the daemon can see of a probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The share of the work on the engine's device, 0 to 1.
    pub placement_share: Option<f64>,
}

/// A probe of one lane.
#[derive(Debug)]
pub struct Plan {
    steps: std::collections::VecDeque<Step>,
    answered: u32,
    asked: u32,
}

/// Why there is no plan, or why an answer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The references are of another model or corpus.
    #[error("{0}")]
    References(String),
    /// The answer does not belong to the step that was given out last.
    #[error("step {found:?} was answered, expected {expected:?}; answer each step once, in order")]
    Order {
        /// As answered.
        found: StepId,
        /// The open step.
        expected: Option<StepId>,
    },
}

impl Plan {
    /// The plan for a subject.
    ///
    /// # Errors
    /// [`PlanError::References`].
    pub fn new(_subject: Subject, _options: Options) -> Result<Self, PlanError> {
        Ok(Self {
            steps: std::collections::VecDeque::new(),
            answered: 0,
            asked: 0,
        })
    }

    /// The next engine call, to be answered before another is asked for; `None` when nothing is left.
    pub fn next(&mut self) -> Option<Step> {
        let step = self.steps.pop_front()?;
        self.asked += 1;
        Some(step)
    }

    /// Takes what came out.
    ///
    /// # Errors
    /// [`PlanError::Order`]: the step is not the one that was given out last.
    pub fn answer(&mut self, id: StepId, _output: StepOutput) -> Result<(), PlanError> {
        let expected = self.asked.checked_sub(1).map(StepId);
        if expected != Some(id) {
            return Err(PlanError::Order { found: id, expected });
        }
        self.answered += 1;
        Ok(())
    }

    /// Steps answered, and steps that are known so far. The second may grow.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        let left = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        (self.answered, self.asked.saturating_add(left))
    }

    /// Weighs everything.
    #[must_use]
    pub fn finish(self, observation: Observation) -> Verdict {
        verdict::verdict(self, observation)
    }
}

mod verdict;
