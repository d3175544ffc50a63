//! `model.unload`: frees a loaded model on every lane, or on the lane that is named (API-19).
//!
//! State: none. The work is `lane/load.rs`. What runs is finished first; what waits is answered `model_loading`.

use std::sync::Arc;

use synapse_catalog::parse_model_id;
use synapse_wire::client::{ModelParams, ModelUnloadResult};

use super::{RequestContext, ServiceError};
use crate::lane::load;
use crate::lane::select::NoLane;
use crate::state::Daemon;

/// Unloads the model. Unloading what is not loaded changes nothing.
///
/// # Errors
/// The catalog has no such model, or the daemon stops.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ModelParams,
) -> Result<ModelUnloadResult, ServiceError> {
    let selector = parse_model_id(&params.model)?;
    if daemon.catalog().record(&selector.model).is_none() {
        return Err(NoLane::UnknownModel { model: selector.model }.into());
    }
    let mut unloaded = false;
    for lane in daemon.lanes.all() {
        if selector.takes(&lane.row) {
            unloaded |= load::unload(daemon, &lane).await?;
        }
    }
    Ok(ModelUnloadResult {
        model: params.model,
        unloaded,
    })
}
