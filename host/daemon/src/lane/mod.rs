//! Lanes: one model served by one engine, from the choice to the unload.
//!
//! State: the registry of lanes, each with its state, its loaded model and its last use; one turn for loads. Callers:
//! the operations on models and every operation that an engine serves, `health`. Not known here: sockets, requests, SQL.
//!
//! | question | file |
//! |---|---|
//! | which lanes could serve a model here, or why none | `select.rs` |
//! | what is a lane certified for | `certification.rs` |
//! | which lanes' spaces are equivalent | `equivalence.rs` |
//! | which numeric space is that | `profile.rs` |
//! | which state follows which | `state.rs` |
//! | how is a model loaded, unloaded, displaced | `load.rs`, `residency.rs` |
//! | what takes over when a bundle changes | `replace.rs` |
//! | what is a loaded model | `loaded.rs` |
//! | what does a request's work do on it | `work/` |
//! | what is made of the engine's numbers | `output.rs` |

pub mod certification;
pub mod equivalence;
pub mod load;
pub mod loaded;
pub mod output;
pub mod profile;
pub mod replace;
pub mod residency;
pub mod select;
pub mod state;
pub mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use synapse_catalog::{EnvelopeRow, Record};
use synapse_core::digest::Sha256Digest;
use synapse_core::engine::{EngineKind, EngineSupport, RuntimeConfig};
use synapse_core::fingerprint::{NumericProfile, ServedShape, fingerprint, numeric_profile_id};
use synapse_loader::Bundle;

use self::loaded::Loaded;
use self::select::Choice;
use self::state::{LaneEvent, LaneState};
use crate::models::Installed;
use crate::rpc::error::ServiceError;
use crate::schedule::ExecutorLoad;
use crate::worker::supervisor::Status;

/// The registry of lanes. Cheap to clone; every clone is the same registry.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    lanes: Mutex<BTreeMap<String, Arc<Lane>>>,
    /// Lanes that were looked at and never used. Taken after `lanes`.
    known: Mutex<BTreeMap<String, Arc<Lane>>>,
    /// Loads take turns: each may have to displace models, and two could displace each other's.
    turn: tokio::sync::Mutex<()>,
}

/// One model on one engine.
pub struct Lane {
    /// `MODEL@ENGINE:VARIANT`.
    pub name: String,
    /// The model.
    pub record: Record,
    /// The catalog's row.
    pub row: EnvelopeRow,
    /// The bundle.
    pub bundle: Bundle,
    /// What the bundle says about this kind, format and arithmetic.
    pub support: EngineSupport,
    /// The model's files.
    pub installed: Installed,
    /// The numeric space.
    pub profile: NumericProfile,
    /// Its id.
    pub profile_id: Sha256Digest,
    place: Mutex<Place>,
    moved: tokio::sync::Notify,
    shapes: Mutex<Vec<(ServedShape, Option<String>, Sha256Digest)>>,
    origin: Instant,
    used_nanos: AtomicU64,
    stamped_nanos: AtomicU64,
    /// A probe tries it after a quarantine.
    on_trial: AtomicBool,
}

#[derive(Debug)]
struct Place {
    state: LaneState,
    loaded: Option<Arc<Loaded>>,
    failure: Option<ServiceError>,
    since: Instant,
}

/// A lane's standing, for requests.
#[derive(Clone, Debug)]
pub enum Standing {
    /// It serves.
    Ready(Arc<Loaded>),
    /// Its load is under way, or it is leaving and will be loaded again.
    Loading,
    /// It is not in memory.
    Idle,
    /// Its load failed, or its engine is closed.
    Failed(ServiceError),
}

/// A lane's standing, for health: from memory only.
#[derive(Clone, Debug)]
pub struct LaneSnapshot {
    /// `MODEL@ENGINE:VARIANT`.
    pub name: String,
    /// The catalog id of the model.
    pub model: String,
    /// The state.
    pub state: LaneState,
    /// The queue and the engine's calls, while the model is in memory.
    pub load: ExecutorLoad,
    /// Why the last load failed, or why the engine is closed.
    pub failure: Option<ServiceError>,
    /// Time since the lane's state last changed or a request last used it.
    pub age: Duration,
    /// The fingerprint with the record's defaults.
    pub fingerprint: Sha256Digest,
    /// Its worker, while the model is in one.
    pub worker: Option<Status>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("name", &self.name)
            .field("state", &self.place().state)
            .finish_non_exhaustive()
    }
}

impl Lanes {
    /// No lanes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The lane of a choice, made on first use. A lane whose files or bundle have changed is made anew once it is not
    /// in memory; until then it serves what it has, whose files it holds.
    #[must_use]
    pub fn lane(&self, choice: &Choice<'_>, threads: u32) -> Arc<Lane> {
        let mut lanes = lock(&self.inner.lanes);
        let lane = self.find_or_make(&lanes, choice, threads);
        lanes.insert(lane.name.clone(), Arc::clone(&lane));
        lane
    }

    /// The lane of a choice, without using it: what it would be is known, and `health` does not show it.
    #[must_use]
    pub fn peek(&self, choice: &Choice<'_>, threads: u32) -> Arc<Lane> {
        self.find_or_make(&lock(&self.inner.lanes), choice, threads)
    }

    fn find_or_make(&self, lanes: &BTreeMap<String, Arc<Lane>>, choice: &Choice<'_>, threads: u32) -> Arc<Lane> {
        let name = choice.row.lane_name();
        let same = |lane: &Lane| {
            lane.bundle.digest == choice.bundle.digest
                && lane.installed.record().blobs().eq(choice.installed.record().blobs())
        };
        if let Some(lane) = lanes.get(&name)
            && (same(lane) || !matches!(lane.place().state, LaneState::Idle | LaneState::Failed))
        {
            return Arc::clone(lane);
        }
        let mut known = lock(&self.inner.known);
        if let Some(lane) = known.get(&name)
            && same(lane)
        {
            return Arc::clone(lane);
        }
        let lane = Arc::new(Lane::new(name.clone(), choice, threads));
        known.insert(name, Arc::clone(&lane));
        lane
    }

    /// The lane of this name, if it was ever used.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Lane>> {
        lock(&self.inner.lanes).get(name).cloned()
    }

    /// Every lane that was ever used, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Lane>> {
        lock(&self.inner.lanes).values().cloned().collect()
    }

    /// Requests that wait, over all lanes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let loads = self.all().into_iter().filter_map(|lane| lane.place().loaded.clone());
        loads
            .map(|loaded| loaded.executor.load())
            .map(|load| load.interactive_waiting + load.bulk_waiting)
            .sum()
    }

    /// Ends the work of every lane: the daemon stops. Running calls are cancelled at their next checkpoint.
    pub fn close(&self) {
        for loaded in self.all().into_iter().filter_map(|lane| lane.place().loaded.clone()) {
            loaded.executor.close("the daemon is stopping", true);
        }
    }

    /// Every lane's standing, from memory (HEALTH-01).
    #[must_use]
    pub fn snapshots(&self) -> Vec<LaneSnapshot> {
        self.all().iter().map(|lane| lane.snapshot()).collect()
    }
}

impl Lane {
    fn new(name: String, choice: &Choice<'_>, threads: u32) -> Self {
        let profile = profile::profile(choice, threads);
        Self {
            name,
            record: choice.record.clone(),
            row: choice.row.clone(),
            bundle: choice.bundle.clone(),
            support: choice.support.clone(),
            installed: choice.installed.clone(),
            profile_id: numeric_profile_id(&profile),
            profile,
            place: Mutex::new(Place {
                state: LaneState::Idle,
                loaded: None,
                failure: None,
                since: Instant::now(),
            }),
            moved: tokio::sync::Notify::new(),
            shapes: Mutex::new(Vec::new()),
            origin: Instant::now(),
            used_nanos: AtomicU64::new(0),
            stamped_nanos: AtomicU64::new(0),
            on_trial: AtomicBool::new(false),
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        lock(&self.place)
    }

    /// The longest text in tokens: the record's length, within the row's bounds.
    #[must_use]
    pub fn max_tokens(&self) -> u32 {
        self.record.max_tokens.min(self.row.bounds.max_tokens)
    }

    /// The kind of engine that the model needs.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        select::engine_kind(self.record.kind)
    }

    /// What the lane's engine is loaded with, for calls of so many threads.
    #[must_use]
    pub fn runtime_config(&self, threads: u32) -> RuntimeConfig {
        let bounds = self.row.bounds;
        let extra = self
            .row
            .flash_attention
            .then(|| ("flash_attention".to_owned(), "on".to_owned()));
        RuntimeConfig {
            format: self.row.format.clone(),
            dtype: self.row.dtype.clone(),
            pooling: self.record.pooling.name().to_owned(),
            max_tokens: bounds.max_tokens,
            max_batch: bounds.max_batch,
            max_batch_tokens: bounds.max_batch_tokens,
            threads,
            extra: extra.into_iter().collect(),
        }
    }

    /// The shape with the record's defaults. Scores and texts have no other one: 0 dimensions, not normalised.
    #[must_use]
    pub const fn default_shape(&self) -> ServedShape {
        ServedShape {
            dims: self.record.dims,
            normalized: self.record.normalize,
        }
    }

    /// The fingerprint of a shape, hashed once per shape.
    #[must_use]
    pub fn fingerprint(&self, shape: ServedShape) -> Sha256Digest {
        self.fingerprint_in(shape, None)
    }

    /// The fingerprint of a shape in one class of call sizes, where the probe has split the profile (FPR-04).
    #[must_use]
    pub fn fingerprint_in(&self, shape: ServedShape, class: Option<&str>) -> Sha256Digest {
        let mut shapes = lock(&self.shapes);
        let known = shapes
            .iter()
            .find(|(known, of, _)| *known == shape && of.as_deref() == class);
        if let Some((.., digest)) = known {
            return *digest;
        }
        let digest = fingerprint(&self.profile_in(class), &shape);
        // A record lists few lengths, each with and without normalisation; a probe finds few classes.
        shapes.push((shape, class.map(str::to_owned), digest));
        digest
    }

    /// The numeric profile of a class of call sizes.
    #[must_use]
    pub fn profile_in(&self, class: Option<&str>) -> NumericProfile {
        NumericProfile {
            shape_class: class.map(str::to_owned),
            ..self.profile.clone()
        }
    }

    /// Where the lane stands, for a request: one that is on trial is closed.
    #[must_use]
    pub fn standing(&self) -> Standing {
        if self.on_trial.load(Ordering::Acquire) {
            return Standing::Failed(on_trial(&self.name));
        }
        self.held()
    }

    /// The model in memory, whoever may use it.
    #[must_use]
    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        match self.held() {
            Standing::Ready(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Says that a probe tries the lane after a quarantine, or that it has ended.
    pub fn set_on_trial(&self, on_trial: bool) {
        self.on_trial.store(on_trial, Ordering::Release);
    }

    /// Where the lane stands, whoever asks.
    fn held(&self) -> Standing {
        let place = self.place();
        match (place.state, &place.loaded, &place.failure) {
            (LaneState::Ready, Some(loaded), _) if loaded.is_given_up() => Standing::Loading,
            (LaneState::Ready, Some(loaded), _) => match closed(loaded) {
                Some(failure) => Standing::Failed(failure),
                None => Standing::Ready(Arc::clone(loaded)),
            },
            (LaneState::Failed, _, Some(failure)) => Standing::Failed(failure.clone()),
            (LaneState::Loading | LaneState::Unloading, ..) => Standing::Loading,
            _ => Standing::Idle,
        }
    }

    /// Stamps a use: the model counts as busy from here on, for residency and health.
    pub fn touch(&self) {
        let now = self.nanos();
        self.used_nanos.store(now, Ordering::Relaxed);
        self.stamped_nanos.store(now, Ordering::Relaxed);
    }

    /// Where the lane stands, for health.
    #[must_use]
    pub fn snapshot(&self) -> LaneSnapshot {
        let place = self.place();
        let (state, loaded, failure) = (place.state, place.loaded.clone(), place.failure.clone());
        drop(place);
        let closed = loaded.as_ref().and_then(closed);
        let worker = loaded
            .as_ref()
            .and_then(|loaded| loaded.engine.supervisor())
            .map(|supervisor| supervisor.status());
        LaneSnapshot {
            name: self.name.clone(),
            model: self.record.id.clone(),
            state: if closed.is_some() { LaneState::Failed } else { state },
            load: loaded.map(|loaded| loaded.executor.load()).unwrap_or_default(),
            failure: closed.or(failure),
            age: Duration::from_nanos(self.nanos().saturating_sub(self.stamped_nanos.load(Ordering::Relaxed))),
            fingerprint: self.fingerprint(self.default_shape()),
            worker,
        }
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Time since the last use.
    fn unused(&self) -> Duration {
        Duration::from_nanos(self.nanos().saturating_sub(self.used_nanos.load(Ordering::Relaxed)))
    }

    /// Applies an event, with what comes with it. False where the state does not allow it; nothing has changed then.
    fn on(&self, event: LaneEvent, loaded: Option<Arc<Loaded>>, failure: Option<ServiceError>) -> bool {
        let mut place = self.place();
        let Some(next) = place.state.on(event) else {
            return false;
        };
        *place = Place {
            state: next,
            loaded,
            failure,
            since: Instant::now(),
        };
        drop(place);
        self.moved.notify_waiters();
        self.stamped_nanos.store(self.nanos(), Ordering::Relaxed);
        true
    }

    /// Waits until no unload is under way.
    async fn settled(&self) {
        loop {
            // Made before the look, so that no move is missed.
            let moved = self.moved.notified();
            if self.place().state != LaneState::Unloading {
                return;
            }
            moved.await;
        }
    }

    /// Takes the loaded model, if `leaves` says so, out of a ready lane; from here on nothing new reaches it.
    fn begin_unload(&self, leaves: impl FnOnce(&Loaded) -> bool) -> Option<Arc<Loaded>> {
        let mut place = self.place();
        if !place.loaded.as_ref().is_some_and(|loaded| leaves(loaded)) {
            return None;
        }
        let next = place.state.on(LaneEvent::UnloadBegins)?;
        let loaded = place.loaded.take();
        *place = Place {
            state: next,
            loaded: None,
            failure: None,
            since: Instant::now(),
        };
        loaded
    }
}

/// The failure of a lane that a probe tries after a quarantine.
fn on_trial(lane: &str) -> ServiceError {
    let message = format!("{lane} is quarantined; a probe tries it now (`synapse probe report` shows how that ends)");
    ServiceError::probe_required(message).detail(|detail| {
        detail.reason = Some("quarantined".to_owned());
        detail.lane = Some(lane.to_owned());
    })
}

/// The failure of a lane whose engine is closed.
fn closed(loaded: &Arc<Loaded>) -> Option<ServiceError> {
    let error = loaded.engine.closed()?;
    let failure = crate::rpc::convert::engine(error, crate::rpc::convert::Stage::Call).permanent();
    Some(failure.detail(|detail| detail.plugin = Some(loaded.engine.bundle().to_owned())))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
