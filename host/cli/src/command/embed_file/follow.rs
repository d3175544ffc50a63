//! Following the job: its pages are written down as they come, until it has ended.
//!
//! It owns the position in the pages. A job that failed for now is queued again, as long as that gets it further; the
//! pages of the one before it are then its own.

use std::time::Duration;

use synapse_client::{Client, JobState, JobView};

use super::rows::Rows;
use super::ticket::Kept;
use crate::error::CliError;
use crate::progress::Meter;

/// The first pause between two looks for a page that is not there yet.
const FIRST: Duration = Duration::from_millis(20);
/// The longest.
const LONGEST: Duration = Duration::from_millis(500);
/// How often a job is queued again that gets no further.
const VAIN: u32 = 3;

/// Writes all pages of the job into the rows.
///
/// # Errors
/// [`CliError::Job`] and [`CliError::JobCancelled`] where the job has ended without the rest, the way to the daemon,
/// the file.
pub async fn follow(client: &Client, kept: &mut Kept, rows: &mut Rows, meter: &mut Meter) -> Result<(), CliError> {
    let total = kept.ticket().work.items;
    let (mut page, mut pause) = (0, FIRST);
    let (mut vain, mut before) = (0, 0);
    loop {
        meter.amount("embed", rows.done(), Some(total), "items");
        let read = client.job_page(&kept.ticket().job_id, page).await?;
        if let Some(embedded) = read.page {
            rows.take(embedded)?;
            (page, pause) = (page + 1, FIRST);
            continue;
        }
        match read.state {
            JobState::Done if rows.done() == total => return Ok(()),
            JobState::Done => {
                return Err(CliError::Internal(format!(
                    "the job {} is done with {} of {total} texts",
                    kept.ticket().job_id,
                    rows.done()
                )));
            }
            JobState::Open | JobState::Queued | JobState::Running | JobState::Unknown => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST);
            }
            JobState::FailedTransient => {
                vain = if rows.done() > before { 0 } else { vain + 1 };
                before = rows.done();
                if vain > VAIN {
                    return Err(ended(client.job_status(&kept.ticket().job_id).await?.result));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST);
                again(client, kept).await?;
            }
            JobState::FailedPermanent | JobState::Cancelled => {
                return Err(ended(client.job_status(&kept.ticket().job_id).await?.result));
            }
        }
    }
}

/// Queues a job again that failed for now; the job that goes on with its pages has another id.
///
/// # Errors
/// As for a seal.
pub async fn again(client: &Client, kept: &mut Kept) -> Result<(), CliError> {
    let view = client.job_seal(&kept.ticket().job_id).await?.result;
    kept.change(|ticket| {
        ticket.job_id = view.job_id;
        ticket.sealed = true;
    })
}

/// How a job ended that is not done.
pub fn ended(view: JobView) -> CliError {
    match view.error {
        Some(failure) if view.state != JobState::Cancelled => CliError::Job(Box::new(failure)),
        _ => CliError::JobCancelled(view.job_id),
    }
}
