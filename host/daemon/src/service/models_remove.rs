//! `models.remove`: deletes a model's files from this machine.
//!
//! State: none. The work is `crate::models`. A loaded model holds its files and is not removed; unload it first.

use std::sync::Arc;

use synapse_catalog::parse_model_id;
use synapse_wire::client::{ModelParams, ModelsRemoveResult};

use super::{RequestContext, ServiceError};
use crate::lane::select::NoLane;
use crate::models::ModelsError;
use crate::state::Daemon;

/// Removes every stored form of the model. Removing what is not installed changes nothing.
///
/// # Errors
/// The catalog has no such model; the model is loaded, pinned, or held by another process.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ModelParams,
) -> Result<ModelsRemoveResult, ServiceError> {
    let model = parse_model_id(&params.model)?.model;
    if daemon.catalog().record(&model).is_none() {
        return Err(NoLane::UnknownModel { model }.into());
    }
    let (models, name) = (daemon.models.clone(), model.clone());
    let outcome = daemon
        .tasks
        .blocking("models-remove", move || models.remove(&name))
        .await?;
    daemon.refresh_installed().await?;
    let freed = match outcome {
        Ok(freed) => Some(freed),
        Err(ModelsError::NotInstalled { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(ModelsRemoveResult {
        model,
        removed: freed.is_some(),
        freed_bytes: freed.unwrap_or(0),
    })
}
