//! Deaths of one lane's workers: one strike a generation, back-off, quarantine of a model, degradation of the lane.
//!
//! 1. A death is counted once for its generation, whoever reports it and how often; a report about a generation that
//!    was already replaced changes nothing (WSUP-13, fault S4).
//! 2. `per_model` deaths of one (model, config) inside the window quarantine that pair (WSUP-17).
//! 3. `per_lane` deaths over all work inside the window degrade the lane (WSUP-18).
//! 4. A restart waits for a back-off that grows with the deaths inside the window (WSUP-16).

use std::collections::{BTreeMap, VecDeque};

use crate::schedule::Tick;

/// The limits of a [`CrashBudget`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashLimits {
    /// Deaths of one (model, config) inside the window that quarantine it.
    pub per_model: usize,
    /// Deaths of the lane inside the window that degrade it.
    pub per_lane: usize,
    /// The window, in nanoseconds.
    pub window: u64,
    /// Waits before the first, second, … restart, in nanoseconds; the last one repeats.
    pub backoff: Vec<u64>,
}

impl Default for CrashLimits {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Self {
            per_model: 3,
            per_lane: 6,
            window: 600_000 * MS,
            backoff: vec![100 * MS, 1_000 * MS, 5_000 * MS],
        }
    }
}

/// A worker process of a lane: 1 for the first, one more for each replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// What a reported death means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The report is about a generation whose death was counted before, or that was replaced: do nothing.
    Stale,
    /// Confirm the exit, then start the next generation not before this moment.
    Restart {
        /// The earliest start.
        not_before: Tick,
    },
    /// As `Restart`, for the other models of the lane; this pair is answered with a permanent error from now on.
    Quarantine {
        /// The earliest start.
        not_before: Tick,
    },
}

/// One lane's deaths. `K` names a (model, config) pair.
#[derive(Debug)]
pub struct CrashBudget<K> {
    limits: CrashLimits,
    counted: Generation,
    lane: VecDeque<Tick>,
    models: BTreeMap<K, VecDeque<Tick>>,
}

fn forget_old(deaths: &mut VecDeque<Tick>, now: Tick, window: u64) {
    while deaths.front().is_some_and(|death| now.since(*death) >= window) {
        deaths.pop_front();
    }
}

impl<K: Ord + Clone> CrashBudget<K> {
    /// A budget without deaths.
    #[must_use]
    pub const fn new(limits: CrashLimits) -> Self {
        Self {
            limits,
            counted: Generation(0),
            lane: VecDeque::new(),
            models: BTreeMap::new(),
        }
    }

    /// Takes the report that `generation` died at `now` while it worked for `model` (or for none).
    pub fn died(&mut self, generation: Generation, model: Option<&K>, now: Tick) -> Verdict {
        if generation <= self.counted {
            return Verdict::Stale;
        }
        self.counted = generation;
        forget_old(&mut self.lane, now, self.limits.window);
        self.lane.push_back(now);
        let step = self.lane.len().min(self.limits.backoff.len());
        let not_before = now.after(step.checked_sub(1).map_or(0, |last| self.limits.backoff[last]));
        let Some(model) = model else {
            return Verdict::Restart { not_before };
        };
        let deaths = self.models.entry(model.clone()).or_default();
        forget_old(deaths, now, self.limits.window);
        deaths.push_back(now);
        if deaths.len() >= self.limits.per_model {
            Verdict::Quarantine { not_before }
        } else {
            Verdict::Restart { not_before }
        }
    }

    /// Forgets the deaths of a pair whose quarantine was lifted.
    pub fn pardon(&mut self, model: &K) {
        self.models.remove(model);
    }

    /// Whether the lane as a whole counts as degraded.
    #[must_use]
    pub fn degraded(&self, now: Tick) -> bool {
        self.lane
            .iter()
            .filter(|death| now.since(**death) < self.limits.window)
            .count()
            >= self.limits.per_lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn budget() -> CrashBudget<&'static str> {
        CrashBudget::new(CrashLimits {
            window: 1_000 * MS,
            ..CrashLimits::default()
        })
    }

    /// Fault S4: one death that three parties report is one strike.
    ///
    /// Proves WSUP-13.
    #[test]
    fn a_death_counts_once_and_a_stale_report_changes_nothing() {
        let mut budget = budget();
        assert_eq!(
            budget.died(Generation(1), Some(&"a"), Tick(0)),
            Verdict::Restart {
                not_before: Tick(100 * MS)
            }
        );
        for model in ["a", "b"] {
            assert_eq!(budget.died(Generation(1), Some(&model), Tick(1)), Verdict::Stale);
        }
        assert_eq!(
            budget.died(Generation(2), None, Tick(2)),
            Verdict::Restart {
                not_before: Tick(1_000 * MS + 2)
            }
        );
        assert_eq!(budget.died(Generation(1), Some(&"a"), Tick(3)), Verdict::Stale);
        assert!(!budget.degraded(Tick(3)));
    }

    /// Proves WSUP-16, WSUP-17.
    #[test]
    fn the_third_death_of_a_model_inside_the_window_quarantines_it_alone() {
        let mut budget = budget();
        budget.died(Generation(1), Some(&"a"), Tick(0));
        budget.died(Generation(2), Some(&"b"), Tick(0));
        budget.died(Generation(3), Some(&"a"), Tick(0));
        let third = budget.died(Generation(4), Some(&"a"), Tick(999 * MS));
        assert_eq!(
            third,
            Verdict::Quarantine {
                not_before: Tick(999 * MS + 5_000 * MS)
            }
        );
        assert!(matches!(
            budget.died(Generation(5), Some(&"b"), Tick(999 * MS)),
            Verdict::Restart { .. }
        ));
        budget.pardon(&"a");
        assert!(matches!(
            budget.died(Generation(6), Some(&"a"), Tick(999 * MS)),
            Verdict::Restart { .. }
        ));
    }

    #[test]
    fn deaths_outside_the_window_are_forgotten() {
        let mut budget = budget();
        for generation in 1..=9 {
            let now = Tick(generation * 600 * MS);
            let verdict = budget.died(Generation(generation), Some(&"a"), now);
            assert!(matches!(verdict, Verdict::Restart { .. }), "{verdict:?}");
        }
    }

    /// Proves WSUP-18.
    #[test]
    fn enough_deaths_over_all_work_degrade_the_lane_until_the_window_has_passed() {
        let mut budget = budget();
        for generation in 1..=6 {
            assert!(!budget.degraded(Tick(0)));
            budget.died(Generation(generation), None, Tick(0));
        }
        assert!(budget.degraded(Tick(999 * MS)));
        assert!(!budget.degraded(Tick(1_000 * MS)));
    }
}
