//! The schema of `store.db`: every version as one forward step, applied in order, never edited afterwards.
//!
//! Owns the table `schema_version` (one row per applied step). Called once by `Store::open`, before the writer
//! starts. Does not know what the tables mean: each is read and written by the file named after it.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::StoreError;

/// Marks a database file as ours ("SYNP").
const APPLICATION_ID: i32 = 0x5359_4e50;

/// Step `n` (counted from 1) brings version `n - 1` to version `n`. Append only: a released step never changes.
pub(super) const STEPS: &[&str] = &[
    // 1: the start counter, what scans found, and bundles that panicked in this process.
    "CREATE TABLE module_generation (
         only INTEGER PRIMARY KEY CHECK (only = 1),
         value INTEGER NOT NULL CHECK (value > 0)
     ) STRICT;
     CREATE TABLE scan (
         digest TEXT PRIMARY KEY,
         outcome TEXT NOT NULL CHECK (outcome IN ('described', 'quarantined', 'timed_out')),
         body TEXT NOT NULL,
         host_version TEXT NOT NULL,
         at_unix_ms INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE demotion (
         digest TEXT PRIMARY KEY,
         bundle TEXT NOT NULL,
         reason TEXT NOT NULL,
         at_unix_ms INTEGER NOT NULL
     ) STRICT;",
    // 2: models whose workers died too often.
    "CREATE TABLE quarantine (
         digest TEXT NOT NULL,
         lane TEXT NOT NULL,
         key TEXT NOT NULL,
         reason TEXT NOT NULL,
         at_unix_ms INTEGER NOT NULL,
         PRIMARY KEY (digest, lane, key)
     ) STRICT;",
    // 3: durable jobs, their inputs and their pages.
    "CREATE TABLE job (
         number INTEGER PRIMARY KEY,
         id TEXT NOT NULL UNIQUE,
         series TEXT NOT NULL,
         uid INTEGER NOT NULL,
         kind TEXT NOT NULL,
         model TEXT NOT NULL,
         request TEXT NOT NULL,
         request_key TEXT,
         current INTEGER NOT NULL CHECK (current IN (0, 1)),
         payload BLOB NOT NULL,
         state TEXT NOT NULL CHECK (state IN ('open', 'queued', 'running', 'done', 'failed_permanent',
                                              'failed_transient', 'cancelled')),
         generation INTEGER NOT NULL,
         items INTEGER NOT NULL CHECK (items >= 0),
         bytes INTEGER NOT NULL CHECK (bytes >= 0),
         next_seq INTEGER NOT NULL CHECK (next_seq >= 0),
         error TEXT,
         created_ms INTEGER NOT NULL,
         updated_ms INTEGER NOT NULL
     ) STRICT;
     CREATE UNIQUE INDEX job_key ON job (uid, kind, request_key) WHERE current = 1 AND request_key IS NOT NULL;
     CREATE INDEX job_series ON job (series);
     CREATE TABLE job_append (
         series TEXT NOT NULL,
         seq INTEGER NOT NULL,
         digest BLOB NOT NULL,
         PRIMARY KEY (series, seq)
     ) STRICT;
     CREATE TABLE job_input (
         series TEXT NOT NULL,
         position INTEGER NOT NULL,
         id TEXT NOT NULL,
         text BLOB NOT NULL,
         page INTEGER,
         PRIMARY KEY (series, position)
     ) STRICT;
     CREATE UNIQUE INDEX job_input_id ON job_input (series, id);
     CREATE INDEX job_input_open ON job_input (series, position) WHERE page IS NULL;
     CREATE TABLE job_page (
         series TEXT NOT NULL,
         page INTEGER NOT NULL,
         items INTEGER NOT NULL CHECK (items > 0),
         digest BLOB NOT NULL,
         body BLOB NOT NULL,
         PRIMARY KEY (series, page)
     ) STRICT;",
    // 4: what each lane is certified for on which machine, how fast it is, and which numeric spaces are equivalent.
    "CREATE TABLE certificate (
         id INTEGER PRIMARY KEY AUTOINCREMENT,
         machine_profile_hash TEXT NOT NULL,
         numeric_profile_id TEXT NOT NULL,
         bundle_digest TEXT NOT NULL,
         engine_version TEXT NOT NULL,
         runtime_config_hash TEXT NOT NULL,
         lane TEXT NOT NULL,
         model TEXT NOT NULL,
         level TEXT CHECK (level IN ('reference', 'consistent')),
         hot_path INTEGER NOT NULL CHECK (hot_path IN (0, 1)),
         verdict TEXT NOT NULL,
         os_build TEXT NOT NULL,
         module_generation INTEGER NOT NULL,
         created_ms INTEGER NOT NULL,
         UNIQUE (machine_profile_hash, numeric_profile_id, bundle_digest, engine_version, runtime_config_hash)
     ) STRICT;
     CREATE TABLE certificate_vectors (
         certificate INTEGER PRIMARY KEY REFERENCES certificate (id),
         body BLOB NOT NULL
     ) STRICT;
     CREATE TABLE performance (
         machine_profile_hash TEXT NOT NULL,
         numeric_profile_id TEXT NOT NULL,
         bundle_digest TEXT NOT NULL,
         engine_version TEXT NOT NULL,
         runtime_config_hash TEXT NOT NULL,
         workload TEXT NOT NULL,
         knob TEXT NOT NULL,
         lane TEXT NOT NULL,
         model TEXT NOT NULL,
         speed REAL NOT NULL CHECK (speed > 0),
         threads INTEGER NOT NULL CHECK (threads > 0),
         figures TEXT NOT NULL,
         os_build TEXT NOT NULL,
         module_generation INTEGER NOT NULL,
         created_ms INTEGER NOT NULL,
         PRIMARY KEY (machine_profile_hash, numeric_profile_id, bundle_digest, engine_version, runtime_config_hash,
                      workload, knob)
     ) STRICT;
     CREATE TABLE assignment (
         machine_profile_hash TEXT NOT NULL,
         model TEXT NOT NULL,
         workload TEXT NOT NULL,
         knob TEXT NOT NULL,
         lane TEXT NOT NULL,
         os_build TEXT NOT NULL,
         module_generation INTEGER NOT NULL,
         created_ms INTEGER NOT NULL,
         PRIMARY KEY (machine_profile_hash, model, workload, knob)
     ) STRICT;
     CREATE TABLE alias (
         id INTEGER PRIMARY KEY AUTOINCREMENT,
         first TEXT NOT NULL,
         second TEXT NOT NULL CHECK (first < second),
         first_lane TEXT NOT NULL,
         second_lane TEXT NOT NULL,
         model TEXT NOT NULL,
         dims INTEGER NOT NULL,
         normalized INTEGER NOT NULL CHECK (normalized IN (0, 1)),
         origin TEXT NOT NULL CHECK (origin IN ('builtin', 'operator')),
         declared INTEGER NOT NULL,
         valid_from INTEGER,
         valid_to INTEGER,
         certified_by TEXT,
         end_reason TEXT
     ) STRICT;
     CREATE UNIQUE INDEX alias_open ON alias (first, second) WHERE valid_to IS NULL;
     CREATE INDEX alias_first ON alias (first);
     CREATE INDEX alias_second ON alias (second);
     CREATE TABLE alias_measure (
         alias INTEGER NOT NULL REFERENCES alias (id),
         machine_profile_hash TEXT NOT NULL,
         passed INTEGER NOT NULL CHECK (passed IN (0, 1)),
         figures TEXT NOT NULL,
         at_ms INTEGER NOT NULL,
         PRIMARY KEY (alias, machine_profile_hash)
     ) STRICT;
     CREATE TABLE alias_event (
         epoch INTEGER NOT NULL CHECK (epoch > 0),
         alias INTEGER NOT NULL REFERENCES alias (id),
         kind TEXT NOT NULL CHECK (kind IN ('declared', 'certified', 'lapsed', 'retracted')),
         at_ms INTEGER NOT NULL,
         PRIMARY KEY (epoch, alias)
     ) STRICT;",
    // 5: the weight and the result of a job; inputs that were given up for another job.
    "ALTER TABLE job ADD COLUMN weight INTEGER NOT NULL DEFAULT 1 CHECK (weight > 0);
     ALTER TABLE job ADD COLUMN result TEXT;
     CREATE TABLE job_given_up (
         id TEXT PRIMARY KEY,
         uid INTEGER NOT NULL,
         existing TEXT NOT NULL,
         same INTEGER NOT NULL CHECK (same IN (0, 1)),
         at_ms INTEGER NOT NULL
     ) STRICT;",
];

/// Brings the database to the version of `steps`, all missing steps in one transaction.
///
/// # Errors
/// [`StoreError::NewerSchema`] and [`StoreError::Foreign`] change nothing; SQLite's own failures leave the old version.
pub(super) fn migrate(connection: &mut Connection, path: &Path, steps: &[&str]) -> Result<(), StoreError> {
    let sql = |error: rusqlite::Error| StoreError::from_sqlite(path, &error);
    let supported = i64::try_from(steps.len()).unwrap_or(i64::MAX);
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(sql)?;
    let application_id: i32 = transaction
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .map_err(sql)?;
    let tables: i64 = transaction
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(sql)?;
    if application_id != APPLICATION_ID && (application_id != 0 || tables > 0) {
        return Err(StoreError::Foreign {
            path: path.to_path_buf(),
            application_id,
        });
    }
    transaction
        .execute_batch(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY CHECK (version > 0)) STRICT",
        )
        .map_err(sql)?;
    let found: i64 = transaction
        .query_row("SELECT coalesce(max(version), 0) FROM schema_version", [], |row| {
            row.get(0)
        })
        .map_err(sql)?;
    if found > supported {
        return Err(StoreError::NewerSchema {
            path: path.to_path_buf(),
            found,
            supported,
        });
    }
    for (version, step) in (1_i64..).zip(steps) {
        if version > found {
            transaction.execute_batch(step).map_err(sql)?;
            transaction
                .execute("INSERT INTO schema_version (version) VALUES (?1)", [version])
                .map_err(sql)?;
        }
    }
    transaction
        .pragma_update(None, "application_id", APPLICATION_ID)
        .map_err(sql)?;
    transaction.commit().map_err(sql)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "CREATE TABLE kept (value INTEGER NOT NULL) STRICT";
    const SECOND: &str = "ALTER TABLE kept ADD COLUMN label TEXT NOT NULL DEFAULT 'none'";

    fn version(connection: &Connection) -> i64 {
        connection
            .query_row("SELECT max(version) FROM schema_version", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn a_later_build_brings_an_older_database_forward_and_keeps_its_rows() {
        let path = Path::new("store.db");
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, path, &[FIRST]).unwrap();
        assert_eq!(version(&connection), 1);
        connection.execute("INSERT INTO kept (value) VALUES (7)", []).unwrap();
        migrate(&mut connection, path, &[FIRST, SECOND]).unwrap();
        migrate(&mut connection, path, &[FIRST, SECOND]).unwrap();
        assert_eq!(version(&connection), 2);
        let row: (i64, String) = connection
            .query_row("SELECT value, label FROM kept", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        assert_eq!(row, (7, "none".to_owned()));
    }

    #[test]
    fn a_failing_step_leaves_the_old_version() {
        let path = Path::new("store.db");
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, path, &[FIRST]).unwrap();
        migrate(
            &mut connection,
            path,
            &[FIRST, SECOND, "CREATE TABLE kept (again INTEGER)"],
        )
        .unwrap_err();
        assert_eq!(version(&connection), 1);
        connection
            .query_row("SELECT label FROM kept", [], |_| Ok(()))
            .unwrap_err();
    }

    #[test]
    fn a_newer_database_is_refused_with_both_versions() {
        let path = Path::new("store.db");
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, path, &[FIRST, SECOND]).unwrap();
        let error = migrate(&mut connection, path, &[FIRST]).unwrap_err();
        assert_eq!(
            error,
            StoreError::NewerSchema {
                path: path.to_path_buf(),
                found: 2,
                supported: 1
            }
        );
    }

    #[test]
    fn another_programs_database_is_left_alone() {
        let path = Path::new("store.db");
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE theirs (value INTEGER)").unwrap();
        let error = migrate(&mut connection, path, STEPS).unwrap_err();
        assert_eq!(
            error,
            StoreError::Foreign {
                path: path.to_path_buf(),
                application_id: 0
            }
        );
        let tables: i64 = connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .unwrap();
        assert_eq!(tables, 1);
    }

    #[test]
    fn every_released_step_applies_to_an_empty_database() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, Path::new("store.db"), STEPS).unwrap();
        assert_eq!(version(&connection), i64::try_from(STEPS.len()).unwrap());
    }
}
