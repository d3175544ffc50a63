//! Whether ranks should share one item now, or the machine is too busy for threads that wait for each other.
//!
//! Owns two counters per engine. A call whose ranks met at barriers reports how long they were parked there; when that
//! was much of the call, another process holds a CPU, and the next calls stay on one thread. How many do doubles with
//! every further busy call, so that on a machine that stays busy the calls that find out are few, and one that was
//! disturbed once is soon fast again. Knows nothing of models; `engine` asks before it plans.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Calls on one thread after the first busy one.
const FIRST_PENALTY: u32 = 4;
/// The most calls on one thread between two attempts: below one in a hundred is tried while the machine is busy.
const LARGEST_PENALTY: u32 = 1_024;
/// A call was busy when its ranks were parked for more than this part of it.
const BUSY_PART: u32 = 4;

/// What the recent calls met.
#[derive(Default)]
pub struct Contention {
    /// Calls that still stay on one thread.
    quiet: AtomicU32,
    /// Calls that stayed on one thread after the last busy one; 0 after a calm one.
    penalty: AtomicU32,
}

impl Contention {
    /// Whether the next call may share an item among ranks. Counts the calls that may not.
    #[must_use]
    pub fn allows_sharing(&self) -> bool {
        let counted = |calls: u32| calls.checked_sub(1);
        self.quiet
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted)
            .is_err()
    }

    /// Takes note of a call that was shared: how long its ranks were parked, all together, and how long it took.
    pub fn note(&self, parked: Duration, taken: Duration) {
        if parked.saturating_mul(BUSY_PART) <= taken {
            self.penalty.store(0, Ordering::Relaxed);
            return;
        }
        let last = self.penalty.load(Ordering::Relaxed);
        let next = last.saturating_mul(2).clamp(FIRST_PENALTY, LARGEST_PENALTY);
        self.penalty.store(next, Ordering::Relaxed);
        self.quiet.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Duration = Duration::from_millis(2);

    /// Calls until sharing is tried again.
    fn calls_apart(contention: &Contention) -> u32 {
        (0..).find(|_| contention.allows_sharing()).unwrap_or(u32::MAX)
    }

    #[test]
    fn uneven_parts_are_no_contention() {
        let contention = Contention::default();
        for parked in [Duration::ZERO, CALL / 10, CALL / 4] {
            contention.note(parked, CALL);
            assert_eq!(calls_apart(&contention), 0);
        }
    }

    #[test]
    fn attempts_become_rare_while_the_machine_is_busy_and_frequent_after() {
        let contention = Contention::default();
        let mut attempts = 0;
        let mut calls = 0;
        while calls < 10_000 {
            attempts += 1;
            contention.note(CALL / 3, CALL);
            calls += 1 + calls_apart(&contention);
        }
        assert!(attempts <= 20, "{attempts} attempts in {calls} calls");
        contention.note(CALL / 50, CALL);
        contention.note(CALL / 3, CALL);
        assert_eq!(calls_apart(&contention), FIRST_PENALTY);
    }
}
