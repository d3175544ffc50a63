//! The conformance kit against good bundles and bad ones: every rule has a check, every check a bundle that fails it.
//!
//! A new check needs an exhibit in `src/kit.rs`; a new rule of a contract needs a check. Both are compared here with the
//! documents and with the catalogue.

#![forbid(unsafe_code)]

mod daemon;
mod good;
mod rules;
mod table;
mod zoo;

use std::path::{Path, PathBuf};

use synapse_conformance::{Options, Report};
use synapse_faults::Stage;

/// Says that a test did not run, and why.
fn skip(why: &str) {
    use std::io::Write as _;
    // Written past the test harness, which would hide it.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn repository() -> PathBuf {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    found.expect("this crate lies two folders deep").to_owned()
}

fn worker() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_synapse-worker-under-test"))
}

/// Cargo leaves a dependency's dynamic library beside the test binary.
fn stage() -> Stage {
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let test = std::env::current_exe().expect("the test binary has a path");
    Stage::new(
        &worker(),
        &test.with_file_name(format!("{prefix}synapse_stress{suffix}")),
    )
}

/// What the kit checks a bundle with, at every level.
fn options(bundle: &Path) -> Options {
    let mut options = Options::new(bundle, env!("CARGO_BIN_EXE_synapse-conformance-under-test"));
    options.level = synapse_conformance::Level::Perf;
    options
}

fn run(options: &Options) -> Report {
    synapse_conformance::run(options, &|_| {}).expect("a report")
}
