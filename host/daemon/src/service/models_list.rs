//! `models.list`: the catalog with the state of each model, from memory only (API-20).
//!
//! State: none. The view is `model_view.rs`.

use std::sync::Arc;

use synapse_wire::client::{ModelsListParams, ModelsListResult};

use super::model_view::Views;
use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Lists every model of the catalog.
///
/// # Errors
/// None.
#[expect(clippy::unused_async, reason = "every operation has this form")]
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    _params: ModelsListParams,
) -> Result<ModelsListResult, ServiceError> {
    // Asking the file system for its free space reads no file; where it fails, the client is told nothing.
    let free_bytes = rustix::fs::statvfs(daemon.data.models())
        .ok()
        .map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    Ok(ModelsListResult {
        models: Views::of(daemon).all(),
        free_bytes,
    })
}
