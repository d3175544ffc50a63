//! `embed.batch`: up to 64 texts, answered inline; more of them become a job, if the request has a key (API-11).
//!
//! State: none. The work is `embedding.rs`; each text has its own outcome.

use std::sync::Arc;

use synapse_wire::client::{EmbedBatchParams, EmbedBatchResult, JobAccepted, Role};

use super::embedding::{Ask, embed};
use super::items::check_names;
use super::{RequestContext, ServiceError, job_input};
use crate::state::Daemon;

/// Embeds a batch.
///
/// # Errors
/// Every refusal of the request or its lane; what concerns one text is in its item.
pub async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: EmbedBatchParams,
) -> Result<EmbedBatchResult, ServiceError> {
    let ids = params.items.iter().map(|item| item.id.as_str());
    check_names("items", ids, params.request_key.as_deref())?;
    let keyed = params.request_key.is_some().then(|| params.clone());
    let ask = Ask {
        constraints: params.constraints(),
        model: params.model,
        items: params.items.into_iter().map(|item| (item.id, item.text)).collect(),
        role: params.role.unwrap_or(Role::Document),
        dimensions: params.dimensions,
        normalize: params.normalize,
        truncate: params.truncate,
        encoding: params.encoding.unwrap_or_default(),
        target_fingerprint: params.target_fingerprint,
        query: false,
    };
    match (embed(daemon, ctx, ask).await, keyed) {
        (Err(error), Some(batch)) if job_input::is_over_a_cap(&error) => {
            let job = job_input::accept_batch(daemon, ctx, batch).await?;
            Ok(EmbedBatchResult::Accepted(JobAccepted { job_id: job.job_id }))
        }
        (outcome, _) => Ok(outcome?.into()),
    }
}
