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
        let held = residents.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
        let mut free = self.budget_bytes.saturating_sub(held);
        let mut over = held.saturating_sub(self.budget_bytes);
        let candidates = self.evictable(residents, now);
        let evictable = candidates.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
        let refusal = NoRoom {
            needed,
            free,
            evictable,
            budget: self.budget_bytes,
        };
        let mut chosen = Vec::new();
        let mut candidates = candidates.into_iter();
        while free < needed {
            let Some(next) = candidates.next() else {
                return Err(refusal);
            };
            // Bytes over the budget (it was lowered while models were loaded) are paid back first.
            let paid = next.bytes.min(over);
            over -= paid;
            free = free.saturating_add(next.bytes - paid);
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
