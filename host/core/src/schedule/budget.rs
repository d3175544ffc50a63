//! A lane's byte budget, as guards that cannot leak (SCHED-13).
//!
//! State: one counter per budget, shared by its guards. Callers: the scheduler reserves for each call it admits; the
//! guard goes with the call, then with its result, and gives its bytes back wherever it is dropped. Nothing waits for
//! bytes, so giving them back needs nobody's lock. Not known here: what the bytes hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be held at once.
#[derive(Clone, Debug)]
pub struct Budget {
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct Ledger {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes, all of them free.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            ledger: Arc::new(Ledger {
                limit,
                used: AtomicU64::new(0),
            }),
        }
    }

    /// The bound in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.ledger.limit
    }

    /// Bytes that live guards hold.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.ledger.used.load(Ordering::Acquire)
    }

    /// Takes `bytes` if there is room for all of them.
    ///
    /// # Errors
    /// The bytes that are free, fewer than asked.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, u64> {
        let limit = self.ledger.limit;
        let grown = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        match self
            .ledger
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, grown)
        {
            Ok(_) => Ok(Reservation {
                ledger: Arc::clone(&self.ledger),
                bytes,
            }),
            Err(used) => Err(limit.saturating_sub(used)),
        }
    }
}

/// Bytes taken from a [`Budget`]; dropping it gives them back.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its bytes back"]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Reservation {
    /// Bytes held.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves SCHED-13.
    #[test]
    fn bytes_come_back_wherever_the_guard_is_dropped() {
        let budget = Budget::new(100);
        let first = budget.reserve(60).expect("room");
        assert_eq!(budget.reserve(41).map(drop), Err(40));
        let second = budget.reserve(40).expect("room for the rest");
        assert_eq!((budget.used(), second.bytes()), (100, 40));
        drop(first);
        assert_eq!(budget.used(), 40);
        // Beyond any limit, and beyond the numbers' own end.
        assert_eq!(budget.reserve(u64::MAX).map(drop), Err(60));
        let panicked = std::panic::catch_unwind(move || {
            let _held = second;
            panic!("a defect while the guard is held");
        });
        assert!(panicked.is_err());
        assert_eq!(budget.used(), 0);
    }
}
