//! A job's input: opened, appended to in order, sealed; and which job a `request_key` names (JOB-06).
//!
//! The payload's digest is a chain over the items in order, so it does not depend on how they were cut into appends:
//! the same input sent again in other pieces is the same input. Everything is decided inside one transaction.

use rusqlite::{Connection, OptionalExtension, params};
use synapse_core::digest::sha256;
use synapse_core::job::{JobEvent, JobState};

use super::{JobRow, StateName, count, find, series, signed, step};
use crate::store::{Store, StoreError};

/// A job to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Its public name, never given before.
    pub id: String,
    /// The user that it belongs to.
    pub uid: u32,
    /// What it does, by its name on the wire.
    pub kind: String,
    /// The model that it works on.
    pub model: String,
    /// The request, in the caller's form; a part of the payload.
    pub request: String,
    /// The client's own name for the work.
    pub request_key: Option<String>,
    /// Its share among the jobs at work, at least 1; no part of the payload.
    pub weight: u32,
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
}

/// One item of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobItem {
    /// The client's name for it, unique in the job.
    pub id: String,
    /// Its text, as bytes: what is not UTF-8 is that item's failure, later.
    pub text: Vec<u8>,
}

/// One item that is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenItem {
    /// Its place in the input, from 0.
    pub position: u64,
    /// The item.
    pub item: JobItem,
}

/// Bounds of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputLimits {
    /// Unsealed jobs of one user.
    pub open_jobs: u64,
    /// Bytes of text in the unsealed jobs of one user.
    pub open_bytes: u64,
    /// Items of one job.
    pub items: u64,
    /// Bytes of text of one job.
    pub bytes: u64,
}

impl Default for InputLimits {
    /// DECISIONS, jobs and open jobs.
    fn default() -> Self {
        Self {
            open_jobs: 8,
            open_bytes: 512 << 20,
            items: 100_000,
            bytes: 256 << 20,
        }
    }
}

/// What became of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The job is open.
    Open,
    /// The user has as many unsealed jobs as may be.
    TooManyOpen,
}

/// What became of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The items are kept, or were kept before by the same append; the next append has this number.
    Kept {
        /// The number expected next.
        next_seq: u64,
    },
    /// An append before this one is missing.
    Gap {
        /// The number expected next.
        next_seq: u64,
    },
    /// This number was used for other items.
    OtherItems,
    /// The item's id stands in the job already.
    Repeated {
        /// The id.
        id: String,
    },
    /// One of [`InputLimits`], by name, with its value and what it would have become.
    Beyond {
        /// The bound's name.
        limit: &'static str,
        /// The bound.
        maximum: u64,
        /// What was found.
        found: u64,
    },
    /// The job takes no input: it is in this state.
    NotOpen(JobState),
    /// No such job.
    Unknown,
}

/// What became of a seal: the one decision of what a `request_key` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The job is queued. It goes on with the pages of an earlier one, if that failed for now.
    Queued(Box<JobRow>),
    /// The key names this job, which has the same payload; the job that was sealed is gone.
    Existing(Box<JobRow>),
    /// The key names a job with another payload; the job that was sealed is gone.
    Conflict {
        /// The job that the key names.
        existing: String,
    },
    /// The job has no items.
    Empty,
    /// The job is in this state already.
    NotOpen(Box<JobRow>),
    /// One bound, as for an append.
    Refused(Appended),
    /// No such job.
    Unknown,
}

/// A field of a digest: its length stands before it, so that no two sequences of fields are the same bytes.
fn field(bytes: &mut Vec<u8>, value: &[u8]) {
    let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(value);
}

fn digest(fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in fields {
        field(&mut bytes, value);
    }
    sha256(&bytes).0.to_vec()
}

fn length(value: &[u8]) -> u64 {
    u64::try_from(value.len()).unwrap_or(u64::MAX)
}

fn create(connection: &Connection, new: &NewJob, generation: u64, limits: &InputLimits) -> rusqlite::Result<Created> {
    let open: i64 = connection.query_row(
        "SELECT count(*) FROM job WHERE uid = ?1 AND state = 'open'",
        [new.uid],
        |row| row.get(0),
    )?;
    if open >= signed(limits.open_jobs) {
        return Ok(Created::TooManyOpen);
    }
    let start = digest(&[
        b"synapse.job.v1",
        new.kind.as_bytes(),
        new.model.as_bytes(),
        new.request.as_bytes(),
    ]);
    connection.execute(
        "INSERT INTO job (id, series, uid, kind, model, request, request_key, current, payload, state, generation,
                          items, bytes, next_seq, created_ms, updated_ms, weight)
         VALUES (?1, ?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9, 0, 0, 0, ?10, ?10, ?11)",
        params![
            new.id,
            new.uid,
            new.kind,
            new.model,
            new.request,
            new.request_key,
            start,
            StateName(JobState::Open),
            signed(generation),
            signed(new.now_ms),
            new.weight.max(1),
        ],
    )?;
    Ok(Created::Open)
}

fn beyond(limit: &'static str, maximum: u64, found: u64) -> Option<Appended> {
    (found > maximum).then_some(Appended::Beyond { limit, maximum, found })
}

fn append(
    connection: &Connection,
    (id, uid): (&str, u32),
    seq: u64,
    items: &[JobItem],
    limits: &InputLimits,
    now_ms: u64,
) -> rusqlite::Result<Appended> {
    let job = connection
        .query_row(
            "SELECT state, next_seq, items, bytes, payload FROM job WHERE id = ?1 AND uid = ?2",
            params![id, uid],
            |row| {
                let state: StateName = row.get("state")?;
                let payload: Vec<u8> = row.get("payload")?;
                Ok((
                    state.0,
                    count(row, "next_seq")?,
                    count(row, "items")?,
                    count(row, "bytes")?,
                    payload,
                ))
            },
        )
        .optional()?;
    let Some((state, next_seq, before_items, before_bytes, mut payload)) = job else {
        return Ok(Appended::Unknown);
    };
    if state != JobState::Open {
        return Ok(Appended::NotOpen(state));
    }
    let fields: Vec<&[u8]> = items.iter().flat_map(|item| [item.id.as_bytes(), &item.text]).collect();
    let chunk = digest(&fields);
    if seq > next_seq {
        return Ok(Appended::Gap { next_seq });
    }
    if seq < next_seq {
        let kept: Option<Vec<u8>> = connection
            .query_row(
                "SELECT digest FROM job_append WHERE series = ?1 AND seq = ?2",
                params![id, signed(seq)],
                |row| row.get(0),
            )
            .optional()?;
        return Ok(if kept.as_deref() == Some(&chunk) {
            Appended::Kept { next_seq }
        } else {
            Appended::OtherItems
        });
    }
    let bytes: u64 = items.iter().map(|item| length(&item.text)).sum();
    let (all_items, all_bytes) = (
        before_items + u64::try_from(items.len()).unwrap_or(u64::MAX / 2),
        before_bytes + bytes,
    );
    let open: i64 = connection.query_row(
        "SELECT coalesce(sum(bytes), 0) FROM job WHERE uid = ?1 AND state = 'open'",
        [uid],
        |row| row.get(0),
    )?;
    let refused = beyond("jobs.max_items", limits.items, all_items)
        .or_else(|| beyond("jobs.max_bytes", limits.bytes, all_bytes))
        .or_else(|| beyond("jobs.max_open_bytes", limits.open_bytes, open.unsigned_abs() + bytes));
    if let Some(refused) = refused {
        return Ok(refused);
    }
    let mut known = connection.prepare_cached("SELECT 1 FROM job_input WHERE series = ?1 AND id = ?2")?;
    let mut ids = std::collections::HashSet::new();
    for item in items {
        if !ids.insert(item.id.as_str()) || known.exists(params![id, item.id])? {
            return Ok(Appended::Repeated { id: item.id.clone() });
        }
    }
    let mut insert =
        connection.prepare_cached("INSERT INTO job_input (series, position, id, text) VALUES (?1, ?2, ?3, ?4)")?;
    for (position, item) in (before_items..).zip(items) {
        insert.execute(params![id, signed(position), item.id, item.text])?;
        payload = digest(&[&payload, item.id.as_bytes(), &item.text]);
    }
    connection.execute(
        "INSERT INTO job_append (series, seq, digest) VALUES (?1, ?2, ?3)",
        params![id, signed(seq), chunk],
    )?;
    connection.execute(
        "UPDATE job SET items = ?2, bytes = ?3, next_seq = ?4, payload = ?5, updated_ms = ?6 WHERE id = ?1",
        params![
            id,
            signed(all_items),
            signed(all_bytes),
            signed(next_seq + 1),
            payload,
            signed(now_ms)
        ],
    )?;
    Ok(Appended::Kept { next_seq: next_seq + 1 })
}

/// Removes a job that was open, with its input, because its key names another; a seal that is repeated hears the same.
fn give_up(connection: &Connection, job: &JobRow, existing: &str, same: bool, now_ms: u64) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT OR REPLACE INTO job_given_up (id, uid, existing, same, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![job.id, job.uid, existing, same, signed(now_ms)],
    )?;
    discard(connection, &job.id)
}

/// What the seal of a job that was given up said.
fn said_before(connection: &Connection, id: &str, uid: u32) -> rusqlite::Result<Sealed> {
    let said: Option<(String, bool)> = connection
        .query_row(
            "SELECT existing, same FROM job_given_up WHERE id = ?1 AND uid = ?2",
            params![id, uid],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    Ok(match said {
        None => Sealed::Unknown,
        Some((existing, false)) => Sealed::Conflict { existing },
        Some((existing, true)) => {
            find(connection, &existing)?.map_or(Sealed::Unknown, |job| Sealed::Existing(Box::new(job)))
        }
    })
}

/// Removes a job that was open, with its input.
fn discard(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM job_append WHERE series = ?1", [id])?;
    connection.execute("DELETE FROM job_input WHERE series = ?1", [id])?;
    connection.execute("DELETE FROM job WHERE id = ?1", [id]).map(drop)
}

fn seal(connection: &Connection, id: &str, uid: u32, now_ms: u64) -> rusqlite::Result<Sealed> {
    let Some(job) = find(connection, id)?.filter(|job| job.uid == uid) else {
        return said_before(connection, id, uid);
    };
    if job.state != JobState::Open {
        return Ok(Sealed::NotOpen(Box::new(job)));
    }
    if job.items == 0 {
        return Ok(Sealed::Empty);
    }
    if let Some(key) = &job.request_key {
        let named: Option<(String, bool)> = connection
            .query_row(
                "SELECT id, payload = (SELECT payload FROM job WHERE id = ?4) FROM job
                 WHERE uid = ?1 AND kind = ?2 AND request_key = ?3 AND current = 1",
                params![uid, job.kind, key, id],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        match named {
            Some((existing, false)) => {
                give_up(connection, &job, &existing, false, now_ms)?;
                return Ok(Sealed::Conflict { existing });
            }
            Some((existing, true)) => {
                let Some(row) = find(connection, &existing)? else {
                    return Ok(Sealed::Unknown);
                };
                if row.state != JobState::FailedTransient {
                    give_up(connection, &job, &existing, true, now_ms)?;
                    return Ok(Sealed::Existing(Box::new(row)));
                }
                take_over(connection, id, &existing)?;
            }
            None => {}
        }
    }
    connection.execute("UPDATE job SET current = 1 WHERE id = ?1", [id])?;
    step(connection, id, JobEvent::Seal, (None, None), now_ms)?;
    let queued = find(connection, id)?;
    Ok(queued.map_or(Sealed::Unknown, |job| Sealed::Queued(Box::new(job))))
}

/// The job `id` takes the place of `failed`, whose input is the same: it goes on with that series.
fn take_over(connection: &Connection, id: &str, failed: &str) -> rusqlite::Result<()> {
    let Some(series) = series(connection, failed)? else {
        return Ok(());
    };
    connection.execute("DELETE FROM job_append WHERE series = ?1", [id])?;
    connection.execute("DELETE FROM job_input WHERE series = ?1", [id])?;
    connection.execute("UPDATE job SET current = 0 WHERE id = ?1", [failed])?;
    connection
        .execute("UPDATE job SET series = ?2 WHERE id = ?1", [id, &series])
        .map(drop)
}

/// The job that does the work of `id`, which failed for now: the one that has taken its place, or a fresh one.
fn retry(
    connection: &Connection,
    (id, uid): (&str, u32),
    fresh: &str,
    generation: u64,
    now_ms: u64,
) -> rusqlite::Result<Sealed> {
    let current: Option<String> = connection
        .query_row(
            "SELECT id FROM job WHERE current = 1 AND uid = ?2 AND series = (SELECT series FROM job WHERE id = ?1)",
            params![id, uid],
            |row| row.get(0),
        )
        .optional()?;
    let Some(job) = current.map(|current| find(connection, &current)).transpose()?.flatten() else {
        return Ok(Sealed::Unknown);
    };
    if job.state != JobState::FailedTransient {
        return Ok(Sealed::Existing(Box::new(job)));
    }
    connection.execute("UPDATE job SET current = 0 WHERE id = ?1", [&job.id])?;
    connection.execute(
        "INSERT INTO job (id, series, uid, kind, model, request, request_key, current, payload, state, generation,
                          items, bytes, next_seq, created_ms, updated_ms, weight)
         SELECT ?2, series, uid, kind, model, request, request_key, 1, payload, ?3, ?4, items, bytes, next_seq, ?5, ?5,
                weight
         FROM job WHERE id = ?1",
        params![
            job.id,
            fresh,
            StateName(JobState::Queued),
            signed(generation),
            signed(now_ms)
        ],
    )?;
    let queued = find(connection, fresh)?;
    Ok(queued.map_or(Sealed::Unknown, |job| Sealed::Queued(Box::new(job))))
}

impl Store {
    /// Opens a job for appends.
    ///
    /// # Errors
    /// [`StoreError`]; there is no job then.
    pub fn create_job(&self, new: NewJob, limits: InputLimits) -> Result<Created, StoreError> {
        let generation = self.generation();
        self.writer
            .call(move |connection| create(connection, &new, generation, &limits))
    }

    /// Appends items to an open job of this user. An append that was kept before changes nothing.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is kept then.
    pub fn append_job(
        &self,
        id: &str,
        uid: u32,
        seq: u64,
        items: Vec<JobItem>,
        limits: InputLimits,
        now_ms: u64,
    ) -> Result<Appended, StoreError> {
        let id = id.to_owned();
        self.writer
            .call(move |connection| append(connection, (&id, uid), seq, &items, &limits, now_ms))
    }

    /// Seals an open job of this user: it is queued, or its `request_key` names another.
    ///
    /// # Errors
    /// [`StoreError`]; the job is as it was then.
    pub fn seal_job(&self, id: &str, uid: u32, now_ms: u64) -> Result<Sealed, StoreError> {
        let id = id.to_owned();
        self.writer.call(move |connection| seal(connection, &id, uid, now_ms))
    }

    /// Queues the work of a job that failed for now again, as a job named `fresh`, unless another has taken its place
    /// already.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn retry_job(&self, id: &str, uid: u32, fresh: String, now_ms: u64) -> Result<Sealed, StoreError> {
        let (id, generation) = (id.to_owned(), self.generation());
        self.writer
            .call(move |connection| retry(connection, (&id, uid), &fresh, generation, now_ms))
    }

    /// Creates a job with all of its items and seals it. Nobody else ever sees it open, so it takes no place among the
    /// open ones.
    ///
    /// # Errors
    /// [`StoreError`]; there is no job then.
    pub fn accept_job(&self, new: NewJob, items: Vec<JobItem>, limits: InputLimits) -> Result<Sealed, StoreError> {
        let generation = self.generation();
        let limits = InputLimits {
            open_jobs: u64::MAX,
            open_bytes: u64::MAX,
            ..limits
        };
        self.writer.call(move |connection| {
            create(connection, &new, generation, &limits)?;
            match append(connection, (&new.id, new.uid), 0, &items, &limits, new.now_ms)? {
                Appended::Kept { .. } => {
                    let sealed = seal(connection, &new.id, new.uid, new.now_ms)?;
                    // Nobody was told the name of a job that was given up here, so nobody seals it again.
                    connection.execute("DELETE FROM job_given_up WHERE id = ?1", [&new.id])?;
                    Ok(sealed)
                }
                refused => {
                    discard(connection, &new.id)?;
                    Ok(Sealed::Refused(refused))
                }
            }
        })
    }

    /// The first items of a job that are in no page, in order: at most `max_items`, and no more than `max_bytes` of
    /// text after the first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open_items(&self, id: &str, max_items: u32, max_bytes: u64) -> Result<Vec<OpenItem>, StoreError> {
        let id = id.to_owned();
        self.writer.call(move |connection| {
            let mut rows = connection.prepare_cached(
                "SELECT position, id, text FROM job_input
                 WHERE series = (SELECT series FROM job WHERE id = ?1) AND page IS NULL ORDER BY position LIMIT ?2",
            )?;
            let mut rows = rows.query(params![id, max_items])?;
            let (mut open, mut bytes) = (Vec::new(), 0_u64);
            while let Some(row) = rows.next()? {
                let item = OpenItem {
                    position: count(row, "position")?,
                    item: JobItem {
                        id: row.get("id")?,
                        text: row.get("text")?,
                    },
                };
                bytes += length(&item.item.text);
                if bytes > max_bytes && !open.is_empty() {
                    break;
                }
                open.push(item);
            }
            Ok(open)
        })
    }
}
