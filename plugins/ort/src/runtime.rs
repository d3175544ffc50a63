//! The one onnxruntime environment of this process.
//!
//! Owns it for the life of the process: onnxruntime allows one, and a second build fails even after the first is
//! dropped. Callers: the engines' constructors.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;
use synapse_plugin_sdk::prelude::*;

static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// The environment, made at the first call from the library in the bundle.
///
/// # Errors
/// CONFIG_INVALID when the library is missing or too old.
pub fn environment(host: Host) -> Result<Environment, Error> {
    let mut kept = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(environment) = &*kept {
        return Ok(environment.clone());
    }
    let library = library(host)?;
    let fail = |error: String| {
        let library = library.display();
        Error::config_invalid(format!(
            "{library}: {error}; the bundle needs onnxruntime 1.24 or newer"
        ))
    };
    let environment = ort::init_from(&library)
        .map_err(|error| fail(error.to_string()))?
        .with_name("synapse")
        .with_telemetry(false)
        .build()
        .map_err(|error| fail(error.to_string()))?;
    *kept = Some(environment.clone());
    Ok(environment)
}

/// The runtime's library in the bundle, whatever version its name carries.
fn library(host: Host) -> Result<PathBuf, Error> {
    let folder = host.bundle_dir();
    let stem = if cfg!(windows) { "onnxruntime" } else { "libonnxruntime" };
    let is_runtime = |name: &str| {
        name.strip_prefix(stem).is_some_and(|rest| {
            rest.starts_with(".so") || rest.ends_with(".dylib") || rest.eq_ignore_ascii_case(".dll")
        })
    };
    let entries = std::fs::read_dir(&folder)
        .map_err(|error| Error::config_invalid(format!("cannot read the bundle {}: {error}", folder.display())))?;
    entries
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().to_str().is_some_and(is_runtime))
        .map(|entry| entry.path())
        .ok_or_else(|| {
            let folder = folder.display();
            Error::config_invalid(format!("{folder} holds no {stem}: take it from the onnxruntime wheel"))
        })
}
