//! `synapse probe run [MODEL…]`: measures lanes on this machine and shows what came out.
//!
//! No state. Stopping this command leaves the job running; `synapse jobs cancel ID` stops it.

use synapse_client::Client;
use synapse_client::wire::{JobResult, JobView, ProbeReportParams, ProbeReportResult, ProbeStartParams, ProbeState};

use super::table::{self, Detail};
use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::progress;
use crate::session::{self, Patience};
use crate::style::clean;

/// Starts the job, follows it, and prints the report of its lanes; fails where a lane did.
pub async fn run(global: &Global, models: Vec<String>, no_wait: bool, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    if no_wait {
        let accepted = client.probe_start(&ProbeStartParams { models }).await?.result;
        return output.value(&accepted, |accepted, _| format!("{}\n", clean(&accepted.job_id)));
    }
    let report = probe(&client, models).await?;
    output.value(&report.table, |report, style| {
        table::render(report, Detail::Failed, style)
    })?;
    verdict(&report.view)
}

/// A finished probe, and the report of its lanes.
pub struct Finished {
    /// The job's end.
    pub view: JobView,
    /// What was measured.
    pub table: ProbeReportResult,
}

/// Probes and waits.
///
/// # Errors
/// The probe could not be started or did not get to its end.
pub async fn probe(client: &Client, models: Vec<String>) -> Result<Finished, CliError> {
    let accepted = client.probe_start(&ProbeStartParams { models }).await?.result;
    let view = progress::follow(client, &accepted.job_id).await?;
    let models = lanes(&view, |_| true);
    let table = client.probe_report(&ProbeReportParams { models }).await?.result;
    Ok(Finished { view, table })
}

/// The lanes of a finished probe in one of these states.
pub fn lanes(view: &JobView, wanted: impl Fn(ProbeState) -> bool) -> Vec<String> {
    match &view.result {
        Some(JobResult::Probe(outcome)) => outcome
            .probed
            .iter()
            .filter(|lane| wanted(lane.state))
            .map(|lane| lane.lane.clone())
            .collect(),
        _ => Vec::new(),
    }
}

/// Fails where a lane of the probe is not certified.
fn verdict(view: &JobView) -> Result<(), CliError> {
    let failed = lanes(view, |state| state != ProbeState::Certified);
    match failed.as_slice() {
        [] => Ok(()),
        [lane] => Err(CliError::Found(format!("{lane} is not certified and stays closed"))),
        lanes => {
            let words = format!(
                "{} lanes are not certified and stay closed: {}",
                lanes.len(),
                lanes.join(", ")
            );
            Err(CliError::Found(words))
        }
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::JobState;
    use synapse_client::wire::{JobKind, JobProgress, ProbeOutcome, ProbedLane};

    use super::*;

    fn view(states: &[(&str, ProbeState)]) -> JobView {
        let probed = states.iter().map(|(lane, state)| ProbedLane {
            lane: (*lane).to_owned(),
            state: *state,
            level: None,
            reason: None,
        });
        serde_json::from_value(serde_json::json!({
            "job_id": "j", "kind": JobKind::Probe, "state": JobState::Done, "progress": JobProgress::default(),
            "created_ms": 0, "updated_ms": 0,
            "result": ProbeOutcome { probed: probed.collect() },
        }))
        .unwrap()
    }

    #[test]
    fn a_lane_that_failed_is_an_error_that_names_it() {
        assert!(verdict(&view(&[("a", ProbeState::Certified)])).is_ok());
        let one = verdict(&view(&[("a", ProbeState::Certified), ("b", ProbeState::Failed)])).unwrap_err();
        assert_eq!(one.to_string(), "b is not certified and stays closed");
        assert_eq!(one.exit_code(), crate::error::PERMANENT);
        let two = verdict(&view(&[("a", ProbeState::Failed), ("b", ProbeState::Failed)])).unwrap_err();
        assert_eq!(two.to_string(), "2 lanes are not certified and stay closed: a, b");
    }
}
