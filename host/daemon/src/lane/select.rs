//! Which lanes could serve a model here: catalog ∩ installed ∩ usable bundles, or a typed refusal (ENG-11).
//!
//! State: none; every function maps snapshots to values. Callers: every operation that takes a model. Which of the lanes
//! serves a request is decided by `synapse_core::route`, from what admission adds: certificates, spaces, speeds. Not known
//! here: those, and what is loaded.

use synapse_catalog::{Catalog, EnvelopeRow, Kind, ModelSelector, Record};
use synapse_core::engine::{EngineKind, EngineSupport};
use synapse_loader::{Bundle, BundleStatus, Descriptor};

use crate::models::Installed;
use crate::plugins::runs_in_worker;

/// A lane that can serve, borrowed from the snapshots it was found in.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The model.
    pub record: &'a Record,
    /// The catalog's row: engine, format and bounds.
    pub row: &'a EnvelopeRow,
    /// The bundle, which is ready or runs in a worker.
    pub bundle: &'a Bundle,
    /// What the bundle says about itself.
    pub descriptor: &'a Descriptor,
    /// What it says about this kind, format and arithmetic.
    pub support: &'a EngineSupport,
    /// The model's files.
    pub installed: &'a Installed,
}

/// What stands between a catalog row and its service, apart from the model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No bundle of that id is here.
    NoPlugin,
    /// A bundle is here, but is refused or quarantined.
    Refused {
        /// A stable word, for example `abi_major`.
        reason: String,
        /// In words, and what to do.
        message: String,
    },
    /// The bundle's version is outside the row's range.
    Version {
        /// The bundle's.
        found: String,
        /// The row's range.
        expected: String,
    },
    /// The bundle does not offer the row's format and arithmetic for this kind of work.
    NotOffered {
        /// The kind of work.
        kind: EngineKind,
    },
}

impl Obstacle {
    /// The obstacle of `row` in words.
    #[must_use]
    pub fn words(&self, row: &EnvelopeRow) -> String {
        let engine = &row.engine;
        match self {
            Self::NoPlugin => format!("no bundle `{engine}` is installed"),
            Self::Refused { message, .. } => format!("the bundle `{engine}` is not used: {message}"),
            Self::Version { found, expected } => {
                format!("the bundle `{engine}` has version {found}, the catalog's row holds for {expected}")
            }
            Self::NotOffered { kind } => {
                let (format, dtype) = (&row.format, &row.dtype);
                format!(
                    "the bundle `{engine}` does not offer {} of {format} in {dtype}",
                    kind.work()
                )
            }
        }
    }
}

/// Why no lane serves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLane {
    /// The catalog has no such model.
    #[error("the catalog has no model `{model}`; `synapse models list` shows those it has")]
    UnknownModel {
        /// As asked.
        model: String,
    },
    /// The catalog has the model, but not the pinned lane.
    #[error("the model has no lane `{asked}`; it has: {known}")]
    UnknownLane {
        /// As asked.
        asked: String,
        /// The model's lanes.
        known: String,
    },
    /// The model does something else.
    #[error("`{model}` is for {}, not for {}; `synapse models list` shows what each model does", found.work(), wanted.work())]
    OtherKind {
        /// The model.
        model: String,
        /// What it is for.
        found: EngineKind,
        /// What was asked of it.
        wanted: EngineKind,
    },
    /// The model's files are not here.
    #[error("`{model}` is not installed; bring it with `synapse models pull {model}`")]
    NotInstalled {
        /// The model.
        model: String,
    },
    /// The catalog allows no engine for the model.
    #[error("no engine is certified for `{model}`: the catalog has no envelope row for it")]
    NoRow {
        /// The model.
        model: String,
    },
    /// The bundle that would serve is not usable.
    #[error("{message}; `synapse doctor` has more")]
    PluginRefused {
        /// The bundle's id.
        plugin: String,
        /// A stable word.
        reason: String,
        /// In words.
        message: String,
    },
    /// No bundle can serve any of the rows.
    #[error("no engine here can serve `{model}`: {obstacles}; `synapse plugin list` shows the bundles found")]
    NoEngine {
        /// The model.
        model: String,
        /// One clause per row.
        obstacles: String,
    },
}

/// The kind of engine that a model needs: every lane of a record is of this kind.
#[must_use]
pub const fn engine_kind(kind: Kind) -> EngineKind {
    match kind {
        Kind::Embed => EngineKind::Embed,
        Kind::Rerank => EngineKind::Rerank,
        Kind::Generate => EngineKind::Generate,
    }
}

/// The bundle that serves a row of a model of this kind, or what stands in the way.
///
/// # Errors
/// [`Obstacle`].
pub fn usable<'a>(
    row: &EnvelopeRow,
    kind: EngineKind,
    bundles: &'a [Bundle],
) -> Result<(&'a Bundle, &'a Descriptor, &'a EngineSupport), Obstacle> {
    let bundle = bundles
        .iter()
        .find(|bundle| bundle.id == row.engine && !matches!(bundle.status, BundleStatus::Shadowed { .. }))
        .ok_or(Obstacle::NoPlugin)?;
    let descriptor = match (&bundle.status, &bundle.descriptor) {
        (BundleStatus::Ready, Some(descriptor)) => descriptor,
        (BundleStatus::NeedsWorker { .. }, Some(descriptor)) if runs_in_worker(bundle) => descriptor,
        (status, _) => {
            let reason = match status {
                BundleStatus::Refused { reason, .. } => reason.as_str(),
                other => other.name(),
            };
            let message = status.message().unwrap_or_else(|| "it was not described".to_owned());
            return Err(Obstacle::Refused {
                reason: reason.to_owned(),
                message,
            });
        }
    };
    if !row.engine_version.matches(&descriptor.package_version) {
        let (found, expected) = (descriptor.package_version.to_string(), row.engine_version.to_string());
        return Err(Obstacle::Version { found, expected });
    }
    let support = descriptor
        .supports
        .iter()
        .find(|support| support.kind == kind && support.format == row.format && support.dtype == row.dtype);
    support
        .map(|support| (bundle, descriptor, support))
        .ok_or(Obstacle::NotOffered { kind })
}

/// The installed form of a row's model that the row is for.
#[must_use]
pub fn installed_form<'a>(row: &EnvelopeRow, installed: &'a [Installed]) -> Option<&'a Installed> {
    installed
        .iter()
        .map(|form| (form, form.record()))
        .find_map(|(form, record)| {
            (record.model == row.model && record.format == row.format && record.quant == row.quant).then_some(form)
        })
}

/// The first lane, in the catalog's order, that the selector allows and that can serve now.
///
/// # Errors
/// As [`select_all`].
pub fn select<'a>(
    catalog: &'a Catalog,
    selector: &ModelSelector,
    wanted: Option<EngineKind>,
    bundles: &'a [Bundle],
    installed: &'a [Installed],
) -> Result<Choice<'a>, NoLane> {
    let all = select_all(catalog, selector, wanted, bundles, installed)?;
    all.first().copied().ok_or_else(|| NoLane::NoRow {
        model: selector.model.clone(),
    })
}

/// Every lane, in the catalog's order, that the selector allows and that can serve now; at least one, and one only where
/// the selector names it. `wanted` is what the request asks of the model; operations on models themselves (load, unload)
/// take any.
///
/// # Errors
/// [`NoLane`] names the nearest obstacle: the model, the lane, the engine, the files.
pub fn select_all<'a>(
    catalog: &'a Catalog,
    selector: &ModelSelector,
    wanted: Option<EngineKind>,
    bundles: &'a [Bundle],
    installed: &'a [Installed],
) -> Result<Vec<Choice<'a>>, NoLane> {
    let model = || selector.model.clone();
    let record = catalog
        .record(&selector.model)
        .ok_or_else(|| NoLane::UnknownModel { model: model() })?;
    let kind = engine_kind(record.kind);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != kind) {
        return Err(NoLane::OtherKind {
            model: model(),
            found: kind,
            wanted,
        });
    }
    let rows = catalog.select(selector);
    if rows.is_empty() {
        let known: Vec<String> = catalog
            .lanes(&selector.model)
            .iter()
            .map(|row| row.lane_name())
            .collect();
        return Err(if known.is_empty() {
            NoLane::NoRow { model: model() }
        } else {
            NoLane::UnknownLane {
                asked: selector.to_string(),
                known: known.join(", "),
            }
        });
    }
    let mut obstacles = Vec::new();
    let mut some_engine_could = false;
    let mut choices = Vec::new();
    for row in rows {
        match usable(row, kind, bundles) {
            Ok((bundle, descriptor, support)) => match installed_form(row, installed) {
                Some(installed) => choices.push(Choice {
                    record,
                    row,
                    bundle,
                    descriptor,
                    support,
                    installed,
                }),
                None => some_engine_could = true,
            },
            Err(obstacle) => obstacles.push((row, obstacle)),
        }
    }
    if !choices.is_empty() {
        if selector.pin.is_some() {
            choices.truncate(1);
        }
        return Ok(choices);
    }
    if some_engine_could {
        return Err(NoLane::NotInstalled { model: model() });
    }
    let refused = obstacles.iter().find_map(|(row, obstacle)| match obstacle {
        Obstacle::Refused { reason, .. } => Some(NoLane::PluginRefused {
            plugin: row.engine.clone(),
            reason: reason.clone(),
            message: obstacle.words(row),
        }),
        _ => None,
    });
    Err(refused.unwrap_or_else(|| {
        let clauses: Vec<String> = obstacles.iter().map(|(row, obstacle)| obstacle.words(row)).collect();
        NoLane::NoEngine {
            model: model(),
            obstacles: clauses.join("; "),
        }
    }))
}
