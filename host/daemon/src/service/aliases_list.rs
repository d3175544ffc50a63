//! `aliases.list`: the alias table, from memory (ALIAS-01..05).
//!
//! State: none.

use std::sync::Arc;

use synapse_core::alias::{AliasRow, AliasTable, Origin, Standing};
use synapse_wire::client::{AliasEntry, AliasOrigin, AliasState, AliasesListParams, AliasesResult};

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Lists the rows, the retracted ones where that is asked for.
///
/// # Errors
/// None.
#[expect(clippy::unused_async, reason = "every operation has this form")]
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: AliasesListParams,
) -> Result<AliasesResult, ServiceError> {
    let shown = |row: &AliasRow| params.retracted || row.standing() != Standing::Retracted;
    Ok(view(&daemon.aliases.table(), shown))
}

/// The rows of a table that are `shown`.
pub(super) fn view(table: &AliasTable, shown: impl Fn(&AliasRow) -> bool) -> AliasesResult {
    AliasesResult {
        table_epoch: table.epoch(),
        aliases: table.rows().iter().filter(|row| shown(row)).map(entry).collect(),
    }
}

fn entry(row: &AliasRow) -> AliasEntry {
    AliasEntry {
        fingerprints: [row.pair.first().to_string(), row.pair.second().to_string()],
        lanes: row.lanes.clone(),
        model: row.model.clone(),
        dims: row.shape.dims,
        normalized: row.shape.normalized,
        origin: match row.origin {
            Origin::Builtin => AliasOrigin::Builtin,
            Origin::Operator => AliasOrigin::Operator,
        },
        state: match row.standing() {
            Standing::Declared => AliasState::Declared,
            Standing::Certified => AliasState::Certified,
            Standing::Lapsed => AliasState::Lapsed,
            Standing::Retracted => AliasState::Retracted,
        },
        declared: row.declared,
        valid_from: row.valid_from,
        valid_to: row.valid_to,
        end_reason: row.end_reason.clone(),
    }
}
