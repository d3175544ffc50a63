//! The alias table of the running daemon: one immutable snapshot after the other, and the pairs that Synapse itself
//! declares (ALIAS-01..05).
//!
//! State: [`Aliases`], the newest table. Callers: admission reads it once a request, so that a request meets one epoch;
//! the operations on aliases and the probe change it through here. A change is committed by the store before it is shown.
//! Not known here: what a measurement is, SQL.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use synapse_certify::machine::{EngineBuild, MachineFacts, MachineProfile};
use synapse_core::alias::{AliasTable, Origin, Pair};
use synapse_core::engine::EngineIdentity;
use synapse_core::fingerprint::ServedShape;

use super::Lane;
use super::certification::Drivers;
use crate::state::Daemon;
use crate::store::{NewAlias, PairMeasure, Store, StoreError};

/// The pair of day one (ALIAS-05): the engine and the stored weights of either side. Both compute in f32.
const BUILTIN: [(&str, &str); 2] = [("llama-cpp", "f16"), ("ort", "f32")];

/// The newest alias table. Cheap to clone; every clone is the same.
#[derive(Clone, Debug)]
pub struct Aliases {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    machine: String,
    newest: RwLock<Arc<AliasTable>>,
    /// Changes take turns, so that the table shown last is the newest.
    turn: Mutex<()>,
}

impl Aliases {
    /// Reads the table and brings it to this machine: pairs that were measured on another one lapse. Blocks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(store: &Store, facts: &MachineFacts, drivers: &Drivers) -> Result<Self, StoreError> {
        let machine = machine_hash(facts, drivers);
        let table = store.settle_aliases(machine.clone())?;
        Ok(Self {
            inner: Arc::new(Inner {
                machine,
                newest: RwLock::new(Arc::new(table)),
                turn: Mutex::default(),
            }),
        })
    }

    /// The newest table.
    #[must_use]
    pub fn table(&self) -> Arc<AliasTable> {
        Arc::clone(&self.inner.newest.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The machine that measurements of pairs hold for, as a hash: no engine's build is in it, because the spaces of a pair
    /// name their engines themselves.
    #[must_use]
    pub fn machine(&self) -> &str {
        &self.inner.machine
    }

    /// Declares pairs. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn declare(&self, store: &Store, pairs: Vec<NewAlias>) -> Result<(), StoreError> {
        self.change(|| store.declare_aliases(pairs).map(|table| (table, ())))
    }

    /// Retracts pairs; gives those that were open. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn retract(&self, store: &Store, pairs: Vec<Pair>, reason: String) -> Result<Vec<Pair>, StoreError> {
        self.change(|| store.retract_aliases(pairs, reason))
    }

    /// Keeps what the probe found about pairs on this machine. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn measured(&self, store: &Store, measures: Vec<PairMeasure>) -> Result<(), StoreError> {
        let machine = self.inner.machine.clone();
        self.change(|| store.measure_aliases(machine, measures).map(|table| (table, ())))
    }

    /// Commits a change and shows the table after it.
    fn change<T>(&self, commit: impl FnOnce() -> Result<(AliasTable, T), StoreError>) -> Result<T, StoreError> {
        let _turn = self.inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (table, value) = commit()?;
        *self.inner.newest.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        Ok(value)
    }
}

/// The pair of day one for every model that has both of its lanes here, where it does not stand in the table yet.
pub fn undeclared_builtin(daemon: &Daemon) -> Vec<NewAlias> {
    let (catalog, table) = (daemon.catalog(), daemon.aliases.table());
    let mut pairs = Vec::new();
    for record in catalog.records() {
        let lanes = daemon.lanes_of(&record.id);
        let sides = BUILTIN.map(|(engine, quant)| {
            lanes
                .iter()
                .find(|lane| lane.row.engine == engine && lane.row.quant == quant && lane.row.dtype == "f32")
        });
        if let [Some(first), Some(second)] = sides {
            pairs.extend(pairs_of(first, second, Origin::Builtin));
        }
    }
    pairs.retain(|new| table.rows().iter().all(|row| row.pair != new.pair));
    pairs
}

/// One pair for each shape in which both lanes serve their model; none where the two are one space.
pub fn pairs_of(a: &Lane, b: &Lane, origin: Origin) -> Vec<NewAlias> {
    let record = &a.record;
    let lengths = record.dimensions.iter().chain([&record.dims]);
    let shapes = lengths.flat_map(|&dims| [true, false].map(|normalized| ServedShape { dims, normalized }));
    shapes
        .filter(|shape| shape.normalized || !record.output_normalized)
        .filter_map(|shape| {
            let spaces = [a.fingerprint(shape), b.fingerprint(shape)];
            let pair = Pair::new(spaces[0], spaces[1])?;
            let mut lanes = [a.name.clone(), b.name.clone()];
            if pair.first() != spaces[0] {
                lanes.reverse();
            }
            Some(NewAlias {
                pair,
                lanes,
                model: record.id.clone(),
                shape,
                origin,
            })
        })
        .collect()
}

/// The hash of the machine without any engine.
fn machine_hash(facts: &MachineFacts, drivers: &Drivers) -> String {
    let none = EngineBuild {
        identity: EngineIdentity {
            engine: String::new(),
            version: String::new(),
            build_flags: Vec::new(),
        },
        package: String::new(),
        drivers: drivers.clone(),
        devices: Vec::new(),
    };
    MachineProfile::new(facts, &none).hash().to_string()
}
