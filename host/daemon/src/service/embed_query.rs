//! `embed.query`: one text, answered before anything that can wait (API-09).
//!
//! State: none. The work is `embedding.rs`; the one text is the request, so its failure is the request's.

use std::sync::Arc;

use synapse_wire::client::{EmbedQueryParams, EmbedReply, Role};

use super::embedding::{Ask, embed};
use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Embeds one text.
///
/// # Errors
/// Every refusal of the request, its lane or its text.
pub async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: EmbedQueryParams,
) -> Result<EmbedReply, ServiceError> {
    let ask = Ask {
        constraints: params.constraints(),
        model: params.model,
        items: vec![("0".to_owned(), params.text)],
        role: params.role.unwrap_or(Role::Query),
        dimensions: params.dimensions,
        normalize: params.normalize,
        truncate: params.truncate,
        encoding: params.encoding.unwrap_or_default(),
        target_fingerprint: params.target_fingerprint,
        query: true,
    };
    embed(daemon, ctx, ask).await
}
