//! A job's results: pages that are kept as its quanta finish and are read while it runs (JOB-05, JOB-07).
//!
//! An item is in one page or in none: a commit that names an item twice is refused whole, so nothing is computed twice
//! after it was kept. Each page carries the digest of its body, checked at every read.

use rusqlite::{OptionalExtension, params};
use synapse_core::digest::sha256;
use synapse_core::job::JobState;

use super::{find, series, signed};
use crate::store::{Store, StoreError};

/// A page to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPage {
    /// The items that it holds, by their place in the input.
    pub positions: Vec<u64>,
    /// Their results, in the caller's form.
    pub body: Vec<u8>,
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The pages are on the disk.
    Kept,
    /// The job does not run any more: it was cancelled, or is gone. Nothing was kept.
    NotRunning,
    /// One of the items is in a page already, or is none of the job's. Nothing was kept.
    Refused,
}

/// A page that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageRead {
    /// Its body.
    Body(Vec<u8>),
    /// The job has not so many pages, so far.
    NotYet {
        /// Pages that there are.
        pages: u64,
    },
    /// What is on the disk is not what was written.
    Damaged,
    /// No such job.
    Unknown,
}

impl Store {
    /// Keeps pages of a running job, all of them or none.
    ///
    /// # Errors
    /// [`StoreError`]; none is kept then.
    pub fn commit_pages(&self, id: &str, pages: Vec<NewPage>) -> Result<Committed, StoreError> {
        let id = id.to_owned();
        self.writer.call(move |connection| {
            let Some(job) = find(connection, &id)?.filter(|job| job.state == JobState::Running) else {
                return Ok(Committed::NotRunning);
            };
            let Some(series) = series(connection, &id)? else {
                return Ok(Committed::NotRunning);
            };
            let mut open = connection
                .prepare_cached("SELECT 1 FROM job_input WHERE series = ?1 AND position = ?2 AND page IS NULL")?;
            let mut seen = std::collections::HashSet::new();
            for position in pages.iter().flat_map(|page| &page.positions) {
                if !seen.insert(*position) || !open.exists(params![series, signed(*position)])? {
                    return Ok(Committed::Refused);
                }
            }
            let mut mark =
                connection.prepare_cached("UPDATE job_input SET page = ?3 WHERE series = ?1 AND position = ?2")?;
            for (number, page) in (job.pages..).zip(&pages) {
                let digest = sha256(&page.body);
                let items = u64::try_from(page.positions.len()).unwrap_or(u64::MAX);
                connection.execute(
                    "INSERT INTO job_page (series, page, items, digest, body) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![series, signed(number), signed(items), digest.0, page.body],
                )?;
                for position in &page.positions {
                    mark.execute(params![series, signed(*position), signed(number)])?;
                }
            }
            Ok(Committed::Kept)
        })
    }

    /// One page of a job, from 0.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn job_page(&self, id: &str, page: u64) -> Result<PageRead, StoreError> {
        let id = id.to_owned();
        self.writer.call(move |connection| {
            let Some(series) = series(connection, &id)? else {
                return Ok(PageRead::Unknown);
            };
            let kept: Option<(Vec<u8>, Vec<u8>)> = connection
                .query_row(
                    "SELECT digest, body FROM job_page WHERE series = ?1 AND page = ?2",
                    params![series, signed(page)],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()?;
            Ok(match kept {
                Some((digest, body)) if digest == sha256(&body).0 => PageRead::Body(body),
                Some(_) => PageRead::Damaged,
                None => PageRead::NotYet {
                    pages: find(connection, &id)?.map_or(0, |job| job.pages),
                },
            })
        })
    }
}
