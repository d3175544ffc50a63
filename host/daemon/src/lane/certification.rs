//! What each lane is certified for on this machine, as requests see it (CERT-04, CERT-08..12).
//!
//! State: [`Certificates`], a snapshot of the store's rows in memory. Callers: admission, the views of models and health,
//! `models.explain`; the probe writes rows through the store and then calls [`Certificates::reload`]. A row is found by
//! its exact key ([`Certificates::key_of`]) or not at all. Not known here: how a verdict comes about, SQL.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use synapse_certify::machine::{EngineBuild, MachineFacts, MachineProfile};
use synapse_core::canon::{Value, domain_hash};
use synapse_core::route::{Certification, Level, Measured, Workload};
use synapse_wire::client::ProbeFindings;

use super::Lane;
use crate::store::{CertificateKey, Store, StoreError};

/// Domain of the runtime configuration's hash.
const RUNTIME_DOMAIN: &str = "synapse.runtime_config.v1";

/// Drivers and backends with their versions, by name.
pub type Drivers = BTreeMap<String, String>;

/// The drivers that the operator declares, each as `NAME=VERSION`. They are marked as such, so that none passes for what
/// an engine reports itself.
#[must_use]
pub fn declared_drivers(setting: &[String]) -> Drivers {
    let declared = |entry: &String| {
        let (name, version) = entry.split_once('=').unwrap_or((entry, ""));
        (format!("declared {}", name.trim()), version.trim().to_owned())
    };
    setting.iter().map(declared).collect()
}

/// What the lanes of this machine are certified for. Cheap to clone; every clone is the same.
#[derive(Clone, Debug)]
pub struct Certificates {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    facts: MachineFacts,
    /// What the operator says of drivers, by name.
    drivers: Drivers,
    knob: &'static str,
    held: RwLock<Arc<Held>>,
    /// Reloads take turns, so that the last one to end has read the newest rows.
    turn: Mutex<()>,
    /// The key of each lane that was asked for, for the bundle and the profile it had.
    keys: Mutex<HashMap<String, Arc<CertificateKey>>>,
}

/// What a probe that passed allows.
#[derive(Clone, Debug)]
struct Passed {
    level: Level,
    hot_path: bool,
    class: Option<SizeClass>,
}

/// The sizes of engine calls that a lane is certified for, where the probe did not find all of its envelope to be of one
/// space: the class that holds single items. It is a space of its own (FPR-04).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// What enters the numeric profile.
    pub name: String,
    /// The most items of one engine call.
    pub max_items: u32,
}

/// The store's rows, as they are asked for.
#[derive(Debug, Default)]
struct Held {
    /// `None`: the probe failed.
    outcomes: HashMap<CertificateKey, Option<Passed>>,
    /// Lanes that ever passed a probe, under any key.
    passed: HashSet<String>,
    /// By workload, for the knob in force.
    speeds: HashMap<(CertificateKey, String), Measured>,
}

impl Certificates {
    /// Reads every row. `knob` is the one in force. Blocks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(store: &Store, facts: MachineFacts, drivers: Drivers, knob: &'static str) -> Result<Self, StoreError> {
        let certificates = Self {
            inner: Arc::new(Inner {
                facts,
                drivers,
                knob,
                held: RwLock::default(),
                turn: Mutex::default(),
                keys: Mutex::default(),
            }),
        };
        certificates.reload(store)?;
        Ok(certificates)
    }

    /// Reads every row anew and shows what is there to all from now on. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; what was known before stays.
    pub fn reload(&self, store: &Store) -> Result<(), StoreError> {
        let _turn = lock(&self.inner.turn);
        let mut held = Held::default();
        for row in store.certificates()? {
            if row.level.is_some() {
                held.passed.insert(row.lane);
            }
            let passed = row.level.zip(sizes(&row.verdict)).map(|(level, sizes)| Passed {
                level,
                hot_path: row.hot_path,
                class: match sizes {
                    Sizes::All => None,
                    Sizes::Class(class) => Some(class),
                },
            });
            held.outcomes.insert(row.key, passed);
        }
        for row in store.performance()? {
            if row.knob == self.inner.knob {
                let (speed, threads) = (row.speed, row.threads);
                held.speeds.insert((row.key, row.workload), Measured { speed, threads });
            }
        }
        *self.inner.held.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(held);
        Ok(())
    }

    /// The machine, whichever engine runs on it.
    #[must_use]
    pub fn machine(&self) -> &MachineFacts {
        &self.inner.facts
    }

    /// The drivers that the operator declares.
    #[must_use]
    pub fn drivers(&self) -> &Drivers {
        &self.inner.drivers
    }

    /// The machine as a lane's certificate sees it: with its engine's build (CERT-04).
    #[must_use]
    pub fn profile_of(&self, lane: &Lane) -> MachineProfile {
        let build = EngineBuild {
            identity: lane.profile.engine.clone(),
            package: package(lane),
            drivers: self.inner.drivers.clone(),
            devices: Vec::new(),
        };
        MachineProfile::new(&self.inner.facts, &build)
    }

    /// What a lane's certificate must hold for, as the lane is now (CERT-12).
    #[must_use]
    pub fn key_of(&self, lane: &Lane) -> Arc<CertificateKey> {
        let bundle_digest = lane.bundle.digest.map(|digest| digest.to_string()).unwrap_or_default();
        let numeric_profile_id = lane.profile_id.to_string();
        let mut keys = lock(&self.inner.keys);
        if let Some(key) = keys.get(&lane.name)
            && key.bundle_digest == bundle_digest
            && key.numeric_profile_id == numeric_profile_id
        {
            return Arc::clone(key);
        }
        let key = Arc::new(CertificateKey {
            machine_profile_hash: self.profile_of(lane).hash().to_string(),
            numeric_profile_id,
            bundle_digest,
            engine_version: package(lane),
            runtime_config_hash: runtime_config_hash(lane),
        });
        keys.insert(lane.name.clone(), Arc::clone(&key));
        key
    }

    /// What the lane's probe found, for exactly what runs now.
    #[must_use]
    pub fn certification_of(&self, lane: &Lane) -> Certification {
        let held = self.held();
        match held.outcomes.get(&*self.key_of(lane)) {
            Some(Some(passed)) => Certification::Certified {
                level: passed.level,
                hot_path: passed.hot_path,
            },
            Some(None) => Certification::Failed,
            None if held.passed.contains(&lane.name) => Certification::Stale,
            None => Certification::Unprobed,
        }
    }

    /// The sizes of calls that the lane is certified for, where that is less than its envelope.
    #[must_use]
    pub fn class_of(&self, lane: &Lane) -> Option<SizeClass> {
        let held = self.held();
        held.outcomes.get(&*self.key_of(lane))?.as_ref()?.class.clone()
    }

    /// How fast the lane was measured at a kind of work, under the knob in force.
    #[must_use]
    pub fn measured(&self, lane: &Lane, workload: Workload) -> Option<Measured> {
        let key = CertificateKey::clone(&self.key_of(lane));
        self.held().speeds.get(&(key, workload.as_str().to_owned())).copied()
    }

    fn held(&self) -> Arc<Held> {
        Arc::clone(&self.inner.held.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sizes of engine calls that a verdict allows.
enum Sizes {
    /// Those of the envelope.
    All,
    /// Those of one class.
    Class(SizeClass),
}

/// The sizes that are of one space with single items; `None` where no class holds those, so that nothing can be served.
fn sizes(verdict: &str) -> Option<Sizes> {
    let classes = ProbeFindings::from_text(verdict).unwrap_or_default().classes;
    if classes.is_empty() {
        return Some(Sizes::All);
    }
    let first = classes.into_iter().find(|class| class.from_items <= 1)?;
    let max_items = first.to_items;
    Some(match first.name {
        None => Sizes::All,
        Some(name) => Sizes::Class(SizeClass { name, max_items }),
    })
}

/// The package version of the lane's bundle.
fn package(lane: &Lane) -> String {
    let descriptor = lane.bundle.descriptor.as_ref();
    descriptor.map_or_else(String::new, |descriptor| descriptor.package_version.to_string())
}

/// The settings that an engine loads a lane with. Threads are not among them: where they move numbers, they are part of
/// the numeric profile. Placement moves none.
fn runtime_config_hash(lane: &Lane) -> String {
    let config = lane.runtime_config(1);
    let extra = config
        .extra
        .iter()
        .map(|(key, value)| Value::object([("key", Value::text(key)), ("value", Value::text(value))]));
    let value = Value::object([
        ("dtype", Value::text(&config.dtype)),
        ("extra", Value::Array(extra.collect())),
        ("format", Value::text(&config.format)),
        ("max_batch", Value::from(config.max_batch)),
        ("max_batch_tokens", Value::from(config.max_batch_tokens)),
        ("max_tokens", Value::from(config.max_tokens)),
        ("pooling", Value::text(&config.pooling)),
    ]);
    // Strings and 32-bit integers under ASCII keys always have a canonical form.
    domain_hash(RUNTIME_DOMAIN, &value).map_or_else(|_| String::new(), |digest| digest.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
