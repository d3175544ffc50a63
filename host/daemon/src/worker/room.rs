//! The supervisors of the daemon: one for each lane whose bundle runs in a worker.
//!
//! State: the supervisors by lane, and their quarantines as the store has them. Callers: `plugins` asks for a lane's
//! supervisor, the daemon refreshes them and stops them. Not known here: requests, and why a bundle may not run in the
//! daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use synapse_core::engine::EngineKind;
use synapse_core::supervision::crash::CrashLimits;
use synapse_core::supervision::exchange::Budgets;
use synapse_loader::{Bundle, BundleDigest, Descriptor};
use synapse_wire::worker::message::{BundleHello, EngineHello};

use super::engine::wire_kind;
use super::launch::Plan;
use super::supervisor::{Limits, ModelKey, Quarantine, Supervisor};
use crate::config::Config;
use crate::paths::DataDir;
use crate::store::{QuarantineRow, Store, StoreError};
use crate::task::Tasks;

/// The most characters of a bundle's id in a worker's name: the name is part of a socket's path, which is short.
const ID_IN_NAME: usize = 16;

/// How workers are started and bounded: the same for every lane.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// The worker program.
    pub program: PathBuf,
    /// The private folder of their sockets.
    pub socket_dir: PathBuf,
    /// Bounds of exchanges, deaths and exits.
    pub limits: Limits,
    /// One budget for spawn, connection, HELLO and HELLO_ACK.
    pub handshake: Duration,
    /// The largest frame that this side takes, in bytes.
    pub max_frame: u32,
    /// Output lines a second of one worker that reach the log.
    pub log_lines_per_second: u32,
}

impl WorkerSettings {
    /// The settings of a configuration.
    #[must_use]
    pub fn new(config: &Config, program: PathBuf, data: &DataDir) -> Self {
        const MILLI: u64 = 1_000_000;
        let worker = &config.worker;
        let limits = Limits {
            budgets: Budgets {
                setup_silence: worker.setup_silence_ms * MILLI,
                inference_silence: worker.inference_silence_ms * MILLI,
                ceiling: worker.exchange_ceiling_ms * MILLI,
            },
            crash: CrashLimits {
                per_model: worker.crashes_per_model,
                per_lane: worker.crashes_per_lane,
                window: worker.crash_window_ms * MILLI,
                backoff: [worker.backoff_first_ms, worker.backoff_second_ms, worker.backoff_ms]
                    .map(|wait| wait * MILLI)
                    .to_vec(),
            },
            exit: Duration::from_millis(worker.exit_ms),
        };
        Self {
            program,
            socket_dir: data.worker_sockets(),
            limits,
            handshake: Duration::from_millis(worker.handshake_ms),
            max_frame: worker.max_frame_bytes,
            log_lines_per_second: config.log.worker_forward_lines_per_sec,
        }
    }
}

/// The supervisors by lane.
#[derive(Debug)]
pub struct Workers {
    settings: WorkerSettings,
    tasks: Tasks,
    store: Store,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    /// Supervisors made so far, for their names.
    made: u64,
    /// One for each lane; two while a version of its bundle takes over from another.
    by_lane: BTreeMap<(String, BundleDigest), Arc<Supervisor>>,
}

impl Workers {
    /// No supervisors yet. Removes what workers of an earlier, killed daemon left in the folder of sockets, which belongs
    /// to this data directory alone.
    #[must_use]
    pub fn new(settings: WorkerSettings, tasks: Tasks, store: Store) -> Self {
        // What cannot be removed is met, with words, when a socket is bound.
        let _ = std::fs::remove_dir_all(&settings.socket_dir);
        Self {
            settings,
            tasks,
            store,
            lanes: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The supervisor of a lane, made on first use and made anew for another version of the bundle. Blocks: reads which
    /// models are quarantined.
    ///
    /// # Errors
    /// The store cannot say that.
    pub fn supervisor(
        &self,
        lane: &str,
        bundle: &Bundle,
        digest: BundleDigest,
        descriptor: &Descriptor,
        staged: PathBuf,
    ) -> Result<Arc<Supervisor>, StoreError> {
        let mut lanes = self.lock();
        let place = (lane.to_owned(), digest);
        if let Some(supervisor) = lanes.by_lane.get(&place) {
            return Ok(Arc::clone(supervisor));
        }
        let quarantine = LaneQuarantine::read(self.store.clone(), digest.to_string(), lane.to_owned())?;
        lanes.made += 1;
        let short: String = bundle.id.chars().take(ID_IN_NAME).collect();
        let plan = Plan {
            program: bundle.worker_program(&self.settings.program),
            bundle: staged,
            socket_dir: self.settings.socket_dir.clone(),
            expected_bundle: BundleHello {
                id: bundle.id.clone(),
                version: descriptor.package_version.to_string(),
            },
            expected_engines: hello_engines(descriptor),
            settings: bundle.config.clone(),
            handshake: self.settings.handshake,
            max_frame: self.settings.max_frame,
            log_lines_per_second: self.settings.log_lines_per_second,
        };
        let supervisor = Supervisor::new(
            format!("{short}-{}", lanes.made),
            plan,
            self.settings.limits.clone(),
            self.tasks.clone(),
            Arc::new(quarantine),
        );
        // Of the lane's other versions only those count that still run: they end what they have begun.
        lanes
            .by_lane
            .retain(|(name, _), other| name != lane || other.status().pid.is_some());
        lanes.by_lane.insert(place, Arc::clone(&supervisor));
        Ok(supervisor)
    }

    /// Ends the worker of a lane's version that was replaced or removed. A version that came back meanwhile, and holds
    /// its model again, is left alone. Blocks until it has ended.
    pub fn retire(&self, lane: &str, digest: BundleDigest) {
        let place = (lane.to_owned(), digest);
        let mut lanes = self.lock();
        let retired = match lanes.by_lane.get(&place) {
            Some(supervisor) if !supervisor.holds_models() => lanes.by_lane.remove(&place),
            _ => None,
        };
        drop(lanes);
        if let Some(supervisor) = retired {
            supervisor.stop(self.settings.limits.exit);
        }
    }

    /// Every supervisor.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Supervisor>> {
        let lanes = self.lock();
        lanes.by_lane.values().map(Arc::clone).collect()
    }

    /// Asks every idle worker how it is (HEALTH-06). Each question is a task of its own: a worker that does not answer
    /// holds up nobody, and is not asked again meanwhile.
    pub fn refresh(&self) {
        for supervisor in self.all() {
            drop(self.tasks.blocking("worker-refresh", move || supervisor.refresh()));
        }
    }

    /// Ends every worker: in order where it is or becomes idle within `patience`, by force otherwise. Blocks until all
    /// have ended.
    pub fn stop(&self, patience: Duration) {
        let stops: Vec<_> = self
            .all()
            .into_iter()
            .map(|supervisor| {
                let last = Arc::clone(&supervisor);
                (
                    last,
                    self.tasks.thread("worker-stop", move || supervisor.stop(patience)),
                )
            })
            .collect();
        for (supervisor, thread) in stops {
            match thread {
                // Its panic was logged.
                Ok(thread) => drop(thread.join()),
                Err(_) => supervisor.stop(patience),
            }
        }
    }
}

/// What HELLO must name: one row for each kind that the bundle was described with.
#[must_use]
pub fn hello_engines(descriptor: &Descriptor) -> Vec<EngineHello> {
    let mut kinds: Vec<EngineKind> = descriptor.supports.iter().map(|support| support.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
        .into_iter()
        .map(|kind| EngineHello {
            kind: wire_kind(kind),
            engine: descriptor.identity.engine.clone(),
            version: descriptor.identity.version.clone(),
            build_flags: descriptor.identity.build_flags.clone(),
        })
        .collect()
}

/// One lane's quarantine: in memory, where every call looks, and in the store, where it outlives the daemon.
struct LaneQuarantine {
    store: Store,
    digest: String,
    lane: String,
    rows: Mutex<Rows>,
}

/// The quarantined pairs with their reasons.
#[derive(Default)]
struct Rows {
    reasons: BTreeMap<ModelKey, String>,
    /// A probe tries the pairs: none is refused.
    set_aside: bool,
}

impl LaneQuarantine {
    fn read(store: Store, digest: String, lane: String) -> Result<Self, StoreError> {
        let rows = store.quarantined(&digest, &lane)?;
        let rows = Mutex::new(Rows {
            reasons: rows.into_iter().map(|row| (row.key, row.reason)).collect(),
            set_aside: false,
        });
        Ok(Self {
            store,
            digest,
            lane,
            rows,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quarantine for LaneQuarantine {
    fn reason(&self, key: &ModelKey) -> Option<String> {
        let rows = self.lock();
        rows.reasons.get(key).filter(|_| !rows.set_aside).cloned()
    }

    fn impose(&self, key: &ModelKey, reason: &str) {
        let mut rows = self.lock();
        rows.reasons.insert(key.clone(), reason.to_owned());
        rows.set_aside = false;
        drop(rows);
        let row = QuarantineRow {
            key: key.clone(),
            reason: reason.to_owned(),
        };
        if let Err(error) = self.store.quarantine(&self.digest, &self.lane, row) {
            tracing::error!(
                target: "synapse.worker", lane = self.lane, %error,
                "a quarantine cannot be kept: it ends with this run"
            );
        }
    }

    fn set_aside(&self) -> bool {
        let mut rows = self.lock();
        rows.set_aside = !rows.reasons.is_empty();
        rows.set_aside
    }

    fn put_back(&self) {
        self.lock().set_aside = false;
    }

    fn lift(&self) -> Vec<ModelKey> {
        let lifted: Vec<ModelKey> = std::mem::take(&mut *self.lock()).reasons.into_keys().collect();
        if lifted.is_empty() {
            return lifted;
        }
        match self.store.lift_quarantine(&self.digest, &self.lane) {
            Ok(()) => tracing::info!(target: "synapse.worker", lane = self.lane, "quarantine lifted"),
            Err(error) => tracing::error!(
                target: "synapse.worker", lane = self.lane, %error,
                "the quarantine is lifted for this run only"
            ),
        }
        lifted
    }
}
