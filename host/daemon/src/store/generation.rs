//! `module_generation`: the number of this run of the daemon, on every response (API-13, JOB-09).
//!
//! Owns the table `module_generation` (one row). Called once by `Store::open`. The number is seeded from the clock
//! when a store is created and grows by 1 at each start, so that it never repeats, not even after the store was
//! deleted. Does not know who carries it.

use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

/// The largest value that every JSON reader holds exactly (2^53 - 1).
const LARGEST: i64 = 9_007_199_254_740_991;

/// Takes the next generation and keeps it, committed before it is returned.
///
/// # Errors
/// SQLite's failures; the generation is then not taken.
pub(super) fn next(connection: &mut Connection, now: SystemTime) -> rusqlite::Result<u64> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let last: Option<i64> = transaction
        .query_row("SELECT value FROM module_generation", [], |row| row.get(0))
        .optional()?;
    let value = last.map_or_else(|| seed(now), |last| last.saturating_add(1).min(LARGEST));
    transaction.execute(
        "INSERT OR REPLACE INTO module_generation (only, value) VALUES (1, ?1)",
        [value],
    )?;
    transaction.commit()?;
    Ok(value.unsigned_abs())
}

/// Milliseconds since 1970: a store made later starts above every generation of a store made before, unless the older
/// one was started more than once a millisecond.
fn seed(now: SystemTime) -> i64 {
    let millis = now.duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis());
    i64::try_from(millis).unwrap_or(LARGEST).clamp(1, LARGEST)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::migrations::{STEPS, migrate};
    use super::*;

    /// Proves JOB-09.
    #[test]
    fn each_start_is_larger_and_a_new_store_starts_above_the_old_one() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let fresh = || {
            let mut connection = Connection::open_in_memory().unwrap();
            migrate(&mut connection, Path::new("store.db"), STEPS).unwrap();
            connection
        };
        let mut old = fresh();
        let taken: Vec<u64> = (0..5).map(|_| next(&mut old, at(1_700_000_000_000)).unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4].map(|n| 1_700_000_000_000 + n));
        let recreated = next(&mut fresh(), at(1_700_000_060_000)).unwrap();
        assert!(recreated > taken[4]);
        // A clock that stands before 1970 or far in the future still gives a usable number.
        assert_eq!(next(&mut fresh(), UNIX_EPOCH - Duration::from_secs(9)).unwrap(), 1);
        assert_eq!(next(&mut fresh(), at(u64::MAX / 2)).unwrap(), LARGEST.unsigned_abs());
    }
}
