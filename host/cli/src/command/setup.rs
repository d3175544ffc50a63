//! `synapse setup`: from a running daemon to a model that serves: fetched, probed, and what this machine can do with it.
//!
//! No state. Each step is skipped where it was done before, so the command may be repeated at any time; it never probes
//! again what was measured on this machine as it is.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use synapse_client::wire::{
    JobResult, LaneReport, LaneVerdict, ModelEntry, ModelKind, ModelState, ProbeOutcome, ProbeReportParams,
    ProbeReportResult, PullOutcome,
};
use synapse_client::{Client, ModelsPullParams};

use super::models::find;
use super::probe::table::{self, Detail};
use super::probe::{Finished, probe};
use crate::args::{Global, Setup};
use crate::error::CliError;
use crate::output::Output;
use crate::progress;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, bytes, clean};

/// What the command came to, for `--json`.
#[derive(Debug, Serialize)]
struct Done {
    /// The model, or the lane, that was asked for.
    model: String,
    /// What was fetched; absent where the files were here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pulled: Option<PullOutcome>,
    /// What was probed; absent where every lane had been.
    #[serde(skip_serializing_if = "Option::is_none")]
    probed: Option<ProbeOutcome>,
    /// The lanes that serve the model now.
    serves: Vec<String>,
    /// Everything that was measured of it.
    report: ProbeReportResult,
}

/// Fetches, probes and says what came out; fails where no lane may serve the model.
pub async fn run(global: &Global, setup: Setup, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let list = client.models_list().await?.result;
    let model = match setup.model {
        Some(model) => model,
        None => session::default_model(&list, ModelKind::Embed)?,
    };
    let entry = find(&list, &model)?;
    let pulled = match entry.state {
        ModelState::NotInstalled => {
            consent(entry, list.free_bytes, setup.yes, output)?;
            Some(pull(&client, &model).await?)
        }
        _ => None,
    };
    let mut report = report(&client, &model).await?;
    let open = unmeasured(&report.lanes);
    let mut probed = None;
    if !open.is_empty() {
        output.say(&format!(
            "probing {}: what is measured here decides what may serve",
            open.join(", ")
        ));
        let Finished { view, .. } = probe(&client, open).await?;
        probed = match view.result {
            Some(JobResult::Probe(outcome)) => Some(outcome),
            _ => None,
        };
        report = self::report(&client, &model).await?;
    }
    let serves = serving(&report.lanes);
    let done = Done {
        model,
        pulled,
        probed,
        serves,
        report,
    };
    output.value(&done, render)?;
    if done.serves.is_empty() {
        let message = format!(
            "no lane may serve {} on this machine; the table above says why",
            done.model
        );
        return Err(CliError::Found(message));
    }
    Ok(())
}

async fn report(client: &Client, model: &str) -> Result<ProbeReportResult, CliError> {
    let models = vec![model.to_owned()];
    Ok(client.probe_report(&ProbeReportParams { models }).await?.result)
}

/// Says what a download is, and on a terminal asks.
fn consent(model: &ModelEntry, free: Option<u64>, yes: bool, output: &Output) -> Result<(), CliError> {
    let free = free.map_or(String::new(), |free| format!(", {} free", bytes(free)));
    output.say(&format!(
        "{} ({}, {}{free}) is not on this machine and will be fetched",
        model.id,
        model.licence,
        bytes(model.size_bytes)
    ));
    if yes || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(());
    }
    let mut err = io::stderr().lock();
    let mut answer = String::new();
    write!(err, "go on? [Y/n] ")
        .and_then(|()| err.flush())
        .and_then(|()| io::stdin().read_line(&mut answer).map(drop))
        .map_err(|error| CliError::io("asking", error))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "" | "y" | "yes" => Ok(()),
        _ => Err(CliError::Usage("nothing was fetched".to_owned())),
    }
}

async fn pull(client: &Client, model: &str) -> Result<PullOutcome, CliError> {
    let params = ModelsPullParams {
        model: model.to_owned(),
        source: None,
        path: None,
        format: None,
    };
    let accepted = client.models_pull(&params).await?.result;
    match progress::follow(client, &accepted.job_id).await?.result {
        Some(JobResult::Pull(pulled)) => Ok(pulled),
        other => Err(CliError::Internal(format!("a pull ended with the result {other:?}"))),
    }
}

/// The lanes that were not measured here as they are now. One that was and failed is left alone: it would fail again,
/// and `synapse probe run` tries it where something has changed.
fn unmeasured(lanes: &[LaneReport]) -> Vec<String> {
    let open = |lane: &&LaneReport| matches!(lane.verdict, LaneVerdict::Unprobed | LaneVerdict::Stale);
    lanes.iter().filter(open).map(|lane| lane.lane.clone()).collect()
}

fn serving(lanes: &[LaneReport]) -> Vec<String> {
    let serves = |lane: &&LaneReport| lane.verdict == LaneVerdict::Certified && lane.blocking_reason.is_none();
    lanes.iter().filter(serves).map(|lane| lane.lane.clone()).collect()
}

fn render(done: &Done, style: Style) -> String {
    let mut text = String::new();
    if let Some(pulled) = &done.pulled {
        text.push_str(&format!(
            "{} {} ({}, {})\n\n",
            style.paint(Tone::Good, "installed"),
            clean(&pulled.model),
            clean(&pulled.format),
            bytes(pulled.size_bytes)
        ));
    }
    text.push_str(&table::render(&done.report, Detail::Failed, style));
    if let Some(lane) = done.report.lanes.iter().find(|lane| done.serves.contains(&lane.lane)) {
        let next = match lane.kind {
            ModelKind::Rerank => "synapse rerank \"a question\" --file texts.txt",
            ModelKind::Generate => "synapse generate \"a question\"",
            _ => "synapse embed \"a text\"",
        };
        let model = clean(&done.model);
        text.push_str(&format!(
            "\n{} {model}: {next} --model {model}\n",
            style.paint(Tone::Good, "ready")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::probe::table::samples::{lane, report};

    /// Proves CERT-08: what is stale is measured again, what stands is not.
    #[test]
    fn only_what_was_not_measured_here_is_probed() {
        let verdicts = [
            LaneVerdict::Certified,
            LaneVerdict::Failed,
            LaneVerdict::Stale,
            LaneVerdict::Unprobed,
            LaneVerdict::Unusable,
        ];
        let lanes: Vec<LaneReport> = verdicts
            .into_iter()
            .map(|verdict| lane(verdict.as_str(), verdict))
            .collect();
        assert_eq!(unmeasured(&lanes), ["m@stale:f32", "m@unprobed:f32"]);
        assert_eq!(serving(&lanes), ["m@certified:f32"]);
    }

    #[test]
    fn the_end_says_what_to_do_next() {
        let done = |lanes: Vec<LaneReport>| Done {
            model: "m".to_owned(),
            pulled: None,
            probed: None,
            serves: serving(&lanes),
            report: report(lanes),
        };
        let text = render(&done(vec![lane("owned", LaneVerdict::Certified)]), Style::plain());
        assert!(
            text.ends_with("\nready m: synapse embed \"a text\" --model m\n"),
            "{text}"
        );
        let text = render(&done(vec![lane("owned", LaneVerdict::Failed)]), Style::plain());
        assert!(!text.contains("ready"), "{text}");
    }
}
