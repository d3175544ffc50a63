//! `synapse plugin check ID`: the conformance kit against an installed bundle.
//!
//! No state. The kit starts this program anew for each check (`main` hands over to it first), so a bundle that crashes
//! or hangs costs one line. What a rule says is docs/plugin-contract.md and docs/worker-protocol.md.

use synapse_conformance::{Level, Options, Outcome};

use super::{find, look};
use crate::args::{Global, PluginCheck};
use crate::error::CliError;
use crate::output::Output;
use crate::style::{Style, clean};

/// Runs the checks and prints what they found. Fails where one did.
pub async fn run(global: &Global, check: PluginCheck, output: &mut Output) -> Result<(), CliError> {
    let level: Level = check
        .level
        .parse()
        .map_err(|_| CliError::Usage(format!("--level {:?}: expected core, full, fault or perf", check.level)))?;
    let sight = look(global, &check.bundle).await?;
    let bundle = find(&sight.plugins, &check.bundle.id)?;
    let runner = std::env::current_exe().map_err(|error| CliError::io("finding this program", error))?;
    let mut options = Options::new(&bundle.dir, runner);
    options.level = level;
    options.only = check.only;
    options.worker = Some(sight.places.worker.clone());
    let report = synapse_conformance::run(&options, &|_| {}).map_err(|error| CliError::Found(error.to_string()))?;
    let json: serde_json::Value =
        serde_json::from_str(&report.to_json()).map_err(|error| CliError::Internal(error.to_string()))?;
    output.value(&json, |_: &serde_json::Value, _: Style| {
        let lines: String = report
            .to_string()
            .lines()
            .map(|line| format!("{}\n", clean(line)))
            .collect();
        lines
    })?;
    if report.passed() {
        return Ok(());
    }
    let bad: usize = Outcome::ALL
        .into_iter()
        .filter(|outcome| outcome.is_bad())
        .map(|outcome| report.count(outcome))
        .sum();
    Err(CliError::Found(format!(
        "{} breaks the contract: {bad} checks failed",
        bundle.id
    )))
}
