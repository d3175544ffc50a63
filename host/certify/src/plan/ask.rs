//! One call of a plan, before it becomes a step: which items, why, and how.
//!
//! State: none. Callers: the layout makes them, the record keeps them with their answers.

use std::sync::Arc;

use crate::verdict::Workload;

/// A text, a pair or a message, and where it is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Material {
    /// The text, the candidate or the message.
    pub text: Arc<str>,
    /// The query, where it is a pair.
    pub query: Option<Arc<str>>,
    /// Cut to this many tokens.
    pub cut: u32,
}

/// Why a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Series {
    Alone,
    Query,
    Corpus,
    Length,
    Ramp,
    Even,
    Mixed,
    Corner,
    /// One of a few calls that are made again: the call's number, and which run of it.
    Trial(u32, Run),
    Timed(Workload),
}

/// A run of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Run {
    First,
    Again,
    Threads(u32),
}

/// One call: item numbers, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub series: Series,
    pub items: Vec<usize>,
    pub threads: u32,
    pub as_query: bool,
}
