//! Why the store could not be opened or did not take a write, in words an operator can act on.
//!
//! Owns no state. Made by `store`; turned into public codes in `rpc/error.rs` and into a start failure in `lib.rs`.
//! Does not know what was being written.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// A failed operation on `store.db`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The file was written by a newer Synapse.
    #[error(
        "{path} has schema version {found}, this build knows versions up to {supported}: a newer Synapse wrote it. \
         Start that version, or start this one with another --data-dir"
    )]
    NewerSchema {
        /// The database file.
        path: PathBuf,
        /// The version found.
        found: i64,
        /// The newest version that this build knows.
        supported: i64,
    },
    /// The file is a database, but not one of ours.
    #[error(
        "{path} is a SQLite database of another program (application id {application_id:#010x}). \
         Move it away, or start with another --data-dir"
    )]
    Foreign {
        /// The database file.
        path: PathBuf,
        /// The application id found.
        application_id: i32,
    },
    /// The file is no database, or its pages are damaged.
    #[error(
        "{path} is damaged or not a SQLite database ({detail}). Stop the daemon, move store.db, store.db-wal and \
         store.db-shm away and start again: models and trust rows live elsewhere and are kept"
    )]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// SQLite's words.
        detail: String,
    },
    /// Another process holds the database's write lock.
    #[error(
        "{path} is locked by another process. Close whatever has it open (another daemon, a sqlite3 shell, a backup) \
         and try again"
    )]
    Locked {
        /// The database file.
        path: PathBuf,
    },
    /// The disk or the quota is full.
    #[error("no space is left to write {path}: free some and try again; nothing of this write was kept")]
    Full {
        /// The database file.
        path: PathBuf,
    },
    /// The system refused to read or write: a quota, a file-size limit, a failing disk, a file system that is away.
    #[error(
        "{path} cannot be read or written now ({detail}): check the disk, its quota and its limits; nothing of this write \
         was kept"
    )]
    Io {
        /// The database file.
        path: PathBuf,
        /// SQLite's words.
        detail: String,
    },
    /// The file or its directory cannot be opened or written.
    #[error("{path} cannot be opened for writing ({detail}): check that this user owns the data dir and may write it")]
    Unwritable {
        /// The database file.
        path: PathBuf,
        /// SQLite's or the system's words.
        detail: String,
    },
    /// The write-ahead log could not be switched on.
    #[error(
        "{path} cannot use a write-ahead log (journal mode stayed {mode}): put the data dir on a local file system"
    )]
    NoWriteAheadLog {
        /// The database file.
        path: PathBuf,
        /// The journal mode in force.
        mode: String,
    },
    /// The writer thread is gone, so nothing is accepted any more.
    #[error("the writer of {path} has stopped ({reason}): nothing is accepted until the daemon is started again")]
    WriterGone {
        /// The database file.
        path: PathBuf,
        /// Why it stopped.
        reason: String,
    },
    /// Anything else that SQLite reports.
    #[error("{path}: {detail}")]
    Sql {
        /// The database file.
        path: PathBuf,
        /// SQLite's words.
        detail: String,
    },
}

impl StoreError {
    /// Sorts one of SQLite's failures on `path` into a variant.
    #[must_use]
    pub(super) fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.to_path_buf();
        let detail = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => {
                Self::Locked { path }
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Corrupt { path, detail },
            Some(ErrorCode::DiskFull) => Self::Full { path },
            Some(ErrorCode::SystemIoFailure) => Self::Io { path, detail },
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                Self::Unwritable { path, detail }
            }
            _ => Self::Sql { path, detail },
        }
    }

    /// Whether the same write may be taken later, without a restart: there is room again, or a lock is gone.
    #[must_use]
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Io { .. } | Self::Locked { .. })
    }

    /// Whether the database itself can no longer be relied on, so that the writer must stop.
    #[must_use]
    pub(super) const fn is_fatal(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::WriterGone { .. })
    }
}
