//! The daemon's one pool of compute permits, over all lanes and workers (DECISIONS, CPU permits).
//!
//! State: the permits that bulk, interactive and control calls hold. Caller: the scheduler. Permits are never reserved
//! for a class: bulk takes all of them until a query comes, and a query overdraws the pool rather than waits. Bulk
//! never overdraws, except that a call which wants more than the pool has runs when no other bulk call does. Not known
//! here: which call they are for.

use super::call::{Class, PermitsLoad};

/// The pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permits {
    pool: u64,
    bulk: u64,
    others: u64,
}

impl Permits {
    pub(super) fn new(pool: u32) -> Self {
        Self {
            pool: u64::from(pool.max(1)),
            bulk: 0,
            others: 0,
        }
    }

    /// Whether a bulk call of `threads` may start. One whose turn was withheld for too long (`due`) leaves the
    /// interactive calls out of the count: the guaranteed share is worth nothing if a stream of queries holds the pool.
    pub(super) fn admit_bulk(&self, threads: u32, due: bool) -> bool {
        let held = if due { self.bulk } else { self.bulk + self.others };
        held == 0 || held + u64::from(threads) <= self.pool
    }

    pub(super) fn take(&mut self, class: Class, threads: u32) {
        *self.of(class) += u64::from(threads);
    }

    pub(super) fn give_back(&mut self, class: Class, threads: u32) {
        *self.of(class) -= u64::from(threads);
    }

    pub(super) const fn load(&self) -> PermitsLoad {
        PermitsLoad {
            pool: self.pool,
            bulk: self.bulk,
            others: self.others,
        }
    }

    fn of(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Bulk => &mut self.bulk,
            Class::Interactive | Class::Control => &mut self.others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_never_overdraws_and_queries_do() {
        let mut permits = Permits::new(4);
        assert!(permits.admit_bulk(9, false), "more than the pool: alone");
        permits.take(Class::Bulk, 2);
        assert!(permits.admit_bulk(2, false));
        assert!(!permits.admit_bulk(3, true));
        permits.take(Class::Interactive, 2);
        assert!(!permits.admit_bulk(2, false), "a query holds the rest");
        assert!(permits.admit_bulk(2, true), "unless bulk is due");
        permits.give_back(Class::Bulk, 2);
        permits.give_back(Class::Interactive, 2);
        assert!(permits.admit_bulk(4, false));
    }
}
