//! The machine profile: what has to be the same for a certificate to hold (CERT-04..08).
//!
//! State: none; a profile is a value. Callers: the daemon keys certificates and figures by [`MachineProfile::hash`], one
//! profile a lane, since the engine's build and its drivers are part of it. What is volatile (names of hosts, boot ids,
//! clock rates, free memory, load) is never an input. A changed hash finds no rows: nothing is migrated.
//!
//! | question | file |
//! |---|---|
//! | what do the system's files say | `facts.rs` |
//! | which Neural Engine has a chip | `chip.rs` |

mod chip;
mod facts;

use std::collections::BTreeMap;

use synapse_core::canon::{Value, domain_hash};
use synapse_core::digest::Sha256Digest;
use synapse_core::engine::EngineIdentity;

pub use chip::ane_subtype;
pub use facts::MachineFacts;

/// Domain of [`MachineProfile::hash`].
pub const DOMAIN: &str = "synapse.machine_profile.v1";

/// What one engine's bundle says about itself and what it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineBuild {
    /// The numeric identity.
    pub identity: EngineIdentity,
    /// The bundle's package version.
    pub package: String,
    /// Drivers and backends with their versions, as `synapse.environment/1` reports them; empty without that extension.
    pub drivers: BTreeMap<String, String>,
    /// Ids of the devices it reports, other than the CPU.
    pub devices: Vec<String>,
}

/// The machine as a certificate sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineProfile {
    /// The system's build: name, version, kernel.
    pub os_build: String,
    /// Drivers and backends with their versions.
    pub drivers: BTreeMap<String, String>,
    /// Ids of display and compute devices, sorted; two of a kind stand twice.
    pub gpus: Vec<String>,
    /// The features of the CPU that move numbers, sorted.
    pub cpu_features: Vec<String>,
    /// The memory's size class, for example `32g`.
    pub ram_class: String,
    /// The engine's build: `NAME VERSION (PACKAGE) FLAGS`.
    pub engine_build: String,
    /// The Neural Engine's family, where the chip is known; only on macOS.
    pub ane_subtype: Option<String>,
}

impl MachineProfile {
    /// The profile of one engine on this machine.
    #[must_use]
    pub fn new(facts: &MachineFacts, engine: &EngineBuild) -> Self {
        let identity = &engine.identity;
        let mut flags = identity.build_flags.clone();
        flags.sort();
        flags.dedup();
        let mut gpus: Vec<String> = facts.gpus.iter().chain(&engine.devices).cloned().collect();
        gpus.sort();
        let mut cpu_features = facts.cpu_features.clone();
        cpu_features.sort();
        cpu_features.dedup();
        let build = format!("{} {} ({})", identity.engine, identity.version, engine.package);
        Self {
            os_build: facts.os_build.clone(),
            drivers: engine.drivers.clone(),
            gpus,
            cpu_features,
            ram_class: ram_class(facts.memory_bytes),
            engine_build: flags.iter().fold(build, |build, flag| format!("{build} {flag}")),
            ane_subtype: facts.chip.as_deref().and_then(ane_subtype).map(str::to_owned),
        }
    }

    /// The hash that certificates and figures are kept under.
    ///
    /// # Panics
    /// Never: the form holds strings under ASCII keys only.
    #[must_use]
    pub fn hash(&self) -> Sha256Digest {
        domain_hash(DOMAIN, &self.form()).expect("a machine profile holds strings under ASCII keys")
    }

    /// The inputs by name, for people.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let drivers: Vec<String> = self
            .drivers
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        let mut facts = vec![
            ("os_build", self.os_build.clone()),
            ("drivers", drivers.join(", ")),
            ("gpus", self.gpus.join(", ")),
            ("cpu_features", self.cpu_features.join(" ")),
            ("ram_class", self.ram_class.clone()),
            ("engine_build", self.engine_build.clone()),
        ];
        facts.extend(self.ane_subtype.iter().map(|subtype| ("ane_subtype", subtype.clone())));
        facts
    }

    /// The canonical form. An absent `ane_subtype` is left out, so that machines without one keep their hash (CERT-07).
    fn form(&self) -> Value {
        let list = |texts: &[String]| Value::Array(texts.iter().map(Value::text).collect());
        let drivers = self
            .drivers
            .iter()
            .map(|(name, version)| Value::object([("name", Value::text(name)), ("version", Value::text(version))]));
        let mut pairs = vec![
            ("cpu_features", list(&self.cpu_features)),
            ("drivers", Value::Array(drivers.collect())),
            ("engine_build", Value::text(&self.engine_build)),
            ("gpus", list(&self.gpus)),
            ("os_build", Value::text(&self.os_build)),
            ("ram_class", Value::text(&self.ram_class)),
        ];
        if let Some(subtype) = &self.ane_subtype {
            pairs.push(("ane_subtype", Value::text(subtype)));
        }
        Value::object(pairs)
    }
}

/// The smallest power of two of GiB that holds the memory: what a kernel keeps for itself does not move it.
fn ram_class(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => format!("{}g", bytes.div_ceil(1 << 30).max(1).next_power_of_two()),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> MachineFacts {
        MachineFacts {
            os_build: "linux debian 13 6.12.1".to_owned(),
            gpus: vec!["pci:10de:2335".to_owned()],
            cpu_features: vec!["fma".to_owned(), "avx2".to_owned()],
            memory_bytes: Some(24_000_000_000),
            chip: None,
        }
    }

    fn engine() -> EngineBuild {
        EngineBuild {
            identity: EngineIdentity {
                engine: "owned".to_owned(),
                version: "1".to_owned(),
                build_flags: vec!["b".to_owned(), "a".to_owned()],
            },
            package: "0.1.0".to_owned(),
            drivers: BTreeMap::from([("cuda".to_owned(), "13.0".to_owned())]),
            devices: Vec::new(),
        }
    }

    fn hash(facts: &MachineFacts, engine: &EngineBuild) -> String {
        MachineProfile::new(facts, engine).hash().to_string()
    }

    /// The values are SHA-256 of `synapse.machine_profile.v1`, a zero byte, and the form, made with Python's hashlib.
    ///
    /// Proves CERT-07.
    #[test]
    fn the_hash_is_golden_with_and_without_the_optional_field() {
        let mut profile = MachineProfile::new(&facts(), &engine());
        assert_eq!(profile.ane_subtype, None);
        assert_eq!(
            profile.hash().to_string(),
            "cfe96696df4d65cfa7228115e411646db4faac12b64569b50d3ff05cfbd07289"
        );
        profile.ane_subtype = Some("h16(map)".to_owned());
        assert_eq!(
            profile.hash().to_string(),
            "8c5e8d2bdb4797957bcd23526c804195d5ac86aa5d9e09b4bbcd0d521f4dc950"
        );
    }

    /// Proves CERT-04, CERT-08.
    #[test]
    fn every_input_moves_the_hash() {
        let base = hash(&facts(), &engine());
        let mut seen = vec![base.clone()];
        let fact_edits: [fn(&mut MachineFacts); 5] = [
            |facts| facts.os_build.push('0'),
            |facts| facts.gpus.push("pci:10de:2335".to_owned()),
            |facts| facts.cpu_features.truncate(1),
            |facts| facts.memory_bytes = Some(40_000_000_000),
            |facts| facts.chip = Some("Apple M4".to_owned()),
        ];
        for edit in fact_edits {
            let mut facts = facts();
            edit(&mut facts);
            seen.push(hash(&facts, &engine()));
        }
        let engine_edits: [fn(&mut EngineBuild); 7] = [
            |engine| engine.identity.engine.push('0'),
            |engine| engine.identity.version.push('0'),
            |engine| engine.identity.build_flags.truncate(1),
            |engine| engine.package.push('0'),
            |engine| {
                engine.drivers.insert("cuda".to_owned(), "13.1".to_owned());
            },
            |engine| engine.drivers.clear(),
            |engine| engine.devices.push("npu:0".to_owned()),
        ];
        for edit in engine_edits {
            let mut engine = engine();
            edit(&mut engine);
            seen.push(hash(&facts(), &engine));
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "two of them hash alike");
    }

    /// Order of flags, features and devices is nobody's choice; neither is what a kernel keeps of the memory.
    #[test]
    fn what_says_nothing_does_not_move_the_hash() {
        let base = hash(&facts(), &engine());
        let mut facts = facts();
        facts.cpu_features.reverse();
        facts.memory_bytes = Some(31 << 30);
        let mut engine = engine();
        engine.identity.build_flags = vec!["a".to_owned(), "b".to_owned(), "a".to_owned()];
        assert_eq!(hash(&facts, &engine), base);
        for (bytes, class) in [
            (Some(1), "1g"),
            (Some(1 << 30), "1g"),
            (Some(17 << 30), "32g"),
            (Some(32 << 30), "32g"),
            (None, "unknown"),
        ] {
            assert_eq!(ram_class(bytes), class);
        }
    }
}
