//! `rerank.score`: one raw score for each candidate, answered inline (API-15).
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: JSON, how an engine is packaged.

use std::sync::Arc;

use synapse_wire::client::{RerankScoreParams, RerankScoreResult};

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Scores the candidates.
///
/// # Errors
/// Every refusal of the request, its lane or its query.
pub async fn run(_: &Arc<Daemon>, _: &RequestContext, _: RerankScoreParams) -> Result<RerankScoreResult, ServiceError> {
    Err(ServiceError::unsupported("no lane of this daemon serves reranking"))
}
