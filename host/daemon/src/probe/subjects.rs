//! Which lanes a probe is about: those that could serve here if they were certified.
//!
//! State: none. Callers: `probe.start`, `report.rs`. Not known here: certificates; a lane is probed whatever it has.

use std::sync::Arc;

use synapse_catalog::{EnvelopeRow, ModelSelector, Record, parse_model_id};
use synapse_loader::Bundle;

use crate::lane::Lane;
use crate::lane::select::{Choice, NoLane, engine_kind, installed_form, select, usable};
use crate::models::Installed;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;

/// A row of the catalog, with its lane or with what stands in its way.
pub(super) struct Candidate {
    /// The model.
    pub(super) record: Record,
    /// The row.
    pub(super) row: EnvelopeRow,
    /// The lane, or why there is none, in words.
    pub(super) lane: Result<Arc<Lane>, String>,
}

/// The lanes of these models and lanes, each once, in the order of the names and of the catalog. Without names: every
/// lane that can serve an installed model.
///
/// # Errors
/// A name is wrong, or none of its lanes can serve here.
pub async fn lanes(daemon: &Arc<Daemon>, names: &[String]) -> Result<Vec<Arc<Lane>>, ServiceError> {
    daemon.plugins.scanned().await;
    daemon.refresh_installed().await?;
    let mut lanes: Vec<Arc<Lane>> = Vec::new();
    for selector in selectors(daemon, names)? {
        let found = candidates(daemon, &selector);
        let before = lanes.len();
        for lane in found.into_iter().filter_map(|candidate| candidate.lane.ok()) {
            if !lanes.iter().any(|known| known.name == lane.name) {
                lanes.push(lane);
            }
        }
        if lanes.len() == before && !names.is_empty() {
            // The refusal of a request for it says the same, with what to do.
            let (catalog, bundles, installed) = (daemon.catalog(), daemon.plugins.bundles(), daemon.installed());
            if let Err(refusal) = select(&catalog, &selector, None, &bundles, &installed) {
                return Err(refusal.into());
            }
        }
    }
    if lanes.is_empty() {
        return Err(ServiceError::model_not_installed(
            "no model is installed that an engine here can serve; bring one with `synapse models pull MODEL`, and see \
             `synapse doctor` for the engines",
        ));
    }
    Ok(lanes)
}

/// What names select; without names, every model that is installed.
///
/// # Errors
/// A name is wrong, or the catalog does not have it.
pub(super) fn selectors(daemon: &Daemon, names: &[String]) -> Result<Vec<ModelSelector>, ServiceError> {
    if names.is_empty() {
        let (catalog, installed) = (daemon.catalog(), daemon.installed());
        let here = |record: &&Record| installed.iter().any(|form| form.record().model == record.id);
        let ids = catalog.records().filter(here).map(|record| record.id.as_str());
        return ids.map(|id| Ok(parse_model_id(id)?)).collect();
    }
    let catalog = daemon.catalog();
    let known = |name: &String| {
        let selector = parse_model_id(name)?;
        match catalog.record(&selector.model) {
            Some(_) => Ok(selector),
            None => Err(NoLane::UnknownModel { model: selector.model }.into()),
        }
    };
    names.iter().map(known).collect()
}

/// Every row that a selector takes, in the catalog's order.
pub(super) fn candidates(daemon: &Daemon, selector: &ModelSelector) -> Vec<Candidate> {
    let (catalog, bundles, installed) = (daemon.catalog(), daemon.plugins.bundles(), daemon.installed());
    let Some(record) = catalog.record(&selector.model) else {
        return Vec::new();
    };
    let candidate = |row: &EnvelopeRow| Candidate {
        lane: choice(record, row, &bundles, &installed)
            .map(|choice| daemon.lanes.lane(&choice, daemon.threads_per_call)),
        record: record.clone(),
        row: row.clone(),
    };
    catalog.select(selector).into_iter().map(candidate).collect()
}

/// How a row would be served, or why it cannot be, in words.
fn choice<'a>(
    record: &'a Record,
    row: &'a EnvelopeRow,
    bundles: &'a [Bundle],
    installed: &'a [Installed],
) -> Result<Choice<'a>, String> {
    let (bundle, descriptor, support) =
        usable(row, engine_kind(record.kind), bundles).map_err(|obstacle| obstacle.words(row))?;
    let form = installed_form(row, installed).ok_or_else(|| {
        format!(
            "its form {}/{} is not installed; `synapse models pull {}`",
            row.format,
            row.quant,
            row.lane_name()
        )
    })?;
    Ok(Choice {
        record,
        row,
        bundle,
        descriptor,
        support,
        installed: form,
    })
}
