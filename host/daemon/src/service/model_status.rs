//! `model.status`: one model, and the job that works on it (API-19); from memory only.
//!
//! State: none. The view is `model_view.rs`.

use std::sync::Arc;

use synapse_catalog::parse_model_id;
use synapse_wire::client::{ModelParams, ModelStatusResult};

use super::model_view::Views;
use super::{RequestContext, ServiceError};
use crate::lane::select::NoLane;
use crate::state::Daemon;

/// Shows one model.
///
/// # Errors
/// The catalog has no such model.
#[expect(clippy::unused_async, reason = "every operation has this form")]
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ModelParams,
) -> Result<ModelStatusResult, ServiceError> {
    let selector = parse_model_id(&params.model)?;
    let model = Views::of(daemon)
        .one(&selector.model)
        .ok_or_else(|| NoLane::UnknownModel {
            model: selector.model.clone(),
        })?;
    let works_on = |asked: &str| parse_model_id(asked).is_ok_and(|asked| asked.model == selector.model);
    // The newest first.
    let job = daemon
        .jobs
        .list()
        .into_iter()
        .find(|job| job.model.as_deref().is_some_and(works_on));
    Ok(ModelStatusResult { model, job })
}
