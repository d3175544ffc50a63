//! `aliases.declare`: an operator says that two lanes serve one space. It counts once the probe has measured it (OQ-6).
//!
//! State: none. Behind the gate `alias_admin_enabled` (API-28).

use std::sync::Arc;

use synapse_core::alias::Origin;
use synapse_core::engine::EngineKind;
use synapse_wire::client::{AliasesDeclareParams, AliasesResult};

use super::admission::lane_of;
use super::{RequestContext, ServiceError, aliases_list};
use crate::lane::equivalence::pairs_of;
use crate::state::Daemon;

/// Declares the pairs of two lanes, one for each shape; those that are open already stay as they are.
///
/// # Errors
/// The gate is closed; a lane is unknown or cannot serve here; the two do not serve one model, or are one space.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: AliasesDeclareParams,
) -> Result<AliasesResult, ServiceError> {
    check_gate(daemon)?;
    let [first, second] = &params.lanes;
    let first = lane_of(daemon, first, Some(EngineKind::Embed)).await?;
    let second = lane_of(daemon, second, Some(EngineKind::Embed)).await?;
    let wrong = |message: String| {
        ServiceError::invalid_params(message).detail(|detail| detail.field = Some(String::from("lanes")))
    };
    if first.record.id != second.record.id {
        return Err(wrong(format!(
            "`lanes` names lanes of {} and of {}; an alias is between two lanes of one model",
            first.record.id, second.record.id
        )));
    }
    let pairs = pairs_of(&first, &second, Origin::Operator);
    if pairs.is_empty() {
        let (first, second) = (&first.name, &second.name);
        return Err(wrong(format!("{first} and {second} serve the same space already")));
    }
    let declared: Vec<_> = pairs.iter().map(|new| new.pair).collect();
    let (aliases, store) = (daemon.aliases.clone(), daemon.store.clone());
    let change = daemon
        .tasks
        .blocking("aliases-declare", move || aliases.declare(&store, pairs));
    change.await??;
    Ok(aliases_list::view(&daemon.aliases.table(), |row| {
        row.valid_to.is_none() && declared.contains(&row.pair)
    }))
}

/// Whether aliases may be administered at all (API-28).
///
/// # Errors
/// The gate is closed.
pub(super) fn check_gate(daemon: &Daemon) -> Result<(), ServiceError> {
    if daemon.config.alias_admin_enabled {
        return Ok(());
    }
    let message = "aliases are not administered by this daemon; set `alias_admin_enabled` in its configuration to true \
                   and start it again";
    Err(ServiceError::disabled(message).detail(|detail| detail.config = Some(String::from("alias_admin_enabled"))))
}
