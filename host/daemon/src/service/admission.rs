//! Admission of an engine request: constraints, lane, numeric space, readiness (API-04..08, CERT-01, CERT-10, SCHED-10).
//!
//! State: none. Callers: the embedding path, `rerank.score`, `microllm.oneshot`; `model.load` and its kin ask only for the
//! lane. A refusal changes nothing (API-05), and no engine has heard of the request when it comes. A request is decided on
//! one snapshot of certificates and one of the alias table, whose epoch its reply carries. Not known here: texts, what the
//! engine will do; the rules themselves (`synapse_core::route`).

use std::sync::Arc;

use synapse_catalog::{EnvelopeRow, Origin, Record, parse_model_id};
use synapse_core::alias::AliasTable;
use synapse_core::digest::Sha256Digest;
use synapse_core::engine::EngineKind;
use synapse_core::fingerprint::{ServedShape, numeric_profile_id};
use synapse_core::route::{
    self, Bar, Candidate, Certification, Level, Refusal, RefusalCode, Rules, SpaceField, Workload,
};
use synapse_wire::client::{Constraints, Placement, ServedBy};

use super::{RequestContext, ServiceError};
use crate::lane::certification::SizeClass;
use crate::lane::loaded::Loaded;
use crate::lane::profile::ShapeRefused;
use crate::lane::select::{Choice, NoLane, select_all};
use crate::lane::{Lane, Standing, load};
use crate::models::Installed;
use crate::state::Daemon;

/// The class of device that the engines of this machine run on.
pub(super) const DEVICE: &str = "cpu";
/// A choice is made again where the lane was replaced while it was made, so many times.
const CHOICES: usize = 4;
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
    /// It is one query on the hot path (FPR-05).
    pub query: bool,
}

impl Demand<'_> {
    /// What lanes are compared at.
    const fn workload(&self) -> Workload {
        match self.kind {
            EngineKind::Embed if self.query => Workload::Query,
            EngineKind::Embed => Workload::Batch,
            EngineKind::Rerank => Workload::Rerank,
            EngineKind::Generate => Workload::Generate,
        }
    }
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
    /// The alias table under which the request was admitted.
    pub table: Arc<AliasTable>,
    /// What the lane's certificate rests on; `None` where it serves without one.
    pub level: Option<Level>,
    /// The sizes of calls that it is certified for, where that is less than its envelope.
    pub class: Option<SizeClass>,
    /// The machine profile that certificates of the lane are for.
    pub machine_profile_hash: String,
    /// The request itself says how long it waits for its start.
    pub names_queue: bool,
}

/// A lane that was chosen for a request.
struct Chosen {
    lane: Arc<Lane>,
    shape: ServedShape,
    fingerprint: Sha256Digest,
    table: Arc<AliasTable>,
    certification: Certification,
    class: Option<SizeClass>,
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
    let chosen = choose(daemon, ctx, &demand, shape).await?;
    let loaded = ready(daemon, &chosen.lane).await?;
    chosen.lane.touch();
    Ok(Admitted {
        loaded,
        shape: chosen.shape,
        fingerprint: chosen.fingerprint.to_string(),
        table: chosen.table,
        level: chosen.certification.level(),
        class: chosen.class,
        machine_profile_hash: daemon.certificates.key_of(&chosen.lane).machine_profile_hash.clone(),
        lane: chosen.lane,
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

/// The lane that serves, decided by [`route::choose`] on what is known now.
async fn choose(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    demand: &Demand<'_>,
    shape: impl FnOnce(&Record) -> Result<ServedShape, ShapeRefused>,
) -> Result<Chosen, ServiceError> {
    let spaces = Spaces::read(demand)?;
    wait_for_bundles(daemon, ctx, demand).await?;
    let mut shape = Some(shape);
    let mut served = None;
    for _ in 0..CHOICES {
        let chosen = with_choices(daemon, demand.model, Some(demand.kind), |choices| {
            let shape = match (served, shape.take(), choices.first()) {
                (Some(shape), ..) => shape,
                (None, Some(shape), Some(choice)) => *served.insert(shape(choice.record)?),
                _ => return Err(ServiceError::internal("a choice without lanes")),
            };
            decide(daemon, demand, &spaces, choices, shape)
        })
        .await?;
        if let Some(chosen) = chosen {
            return Ok(chosen);
        }
    }
    Err(ServiceError::model_loading("the lane is being replaced; try again").retry_after(SCANNING_RETRY_MS))
}

/// Runs `work` on the lanes that could serve a model here; what is installed is read anew where nothing could.
async fn with_choices<T>(
    daemon: &Arc<Daemon>,
    model: &str,
    wanted: Option<EngineKind>,
    mut work: impl FnMut(&[Choice<'_>]) -> Result<T, ServiceError>,
) -> Result<T, ServiceError> {
    let selector = parse_model_id(model)?;
    let catalog = daemon.catalog();
    let bundles = daemon.plugins.bundles();
    let mut attempt = |installed: &[Installed]| match select_all(&catalog, &selector, wanted, &bundles, installed) {
        Ok(choices) => Ok(work(&choices)),
        Err(no_lane) => Err(no_lane),
    };
    match attempt(&daemon.installed()) {
        Err(NoLane::NotInstalled { .. }) => {
            daemon.refresh_installed().await?;
            attempt(&daemon.installed())?
        }
        outcome => outcome?,
    }
}

/// One decision. `None`: the lane was replaced meanwhile.
fn decide(
    daemon: &Daemon,
    demand: &Demand<'_>,
    spaces: &Spaces,
    choices: &[Choice<'_>],
    shape: ServedShape,
) -> Result<Option<Chosen>, ServiceError> {
    let field = Field::of(daemon, choices, demand.workload(), shape);
    let pinned = parse_model_id(demand.model)?.pin.is_some();
    let route_demand = spaces.demand(demand, pinned);
    let table = daemon.aliases.table();
    let candidates = field.candidates();
    let place = route::choose(&candidates, &route_demand, rules(daemon), &table)
        .map_err(|refusal| refused(&field, demand, refusal))?;
    let (fingerprint, certification) = (candidates[place].fingerprint, candidates[place].certification);
    let class = field.facts[place].class.clone();
    let lane = daemon.lanes.lane(&choices[place], daemon.threads_per_call);
    Ok(Arc::ptr_eq(&lane, &field.lanes[place]).then(|| Chosen {
        lane,
        shape,
        fingerprint,
        table,
        certification,
        class,
    }))
}

/// How strict this daemon is.
pub(super) fn rules(daemon: &Daemon) -> Rules {
    Rules {
        allow_uncertified: daemon.config.probe.allow_uncertified,
        knob: daemon.config.knob.into(),
    }
}

/// The lanes that could serve, in the catalog's order, with what the rules ask of each.
pub(super) struct Field {
    pub lanes: Vec<Arc<Lane>>,
    facts: Vec<Facts>,
}

struct Facts {
    fingerprint: Sha256Digest,
    certification: Certification,
    class: Option<SizeClass>,
    minimum: Level,
    by_name_only: bool,
    measured: [Option<route::Measured>; 2],
}

impl Field {
    /// Gathers what is known now about the lanes of these choices at one kind of work.
    pub(super) fn of(daemon: &Daemon, choices: &[Choice<'_>], workload: Workload, shape: ServedShape) -> Self {
        let catalog = daemon.catalog();
        let mut field = Self {
            lanes: Vec::with_capacity(choices.len()),
            facts: Vec::with_capacity(choices.len()),
        };
        for choice in choices {
            let lane = daemon.lanes.peek(choice, daemon.threads_per_call);
            let first: Option<&EnvelopeRow> = catalog.lanes(&lane.record.id).first().copied();
            let class = daemon.certificates.class_of(&lane);
            field.facts.push(Facts {
                fingerprint: lane.fingerprint_in(shape, class.as_ref().map(|class| class.name.as_str())),
                class,
                certification: daemon.certificates.certification_of(&lane),
                minimum: match lane.record.origin {
                    Origin::Builtin => daemon.config.probe.min_certificate,
                    Origin::Operator | Origin::Bundle(_) => daemon.config.probe.min_certificate_own,
                },
                by_name_only: first.is_some_and(|first| first.dtype != lane.row.dtype),
                measured: [workload, Workload::Batch].map(|work| daemon.certificates.measured(&lane, work)),
            });
            field.lanes.push(lane);
        }
        field
    }

    /// The candidates of the choice.
    pub(super) fn candidates(&self) -> Vec<Candidate<'_>> {
        let both = self.lanes.iter().zip(&self.facts);
        both.map(|(lane, facts)| Candidate {
            lane: &lane.name,
            fingerprint: facts.fingerprint,
            certification: facts.certification,
            minimum: facts.minimum,
            device: DEVICE,
            by_name_only: facts.by_name_only,
            measured: facts.measured[0],
            measured_batch: facts.measured[1],
        })
        .collect()
    }
}

/// The spaces that a request demands.
pub(super) struct Spaces {
    required: Option<Sha256Digest>,
    target: Option<Sha256Digest>,
}

impl Spaces {
    pub(super) fn read(demand: &Demand<'_>) -> Result<Self, ServiceError> {
        Ok(Self {
            required: fingerprint(
                "required_fingerprint",
                demand.constraints.required_fingerprint.as_deref(),
            )?,
            target: fingerprint("target_fingerprint", demand.target_fingerprint)?,
        })
    }

    pub(super) fn demand<'a>(&self, demand: &Demand<'a>, pinned: bool) -> route::Demand<'a> {
        let constraints = demand.constraints;
        route::Demand {
            required: self.required,
            allow_equivalent: constraints.allow_equivalent,
            target: self.target,
            required_epoch: constraints.required_epoch,
            device: constraints.require_device.as_deref(),
            query: demand.query,
            pinned,
        }
    }
}

/// A fingerprint as a request writes it.
pub(super) fn fingerprint(field: &str, text: Option<&str>) -> Result<Option<Sha256Digest>, ServiceError> {
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let message = format!("`{field}` is no fingerprint: expected 64 lower-case hex digits");
        ServiceError::invalid_params(message).detail(|detail| detail.field = Some(field.to_owned()))
    })
}

/// A refusal in public words. What it says of a space never depends on the alias table (API-06).
pub(super) fn refused(field: &Field, demand: &Demand<'_>, refusal: Refusal) -> ServiceError {
    match refusal {
        Refusal::Epoch { demanded, current } => {
            let message = format!("`required_epoch` is {demanded}, the alias table's epoch is {current}");
            ServiceError::substitution_rejected(message).detail(|detail| {
                detail.reason = Some("epoch_mismatch".to_owned());
                detail.table_epoch = Some(current);
            })
        }
        Refusal::NoCandidates => ServiceError::not_certified(format!("no lane could serve `{}`", demand.model)),
        Refusal::Barred {
            lane,
            bar,
            field: space,
        } => {
            let facts = &field.facts[lane];
            let lane = &field.lanes[lane];
            let message = match (bar, space) {
                (Bar::Device, _) => format!(
                    "`require_device` is {:?}; the lanes of this daemon run on {DEVICE:?}",
                    demand.constraints.require_device.as_deref().unwrap_or_default()
                ),
                (Bar::Space, space) => {
                    let (name, demanded) = match space {
                        Some(SpaceField::Target) => ("target_fingerprint", demand.target_fingerprint),
                        _ => (
                            "required_fingerprint",
                            demand.constraints.required_fingerprint.as_deref(),
                        ),
                    };
                    format!(
                        "`{name}` is {}; this lane serves {} in the shape asked for",
                        demanded.unwrap_or_default(),
                        facts.fingerprint
                    )
                }
                (bar, _) => words(bar, lane, facts.certification, facts.minimum),
            };
            let error = match bar.code() {
                RefusalCode::SubstitutionRejected => ServiceError::substitution_rejected(message),
                RefusalCode::NotCertified => ServiceError::not_certified(message),
                RefusalCode::ProbeRequired => ServiceError::probe_required(message),
            };
            error.detail(|detail| {
                detail.reason = Some(bar.as_str().to_owned());
                detail.field = match (bar, space) {
                    (Bar::Device, _) => Some("require_device".to_owned()),
                    (Bar::Space, Some(SpaceField::Target)) => Some("target_fingerprint".to_owned()),
                    (Bar::Space, _) => Some("required_fingerprint".to_owned()),
                    _ => None,
                };
                match bar {
                    Bar::Device => {}
                    Bar::Space => detail.fingerprint = Some(facts.fingerprint.to_string()),
                    _ => detail.lane = Some(lane.name.clone()),
                }
                if bar == Bar::Level {
                    detail.config = Some(minimum_setting(&lane.record).to_owned());
                }
            })
        }
    }
}

/// The setting that says what a record's lanes must show.
const fn minimum_setting(record: &Record) -> &'static str {
    match record.origin {
        Origin::Builtin => "probe.min_certificate",
        Origin::Operator | Origin::Bundle(_) => "probe.min_certificate_own",
    }
}

/// What stands in a lane's way, and what to do.
pub(super) fn words(bar: Bar, lane: &Lane, certification: Certification, minimum: Level) -> String {
    let name = &lane.name;
    match bar {
        Bar::ByNameOnly => format!(
            "{name} computes in {}, the model's first lane does not: it serves where it is named, or its fingerprint",
            lane.row.dtype
        ),
        Bar::Device => format!("{name} runs on {DEVICE:?}"),
        Bar::Unprobed => format!("{name} has no certificate on this machine; `synapse probe run {name}` makes one"),
        Bar::Level => format!(
            "the certificate of {name} is `{}`, and `{}` is `{minimum}`",
            certification.level().map_or("none", Level::as_str),
            minimum_setting(&lane.record),
        ),
        Bar::Stale => format!(
            "the certificate of {name} is for another machine profile, bundle, model or configuration than this one; \
             `synapse probe run {name}` makes a new one"
        ),
        Bar::Failed => format!(
            "{name} failed its last probe on this machine and stays closed; `synapse probe report` shows the figures, \
             `synapse probe run {name}` tries again"
        ),
        Bar::HotPath => format!(
            "{name} serves batches only: its probe found queries apart from the same texts in a batch; \
             `synapse probe report` shows how far"
        ),
        Bar::Space => format!("{name} serves another numeric space"),
    }
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
            machine_profile_hash: Some(self.machine_profile_hash.clone()),
            certification: self.level.map(|level| level.as_str().to_owned()),
        }
    }

    /// The numeric profile that is served: the lane's, or that of the class of call sizes which it is certified for.
    pub(super) fn numeric_profile_id(&self) -> String {
        match &self.class {
            None => self.lane.profile_id.to_string(),
            Some(class) => numeric_profile_id(&self.lane.profile_in(Some(&class.name))).to_string(),
        }
    }

    /// The fingerprints that are equivalent to the one served.
    pub(super) fn equivalent_to(&self) -> Vec<String> {
        let class = self.class.as_ref().map(|class| class.name.as_str());
        let served = self.lane.fingerprint_in(self.shape, class);
        self.table.equivalents(served).map(|space| space.to_string()).collect()
    }
}

/// While bundles are still being described, which lanes there are is not known: the request waits for it, within its
/// `max_queue_ms`, unless it is to fail at once (API-08).
async fn wait_for_bundles(daemon: &Daemon, ctx: &RequestContext, demand: &Demand<'_>) -> Result<(), ServiceError> {
    if daemon.plugins.is_scanned() {
        return Ok(());
    }
    let until = (ctx.received + ctx.max_queue).min(ctx.deadline);
    let scanned = tokio::time::timeout_at(until.into(), daemon.plugins.scanned());
    if demand.constraints.fail_if_not_ready || scanned.await.is_err() {
        let message = "the engine bundles are still being described; try again";
        return Err(ServiceError::model_loading(message).retry_after(SCANNING_RETRY_MS));
    }
    Ok(())
}

/// The lane that a model or lane name stands for when it is loaded or unloaded by hand: with `wanted`, if it does that kind
/// of work. A model's name stands for the lane that requests for it are served by, otherwise for its first one.
///
/// # Errors
/// The name is wrong, or no lane can serve it.
pub(super) async fn lane_of(
    daemon: &Arc<Daemon>,
    model: &str,
    wanted: Option<EngineKind>,
) -> Result<Arc<Lane>, ServiceError> {
    with_choices(daemon, model, wanted, |choices| {
        let place = served_place(daemon, choices).unwrap_or_default();
        let choice = choices
            .get(place)
            .ok_or_else(|| ServiceError::internal("a choice without lanes"))?;
        Ok(daemon.lanes.lane(choice, daemon.threads_per_call))
    })
    .await
}

/// The place of the lane that an unconstrained request would be served by.
fn served_place(daemon: &Daemon, choices: &[Choice<'_>]) -> Option<usize> {
    let record = choices.first()?.record;
    let shape = ServedShape {
        dims: record.dims,
        normalized: record.normalize,
    };
    let workload = match record.kind {
        synapse_catalog::Kind::Embed => Workload::Batch,
        synapse_catalog::Kind::Rerank => Workload::Rerank,
        synapse_catalog::Kind::Generate => Workload::Generate,
    };
    let field = Field::of(daemon, choices, workload, shape);
    let demand = route::Demand {
        pinned: choices.len() == 1,
        ..route::Demand::default()
    };
    route::choose(&field.candidates(), &demand, rules(daemon), &daemon.aliases.table()).ok()
}

/// The loaded model, or why it does not serve now. Never waits for a load, and starts one where none has failed
/// (ERR-09, SCHED-10).
async fn ready(daemon: &Arc<Daemon>, lane: &Arc<Lane>) -> Result<Arc<Loaded>, ServiceError> {
    match lane.standing() {
        Standing::Ready(loaded) => Ok(loaded),
        Standing::Failed(failure) => Err(failure),
        Standing::Idle | Standing::Loading => {
            let job = load::start_implied(daemon, lane).await?;
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
