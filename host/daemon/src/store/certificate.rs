//! What each lane was certified for, on which machine, and how fast it was there (CERT-04, CERT-08..13).
//!
//! Owns the tables `certificate`, `certificate_vectors`, `performance` and `assignment`. The probe writes them, the
//! daemon's snapshot in `lane/certification.rs` reads them all. A row is found by its exact key or not at all: a change of
//! any part of the key leaves the row where it is and makes it stale. One row per key: a probe replaces what an earlier
//! one of the same key found, and a failure is kept as a row without a level. Verdicts and figures are texts that are not
//! read here.

use rusqlite::{Connection, OptionalExtension, Row, params};
use synapse_core::route::Level;

use super::demotion::unix_ms;
use super::{Store, StoreError};

/// What a certificate and its figures hold for. Another value of any part is another certificate (CERT-12).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateKey {
    /// The machine: system, drivers, processors, memory class (CERT-04).
    pub machine_profile_hash: String,
    /// The numeric profile, model files included.
    pub numeric_profile_id: String,
    /// SHA-256 of the bundle, lower-case hex.
    pub bundle_digest: String,
    /// The bundle's package version.
    pub engine_version: String,
    /// The settings that the engine runs with.
    pub runtime_config_hash: String,
}

/// When and under what a row was written (CERT-13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The operating system's build.
    pub os_build: String,
    /// The daemon's start number.
    pub module_generation: u64,
    /// Unix time in milliseconds.
    pub created_ms: u64,
}

impl Stamp {
    /// A stamp of now.
    #[must_use]
    pub fn now(os_build: impl Into<String>, module_generation: u64) -> Self {
        Self {
            os_build: os_build.into(),
            module_generation,
            created_ms: u64::try_from(unix_ms()).unwrap_or_default(),
        }
    }
}

/// The outcome of one probe of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRow {
    /// What it holds for.
    pub key: CertificateKey,
    /// `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// The catalog id of the model.
    pub model: String,
    /// What it rests on; `None` where the probe failed, so that the lane stays closed (CERT-11).
    pub level: Option<Level>,
    /// Whether single queries may be served too (FPR-05).
    pub hot_path: bool,
    /// The gates with their figures, as JSON.
    pub verdict: String,
    /// When it was written.
    pub stamp: Stamp,
}

/// How fast one lane is at one workload under one knob.
#[derive(Clone, Debug, PartialEq)]
pub struct PerformanceRow {
    /// What it holds for.
    pub key: CertificateKey,
    /// `query`, `batch`, `rerank` or `generate`.
    pub workload: String,
    /// `performance`, `balanced` or `quiet`.
    pub knob: String,
    /// `MODEL@ENGINE:VARIANT`.
    pub lane: String,
    /// The catalog id of the model.
    pub model: String,
    /// Tokens a second at this workload: what lanes of one model are compared by. Larger than 0.
    pub speed: f64,
    /// Threads of one call.
    pub threads: u32,
    /// Every figure, as JSON.
    pub figures: String,
    /// When it was written.
    pub stamp: Stamp,
}

/// The lane that the probe chose for a workload of a model under a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignmentRow {
    /// The machine.
    pub machine_profile_hash: String,
    /// The catalog id of the model.
    pub model: String,
    /// As in [`PerformanceRow::workload`].
    pub workload: String,
    /// As in [`PerformanceRow::knob`].
    pub knob: String,
    /// The lane chosen.
    pub lane: String,
    /// When it was written.
    pub stamp: Stamp,
}

impl Store {
    /// Keeps the outcome of a probe, in one step: the certificate (or the failure), the vectors that aliases are measured
    /// with, and the figures. What an earlier probe of the same key left is replaced. Gives the certificate's id.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn put_certificate(
        &self,
        row: CertificateRow,
        vectors: Option<Vec<u8>>,
        performance: Vec<PerformanceRow>,
    ) -> Result<i64, StoreError> {
        self.writer.call(move |connection| {
            forget(connection, &row.key)?;
            let id = insert(connection, &row)?;
            if let Some(body) = vectors {
                connection.execute(
                    "INSERT INTO certificate_vectors (certificate, body) VALUES (?1, ?2)",
                    params![id, body],
                )?;
            }
            for row in &performance {
                insert_performance(connection, row)?;
            }
            Ok(id)
        })
    }

    /// Every certificate and every failure, of every key, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn certificates(&self) -> Result<Vec<CertificateRow>, StoreError> {
        self.writer.call(|connection| {
            connection
                .prepare(
                    "SELECT machine_profile_hash, numeric_profile_id, bundle_digest, engine_version, runtime_config_hash,
                            lane, model, level, hot_path, verdict, os_build, module_generation, created_ms
                     FROM certificate ORDER BY id",
                )?
                .query_map([], |row| {
                    Ok(CertificateRow {
                        key: key(row)?,
                        lane: row.get(5)?,
                        model: row.get(6)?,
                        // The table's own check leaves no other word.
                        level: row.get::<_, Option<String>>(7)?.and_then(|word| word.parse().ok()),
                        hot_path: row.get(8)?,
                        verdict: row.get(9)?,
                        stamp: stamp(row, 10)?,
                    })
                })?
                .collect()
        })
    }

    /// The vectors that the probe of this very key kept.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn certificate_vectors(&self, key: CertificateKey) -> Result<Option<Vec<u8>>, StoreError> {
        self.writer.call(move |connection| {
            connection
                .query_row(
                    "SELECT body FROM certificate_vectors JOIN certificate ON certificate = id
                     WHERE machine_profile_hash = ?1 AND numeric_profile_id = ?2 AND bundle_digest = ?3
                       AND engine_version = ?4 AND runtime_config_hash = ?5",
                    parts(&key),
                    |row| row.get(0),
                )
                .optional()
        })
    }

    /// Every figure of every key, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn performance(&self) -> Result<Vec<PerformanceRow>, StoreError> {
        self.writer.call(|connection| {
            connection
                .prepare(
                    "SELECT machine_profile_hash, numeric_profile_id, bundle_digest, engine_version, runtime_config_hash,
                            workload, knob, lane, model, speed, threads, figures, os_build, module_generation, created_ms
                     FROM performance ORDER BY rowid",
                )?
                .query_map([], |row| {
                    Ok(PerformanceRow {
                        key: key(row)?,
                        workload: row.get(5)?,
                        knob: row.get(6)?,
                        lane: row.get(7)?,
                        model: row.get(8)?,
                        speed: row.get(9)?,
                        threads: row.get(10)?,
                        figures: row.get(11)?,
                        stamp: stamp(row, 12)?,
                    })
                })?
                .collect()
        })
    }

    /// Keeps the probe's choice of lanes; each replaces the earlier choice for the same machine, model, workload and knob.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn put_assignments(&self, rows: Vec<AssignmentRow>) -> Result<(), StoreError> {
        self.writer.call(move |connection| {
            let mut statement = connection.prepare(
                "INSERT INTO assignment (machine_profile_hash, model, workload, knob, lane, os_build, module_generation,
                                         created_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT (machine_profile_hash, model, workload, knob) DO UPDATE SET
                     lane = excluded.lane, os_build = excluded.os_build,
                     module_generation = excluded.module_generation, created_ms = excluded.created_ms",
            )?;
            for row in &rows {
                let stamp = &row.stamp;
                statement.execute(params![
                    row.machine_profile_hash,
                    row.model,
                    row.workload,
                    row.knob,
                    row.lane,
                    stamp.os_build,
                    signed(stamp.module_generation),
                    signed(stamp.created_ms),
                ])?;
            }
            Ok(())
        })
    }

    /// Every choice of every machine.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn assignments(&self) -> Result<Vec<AssignmentRow>, StoreError> {
        self.writer.call(|connection| {
            connection
                .prepare(
                    "SELECT machine_profile_hash, model, workload, knob, lane, os_build, module_generation, created_ms
                     FROM assignment ORDER BY machine_profile_hash, model, workload, knob",
                )?
                .query_map([], |row| {
                    Ok(AssignmentRow {
                        machine_profile_hash: row.get(0)?,
                        model: row.get(1)?,
                        workload: row.get(2)?,
                        knob: row.get(3)?,
                        lane: row.get(4)?,
                        stamp: stamp(row, 5)?,
                    })
                })?
                .collect()
        })
    }
}

/// Deletes what is known under a key.
fn forget(connection: &Connection, key: &CertificateKey) -> rusqlite::Result<()> {
    const KEY: &str = "machine_profile_hash = ?1 AND numeric_profile_id = ?2 AND bundle_digest = ?3
                       AND engine_version = ?4 AND runtime_config_hash = ?5";
    connection.execute(
        &format!("DELETE FROM certificate_vectors WHERE certificate IN (SELECT id FROM certificate WHERE {KEY})"),
        parts(key),
    )?;
    connection.execute(&format!("DELETE FROM certificate WHERE {KEY}"), parts(key))?;
    connection.execute(&format!("DELETE FROM performance WHERE {KEY}"), parts(key))?;
    Ok(())
}

fn insert(connection: &Connection, row: &CertificateRow) -> rusqlite::Result<i64> {
    let (key, stamp) = (&row.key, &row.stamp);
    connection.execute(
        "INSERT INTO certificate (machine_profile_hash, numeric_profile_id, bundle_digest, engine_version,
                                  runtime_config_hash, lane, model, level, hot_path, verdict, os_build,
                                  module_generation, created_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            key.machine_profile_hash,
            key.numeric_profile_id,
            key.bundle_digest,
            key.engine_version,
            key.runtime_config_hash,
            row.lane,
            row.model,
            row.level.map(Level::as_str),
            row.hot_path,
            row.verdict,
            stamp.os_build,
            signed(stamp.module_generation),
            signed(stamp.created_ms),
        ],
    )?;
    Ok(connection.last_insert_rowid())
}

fn insert_performance(connection: &Connection, row: &PerformanceRow) -> rusqlite::Result<()> {
    let (key, stamp) = (&row.key, &row.stamp);
    connection
        .execute(
            "INSERT INTO performance (machine_profile_hash, numeric_profile_id, bundle_digest, engine_version,
                                      runtime_config_hash, workload, knob, lane, model, speed, threads, figures,
                                      os_build, module_generation, created_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            params![
                key.machine_profile_hash,
                key.numeric_profile_id,
                key.bundle_digest,
                key.engine_version,
                key.runtime_config_hash,
                row.workload,
                row.knob,
                row.lane,
                row.model,
                row.speed,
                row.threads,
                row.figures,
                stamp.os_build,
                signed(stamp.module_generation),
                signed(stamp.created_ms),
            ],
        )
        .map(drop)
}

/// The parts of a key, in the order of the columns.
fn parts(key: &CertificateKey) -> [&str; 5] {
    [
        &key.machine_profile_hash,
        &key.numeric_profile_id,
        &key.bundle_digest,
        &key.engine_version,
        &key.runtime_config_hash,
    ]
}

/// The first five columns.
fn key(row: &Row<'_>) -> rusqlite::Result<CertificateKey> {
    Ok(CertificateKey {
        machine_profile_hash: row.get(0)?,
        numeric_profile_id: row.get(1)?,
        bundle_digest: row.get(2)?,
        engine_version: row.get(3)?,
        runtime_config_hash: row.get(4)?,
    })
}

/// Three columns from `at` on.
fn stamp(row: &Row<'_>, at: usize) -> rusqlite::Result<Stamp> {
    Ok(Stamp {
        os_build: row.get(at)?,
        module_generation: row.get::<_, i64>(at + 1)?.unsigned_abs(),
        created_ms: row.get::<_, i64>(at + 2)?.unsigned_abs(),
    })
}

/// SQLite's integers are signed; generations and times are far below the bound.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;
    use crate::task::Tasks;

    fn open(path: &Path) -> Store {
        Store::open(path, &Tasks::new(tokio::runtime::Handle::current()), SystemTime::now()).unwrap()
    }

    fn key() -> CertificateKey {
        CertificateKey {
            machine_profile_hash: "machine".to_owned(),
            numeric_profile_id: "profile".to_owned(),
            bundle_digest: "bundle".to_owned(),
            engine_version: "1.2.3".to_owned(),
            runtime_config_hash: "config".to_owned(),
        }
    }

    fn row(key: CertificateKey, level: Option<Level>) -> CertificateRow {
        CertificateRow {
            key,
            lane: "m@toy:f32".to_owned(),
            model: "m".to_owned(),
            level,
            hot_path: level.is_some(),
            verdict: r#"{"gates":[]}"#.to_owned(),
            stamp: Stamp::now("linux 6.1", 7),
        }
    }

    fn figures(key: CertificateKey, speed: f64) -> PerformanceRow {
        PerformanceRow {
            key,
            workload: "query".to_owned(),
            knob: "balanced".to_owned(),
            lane: "m@toy:f32".to_owned(),
            model: "m".to_owned(),
            speed,
            threads: 1,
            figures: "{}".to_owned(),
            stamp: Stamp::now("linux 6.1", 7),
        }
    }

    /// Proves CERT-13. Certificates, figures and assignments survive a restart with their stamps.
    #[tokio::test]
    async fn what_a_probe_found_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let (certificate, speed) = (row(key(), Some(Level::Reference)), figures(key(), 812.5));
        let assigned = AssignmentRow {
            machine_profile_hash: "machine".to_owned(),
            model: "m".to_owned(),
            workload: "query".to_owned(),
            knob: "balanced".to_owned(),
            lane: "m@toy:f32".to_owned(),
            stamp: Stamp::now("linux 6.1", 7),
        };
        {
            let store = open(&path);
            store
                .put_certificate(certificate.clone(), Some(vec![1, 2, 3]), vec![speed.clone()])
                .unwrap();
            let earlier = AssignmentRow {
                lane: "m@other:f32".to_owned(),
                ..assigned.clone()
            };
            store.put_assignments(vec![earlier]).unwrap();
            store.put_assignments(vec![assigned.clone()]).unwrap();
        }
        let store = open(&path);
        assert_eq!(store.certificates().unwrap(), [certificate]);
        assert_eq!(store.performance().unwrap(), [speed]);
        assert_eq!(store.assignments().unwrap(), [assigned]);
        assert_eq!(store.certificate_vectors(key()).unwrap(), Some(vec![1, 2, 3]));
    }

    /// Proves CERT-08 and CERT-12. A row is found under its exact key; another value of any part finds nothing.
    #[tokio::test]
    async fn another_value_of_any_part_of_the_key_is_another_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("store.db"));
        store
            .put_certificate(row(key(), Some(Level::Reference)), Some(vec![9]), vec![])
            .unwrap();
        let other = || "other".to_owned();
        let others = [
            CertificateKey {
                machine_profile_hash: other(),
                ..key()
            },
            CertificateKey {
                numeric_profile_id: other(),
                ..key()
            },
            CertificateKey {
                bundle_digest: other(),
                ..key()
            },
            CertificateKey {
                engine_version: other(),
                ..key()
            },
            CertificateKey {
                runtime_config_hash: other(),
                ..key()
            },
        ];
        for changed in others {
            assert_eq!(store.certificate_vectors(changed.clone()).unwrap(), None, "{changed:?}");
            store.put_certificate(row(changed, None), None, vec![]).unwrap();
        }
        let rows = store.certificates().unwrap();
        assert_eq!(rows.len(), 6);
        assert_eq!(
            rows[0],
            row_like(&rows[0], key(), Some(Level::Reference)),
            "the first one is as it was"
        );
        assert_eq!(store.certificate_vectors(key()).unwrap(), Some(vec![9]));
    }

    fn row_like(stamped: &CertificateRow, key: CertificateKey, level: Option<Level>) -> CertificateRow {
        CertificateRow {
            stamp: stamped.stamp.clone(),
            ..row(key, level)
        }
    }

    /// Proves CERT-11. A failed probe takes the place of the certificate, vectors and figures of the same key.
    #[tokio::test]
    async fn a_failed_probe_of_the_same_key_takes_the_certificate_away() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("store.db"));
        let passed = row(key(), Some(Level::Consistent));
        store
            .put_certificate(passed, Some(vec![1]), vec![figures(key(), 10.0)])
            .unwrap();
        store.put_certificate(row(key(), None), None, vec![]).unwrap();
        let rows = store.certificates().unwrap();
        assert_eq!(rows.iter().map(|row| row.level).collect::<Vec<_>>(), [None]);
        assert_eq!(store.certificate_vectors(key()).unwrap(), None);
        assert_eq!(store.performance().unwrap(), []);
        store
            .put_certificate(row(key(), Some(Level::Reference)), None, vec![figures(key(), 20.0)])
            .unwrap();
        assert_eq!(store.certificates().unwrap()[0].level, Some(Level::Reference));
        assert_eq!(store.performance().unwrap().len(), 1);
    }
}
