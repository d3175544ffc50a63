//! Every fault of a bundle, each met by the real loader and the real worker, in one test binary.
//!
//! A new way for a bundle to be bad goes into a table of `discovery.rs` when it shows before the bundle is opened,
//! and into `engine.rs` when it shows in a call. What a worker makes of a daemon's messages goes into `protocol.rs`.

#![forbid(unsafe_code)]

mod daemon;
mod discovery;
mod engine;
mod host;
mod placement;
mod protocol;
mod worker;

use std::path::{Path, PathBuf};

use synapse_faults::Stage;

/// Says that a test did not run, and why.
fn skip(why: &str) {
    use std::io::Write as _;
    // Written past the test harness, which would hide it.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// An empty place with the worker and the stress library that cargo built for this test.
fn stage() -> Stage {
    Stage::new(worker(), &library())
}

fn worker() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_synapse-worker-under-test"))
}

/// Cargo leaves a dependency's dynamic library beside the test binary.
fn library() -> PathBuf {
    let name = format!(
        "{}synapse_stress{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let test = std::env::current_exe().expect("the test binary has a path");
    test.with_file_name(name)
}
