//! `models.explain`: which lane would serve a model, and why every other would not.
//!
//! State: none. The decision is the one of a request with the same demands (`admission.rs`), on what is known now.

use std::sync::Arc;

use synapse_catalog::{EnvelopeRow, Kind, parse_model_id};
use synapse_core::engine::EngineKind;
use synapse_core::fingerprint::ServedShape;
use synapse_core::route::{self, Workload};
use synapse_wire::client::{
    Constraints, ExplainedLane, ModelsExplainParams, ModelsExplainResult, Workload as WireWorkload,
};

use super::admission::{Demand, Field, Spaces, refused, rules, words};
use super::{RequestContext, ServiceError};
use crate::lane::select::{engine_kind, installed_form, select_all, usable};
use crate::state::Daemon;

/// Explains a model.
///
/// # Errors
/// The catalog has no such model or lane, or the demands are none.
#[expect(clippy::unused_async, reason = "every operation has this form")]
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ModelsExplainParams,
) -> Result<ModelsExplainResult, ServiceError> {
    let selector = parse_model_id(&params.model)?;
    let (catalog, bundles, installed) = (daemon.catalog(), daemon.plugins.bundles(), daemon.installed());
    let found = select_all(&catalog, &selector, None, &bundles, &installed);
    let Some(record) = catalog.record(&selector.model) else {
        return Err(found.map_or_else(ServiceError::from, |_| {
            ServiceError::internal("a model without a record")
        }));
    };
    let workload = workload(record.kind, params.workload)?;
    let constraints = Constraints {
        required_fingerprint: params.required_fingerprint,
        allow_equivalent: params.allow_equivalent,
        required_epoch: params.required_epoch,
        require_device: params.require_device,
        ..Constraints::default()
    };
    let demand = Demand {
        model: &params.model,
        kind: engine_kind(record.kind),
        constraints: &constraints,
        target_fingerprint: params.target_fingerprint.as_deref(),
        query: workload == Workload::Query,
    };
    let spaces = Spaces::read(&demand)?;
    let table = daemon.aliases.table();
    let (choices, none) = match found {
        Ok(choices) => (choices, None),
        Err(no_lane) => (Vec::new(), Some(ServiceError::from(no_lane))),
    };
    let shape = ServedShape {
        dims: record.dims,
        normalized: record.normalize,
    };
    let field = Field::of(daemon, &choices, workload, shape);
    let candidates = field.candidates();
    let demanded = spaces.demand(&demand, selector.pin.is_some());
    let chosen = route::choose(&candidates, &demanded, rules(daemon), &table);
    let serves = chosen.as_ref().ok().map(|&place| field.lanes[place].name.clone());
    let refusal = match (none, chosen) {
        (Some(error), _) => Some(error.failure()),
        (None, Err(refusal)) => Some(refused(&field, &demand, refusal).failure()),
        (None, Ok(_)) => None,
    };

    let explain = |row: &EnvelopeRow| {
        let name = row.lane_name();
        let place = field.lanes.iter().position(|lane| lane.name == name);
        let Some(place) = place else {
            let (bar, reason) = match usable(row, engine_kind(record.kind), &bundles) {
                Err(obstacle) => ("unusable", obstacle.words(row)),
                Ok(_) if installed_form(row, &installed).is_none() => (
                    "not_installed",
                    format!("its files are not installed; `synapse models pull {name}` brings them"),
                ),
                Ok(_) => ("not_named", format!("the request names {}", params.model)),
            };
            return ExplainedLane {
                lane: name,
                serves: false,
                bar: Some(bar.to_owned()),
                reason,
                fingerprint: None,
                level: None,
                tokens_per_second: None,
            };
        };
        let (lane, candidate) = (&field.lanes[place], &candidates[place]);
        let bar = route::bar(candidate, &demanded, rules(daemon), &table);
        let (bar, reason) = match (bar, &serves) {
            (Some(bar), _) => (
                Some(bar.as_str()),
                words(bar, lane, candidate.certification, candidate.minimum),
            ),
            (None, Some(serves)) if *serves == name => (None, "it serves".to_owned()),
            (None, Some(serves)) => {
                let other = field.lanes.iter().position(|lane| lane.name == *serves);
                let same = other.is_some_and(|at| table.equivalent(candidate.fingerprint, candidates[at].fingerprint));
                if same {
                    (Some("not_preferred"), format!("{serves} is preferred under this knob"))
                } else {
                    (
                        Some("other_space"),
                        format!(
                            "the model's name stands for the space of {serves}; name this lane, or its fingerprint"
                        ),
                    )
                }
            }
            (None, None) => (Some("not_preferred"), "the request is refused as a whole".to_owned()),
        };
        ExplainedLane {
            lane: name,
            serves: bar.is_none(),
            bar: bar.map(str::to_owned),
            reason,
            fingerprint: Some(candidate.fingerprint.to_string()),
            level: candidate.certification.level().map(|level| level.as_str().to_owned()),
            tokens_per_second: candidate.measured.map(|measured| measured.speed),
        }
    };
    let lanes = catalog.lanes(&record.id).into_iter().map(explain).collect();
    Ok(ModelsExplainResult {
        model: record.id.clone(),
        workload: wire(workload),
        knob: daemon.config.knob.as_str().to_owned(),
        table_epoch: table.epoch(),
        serves,
        refusal,
        lanes,
    })
}

/// The work to explain: what was asked, if the model does it.
fn workload(kind: Kind, asked: Option<WireWorkload>) -> Result<Workload, ServiceError> {
    let asked = asked.and_then(|asked| Workload::ALL.into_iter().find(|workload| wire(*workload) == asked));
    let own = match engine_kind(kind) {
        EngineKind::Embed => [Workload::Query, Workload::Batch].as_slice(),
        EngineKind::Rerank => &[Workload::Rerank],
        EngineKind::Generate => &[Workload::Generate],
    };
    let workload = asked.unwrap_or(own[0]);
    if own.contains(&workload) {
        return Ok(workload);
    }
    let message = format!(
        "`workload` is {:?}; this model is for {}",
        workload.as_str(),
        engine_kind(kind).work()
    );
    Err(ServiceError::unsupported(message).detail(|detail| detail.field = Some(String::from("workload"))))
}

const fn wire(workload: Workload) -> WireWorkload {
    match workload {
        Workload::Query => WireWorkload::Query,
        Workload::Batch => WireWorkload::Batch,
        Workload::Rerank => WireWorkload::Rerank,
        Workload::Generate => WireWorkload::Generate,
    }
}
