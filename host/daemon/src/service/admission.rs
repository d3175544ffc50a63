//! Admission of an engine request: constraints, lane, numeric space, readiness (API-04..08, SCHED-10).
//!
//! State: none. Callers: the embedding path, `rerank.score`, `microllm.oneshot`; `model.load` and its kin ask only for the
//! lane. A refusal changes nothing (API-05), and no engine has heard of the request when it comes. Not known here: texts,
//! what the engine will do.

use std::sync::Arc;

use synapse_catalog::{Record, parse_model_id};
use synapse_core::engine::EngineKind;
use synapse_core::fingerprint::ServedShape;
use synapse_wire::client::{Constraints, Placement, ServedBy};

use super::{RequestContext, ServiceError};
use crate::lane::loaded::Loaded;
use crate::lane::profile::ShapeRefused;
use crate::lane::select::{NoLane, select};
use crate::lane::{Lane, Standing, load};
use crate::state::Daemon;

/// The epoch of the alias table: there is none yet.
pub(super) const TABLE_EPOCH: u64 = 0;
/// The devices that the engines of this machine run on.
const DEVICE: &str = "cpu";
/// Advice to a caller whose model is being loaded, in milliseconds.
const LOADING_RETRY_MS: u64 = 500;
/// Advice to a caller while bundles are being described, in milliseconds.
const SCANNING_RETRY_MS: u64 = 250;

/// What a request asks of a lane.
#[derive(Clone, Copy)]
pub(super) struct Demand<'a> {
    /// The model or lane, as written.
    pub model: &'a str,
    /// What it is to do.
    pub kind: EngineKind,
    /// The fields of API-04.
    pub constraints: &'a Constraints,
    /// The space of the caller's index, for embeddings.
    pub target_fingerprint: Option<&'a str>,
}

/// A lane that serves the request.
#[derive(Debug)]
pub(super) struct Admitted {
    /// The lane.
    pub lane: Arc<Lane>,
    /// Its model, in memory for as long as this is held.
    pub loaded: Arc<Loaded>,
    /// The shape that is served.
    pub shape: ServedShape,
    /// The numeric space of that shape.
    pub fingerprint: String,
    /// The request itself says how long it waits for its start.
    pub names_queue: bool,
}

/// Admits a request as a whole or not at all. `shape` says what is served of the lane's record.
///
/// # Errors
/// The first demand that cannot be met, or why the lane does not serve now.
pub(super) async fn admit(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    demand: Demand<'_>,
    shape: impl FnOnce(&Record) -> Result<ServedShape, ShapeRefused>,
) -> Result<Admitted, ServiceError> {
    let (lane, shape, fingerprint) = choose(daemon, ctx, &demand, shape).await?;
    let loaded = ready(daemon, &lane)?;
    lane.touch();
    Ok(Admitted {
        lane,
        loaded,
        shape,
        fingerprint,
        names_queue: demand.constraints.max_queue_ms.is_some(),
    })
}

/// Whether a lane would serve the request, once it is ready: what [`admit`] asks before it looks at the engine.
///
/// # Errors
/// The first demand that cannot be met.
pub(super) async fn check(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    demand: Demand<'_>,
    shape: impl FnOnce(&Record) -> Result<ServedShape, ShapeRefused>,
) -> Result<(), ServiceError> {
    choose(daemon, ctx, &demand, shape).await.map(drop)
}

/// The lane, the shape that it serves and the numeric space of that.
async fn choose(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    demand: &Demand<'_>,
    shape: impl FnOnce(&Record) -> Result<ServedShape, ShapeRefused>,
) -> Result<(Arc<Lane>, ServedShape, String), ServiceError> {
    check_constraints(demand.constraints)?;
    let lane = find_lane(daemon, ctx, demand).await?;
    let shape = shape(&lane.record)?;
    let fingerprint = lane.fingerprint(shape).to_string();
    check_fingerprint(demand, &fingerprint)?;
    Ok((lane, shape, fingerprint))
}

impl Admitted {
    /// Where the answer comes from.
    pub(super) fn served_by(&self) -> ServedBy {
        let Self { lane, loaded, .. } = self;
        ServedBy {
            fingerprint: self.fingerprint.clone(),
            engine: lane.profile.engine.engine.clone(),
            engine_version: lane.profile.engine.version.clone(),
            bundle_digest: lane.bundle.digest.map(|digest| digest.to_string()).unwrap_or_default(),
            lane: lane.name.clone(),
            placement: match loaded.engine.supervisor() {
                Some(_) => Placement::Worker,
                None => Placement::InProcess,
            },
            model_digest: lane.profile.model_digest.to_string(),
            machine_profile_hash: None,
            certification: None,
        }
    }
}

/// What needs no lane: the alias table's epoch and the device.
fn check_constraints(constraints: &Constraints) -> Result<(), ServiceError> {
    if let Some(epoch) = constraints.required_epoch
        && epoch != TABLE_EPOCH
    {
        let message = format!("`required_epoch` is {epoch}, the alias table's epoch is {TABLE_EPOCH}");
        return Err(ServiceError::substitution_rejected(message).detail(|detail| {
            detail.reason = Some("epoch_mismatch".to_owned());
            detail.table_epoch = Some(TABLE_EPOCH);
        }));
    }
    if let Some(device) = &constraints.require_device
        && device != DEVICE
    {
        let message = format!("`require_device` is {device:?}; the lanes of this daemon run on {DEVICE:?}");
        return Err(ServiceError::not_certified(message).detail(|detail| {
            detail.field = Some("require_device".to_owned());
            detail.reason = Some("device".to_owned());
        }));
    }
    Ok(())
}

/// The numeric space that the caller demands must be the one that is served; nothing is equivalent to it yet (API-06,
/// API-10).
fn check_fingerprint(demand: &Demand<'_>, served: &str) -> Result<(), ServiceError> {
    let demands = [
        (
            "required_fingerprint",
            demand.constraints.required_fingerprint.as_deref(),
        ),
        ("target_fingerprint", demand.target_fingerprint),
    ];
    for (field, demanded) in demands {
        let Some(demanded) = demanded else { continue };
        let is_digest = demanded.len() == 64
            && demanded
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if !is_digest {
            let message = format!("`{field}` is no fingerprint: expected 64 lower-case hex digits");
            return Err(ServiceError::invalid_params(message).detail(|detail| detail.field = Some(field.to_owned())));
        }
        if demanded != served {
            let message = format!("`{field}` is {demanded}; this lane serves {served} in the shape asked for");
            return Err(ServiceError::substitution_rejected(message).detail(|detail| {
                detail.reason = Some("fingerprint_mismatch".to_owned());
                detail.field = Some(field.to_owned());
                detail.fingerprint = Some(served.to_owned());
            }));
        }
    }
    Ok(())
}

/// The lane that serves the model. While bundles are still being described the answer is not known: the request waits
/// for it, within its `max_queue_ms`, unless it is to fail at once (API-08).
async fn find_lane(daemon: &Arc<Daemon>, ctx: &RequestContext, demand: &Demand<'_>) -> Result<Arc<Lane>, ServiceError> {
    if !daemon.plugins.is_scanned() {
        let until = (ctx.received + ctx.max_queue).min(ctx.deadline);
        let scanned = tokio::time::timeout_at(until.into(), daemon.plugins.scanned());
        if demand.constraints.fail_if_not_ready || scanned.await.is_err() {
            let message = "the engine bundles are still being described; try again";
            return Err(ServiceError::model_loading(message).retry_after(SCANNING_RETRY_MS));
        }
    }
    lane_of(daemon, demand.model, Some(demand.kind)).await
}

/// The lane that a model or lane name stands for; with `wanted`, if it does that kind of work.
///
/// # Errors
/// The name is wrong, or no lane can serve it.
pub(super) async fn lane_of(
    daemon: &Arc<Daemon>,
    model: &str,
    wanted: Option<EngineKind>,
) -> Result<Arc<Lane>, ServiceError> {
    let selector = parse_model_id(model)?;
    let catalog = daemon.catalog();
    let bundles = daemon.plugins.bundles();
    let find = |installed: &[_]| {
        select(&catalog, &selector, wanted, &bundles, installed)
            .map(|choice| daemon.lanes.lane(&choice, daemon.threads_per_call))
    };
    match find(&daemon.installed()) {
        // What is installed may have changed since it was last read.
        Err(NoLane::NotInstalled { .. }) => {
            daemon.refresh_installed().await?;
            find(&daemon.installed()).map_err(ServiceError::from)
        }
        found => found.map_err(ServiceError::from),
    }
}

/// The loaded model, or why it does not serve now. Never waits for a load, and starts one where none has failed
/// (ERR-09, SCHED-10).
fn ready(daemon: &Arc<Daemon>, lane: &Arc<Lane>) -> Result<Arc<Loaded>, ServiceError> {
    match lane.standing() {
        Standing::Ready(loaded) => Ok(loaded),
        Standing::Failed(failure) => Err(failure),
        Standing::Idle | Standing::Loading => {
            let job = load::start(daemon, lane)?;
            let message = format!("{} is being loaded; try again", lane.record.id);
            Err(ServiceError::model_loading(message)
                .retry_after(LOADING_RETRY_MS)
                .detail(|detail| {
                    detail.model = Some(lane.record.id.clone());
                    detail.lane = Some(lane.name.clone());
                    detail.job_id = Some(job.to_string());
                }))
        }
    }
}
