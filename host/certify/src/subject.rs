//! What is probed, and how.
//!
//! State: none. Caller: the daemon's probe, which takes the facts from the lane and from the loaded model.

use std::time::Duration;

use synapse_catalog::{EnvelopeRow, Record};

use crate::references::References;

/// A lane, with what its engine declares about it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The model.
    pub record: Record,
    /// The envelope row, whose bounds are tried to their corners.
    pub row: EnvelopeRow,
    /// The descriptor's `f32_exact`: the strict bounds hold.
    pub f32_exact: bool,
    /// The descriptor's `thread_invariant`: it is tried, and a wrong claim closes the lane.
    pub thread_invariant: bool,
    /// The engine reports which share of the work ran on its device: a missing or low share fails (CERT-15).
    pub reports_placement: bool,
    /// The engine's own words, where it computes the items of a batch one at a time. The lane is then not batchable.
    pub one_at_a_time: Option<String>,
    /// The independent results of this model; without them the level is `consistent`.
    pub references: Option<References>,
}

/// How a subject is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads of a call, as the lane serves; at least 1.
    pub threads: u32,
    /// The most threads that a call of this daemon may ever have; at least `threads`.
    pub most_threads: u32,
    /// The most time that one call may take, where the lane cannot give way to a query in the middle of it. Calls of
    /// several items are then cut to what the first calls show the lane to do in that time; `None`: the row's corners.
    pub call_time: Option<Duration>,
    /// How much is tried.
    pub depth: Depth,
}

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Everything. Only such a verdict may be stored.
    Full,
    /// A few texts of each kind, for tests of what drives a plan. A verdict says so, and certifies nothing.
    Sample,
}
