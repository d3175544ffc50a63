//! What the tests share: daemons, a raw client, a scripted source of model files, and test models.

pub mod cli;
pub mod client;
pub mod daemon;
pub mod models;
#[cfg(target_os = "linux")]
pub mod mount;
pub mod source;
pub mod toys;
pub mod vectors;
pub mod zoo;

use std::path::{Path, PathBuf};

/// How long anything may take before it counts as hung: far longer than it ever takes.
pub const HANG: std::time::Duration = std::time::Duration::from_secs(120);

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate lies two folders deep")
        .to_owned()
}

/// A folder of the fixtures.
pub fn fixtures(part: &str) -> PathBuf {
    repository().join("tests/fixtures").join(part)
}

/// The folder where `make setup-model` keeps a wheel, where it is there.
pub fn wheels(name: &str) -> Option<PathBuf> {
    let from_env = std::env::var_os("SYNAPSE_CACHE_DIR").map(|folder| PathBuf::from(folder).join("wheels"));
    let in_repository = Some(repository().join(".synapse/cache/wheels"));
    [from_env, in_repository]
        .into_iter()
        .flatten()
        .find(|folder| folder.join(name).is_file())
}

/// Says that a test did not run, and why: a skipped test must be seen.
pub fn skipped(test: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}
