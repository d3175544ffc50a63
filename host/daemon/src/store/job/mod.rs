//! Durable jobs: every slow operation as a row, and large inputs that are computed piece by piece and outlive a restart
//! (JOB-01..06).
//!
//! Owns the tables `job`, `job_append`, `job_input`, `job_page` and `job_given_up`. A job's input and its finished pages belong to a
//! *series*: the job that takes another's place after a transient failure goes on with the same series, so nothing is
//! uploaded or computed twice. Callers: the registry of jobs and the operations on them. Not known here: what a request, a text or a page means; their
//! bytes are the caller's.
//!
//! Each question is one transaction of the writer, so two callers never see it half answered:
//! `input.rs` (create, append, seal: which job a `request_key` names), `page.rs` (what was finished), `work.rs` (jobs
//! without texts), and here the states, the end of what a restart interrupted, and expiry.

mod input;
mod page;
#[cfg(test)]
mod tests;
mod work;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};
use synapse_core::job::{JobEvent, JobState};

pub use self::input::{Appended, Created, InputLimits, JobItem, NewJob, OpenItem, Sealed};
pub use self::page::{Committed, NewPage, PageRead};
pub use self::work::NewWork;
use super::{Store, StoreError};

/// One job as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Its public name.
    pub id: String,
    /// The user that it belongs to.
    pub uid: u32,
    /// What it does, by its name on the wire.
    pub kind: String,
    /// The model that it works on.
    pub model: String,
    /// The request, in the caller's form.
    pub request: String,
    /// The client's own name for the work.
    pub request_key: Option<String>,
    /// Where it stands.
    pub state: JobState,
    /// Its share among the jobs at work, at least 1.
    pub weight: u32,
    /// Items appended.
    pub items: u64,
    /// Bytes of their texts.
    pub bytes: u64,
    /// Items whose page is committed.
    pub committed: u64,
    /// Pages committed.
    pub pages: u64,
    /// The sequence number of the next append.
    pub next_seq: u64,
    /// Why it failed, in the caller's form.
    pub error: Option<String>,
    /// What it gave beyond its pages, in the caller's form.
    pub result: Option<String>,
    /// When it was accepted: milliseconds since 1970.
    pub created_ms: u64,
    /// When its state last changed: milliseconds since 1970.
    pub updated_ms: u64,
}

/// A state as its name in the database.
#[derive(Clone, Copy, Debug)]
struct StateName(JobState);

impl ToSql for StateName {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.name().into())
    }
}

impl FromSql for StateName {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let name = value.as_str()?;
        let mut states = JobState::ALL.into_iter();
        let state = states.find(|state| state.name() == name);
        state.map(Self).ok_or(FromSqlError::InvalidType)
    }
}

/// Counts are far below 2^63.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn count(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}

const COLUMNS: &str = "SELECT job.*,
    (SELECT count(*) FROM job_page WHERE job_page.series = job.series) AS pages,
    (SELECT coalesce(sum(items), 0) FROM job_page WHERE job_page.series = job.series) AS committed FROM job";

fn job_row(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    Ok(JobRow {
        id: row.get("id")?,
        uid: row.get("uid")?,
        kind: row.get("kind")?,
        model: row.get("model")?,
        request: row.get("request")?,
        request_key: row.get("request_key")?,
        state: row.get::<_, StateName>("state")?.0,
        weight: u32::try_from(count(row, "weight")?).unwrap_or(u32::MAX),
        items: count(row, "items")?,
        bytes: count(row, "bytes")?,
        committed: count(row, "committed")?,
        pages: count(row, "pages")?,
        next_seq: count(row, "next_seq")?,
        error: row.get("error")?,
        result: row.get("result")?,
        created_ms: count(row, "created_ms")?,
        updated_ms: count(row, "updated_ms")?,
    })
}

fn find(connection: &Connection, id: &str) -> rusqlite::Result<Option<JobRow>> {
    connection
        .query_row(&format!("{COLUMNS} WHERE id = ?1"), [id], job_row)
        .optional()
}

fn series(connection: &Connection, id: &str) -> rusqlite::Result<Option<String>> {
    connection
        .query_row("SELECT series FROM job WHERE id = ?1", [id], |row| row.get(0))
        .optional()
}

/// Moves a job as `core::job` allows; `None` for an unknown job or an event that its state does not take.
fn step(
    connection: &Connection,
    id: &str,
    event: JobEvent,
    (error, result): (Option<&str>, Option<&str>),
    now_ms: u64,
) -> rusqlite::Result<Option<JobState>> {
    let state: Option<StateName> = connection
        .query_row("SELECT state FROM job WHERE id = ?1", [id], |row| row.get(0))
        .optional()?;
    let Some(next) = state.and_then(|state| state.0.on(event).ok().map(|next| (state.0, next))) else {
        return Ok(None);
    };
    let (before, next) = next;
    if before != next {
        connection.execute(
            "UPDATE job SET state = ?2, error = ?3, result = ?4, updated_ms = ?5 WHERE id = ?1",
            params![id, StateName(next), error, result, signed(now_ms)],
        )?;
    }
    Ok(Some(next))
}

impl Store {
    /// Moves a job as `core::job` allows, with the reason of a failure; `None` where it does not, or the job is gone.
    ///
    /// # Errors
    /// [`StoreError`]; the job has not moved then.
    pub fn move_job(
        &self,
        id: &str,
        event: JobEvent,
        error: Option<String>,
        now_ms: u64,
    ) -> Result<Option<JobState>, StoreError> {
        let id = id.to_owned();
        self.writer
            .call(move |connection| step(connection, &id, event, (error.as_deref(), None), now_ms))
    }

    /// The job of this name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn job(&self, id: &str) -> Result<Option<JobRow>, StoreError> {
        let id = id.to_owned();
        self.writer.call(move |connection| find(connection, &id))
    }

    /// Every job, the newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn jobs(&self) -> Result<Vec<JobRow>, StoreError> {
        self.writer.call(|connection| {
            connection
                .prepare(&format!("{COLUMNS} ORDER BY number DESC"))?
                .query_map([], job_row)?
                .collect()
        })
    }

    /// Ends what an earlier run of the daemon left behind: queued and running jobs fail for now, with the error of their
    /// kind; open ones stay open (JOB-04). Returns how many ended.
    ///
    /// # Errors
    /// [`StoreError`]; none has ended then.
    pub fn end_interrupted_jobs(
        &self,
        error: impl Fn(&str) -> String + Send + 'static,
        now_ms: u64,
    ) -> Result<usize, StoreError> {
        let generation = self.generation;
        self.writer.call(move |connection| {
            let interrupted: Vec<(String, String)> = connection
                .prepare("SELECT id, kind FROM job WHERE generation < ?1 AND state IN ('queued', 'running')")?
                .query_map([signed(generation)], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            for (id, kind) in &interrupted {
                step(connection, id, JobEvent::Restart, (Some(&error(kind)), None), now_ms)?;
            }
            Ok(interrupted.len())
        })
    }

    /// Forgets jobs that ended before `ended_before_ms` and open ones that were not appended to since
    /// `open_before_ms`, with what no other job of their series needs. Returns how many were forgotten.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is forgotten then.
    pub fn expire_jobs(&self, ended_before_ms: u64, open_before_ms: u64) -> Result<usize, StoreError> {
        self.writer.call(move |connection| {
            let forgotten = connection.execute(
                "DELETE FROM job WHERE (state = 'open' AND updated_ms < ?2)
                 OR (state NOT IN ('open', 'queued', 'running') AND updated_ms < ?1)",
                params![signed(ended_before_ms), signed(open_before_ms)],
            )?;
            connection.execute("DELETE FROM job_given_up WHERE at_ms < ?1", [signed(ended_before_ms)])?;
            if forgotten > 0 {
                for table in ["job_append", "job_input", "job_page"] {
                    connection.execute(
                        &format!("DELETE FROM {table} WHERE series NOT IN (SELECT series FROM job)"),
                        [],
                    )?;
                }
            }
            Ok(forgotten)
        })
    }
}
