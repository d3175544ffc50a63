//! What scans of bundles found, by digest, kept across starts: the loader's memory.
//!
//! Owns the table `scan`. Called by `synapse_loader` while it discovers (on a blocking thread). A row counts only for
//! the host version that wrote it, since another version may describe or survive a bundle differently; a quarantine
//! is thus lifted by an update, at the price of one more crash of a child. Does not know what a descriptor says.

use rusqlite::OptionalExtension;
use synapse_loader::{BundleDigest, ScanMemory, ScanOutcome};

use super::demotion::unix_ms;
use super::{Store, StoreError};

/// The loader's memory, kept in the store.
#[derive(Clone, Debug)]
pub struct StoredScans {
    store: Store,
    host_version: &'static str,
}

impl Store {
    /// The loader's memory over this store.
    #[must_use]
    pub fn scans(&self) -> StoredScans {
        StoredScans {
            store: self.clone(),
            host_version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl StoredScans {
    fn read(&self, digest: &BundleDigest) -> Result<Option<ScanOutcome>, StoreError> {
        let key = (digest.to_string(), self.host_version);
        let row: Option<(String, String)> = self.store.writer.call(move |connection| {
            connection
                .query_row(
                    "SELECT outcome, body FROM scan WHERE digest = ?1 AND host_version = ?2",
                    key,
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()
        })?;
        Ok(row.and_then(|(kind, text)| ScanOutcome::from_parts(&kind, text)))
    }

    fn write(&self, digest: &BundleDigest, outcome: &ScanOutcome) -> Result<(), StoreError> {
        let row = (
            digest.to_string(),
            outcome.kind(),
            outcome.text().to_owned(),
            self.host_version,
            unix_ms(),
        );
        self.store.writer.call(move |connection| {
            connection
                .execute(
                    "INSERT OR REPLACE INTO scan (digest, outcome, body, host_version, at_unix_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    row,
                )
                .map(drop)
        })
    }
}

impl ScanMemory for StoredScans {
    fn recall(&self, digest: &BundleDigest) -> Option<ScanOutcome> {
        self.read(digest).unwrap_or_else(|error| {
            tracing::warn!(target: "synapse.maintenance", %digest, %error, "what the last scan found cannot be read");
            None
        })
    }

    fn remember(&self, digest: &BundleDigest, outcome: &ScanOutcome) {
        if let Err(error) = self.write(digest, outcome) {
            tracing::warn!(target: "synapse.maintenance", %digest, %error, "what the scan found is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use synapse_core::digest::sha256;

    use super::*;
    use crate::task::Tasks;

    #[tokio::test]
    async fn outcomes_survive_a_restart_but_not_another_host_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let digest = |text: &str| BundleDigest(sha256(text.as_bytes()));
        let written = [
            (digest("a"), ScanOutcome::Described("{\"id\":\"toy\"}".to_owned())),
            (digest("b"), ScanOutcome::Quarantined("killed by signal 11".to_owned())),
            (digest("c"), ScanOutcome::TimedOut),
        ];
        let first = Store::open(&path, &tasks, SystemTime::now()).unwrap().scans();
        for (digest, outcome) in &written {
            assert_eq!(first.recall(digest), None);
            first.remember(digest, &ScanOutcome::TimedOut);
            first.remember(digest, outcome);
        }
        drop(first);
        let second = Store::open(&path, &tasks, SystemTime::now()).unwrap().scans();
        for (digest, outcome) in &written {
            assert_eq!(second.recall(digest).as_ref(), Some(outcome));
        }
        let newer = StoredScans {
            host_version: "99.0.0",
            ..second
        };
        assert_eq!(newer.recall(&digest("b")), None);
    }
}
