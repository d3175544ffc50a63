//! Which loaded models stay: what to unload to make room, and what has been idle long enough.
//!
//! State: none. Caller: the daemon, with what it knows of each loaded model. A decision is a list of keys that the
//! daemon unloads, oldest use first. Pinned and leased models are never among them (DECISIONS, idle residency).

use crate::schedule::Tick;

/// One loaded model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident<K> {
    /// The caller's name for it.
    pub key: K,
    /// Bytes that it holds.
    pub bytes: u64,
    /// The operator wants it kept.
    pub pinned: bool,
    /// Calls or loads use it now.
    pub leased: bool,
    /// When its load finished.
    pub loaded: Tick,
    /// When it last served a call; its load, if never.
    pub last_used: Tick,
}

/// The operator's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidencyPolicy {
    /// Bytes over all loaded models.
    pub budget_bytes: u64,
    /// Nanoseconds without a call after which a model is unloaded; `None` keeps it.
    pub idle_ttl: Option<u64>,
    /// Nanoseconds for which a model stays after its load whatever happens, so that two models cannot displace each
    /// other in turn.
    pub min_residency: u64,
}

/// There is no way to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model needs {needed} bytes; {free} are free of a budget of {budget} and {evictable} more can be freed now; \
     unload a model or raise the memory budget"
)]
pub struct NoRoom {
    /// Bytes of the model to be loaded.
    pub needed: u64,
    /// Bytes free now.
    pub free: u64,
    /// Bytes of models that may be unloaded now.
    pub evictable: u64,
    /// The budget.
    pub budget: u64,
}

impl ResidencyPolicy {
    /// The models to unload before one of `needed` bytes is loaded: least recently used first, no more than needed.
    ///
    /// # Errors
    /// [`NoRoom`] if unloading everything that may be unloaded would not do; nothing should be unloaded then.
    pub fn make_room<K: Copy + Ord>(
        &self,
        residents: &[Resident<K>],
        needed: u64,
        now: Tick,
    ) -> Result<Vec<K>, NoRoom> {
        // In 128 bits, because sizes come from engines and their sum may not fit 64.
        let total = |list: &[Resident<K>]| list.iter().map(|r| u128::from(r.bytes)).sum::<u128>();
        let held = total(residents);
        let budget = u128::from(self.budget_bytes);
        let mut free = budget.saturating_sub(held);
        // Bytes over the budget (it was lowered while models were loaded) are paid back before any count as free.
        let mut over = held.saturating_sub(budget);
        let candidates = self.evictable(residents, now);
        let narrow = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        let refusal = NoRoom {
            needed,
            free: narrow(free),
            evictable: narrow(total(&candidates)),
            budget: self.budget_bytes,
        };
        let mut chosen = Vec::new();
        let mut candidates = candidates.into_iter();
        while free < u128::from(needed) {
            let Some(next) = candidates.next() else {
                return Err(refusal);
            };
            let bytes = u128::from(next.bytes);
            let paid = bytes.min(over);
            over -= paid;
            free += bytes - paid;
            chosen.push(next.key);
        }
        Ok(chosen)
    }

    /// The models that have been idle for the policy's time, longest first.
    #[must_use]
    pub fn idle<K: Copy + Ord>(&self, residents: &[Resident<K>], now: Tick) -> Vec<K> {
        let Some(ttl) = self.idle_ttl else { return Vec::new() };
        let candidates = self.evictable(residents, now);
        candidates
            .iter()
            .filter(|r| now.since(r.last_used) >= ttl)
            .map(|r| r.key)
            .collect()
    }

    /// Models that may go, least recently used first; ties by key, so that a decision can be repeated.
    fn evictable<K: Copy + Ord>(&self, residents: &[Resident<K>], now: Tick) -> Vec<Resident<K>> {
        let free_to_go = |r: &&Resident<K>| !r.pinned && !r.leased && now.since(r.loaded) >= self.min_residency;
        let mut list: Vec<Resident<K>> = residents.iter().filter(free_to_go).copied().collect();
        list.sort_by_key(|r| (r.last_used, r.key));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: ResidencyPolicy = ResidencyPolicy {
        budget_bytes: 100,
        idle_ttl: Some(50),
        min_residency: 10,
    };
    const NOW: Tick = Tick(1_000);

    fn resident(key: char, bytes: u64, last_used: u64) -> Resident<char> {
        Resident {
            key,
            bytes,
            pinned: false,
            leased: false,
            loaded: Tick(0),
            last_used: Tick(last_used),
        }
    }

    #[test]
    fn unloads_the_least_recently_used_and_no_more_than_needed() {
        let residents = [resident('a', 30, 900), resident('b', 30, 700), resident('c', 30, 800)];
        assert_eq!(POLICY.make_room(&residents, 10, NOW), Ok(vec![]));
        assert_eq!(POLICY.make_room(&residents, 11, NOW), Ok(vec!['b']));
        assert_eq!(POLICY.make_room(&residents, 41, NOW), Ok(vec!['b', 'c']));
        assert_eq!(POLICY.make_room(&residents, 100, NOW), Ok(vec!['b', 'c', 'a']));
        let refusal = NoRoom {
            needed: 101,
            free: 10,
            evictable: 90,
            budget: 100,
        };
        assert_eq!(POLICY.make_room(&residents, 101, NOW), Err(refusal));
    }

    #[test]
    fn pinned_leased_and_fresh_models_stay() {
        let pinned = Resident {
            pinned: true,
            ..resident('p', 30, 1)
        };
        let leased = Resident {
            leased: true,
            ..resident('l', 30, 2)
        };
        let fresh = Resident {
            loaded: Tick(995),
            ..resident('f', 30, 3)
        };
        let old = resident('o', 10, 999);
        let residents = [pinned, leased, fresh, old];
        assert_eq!(POLICY.make_room(&residents, 10, NOW), Ok(vec!['o']));
        assert!(POLICY.make_room(&residents, 11, NOW).is_err());
        assert_eq!(POLICY.idle(&residents, NOW), vec![]);
        assert_eq!(POLICY.idle(&residents, Tick(1_100)), vec!['f', 'o']);
        assert_eq!(
            ResidencyPolicy {
                idle_ttl: None,
                ..POLICY
            }
            .idle(&residents, Tick(9_999)),
            vec![]
        );
    }

    /// A budget that was lowered below what is loaded is paid back before anything counts as free.
    #[test]
    fn over_the_budget() {
        let residents = [resident('a', 100, 1), resident('b', 50, 2)];
        assert_eq!(POLICY.make_room(&residents, 50, NOW), Ok(vec!['a']));
        assert_eq!(POLICY.make_room(&residents, 51, NOW), Ok(vec!['a', 'b']));
        let huge = [resident('x', u64::MAX, 1), resident('y', u64::MAX, 2)];
        assert_eq!(
            POLICY.make_room(&huge, u64::MAX, NOW).map_err(|e| e.evictable),
            Err(u64::MAX)
        );
    }
}
