//! `cargo synapse check`: the conformance kit against the bundle.
//!
//! No state. The kit starts this program for each check.

use std::path::PathBuf;
use std::process::ExitCode;

use synapse_conformance::{Options, Outcome};

use crate::args::Check;
use crate::error::Error;
use crate::output::Output;

/// Runs the checks. The exit code is 1 when one fails.
///
/// # Errors
/// As [`crate::bundle::pack`], and what the kit says.
pub fn run(check: &Check, output: &Output) -> Result<ExitCode, Error> {
    // A bundle that is no good is the kit's to judge, so a folder that was named is not looked at first.
    let bundle = match &check.from.bundle {
        Some(folder) => folder.clone(),
        None => super::bundle(&check.from)?.folder,
    };
    let runner = std::env::current_exe().map_err(Error::io("cannot find", "this program"))?;
    let mut options = Options::new(bundle, runner);
    options.level = check
        .level
        .parse()
        .map_err(|_| Error::Usage(format!("--level {:?}: expected core, full, fault or perf", check.level)))?;
    options.only.clone_from(&check.only);
    options.seed = check.seed;
    options.jobs = super::jobs(check.jobs);
    options.subject.clone_from(&check.subject);
    options.worker = check.worker.clone().or_else(worker);
    let report = synapse_conformance::run(&options, &|line| {
        output.line(&line.to_string());
    })?;
    if let Some(file) = &check.junit {
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent).map_err(Error::io("cannot make", parent))?;
        }
        std::fs::write(file, report.to_junit()).map_err(Error::io("cannot write", file))?;
    }
    if output.is_json() {
        output.write(&report.to_json());
    } else {
        let counts = Outcome::ALL.map(|outcome| format!("{} {outcome}", report.count(outcome)));
        output.write(&format!(
            "\n{} {}, level {}, seed {}\ndigest {}\n{}",
            report.bundle,
            report.version,
            report.level,
            report.seed,
            report.digest,
            counts.join(", ")
        ));
    }
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `synapse-worker` in PATH, or beside this program.
fn worker() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.parent()?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let name = format!("synapse-worker{}", std::env::consts::EXE_SUFFIX);
    let folders = std::iter::once(beside).chain(std::env::split_paths(&path).collect::<Vec<_>>());
    folders.map(|folder| folder.join(&name)).find(|file| file.is_file())
}
