//! Jobs without texts: loads, pulls, probes (JOB-01). A row says that the work was accepted, where it stands and what it
//! gave; the work itself is in the daemon's memory and ends with it.

use rusqlite::params;
use synapse_core::job::{JobEvent, JobState};

use super::{StateName, signed, step};
use crate::store::{Store, StoreError};

/// Work to be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWork {
    /// Its public name, never given before.
    pub id: String,
    /// The user that it belongs to.
    pub uid: u32,
    /// What it does, by its name on the wire.
    pub kind: String,
    /// The model that it works on.
    pub model: String,
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
}

impl Store {
    /// Keeps work as a queued job.
    ///
    /// # Errors
    /// [`StoreError`]; there is no job then.
    pub fn accept_work(&self, new: NewWork) -> Result<(), StoreError> {
        let generation = self.generation();
        self.writer.call(move |connection| {
            connection
                .execute(
                    "INSERT INTO job (id, series, uid, kind, model, request, request_key, current, payload, state,
                                      generation, items, bytes, next_seq, created_ms, updated_ms)
                     VALUES (?1, ?1, ?2, ?3, ?4, '', NULL, 0, x'', ?5, ?6, 0, 0, 0, ?7, ?7)",
                    params![
                        new.id,
                        new.uid,
                        new.kind,
                        new.model,
                        StateName(JobState::Queued),
                        signed(generation),
                        signed(new.now_ms),
                    ],
                )
                .map(drop)
        })
    }

    /// Moves a job as `core::job` allows, with what it gave or why it failed; `None` where it does not, or the job is
    /// gone.
    ///
    /// # Errors
    /// [`StoreError`]; the job has not moved then.
    pub fn move_work(
        &self,
        id: &str,
        event: JobEvent,
        error: Option<String>,
        result: Option<String>,
        now_ms: u64,
    ) -> Result<Option<JobState>, StoreError> {
        let id = id.to_owned();
        self.writer
            .call(move |connection| step(connection, &id, event, (error.as_deref(), result.as_deref()), now_ms))
    }

    /// Forgets ended jobs without texts beyond the `most` newest. Returns how many were forgotten.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is forgotten then.
    pub fn forget_work(&self, most: u64) -> Result<usize, StoreError> {
        self.writer.call(move |connection| {
            connection.execute(
                "DELETE FROM job WHERE number IN
                 (SELECT number FROM job WHERE items = 0 AND state NOT IN ('open', 'queued', 'running')
                  ORDER BY number DESC LIMIT -1 OFFSET ?1)",
                [signed(most)],
            )
        })
    }
}
