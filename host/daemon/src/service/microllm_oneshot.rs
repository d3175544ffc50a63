//! `microllm.oneshot`: one prompt to one text (API-16).
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: JSON, how an engine is packaged.

use std::sync::Arc;

use synapse_wire::client::{MicrollmOneshotParams, MicrollmOneshotResult};

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Generates.
///
/// # Errors
/// Every refusal of the request, its lane or its prompt.
pub async fn run(
    _: &Arc<Daemon>,
    _: &RequestContext,
    _: MicrollmOneshotParams,
) -> Result<MicrollmOneshotResult, ServiceError> {
    Err(ServiceError::unsupported("no lane of this daemon serves generation"))
}
