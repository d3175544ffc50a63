//! The daemon's durable state, `<data dir>/store.db`: the start counter, what scans found, demoted
//! bundles, quarantined models, certificates and aliases, jobs with their inputs and results.
//!
//! State: the writer thread with the only connection, and this run's generation. Callers: `lib.rs` opens it once,
//! `plugins`, `lane` and the operations on jobs read and write rows through it; every call blocks for a disk write and so never runs on a
//! tokio worker. Not known here: what the rows decide. SQL is written in this folder and nowhere else.
//!
//! A write is answered after its commit, with a write-ahead log and `synchronous=FULL`, so it survives a power cut. A
//! store that cannot be relied on refuses everything (DECISIONS, store.db).

mod alias;
mod certificate;
mod demotion;
mod error;
mod generation;
mod job;
mod migrations;
mod quarantine;
mod scan_memory;
mod writer;

use std::path::Path;
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OpenFlags};

pub use self::alias::{IndexCheck, NewAlias, PairMeasure};
pub use self::certificate::{AssignmentRow, CertificateKey, CertificateRow, PerformanceRow, Stamp};
pub use self::demotion::Demotion;
pub use self::error::StoreError;
pub use self::job::{
    Appended, Committed, Created, InputLimits, JobItem, JobRow, NewJob, NewPage, NewWork, OpenItem, PageRead, Sealed,
};
pub use self::quarantine::QuarantineRow;
pub use self::scan_memory::StoredScans;
use self::writer::Writer;
use crate::task::Tasks;

/// How long another process's lock is waited for before [`StoreError::Locked`].
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// The open database. Cheap to clone; an orderly stop ends with [`Store::close`].
#[derive(Clone)]
pub struct Store {
    writer: Writer,
    generation: u64,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens or creates the database at `path` (its directory exists), brings its schema forward and takes the next
    /// generation, seeded from `now` when the store is new. Blocks.
    ///
    /// # Errors
    /// [`StoreError`] says what is wrong with the file and what to do; nothing is changed by a refusal.
    pub fn open(path: &Path, tasks: &Tasks, now: SystemTime) -> Result<Self, StoreError> {
        let mut connection = connect(path)?;
        migrations::migrate(&mut connection, path, migrations::STEPS)?;
        let generation =
            generation::next(&mut connection, now).map_err(|error| StoreError::from_sqlite(path, &error))?;
        let (writer, body) = Writer::new(connection, path);
        drop(
            tasks
                .thread("store-writer", body)
                .map_err(|error| StoreError::WriterGone {
                    path: path.to_path_buf(),
                    reason: error.to_string(),
                })?,
        );
        Ok(Self { writer, generation })
    }

    /// This run's number, larger than that of every earlier run (API-13, JOB-09).
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Folds the log into the file and closes it; every call after this one fails. Blocks.
    ///
    /// # Errors
    /// What kept the log from being folded in. Nothing is lost by that: the next open reads the log.
    pub fn close(&self) -> Result<(), StoreError> {
        self.writer.close()
    }

    /// From here on the database takes no writes.
    #[cfg(test)]
    pub fn break_writes_for_tests(&self) {
        let broken = |connection: &Connection| connection.pragma_update(None, "query_only", true);
        self.writer.call(broken).unwrap();
    }

    /// Why nothing is accepted any more, once the writer has stopped; for `health`.
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        self.writer.stopped()
    }
}

/// Opens the file with the durability that the rest relies on, and reads all of its schema once.
fn connect(path: &Path) -> Result<Connection, StoreError> {
    let sql = |error: rusqlite::Error| StoreError::from_sqlite(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sql)?;
    connection.busy_timeout(LOCK_WAIT).map_err(sql)?;
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        .map_err(sql)?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(StoreError::NoWriteAheadLog {
            path: path.to_path_buf(),
            mode,
        });
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
    // A damaged page is found at the start, with words, and not in the middle of a request.
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(sql)?;
    if verdict != "ok" {
        return Err(StoreError::Corrupt {
            path: path.to_path_buf(),
            detail: verdict,
        });
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::UNIX_EPOCH;

    use super::*;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }

    fn open(path: &Path) -> Result<Store, StoreError> {
        Store::open(path, &Tasks::new(tokio::runtime::Handle::current()), now())
    }

    /// Proves JOB-02.
    #[tokio::test]
    async fn a_restart_gets_the_next_generation_and_touches_only_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let first = open(&path).unwrap().generation();
        assert_eq!(first, 1_700_000_000_000);
        assert_eq!(open(&path).unwrap().generation(), first + 1);
        for entry in fs::read_dir(dir.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name.starts_with("store.db"), "{name}");
        }
    }

    #[tokio::test]
    async fn what_was_answered_is_there_for_another_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = open(&path).unwrap();
        store.demote("toy", "aa", "panicked").unwrap();
        let reader = Connection::open(&path).unwrap();
        let (mode, reason): (String, String) = (
            reader
                .pragma_query_value(None, "journal_mode", |row| row.get(0))
                .unwrap(),
            reader
                .query_row("SELECT reason FROM demotion WHERE digest = 'aa'", [], |row| row.get(0))
                .unwrap(),
        );
        assert_eq!((mode.as_str(), reason.as_str()), ("wal", "panicked"));
    }

    /// Everything is in the one file, which no connection has open; what comes later is refused and changes nothing.
    #[tokio::test]
    async fn a_closed_store_leaves_no_log_and_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = open(&path).unwrap();
        store.demote("toy", "aa", "panicked").unwrap();
        assert!(dir.path().join("store.db-wal").exists(), "the write went to a log");
        store.clone().close().unwrap();
        let names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        assert_eq!(names, ["store.db"]);
        let before = fs::read(&path).unwrap();
        for late in [store.demote("toy", "bb", "panicked"), store.close()] {
            assert!(matches!(late, Err(StoreError::WriterGone { .. })), "{late:?}");
        }
        assert_eq!(fs::read(&path).unwrap(), before);
        let reader = Connection::open(&path).unwrap();
        let count = "SELECT count(*) FROM demotion";
        assert_eq!(reader.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }

    /// A reader of another process, such as a backup, keeps the log: the close says so and loses nothing.
    #[tokio::test]
    async fn a_close_beside_a_reader_says_that_the_log_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = open(&path).unwrap();
        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM demotion").unwrap();
        store.demote("toy", "aa", "panicked").unwrap();
        assert_eq!(store.close(), Err(StoreError::Locked { path: path.clone() }));
        drop(reader);
        let count = "SELECT count(*) FROM demotion";
        let again = Connection::open(&path).unwrap();
        assert_eq!(again.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }

    #[tokio::test]
    async fn a_file_that_is_no_database_is_explained_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        fs::write(&path, "this is somebody's letter, not a database ".repeat(40)).unwrap();
        let before = fs::read(&path).unwrap();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("move store.db"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[tokio::test]
    async fn a_damaged_page_is_found_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = open(&path).unwrap();
        for n in 0..200 {
            store.demote("toy", &format!("{n:064}"), &"r".repeat(200)).unwrap();
        }
        // The log is folded in, so that the damage is in the file that is read.
        store.close().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 4096].fill(0xA5);
        fs::write(&path, bytes).unwrap();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_database_that_another_process_holds_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        drop(open(&path).unwrap());
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = open(&path).unwrap_err();
        assert_eq!(error, StoreError::Locked { path: path.clone() });
        other.execute_batch("ROLLBACK").unwrap();
        open(&path).unwrap();
    }

    #[tokio::test]
    async fn a_directory_in_the_files_place_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        fs::create_dir(&path).unwrap();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Unwritable { .. }), "{error}");
    }
}
