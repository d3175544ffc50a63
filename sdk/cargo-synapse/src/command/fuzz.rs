//! `cargo synapse fuzz`: the kit's fuzzer against the bundle, and a batch again by its seed.
//!
//! No state. The kit starts this program for each batch.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use synapse_conformance::fuzz::{self, Batch};
use synapse_conformance::{Options, Outcome};

use crate::args::Fuzz;
use crate::error::Error;
use crate::output::Output;

#[derive(Serialize)]
struct Report {
    bundle: String,
    digest: String,
    passed: bool,
    batches: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    seed: String,
    outcome: &'static str,
    message: String,
    calls: Vec<String>,
}

/// Runs the batches. The exit code is 1 when one fails.
///
/// # Errors
/// As [`crate::bundle::pack`], and what the kit says.
pub fn run(arguments: &Fuzz, output: &Output) -> Result<ExitCode, Error> {
    let bundle = match &arguments.from.bundle {
        Some(folder) => folder.clone(),
        None => super::bundle(&arguments.from)?.folder,
    };
    let runner = std::env::current_exe().map_err(Error::io("cannot find", "this program"))?;
    let mut options = Options::new(bundle, runner);
    options.subject.clone_from(&arguments.subject);
    options.jobs = super::jobs(arguments.jobs);
    // A hasher's keys are drawn by the system: a seed of its own for each run, which is printed.
    let drawn = || RandomState::new().hash_one("seed");
    options.seed = arguments.reproduce.or(arguments.seed).unwrap_or_else(drawn);
    let mut job = fuzz::Fuzz::new(options);
    job.batches = if arguments.reproduce.is_some() {
        1
    } else {
        arguments.batches
    };
    job.calls = arguments.calls;
    job.options.time_limit = Duration::from_secs(arguments.time_limit);
    let found = fuzz::run(&job, &|batch| output.line(&line(batch, arguments.calls)))?;
    if arguments.reproduce.is_some() {
        let calls = found.batches.iter().flat_map(|batch| &batch.calls);
        calls.for_each(|call| output.line(call));
    }
    let nothing = found.batches.iter().all(|batch| batch.outcome == Outcome::Skip);
    if let Some(batch) = found.batches.first().filter(|_| nothing) {
        return Err(Error::Project(format!(
            "{}; name a model in conformance.toml, or in a file with --subject",
            batch.message
        )));
    }
    let passed = found.passed();
    let summary = format!(
        "\n{}: {} batches of {} calls, {} failed\ndigest {}",
        found.bundle,
        found.batches.len(),
        arguments.calls,
        found.batches.iter().filter(|batch| batch.outcome.is_bad()).count(),
        found.digest
    );
    let keep = |batch: &Batch| arguments.reproduce.is_some() || batch.outcome.is_bad();
    let rows = found.batches.iter().map(|batch| Row {
        seed: seed(batch),
        outcome: batch.outcome.name(),
        message: batch.message.clone(),
        calls: if keep(batch) { batch.calls.clone() } else { Vec::new() },
    });
    let report = Report {
        bundle: found.bundle.clone(),
        digest: found.digest.clone(),
        passed,
        batches: rows.collect(),
    };
    output.result(&summary, &report);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn seed(batch: &Batch) -> String {
    format!("{:#018x}", batch.seed)
}

/// One batch in a line; of one that failed, its last call and how to see it again.
fn line(batch: &Batch, calls: u32) -> String {
    let head = format!("{:5} seed {}", batch.outcome.name(), seed(batch));
    match batch.outcome {
        Outcome::Pass => head,
        Outcome::Skip => format!("{head}: {}", batch.message),
        _ => format!(
            "{head}: {}\n      {}\n      again: cargo synapse fuzz --reproduce {} --calls {calls}",
            batch.message,
            batch.calls.last().map_or("before the first call", String::as_str),
            seed(batch)
        ),
    }
}
