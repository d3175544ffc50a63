//! `job.append`: adds texts to an open job; they are on the disk when it answers.
//!
//! State: none. Not known here: what the job does with them.

use std::sync::Arc;

use synapse_wire::client::{JobAppendParams, JobAppendResult};

use super::batch_job::on_disk;
use super::job_input::{kept, limits, refused};
use super::{RequestContext, ServiceError, items};
use crate::job::{now_ms, owner};
use crate::state::Daemon;
use crate::store::Appended;

/// Answers `job.append`. An append that was kept before, or that is not the next one, changes nothing.
///
/// # Errors
/// The job is unknown or takes no texts, a bound is passed, or the number was used for other texts.
pub async fn run(
    daemon: &Arc<Daemon>,
    _: &RequestContext,
    params: JobAppendParams,
) -> Result<JobAppendResult, ServiceError> {
    items::check_names("items", params.items.iter().map(|item| item.id.as_str()), None)?;
    let (items, limits) = (kept(params.items), limits(daemon));
    let (id, seq) = (params.job_id, params.seq);
    let append = move |store: &crate::store::Store| store.append_job(&id, owner(), seq, items, limits, now_ms());
    match on_disk(daemon, append).await? {
        Appended::Kept { next_seq } => Ok(JobAppendResult { kept: true, next_seq }),
        Appended::Gap { next_seq } => Ok(JobAppendResult { kept: false, next_seq }),
        other => Err(refused(other)),
    }
}
