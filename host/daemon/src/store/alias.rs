//! The alias table: which numeric spaces were declared, certified and retracted as equivalent (ALIAS-01..10).
//!
//! Owns the tables `alias` (one row per pair and validity interval), `alias_measure` (what the probe found, per machine)
//! and `alias_event` (one row per change; its largest epoch is the table's). Every change runs on the writer thread, as
//! does [`Store::check_index`]: they have one serial order, and each tells the epoch of its place in it (ALIAS-10). What
//! the rows mean is `synapse_core::alias`.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, Row, params};
use synapse_core::alias::{AliasRow, AliasTable, IndexVerdict, Origin, Pair};
use synapse_core::digest::Sha256Digest;
use synapse_core::fingerprint::ServedShape;

use super::demotion::unix_ms;
use super::{Store, StoreError};

/// A pair that somebody declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAlias {
    /// The two fingerprints.
    pub pair: Pair,
    /// The lanes that serve them, in the order of the pair.
    pub lanes: [String; 2],
    /// The model that both serve.
    pub model: String,
    /// The shape in which both serve it.
    pub shape: ServedShape,
    /// Who declares it.
    pub origin: Origin,
}

/// What the probe found about a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairMeasure {
    /// The pair.
    pub pair: Pair,
    /// Whether it passed the gate.
    pub passed: bool,
    /// The gate with its figures, as JSON.
    pub figures: String,
}

/// The verdict on an index, and the epoch at which it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCheck {
    /// The table's epoch.
    pub table_epoch: u64,
    /// The verdict.
    pub verdict: IndexVerdict,
}

impl Store {
    /// The table as it is.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn alias_table(&self) -> Result<AliasTable, StoreError> {
        self.writer.call(table)
    }

    /// Declares pairs, all in one epoch. A pair that is open already is left as it is, and so is a builtin pair that was
    /// ever retracted: only an operator brings it back. Gives the table after it.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn declare_aliases(&self, pairs: Vec<NewAlias>) -> Result<AliasTable, StoreError> {
        self.writer.call(move |connection| {
            let mut change = Change::begin(connection)?;
            for new in &pairs {
                if may_be_declared(connection, new)? {
                    insert(connection, new, change.epoch)?;
                    change.event(connection.last_insert_rowid(), "declared")?;
                }
            }
            table(connection)
        })
    }

    /// Retracts pairs, all in one epoch. Gives the table after it, and the pairs that were open.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn retract_aliases(&self, pairs: Vec<Pair>, reason: String) -> Result<(AliasTable, Vec<Pair>), StoreError> {
        self.writer.call(move |connection| {
            let mut change = Change::begin(connection)?;
            let mut retracted = Vec::new();
            for pair in pairs {
                if let Some(open) = open_row(connection, pair)? {
                    retract(connection, &mut change, open.id, &reason)?;
                    retracted.push(pair);
                }
            }
            Ok((table(connection)?, retracted))
        })
    }

    /// Keeps what the probe found about open pairs on a machine, all in one epoch: a pair that passed counts from now on,
    /// one that counted once and failed is retracted. Pairs that are not open are left alone. Gives the table after it.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn measure_aliases(
        &self,
        machine_profile_hash: String,
        measures: Vec<PairMeasure>,
    ) -> Result<AliasTable, StoreError> {
        self.writer.call(move |connection| {
            let mut change = Change::begin(connection)?;
            for measure in &measures {
                let Some(open) = open_row(connection, measure.pair)? else {
                    continue;
                };
                connection.execute(
                    "INSERT INTO alias_measure (alias, machine_profile_hash, passed, figures, at_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (alias, machine_profile_hash) DO UPDATE SET
                         passed = excluded.passed, figures = excluded.figures, at_ms = excluded.at_ms",
                    params![
                        open.id,
                        machine_profile_hash,
                        measure.passed,
                        measure.figures,
                        unix_ms()
                    ],
                )?;
                match (measure.passed, open.valid_from) {
                    (true, _) if open.certified_by.as_deref() == Some(&machine_profile_hash) => {}
                    (true, _) => certify(connection, &mut change, open.id, &machine_profile_hash)?,
                    (false, Some(_)) => retract(connection, &mut change, open.id, "a later measurement failed")?,
                    (false, None) => {}
                }
            }
            table(connection)
        })
    }

    /// Brings the open pairs to this machine, all in one epoch: a pair that was measured on another one only lapses, one
    /// that was measured here counts again. Called at the start. Gives the table after it.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn settle_aliases(&self, machine_profile_hash: String) -> Result<AliasTable, StoreError> {
        self.writer.call(move |connection| {
            let mut change = Change::begin(connection)?;
            let open: Vec<(i64, Option<String>, bool)> = connection
                .prepare(
                    "SELECT id, certified_by,
                            EXISTS (SELECT 1 FROM alias_measure
                                    WHERE alias = id AND machine_profile_hash = ?1 AND passed = 1)
                     FROM alias WHERE valid_to IS NULL ORDER BY id",
                )?
                .query_map([&machine_profile_hash], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?
                .collect::<rusqlite::Result<_>>()?;
            for (id, certified_by, measured_here) in open {
                if measured_here && certified_by.as_deref() != Some(&machine_profile_hash) {
                    certify(connection, &mut change, id, &machine_profile_hash)?;
                } else if !measured_here && certified_by.is_some() {
                    connection.execute("UPDATE alias SET certified_by = NULL WHERE id = ?1", [id])?;
                    change.event(id, "lapsed")?;
                }
            }
            table(connection)
        })
    }

    /// The gates of open pairs on a machine, as JSON, by pair.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn alias_measures(&self, machine_profile_hash: String) -> Result<Vec<PairMeasure>, StoreError> {
        self.writer.call(move |connection| {
            connection
                .prepare(
                    "SELECT first, second, passed, figures FROM alias_measure JOIN alias ON alias = id
                     WHERE machine_profile_hash = ?1 AND valid_to IS NULL ORDER BY id",
                )?
                .query_map([machine_profile_hash], |row| {
                    Ok(PairMeasure {
                        pair: pair(row, 0)?,
                        passed: row.get(2)?,
                        figures: row.get(3)?,
                    })
                })?
                .collect()
        })
    }

    /// The verdict on an index, in the serial order of all changes to the table (ALIAS-10). `certified` are the spaces that
    /// certified lanes serve now.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn check_index(
        &self,
        index: Sha256Digest,
        provenance: BTreeSet<Sha256Digest>,
        certified: BTreeSet<Sha256Digest>,
    ) -> Result<IndexCheck, StoreError> {
        self.writer.call(move |connection| {
            let table = table_around(connection, provenance.iter().chain([&index]))?;
            Ok(IndexCheck {
                table_epoch: table.epoch(),
                verdict: table.verdict(index, &provenance, &certified),
            })
        })
    }
}

/// One change of the table: everything in it has the same, next epoch, which exists only if something is in it.
struct Change<'a> {
    connection: &'a Connection,
    epoch: i64,
}

impl<'a> Change<'a> {
    fn begin(connection: &'a Connection) -> rusqlite::Result<Self> {
        let epoch = epoch(connection)? + 1;
        Ok(Self { connection, epoch })
    }

    fn event(&mut self, alias: i64, kind: &str) -> rusqlite::Result<()> {
        self.connection
            .execute(
                "INSERT INTO alias_event (epoch, alias, kind, at_ms) VALUES (?1, ?2, ?3, ?4)",
                params![self.epoch, alias, kind, unix_ms()],
            )
            .map(drop)
    }
}

/// The open row of a pair.
struct Open {
    id: i64,
    valid_from: Option<i64>,
    certified_by: Option<String>,
}

fn open_row(connection: &Connection, pair: Pair) -> rusqlite::Result<Option<Open>> {
    connection
        .query_row(
            "SELECT id, valid_from, certified_by FROM alias WHERE first = ?1 AND second = ?2 AND valid_to IS NULL",
            sides(pair),
            |row| {
                Ok(Open {
                    id: row.get(0)?,
                    valid_from: row.get(1)?,
                    certified_by: row.get(2)?,
                })
            },
        )
        .optional()
}

fn may_be_declared(connection: &Connection, new: &NewAlias) -> rusqlite::Result<bool> {
    let (all, open): (i64, i64) = connection.query_row(
        "SELECT count(*), count(*) - count(valid_to) FROM alias WHERE first = ?1 AND second = ?2",
        sides(new.pair),
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    Ok(match new.origin {
        Origin::Builtin => all == 0,
        Origin::Operator => open == 0,
    })
}

fn insert(connection: &Connection, new: &NewAlias, epoch: i64) -> rusqlite::Result<()> {
    let [first, second] = sides(new.pair);
    connection
        .execute(
            "INSERT INTO alias (first, second, first_lane, second_lane, model, dims, normalized, origin, declared)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                first,
                second,
                new.lanes[0],
                new.lanes[1],
                new.model,
                new.shape.dims,
                new.shape.normalized,
                new.origin.as_str(),
                epoch,
            ],
        )
        .map(drop)
}

fn certify(connection: &Connection, change: &mut Change<'_>, id: i64, machine: &str) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE alias SET certified_by = ?2, valid_from = coalesce(valid_from, ?3) WHERE id = ?1",
        params![id, machine, change.epoch],
    )?;
    change.event(id, "certified")
}

fn retract(connection: &Connection, change: &mut Change<'_>, id: i64, reason: &str) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE alias SET valid_to = ?2, certified_by = NULL, end_reason = ?3 WHERE id = ?1",
        params![id, change.epoch, reason],
    )?;
    change.event(id, "retracted")
}

fn epoch(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT coalesce(max(epoch), 0) FROM alias_event", [], |row| row.get(0))
}

const COLUMNS: &str =
    "id, first, second, first_lane, second_lane, model, dims, normalized, origin, declared, valid_from,
                       valid_to, certified_by, end_reason";

fn table(connection: &Connection) -> rusqlite::Result<AliasTable> {
    let rows = connection
        .prepare(&format!("SELECT {COLUMNS} FROM alias ORDER BY id"))?
        .query_map([], alias_row)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(AliasTable::new(epoch(connection)?.unsigned_abs(), rows))
}

/// The rows with one of these spaces on either side: all that a verdict on them needs.
fn table_around<'a>(
    connection: &Connection,
    spaces: impl Iterator<Item = &'a Sha256Digest>,
) -> rusqlite::Result<AliasTable> {
    let mut statement = connection.prepare(&format!("SELECT {COLUMNS} FROM alias WHERE first = ?1 OR second = ?1"))?;
    let mut rows = BTreeMap::new();
    for space in spaces {
        for row in statement.query_map([space.to_string()], |row| Ok((row.get::<_, i64>(0)?, alias_row(row)?)))? {
            let (id, row) = row?;
            rows.insert(id, row);
        }
    }
    Ok(AliasTable::new(
        epoch(connection)?.unsigned_abs(),
        rows.into_values().collect(),
    ))
}

fn alias_row(row: &Row<'_>) -> rusqlite::Result<AliasRow> {
    let origin: String = row.get(8)?;
    Ok(AliasRow {
        pair: pair(row, 1)?,
        lanes: [row.get(3)?, row.get(4)?],
        model: row.get(5)?,
        shape: ServedShape {
            dims: row.get(6)?,
            normalized: row.get(7)?,
        },
        // The table's own check leaves no third word.
        origin: if origin == Origin::Builtin.as_str() {
            Origin::Builtin
        } else {
            Origin::Operator
        },
        declared: row.get::<_, i64>(9)?.unsigned_abs(),
        valid_from: row.get::<_, Option<i64>>(10)?.map(i64::unsigned_abs),
        valid_to: row.get::<_, Option<i64>>(11)?.map(i64::unsigned_abs),
        certified_by: row.get(12)?,
        end_reason: row.get(13)?,
    })
}

fn sides(pair: Pair) -> [String; 2] {
    [pair.first().to_string(), pair.second().to_string()]
}

/// The pair in two columns from `at` on.
fn pair(row: &Row<'_>, at: usize) -> rusqlite::Result<Pair> {
    let digest = |at: usize| {
        let text: String = row.get(at)?;
        text.parse::<Sha256Digest>().map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, Box::new(error))
        })
    };
    let (first, second) = (digest(at)?, digest(at + 1)?);
    Pair::new(first, second).ok_or(rusqlite::Error::InvalidQuery)
}

#[cfg(test)]
#[path = "alias_tests.rs"]
mod tests;
