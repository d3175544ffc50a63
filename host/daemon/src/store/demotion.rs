//! Bundles that panicked inside this process: from then on only a worker may run them.
//!
//! Owns the table `demotion`, keyed by the bundle's digest, so that a repaired bundle starts with a clean record.
//! Written when an engine call ends in a panic, read when bundles are listed. Does not know what a panic is.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Store, StoreError};

/// One demoted bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demotion {
    /// The bundle's digest, in lower-case hex.
    pub digest: String,
    /// What it did.
    pub reason: String,
}

impl Store {
    /// Records that the bundle with this digest may no longer run in this process. The first reason is kept.
    ///
    /// # Errors
    /// [`StoreError`]; the row is then not kept.
    pub fn demote(&self, bundle: &str, digest: &str, reason: &str) -> Result<(), StoreError> {
        let row = (digest.to_owned(), bundle.to_owned(), reason.to_owned(), unix_ms());
        self.writer.call(move |connection| {
            connection
                .execute(
                    "INSERT INTO demotion (digest, bundle, reason, at_unix_ms) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (digest) DO NOTHING",
                    row,
                )
                .map(drop)
        })
    }

    /// Every demoted bundle.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn demotions(&self) -> Result<Vec<Demotion>, StoreError> {
        self.writer.call(|connection| {
            connection
                .prepare("SELECT digest, reason FROM demotion ORDER BY digest")?
                .query_map([], |row| {
                    Ok(Demotion {
                        digest: row.get(0)?,
                        reason: row.get(1)?,
                    })
                })?
                .collect()
        })
    }
}

/// Milliseconds since 1970, for a row's time stamp.
pub(super) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Tasks;

    #[tokio::test]
    async fn a_demotion_survives_a_restart_and_keeps_its_first_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let store = Store::open(&path, &tasks, SystemTime::now()).unwrap();
        store.demote("toy", "aa", "panicked in embed_batch").unwrap();
        store.demote("toy", "aa", "panicked again").unwrap();
        store.demote("other", "bb", "panicked in load").unwrap();
        drop(store);
        let rows = Store::open(&path, &tasks, SystemTime::now())
            .unwrap()
            .demotions()
            .unwrap();
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.digest.as_str(), row.reason.as_str()))
            .collect();
        assert_eq!(rows, [("aa", "panicked in embed_batch"), ("bb", "panicked in load")]);
    }
}
