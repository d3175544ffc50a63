//! `aliases.check_index`: whether an index may still be written, in one serial order with every retraction (ALIAS-08..10).
//!
//! State: none. The verdict comes from the store's writer, never from a snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use synapse_core::alias::{IndexVerdict, Migration};
use synapse_core::digest::Sha256Digest;
use synapse_core::fingerprint::ServedShape;
use synapse_wire::client::{AliasesCheckIndexParams, AliasesCheckIndexResult, ErrorCode, IndexState, MAX_PROVENANCE};

use super::admission::fingerprint;
use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Checks an index.
///
/// # Errors
/// A name is no fingerprint, there are too many of them, or the store cannot be read.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: AliasesCheckIndexParams,
) -> Result<AliasesCheckIndexResult, ServiceError> {
    let found = params.provenance_set.len();
    if found > MAX_PROVENANCE {
        let message =
            format!("`provenance_set` has {found} fingerprints; an index holds at most {MAX_PROVENANCE} spaces");
        return Err(ServiceError::invalid_params(message).detail(|detail| {
            detail.field = Some(String::from("provenance_set"));
        }));
    }
    let read = |field: &str, text: &str| {
        fingerprint(field, Some(text))?.ok_or_else(|| ServiceError::internal("a fingerprint that is there and is not"))
    };
    let index = read("index_fingerprint", &params.index_fingerprint)?;
    let provenance: BTreeSet<Sha256Digest> = params
        .provenance_set
        .iter()
        .map(|text| read("provenance_set", text))
        .collect::<Result<_, _>>()?;
    let certified = certified(daemon);
    let store = daemon.store.clone();
    let check = daemon.tasks.blocking("aliases-check-index", move || {
        store.check_index(index, provenance, certified)
    });
    let check = check.await??;
    let text = |space: Sha256Digest| space.to_string();
    Ok(match check.verdict {
        IndexVerdict::Valid => AliasesCheckIndexResult {
            table_epoch: check.table_epoch,
            verdict: IndexState::Valid,
            retracted_pair: None,
            rebuild_target: None,
            blocking_reason: None,
        },
        IndexVerdict::MigrationRequired(Migration {
            retracted,
            rebuild_target,
        }) => AliasesCheckIndexResult {
            table_epoch: check.table_epoch,
            verdict: IndexState::MigrationRequired,
            retracted_pair: retracted.map(|pair| [text(pair.first()), text(pair.second())]),
            rebuild_target: rebuild_target.map(text),
            blocking_reason: rebuild_target.is_none().then_some(ErrorCode::ProbeRequired),
        },
    })
}

/// The spaces that certified lanes serve now, in every shape of their records.
fn certified(daemon: &Daemon) -> BTreeSet<Sha256Digest> {
    let catalog = daemon.catalog();
    let lanes = catalog.records().flat_map(|record| daemon.lanes_of(&record.id));
    let certified = lanes.filter(|lane| daemon.certificates.certification_of(lane).is_certified());
    certified
        .flat_map(|lane| {
            let class = daemon.certificates.class_of(&lane);
            let class = class.as_ref().map(|class| class.name.as_str());
            let lengths: Vec<u32> = lane
                .record
                .dimensions
                .iter()
                .chain([&lane.record.dims])
                .copied()
                .collect();
            let shapes = lengths
                .into_iter()
                .flat_map(|dims| [true, false].map(|normalized| ServedShape { dims, normalized }));
            shapes
                .map(|shape| lane.fingerprint_in(shape, class))
                .collect::<Vec<_>>()
        })
        .collect()
}
