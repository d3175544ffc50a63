//! `job.result`: one page of what a job has done, while it runs or after.
//!
//! State: none. Not known here: how pages come to be.

use std::sync::Arc;

use synapse_wire::client::{Encoding, JobKind, JobPage, JobPageResult, JobResultParams, ScorePage, Vector};

use super::batch_job::on_disk;
use super::job_input::unknown_job;
use super::{RequestContext, ServiceError};
use crate::job::state_on_the_wire;
use crate::state::Daemon;
use crate::store::PageRead;

/// Answers `job.result`. The state is read before the page, so a job that has ended shows all of its pages.
///
/// # Errors
/// No such job keeps pages, or the page on the disk is damaged.
pub async fn run(
    daemon: &Arc<Daemon>,
    _: &RequestContext,
    params: JobResultParams,
) -> Result<JobPageResult, ServiceError> {
    let (id, page) = (params.job_id, params.page);
    let (row, read) = on_disk(daemon, move |store| {
        let row = store.job(&id)?;
        Ok((row, store.job_page(&id, page)?))
    })
    .await?;
    let row = row.ok_or_else(unknown_job)?;
    let body = match read {
        PageRead::Body(body) => Some(body),
        PageRead::NotYet { .. } => None,
        PageRead::Unknown => return Err(unknown_job()),
        PageRead::Damaged => {
            return Err(ServiceError::storage_failed(format!(
                "page {page} of the job is not what was written; submit the texts again under another request_key"
            )));
        }
    };
    let mut result = JobPageResult {
        state: state_on_the_wire(row.state),
        pages: row.pages,
        content: None,
        scores: None,
    };
    match (body, JobKind::from_name(&row.kind)) {
        (None, _) => {}
        (Some(body), JobKind::RerankScore) => {
            let scores = ScorePage::from_bytes(&body);
            result.scores = Some(scores.map_err(|error| ServiceError::storage_failed(error.to_string()))?);
        }
        (Some(body), _) => result.content = Some(written(&body, params.encoding.unwrap_or_default())?),
    }
    Ok(result)
}

/// The kept page with its vectors as asked for.
fn written(body: &[u8], encoding: Encoding) -> Result<JobPage, ServiceError> {
    let damaged = |error: String| ServiceError::storage_failed(error);
    let mut page = JobPage::from_bytes(body).map_err(|error| damaged(error.to_string()))?;
    if encoding == Encoding::Array {
        for slot in &mut page.vectors {
            let Some(vector) = slot.take() else { continue };
            let values = vector.into_values().map_err(|error| damaged(error.to_string()))?;
            *slot = Some(Vector::Array(values));
        }
    }
    Ok(page)
}
