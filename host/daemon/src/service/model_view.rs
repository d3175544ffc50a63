//! A catalog model as clients see it: from snapshots in memory only (API-20, HEALTH-01).
//!
//! State: none. Callers: `models.list` and `model.status`. No file is read and no engine is asked, so the answer comes
//! while an engine call runs or a lane hangs.

use std::collections::BTreeMap;
use std::sync::Arc;

use synapse_catalog::{Catalog, EnvelopeRow, Kind, Record};
use synapse_core::digest::Sha256Digest;
use synapse_core::route::Certification;
use synapse_wire::client::{LaneEntry, LaneStatus, LaneVerdict, ModelEntry, ModelKind, ModelState};

use crate::lane::LaneSnapshot;
use crate::lane::select::{Obstacle, engine_kind, installed_form, usable};
use crate::lane::state::LaneState;
use crate::models::Installed;
use crate::plugins::Bundles;
use crate::state::Daemon;

/// The model that the command line uses where none is named.
const DEFAULT_MODEL: &str = "all-minilm-l6-v2";

/// The snapshots that the views are made from, taken at one moment.
pub(super) struct Views {
    catalog: Arc<Catalog>,
    bundles: Bundles,
    scanned: bool,
    installed: Arc<[Installed]>,
    lanes: Vec<LaneSnapshot>,
    /// The lanes that could serve here, by name.
    usable: BTreeMap<String, UsableLane>,
}

/// What a lane that could serve here is.
struct UsableLane {
    certification: Certification,
    fingerprint: Sha256Digest,
    equivalent_to: Vec<Sha256Digest>,
}

impl Views {
    /// Takes the snapshots.
    pub(super) fn of(daemon: &Daemon) -> Self {
        let (catalog, table) = (daemon.catalog(), daemon.aliases.table());
        let lanes = catalog.records().flat_map(|record| daemon.lanes_of(&record.id));
        let usable = lanes.map(|lane| {
            let class = daemon.certificates.class_of(&lane);
            let class = class.as_ref().map(|class| class.name.as_str());
            let fingerprint = lane.fingerprint_in(lane.default_shape(), class);
            let usable = UsableLane {
                certification: daemon.certificates.certification_of(&lane),
                fingerprint,
                equivalent_to: table.equivalents(fingerprint).collect(),
            };
            (lane.name.clone(), usable)
        });
        Self {
            usable: usable.collect(),
            catalog: Arc::clone(&catalog),
            scanned: daemon.plugins.is_scanned(),
            bundles: daemon.plugins.bundles(),
            installed: daemon.installed(),
            lanes: daemon.lanes.snapshots(),
        }
    }

    /// Every model, by id.
    pub(super) fn all(&self) -> Vec<ModelEntry> {
        self.catalog.records().map(|record| self.entry(record)).collect()
    }

    /// One model.
    pub(super) fn one(&self, model: &str) -> Option<ModelEntry> {
        self.catalog.record(model).map(|record| self.entry(record))
    }

    fn entry(&self, record: &Record) -> ModelEntry {
        let rows = self.catalog.lanes(&record.id);
        let forms: Vec<&Installed> = self
            .installed
            .iter()
            .filter(|form| form.record().model == record.id)
            .collect();
        let lanes: Vec<&LaneSnapshot> = self.lanes.iter().filter(|lane| lane.model == record.id).collect();
        let (state, reason) = model_state(!forms.is_empty(), &lanes);
        let preferred = record.formats.first();
        let tokenizer = record.tokenizer.as_ref().map_or(0, |file| file.size);
        let published = preferred.map_or(0, |format| format.total_size().saturating_add(tokenizer));
        ModelEntry {
            id: record.id.clone(),
            family: record.family.clone(),
            kind: kind(record.kind),
            licence: record.licence.clone(),
            dims: record.dims,
            max_tokens: record.max_tokens,
            state,
            reason,
            formats: record.formats.iter().map(|format| format.format.clone()).collect(),
            size_bytes: forms.first().map_or(published, |form| form.size()),
            lanes: rows.iter().map(|row| self.lane(record, row, &lanes)).collect(),
            fingerprint: lanes.first().map(|lane| lane.fingerprint.to_string()),
            default: record.id == DEFAULT_MODEL,
        }
    }

    fn lane(&self, record: &Record, row: &EnvelopeRow, lanes: &[&LaneSnapshot]) -> LaneEntry {
        let name = row.lane_name();
        let (status, reason) = match lanes.iter().find(|lane| lane.name == name) {
            Some(lane) if lane.state == LaneState::Ready => (LaneStatus::Loaded, None),
            Some(lane) if lane.state == LaneState::Loading => (LaneStatus::Loading, None),
            Some(lane) if lane.state == LaneState::Failed => (
                LaneStatus::Closed,
                lane.failure.as_ref().map(|failure| failure.message().to_owned()),
            ),
            _ => {
                let usable = usable(row, engine_kind(record.kind), &self.bundles);
                let installed = installed_form(row, &self.installed).is_some();
                available(row, usable.map(drop), self.scanned, installed)
            }
        };
        let usable = self.usable.get(&name);
        let level = usable.and_then(|lane| lane.certification.level());
        LaneEntry {
            lane: name,
            engine: row.engine.clone(),
            status,
            reason,
            certification: usable.map(|lane| certification(lane.certification)),
            level: level.map(|level| level.as_str().to_owned()),
            fingerprint: usable.map(|lane| lane.fingerprint.to_string()),
            equivalent_to: usable.map_or_else(Vec::new, |lane| {
                lane.equivalent_to.iter().map(ToString::to_string).collect()
            }),
        }
    }
}

/// Whether a lane that is not in memory could serve.
fn available(
    row: &EnvelopeRow,
    usable: Result<(), Obstacle>,
    scanned: bool,
    installed: bool,
) -> (LaneStatus, Option<String>) {
    match usable {
        Ok(()) if installed => (LaneStatus::Available, None),
        Ok(()) => (
            LaneStatus::Available,
            Some(format!(
                "the model is not installed; `synapse models pull {}`",
                row.model
            )),
        ),
        Err(_) if !scanned => (
            LaneStatus::NoPlugin,
            Some("the bundles are still being described".to_owned()),
        ),
        Err(obstacle) => {
            let status = match obstacle {
                Obstacle::NoPlugin => LaneStatus::NoPlugin,
                _ => LaneStatus::PluginRefused,
            };
            (status, Some(obstacle.words(row)))
        }
    }
}

/// Where the model stands: the best of its lanes.
fn model_state(installed: bool, lanes: &[&LaneSnapshot]) -> (ModelState, Option<String>) {
    let some = |state: LaneState| lanes.iter().find(|lane| lane.state == state);
    if some(LaneState::Ready).is_some() {
        return (ModelState::Loaded, None);
    }
    if some(LaneState::Loading).is_some() {
        return (ModelState::Loading, None);
    }
    if !installed {
        return (ModelState::NotInstalled, None);
    }
    match some(LaneState::Failed) {
        Some(lane) => (
            ModelState::Failed,
            lane.failure.as_ref().map(|failure| failure.message().to_owned()),
        ),
        None => (ModelState::Installed, None),
    }
}

/// Where a lane stands with its certificate, in the client's words.
pub(super) const fn certification(certification: Certification) -> LaneVerdict {
    match certification {
        Certification::Certified { .. } => LaneVerdict::Certified,
        Certification::Failed => LaneVerdict::Failed,
        Certification::Stale => LaneVerdict::Stale,
        Certification::Unprobed => LaneVerdict::Unprobed,
    }
}

/// The kind's name on the wire.
const fn kind(kind: Kind) -> ModelKind {
    match kind {
        Kind::Embed => ModelKind::Embed,
        Kind::Rerank => ModelKind::Rerank,
        Kind::Generate => ModelKind::Generate,
    }
}
