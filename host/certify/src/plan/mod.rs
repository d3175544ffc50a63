//! A probe as a value: it says what to compute, takes what came out, and weighs it in the end.
//!
//! State: a [`Plan`] holds the calls that are left and the outputs so far. Caller: the daemon's probe. Not known here:
//! engines, tokenizers, clocks. Sequence: see the crate's documentation.
//!
//! | question | file |
//! |---|---|
//! | which calls, with which items | `layout.rs`, of `ask.rs` |
//! | what came out, by item | `record.rs` |
//! | does the batch around a text move it; which batch sizes are one space | `shape.rs` |
//! | the other gates | `weigh.rs` |
//! | how fast was it | `perf.rs` |
//! | the verdict | `verdict.rs` |

mod ask;
mod layout;
mod perf;
mod record;
mod shape;
mod verdict;
mod weigh;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use synapse_catalog::Kind;

use self::layout::{Ask, Layout};
use self::record::{Answered, Record};
use crate::references::{ReferenceValues, References};
use crate::subject::{Options, Subject};
use crate::verdict::Verdict;

pub use self::perf::{Latencies, Repeated};

/// Failed calls after which nothing more is asked: the lane cannot pass, and each failure may cost a worker.
const MOST_FAILURES: usize = 8;

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
    /// The pair is cut to this many tokens, special tokens included; only the document is ever shortened.
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// The share of the work on the engine's device, 0 to 1.
    pub placement_share: Option<f64>,
}

/// Why there is no plan, or why an answer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The references are of another model.
    #[error("the references do not fit the model: {0}")]
    References(String),
    /// The answer does not belong to the step that was given out last.
    #[error("step {} was answered, expected {expected:?}; answer each step once, in order", found.0)]
    Order {
        /// As answered.
        found: StepId,
        /// The open step.
        expected: Option<StepId>,
    },
}

/// A probe of one lane.
#[derive(Debug)]
pub struct Plan {
    subject: Subject,
    layout: Layout,
    left: VecDeque<Ask>,
    open: Option<Ask>,
    asked: u32,
    /// Whether the calls that need the texts' token counts are laid out.
    complete: bool,
    record: Record,
}

impl Plan {
    /// The plan for a subject.
    ///
    /// # Errors
    /// [`PlanError::References`].
    pub fn new(subject: Subject, options: Options) -> Result<Self, PlanError> {
        if let Some(references) = &subject.references {
            fits(&subject, references).map_err(PlanError::References)?;
        }
        let layout = Layout::new(&subject, options);
        Ok(Self {
            left: layout.first().into(),
            layout,
            subject,
            open: None,
            asked: 0,
            complete: false,
            record: Record::default(),
        })
    }

    /// The next engine call, to be answered before another is asked for; `None` when nothing is left.
    #[expect(
        clippy::should_implement_trait,
        reason = "a step is answered before the next, which no iterator shows"
    )]
    pub fn next(&mut self) -> Option<Step> {
        if self.record.failures() >= MOST_FAILURES {
            return None;
        }
        if self.left.is_empty() && !self.complete {
            self.complete = true;
            let tokens = self.record.tokens();
            let most = self.layout.most_tokens(self.record.nanos_per_token());
            self.left = self.layout.rest(&tokens, most).into();
        }
        let ask = self.left.pop_front()?;
        let step = self.layout.step(StepId(self.asked), &ask);
        self.asked += 1;
        self.open = Some(ask);
        Some(step)
    }

    /// Takes what came out.
    ///
    /// # Errors
    /// [`PlanError::Order`]: the step is not the one that is open.
    pub fn answer(&mut self, id: StepId, output: StepOutput) -> Result<(), PlanError> {
        let expected = self.open.as_ref().and(self.asked.checked_sub(1)).map(StepId);
        match self.open.take() {
            Some(ask) if expected == Some(id) => {
                self.record.take(Answered::of(ask, output, &self.layout));
                Ok(())
            }
            open => {
                self.open = open;
                Err(PlanError::Order { found: id, expected })
            }
        }
    }

    /// Steps answered, and steps in all: exact once every text was seen alone, nearly so before.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        let to_come = if self.complete {
            0
        } else {
            let most = self.layout.most_tokens(self.record.nanos_per_token());
            self.layout.rest(&self.layout.guessed_tokens(), most).len()
        };
        let open = u32::from(self.open.is_some());
        let left = u32::try_from(self.left.len() + to_come).unwrap_or(u32::MAX);
        (self.asked - open, self.asked.saturating_add(left))
    }

    /// Weighs everything. What was not run is not passed.
    #[must_use]
    pub fn finish(self, observation: Observation) -> Verdict {
        verdict::verdict(&self.subject, &self.layout, &self.record, observation)
    }
}

/// Whether references are of this kind of model and of its vectors' length.
fn fits(subject: &Subject, references: &References) -> Result<(), String> {
    let record = &subject.record;
    match (&references.values, record.kind) {
        (ReferenceValues::Vectors { dims, normalized, .. }, Kind::Embed) => {
            let expected = usize::try_from(record.dims).unwrap_or(usize::MAX);
            if *dims != expected {
                return Err(format!("vectors of {dims} values, the record has {expected}"));
            }
            if *normalized != record.normalize {
                return Err(format!(
                    "normalized is {normalized}, the record says {}",
                    record.normalize
                ));
            }
            Ok(())
        }
        (ReferenceValues::Scores(_), Kind::Rerank) | (ReferenceValues::Beginnings(_), Kind::Generate) => Ok(()),
        (_, kind) => Err(format!("they are of another kind than {kind:?}")),
    }
}
