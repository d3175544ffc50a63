//! A request's items on their way through the engine: cut into quanta one at a time, and handed over as they are done.
//!
//! State: what is left to do. Callers: the kinds of work that have items. A quantum is cut when it starts, so it follows the
//! lane's measured speed at that moment (SCHED-04). Not known here: what an item is.

use synapse_core::schedule::{Packing, QuantumBounds};
use tokio::sync::mpsc::UnboundedSender;

/// The items that are left, within the bounds of one engine call.
#[derive(Debug)]
pub(super) struct Quanta {
    packing: Packing,
    envelope: QuantumBounds,
}

impl Quanta {
    /// Items of these lengths in tokens; `envelope` is what one engine call may hold at most.
    pub(super) fn new(lengths: &[u32], envelope: QuantumBounds) -> Self {
        Self {
            packing: Packing::new(lengths, &[]),
            envelope,
        }
    }

    /// The items of the next engine call; none when nothing is left.
    pub(super) fn cut(&mut self, max_units: u64) -> Vec<usize> {
        let bounds = QuantumBounds {
            max_tokens: self.envelope.max_tokens.min(max_units),
            ..self.envelope
        };
        self.packing.next(bounds).unwrap_or_default()
    }

    /// Tokens of the items that are left.
    pub(super) const fn tokens_left(&self) -> u64 {
        self.packing.tokens_left()
    }

    /// Whether no item is left.
    pub(super) fn is_empty(&self) -> bool {
        self.packing.is_empty()
    }
}

/// Results of one quantum, each with its item's position in the request.
pub type Made<R> = Vec<(usize, R)>;

/// Where results go.
#[derive(Debug)]
pub enum Results<R> {
    /// All of them at the end, by position.
    Together(Vec<R>),
    /// Each quantum's when it is done: to a job, which keeps them while the next quantum runs. What waits there is part of
    /// the call, whose bytes bound it.
    AsMade(UnboundedSender<Made<R>>),
}

impl<R: Clone> Results<R> {
    /// Results at the end; a position that is in no quantum keeps `unwritten`.
    #[must_use]
    pub fn together(items: usize, unwritten: R) -> Self {
        Self::Together(vec![unwritten; items])
    }
}

impl<R> Results<R> {
    pub(super) fn put(&mut self, made: Made<R>) {
        match self {
            Self::Together(all) => made.into_iter().for_each(|(position, result)| all[position] = result),
            // The job may have left.
            Self::AsMade(job) => drop(job.send(made)),
        }
    }

    /// What was kept for the end.
    pub(super) fn finish(self) -> Vec<R> {
        match self {
            Self::Together(all) => all,
            Self::AsMade(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves SCHED-04. Each quantum is cut to the size of its moment, within the envelope.
    #[test]
    fn quanta_follow_the_size_of_their_moment() {
        let envelope = QuantumBounds {
            max_items: 3,
            max_tokens: 40,
        };
        let mut quanta = Quanta::new(&[10; 8], envelope);
        assert_eq!((quanta.tokens_left(), quanta.cut(25)), (80, vec![0, 1]));
        assert_eq!(quanta.cut(u64::MAX), [2, 3, 4], "the envelope bounds it");
        assert_eq!(quanta.cut(5), [5], "never nothing");
        assert_eq!((quanta.tokens_left(), quanta.is_empty()), (20, false));
        assert_eq!(quanta.cut(20), [6, 7]);
        assert!(quanta.is_empty() && quanta.cut(9).is_empty());
    }

    #[test]
    fn results_are_kept_by_position_or_handed_over() {
        let mut together = Results::together(3, f32::NAN);
        together.put(vec![(2, 2.0), (0, 0.5)]);
        let all = together.finish();
        assert!(all[0] == 0.5 && all[1].is_nan() && all[2] == 2.0);
        let (job, mut made) = tokio::sync::mpsc::unbounded_channel();
        let mut handed = Results::AsMade(job);
        handed.put(vec![(1, 7)]);
        assert_eq!(made.try_recv(), Ok(vec![(1, 7)]));
        drop(made);
        handed.put(vec![(0, 8)]);
        assert_eq!(handed.finish(), Vec::<i32>::new());
    }
}
