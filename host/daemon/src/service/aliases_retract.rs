//! `aliases.retract`: an operator says that two spaces are not equivalent any more (ALIAS-03, ALIAS-08).
//!
//! State: none. Behind the gate `alias_admin_enabled` (API-28). The change takes its place in the store's one serial order,
//! as `aliases.check_index` does.

use std::sync::Arc;

use synapse_core::alias::Pair;
use synapse_core::digest::Sha256Digest;
use synapse_wire::client::{AliasesResult, AliasesRetractParams};

use super::aliases_declare::check_gate;
use super::{RequestContext, ServiceError, aliases_list};
use crate::state::Daemon;

/// The longest reason, in bytes.
const MAX_REASON: usize = 500;

/// Retracts a pair, or every pair between two lanes.
///
/// # Errors
/// The gate is closed; the names are neither two fingerprints nor two lanes; nothing between them is open.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: AliasesRetractParams,
) -> Result<AliasesResult, ServiceError> {
    check_gate(daemon)?;
    let wrong = |field: &str, message: String| {
        let field = field.to_owned();
        ServiceError::invalid_params(message).detail(|detail| detail.field = Some(field))
    };
    let reason = params.reason.unwrap_or_else(|| String::from("by the operator"));
    if reason.len() > MAX_REASON {
        let message = format!("`reason` has {} bytes; at most {MAX_REASON} are kept", reason.len());
        return Err(wrong("reason", message));
    }
    let table = daemon.aliases.table();
    let [a, b] = &params.pair;
    let spaces = (a.parse::<Sha256Digest>(), b.parse::<Sha256Digest>());
    let named = |row: &synapse_core::alias::AliasRow| match &spaces {
        (Ok(a), Ok(b)) => Pair::new(*a, *b) == Some(row.pair),
        _ => row.lanes == [a.clone(), b.clone()] || row.lanes == [b.clone(), a.clone()],
    };
    let open = table.rows().iter().filter(|row| row.valid_to.is_none() && named(row));
    let pairs: Vec<Pair> = open.map(|row| row.pair).collect();
    if pairs.is_empty() {
        return Err(wrong(
            "pair",
            format!("no open alias is between {a:?} and {b:?}; `synapse aliases list` shows those that are"),
        ));
    }
    let (aliases, store) = (daemon.aliases.clone(), daemon.store.clone());
    let change = daemon
        .tasks
        .blocking("aliases-retract", move || aliases.retract(&store, pairs, reason));
    let retracted = change.await??;
    let table = daemon.aliases.table();
    let last = |pair: &Pair| {
        table
            .rows()
            .iter()
            .filter(|row| row.pair == *pair)
            .filter_map(|row| row.valid_to)
            .max()
    };
    Ok(aliases_list::view(&table, |row| {
        retracted.contains(&row.pair) && row.valid_to.is_some() && row.valid_to == last(&row.pair)
    }))
}
