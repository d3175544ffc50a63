//! Models whose workers died too often: they run again when the operator says so.
//!
//! Owns the table `quarantine`: one row per bundle, lane and pair of model and configuration, so that a repaired bundle
//! starts with a clean record. Written when a crash budget is used up, read when a lane gets its supervisor, emptied by
//! an explicit load. Does not know what a crash is.

use super::{Store, StoreError, demotion::unix_ms};

/// One quarantined pair of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineRow {
    /// The digest that names model and configuration.
    pub key: String,
    /// How it died last.
    pub reason: String,
}

impl Store {
    /// Quarantines a pair in one lane of one bundle. The last reason is kept.
    ///
    /// # Errors
    /// [`StoreError`]; the row is then not kept.
    pub fn quarantine(&self, digest: &str, lane: &str, row: QuarantineRow) -> Result<(), StoreError> {
        let row = (digest.to_owned(), lane.to_owned(), row.key, row.reason, unix_ms());
        self.writer.call(move |connection| {
            connection
                .execute(
                    "INSERT INTO quarantine (digest, lane, key, reason, at_unix_ms) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (digest, lane, key) DO UPDATE SET reason = excluded.reason, at_unix_ms = excluded.at_unix_ms",
                    row,
                )
                .map(drop)
        })
    }

    /// The quarantined pairs of one lane of one bundle.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn quarantined(&self, digest: &str, lane: &str) -> Result<Vec<QuarantineRow>, StoreError> {
        let of = (digest.to_owned(), lane.to_owned());
        self.writer.call(move |connection| {
            connection
                .prepare("SELECT key, reason FROM quarantine WHERE digest = ?1 AND lane = ?2 ORDER BY key")?
                .query_map(of, |row| {
                    Ok(QuarantineRow {
                        key: row.get(0)?,
                        reason: row.get(1)?,
                    })
                })?
                .collect()
        })
    }

    /// Lifts every quarantine of one lane of one bundle.
    ///
    /// # Errors
    /// [`StoreError`]; the rows are then still there.
    pub fn lift_quarantine(&self, digest: &str, lane: &str) -> Result<(), StoreError> {
        let of = (digest.to_owned(), lane.to_owned());
        self.writer.call(move |connection| {
            connection
                .execute("DELETE FROM quarantine WHERE digest = ?1 AND lane = ?2", of)
                .map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::task::Tasks;

    fn row(key: &str, reason: &str) -> QuarantineRow {
        QuarantineRow {
            key: key.to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Proves ERR-13.
    #[tokio::test]
    async fn a_quarantine_survives_a_restart_and_is_lifted_for_its_lane_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let store = Store::open(&path, &tasks, SystemTime::now()).unwrap();
        store.quarantine("aa", "one", row("k", "first")).unwrap();
        store.quarantine("aa", "one", row("k", "last")).unwrap();
        store.quarantine("aa", "two", row("k", "other lane")).unwrap();
        store.quarantine("bb", "one", row("k", "other bundle")).unwrap();
        drop(store);
        let store = Store::open(&path, &tasks, SystemTime::now()).unwrap();
        assert_eq!(store.quarantined("aa", "one").unwrap(), [row("k", "last")]);
        store.lift_quarantine("aa", "one").unwrap();
        assert_eq!(store.quarantined("aa", "one").unwrap(), []);
        assert_eq!(store.quarantined("aa", "two").unwrap(), [row("k", "other lane")]);
        assert_eq!(store.quarantined("bb", "one").unwrap(), [row("k", "other bundle")]);
    }
}
