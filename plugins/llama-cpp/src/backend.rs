//! The llama.cpp backend of this process, and the CPU that it was built for.
//!
//! Owns the backend for the life of the process. Callers: the engines' constructors, `model`, `seat`. Knows no model.

use std::sync::OnceLock;

use llama_cpp_2::llama_backend::LlamaBackend;
use synapse_plugin_sdk::api::ext::environment::{Device, EnvironmentReport, FloorItem};
use synapse_plugin_sdk::prelude::*;

use crate::log;

static BACKEND: OnceLock<Result<LlamaBackend, String>> = OnceLock::new();

/// What ggml's kernels use without asking: its build for x86-64 names these unless it compiles for the machine that
/// builds, which ours does not. Each with whether this CPU has it.
#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<(&'static str, bool)> {
    vec![
        ("sse4.2", std::arch::is_x86_feature_detected!("sse4.2")),
        ("avx", std::arch::is_x86_feature_detected!("avx")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("bmi2", std::arch::is_x86_feature_detected!("bmi2")),
        ("f16c", std::arch::is_x86_feature_detected!("f16c")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
const fn cpu_features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

/// What the build needs of the machine, and what was found.
///
/// # Errors
/// None; the type is the SDK's.
pub fn environment() -> Result<EnvironmentReport, Error> {
    let floor = cpu_features().into_iter().map(|(name, met)| FloorItem {
        name: format!("cpu.{name}").into(),
        needed: "present".into(),
        found: if met { "present" } else { "" }.into(),
        met,
    });
    let cpu = Device {
        id: "cpu:0".into(),
        name: std::env::consts::ARCH.into(),
        kind: "cpu".into(),
        memory_bytes: 0,
    };
    Ok(EnvironmentReport {
        drivers: Vec::new().into(),
        devices: vec![cpu].into(),
        floor: floor.collect::<Vec<_>>().into(),
    })
}

/// Starts the backend. The first host gets llama.cpp's log lines.
///
/// # Errors
/// UNSUPPORTED when this CPU lacks instructions that the kernels use: the first of them would end the process.
pub fn start(host: Host) -> Result<(), Error> {
    let features = cpu_features().into_iter();
    let missing: Vec<_> = features.filter(|(_, met)| !met).map(|(name, _)| name).collect();
    if !missing.is_empty() {
        return Err(Error::unsupported(format!(
            "this build of llama.cpp needs {} of the CPU; use another engine",
            missing.join(", ")
        )));
    }
    log::install(host);
    backend().map(|_| ())
}

/// The backend.
///
/// # Errors
/// INTERNAL with llama.cpp's words.
pub fn backend() -> Result<&'static LlamaBackend, Error> {
    let made = BACKEND.get_or_init(|| LlamaBackend::init().map_err(|error| error.to_string()));
    made.as_ref()
        .map_err(|error| Error::internal(format!("llama.cpp did not start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The floor names what the kernels were compiled for; where all of it is met the backend starts.
    #[test]
    fn the_floor_decides_whether_the_backend_starts() {
        let floor = environment().unwrap().floor;
        if cfg!(target_arch = "x86_64") {
            for name in ["cpu.avx2", "cpu.f16c", "cpu.fma"] {
                assert!(floor.iter().any(|item| item.name == name), "{name}");
            }
        }
        assert!(floor.iter().all(|item| item.met == (item.found == "present")));
        let started = start(log::tests::host().host());
        assert_eq!(started.is_ok(), floor.iter().all(|item| item.met));
    }
}
