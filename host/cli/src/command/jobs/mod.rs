//! `synapse jobs …`: one file per subcommand.
//!
//! No state. A job belongs to the daemon: these commands look at it and ask it to stop.

mod cancel;
mod list;
mod show;

use synapse_client::wire::{JobProgress, JobWait};
use synapse_client::{JobState, JobView};

use crate::args::{Global, Jobs};
use crate::error::CliError;
use crate::output::Output;
use crate::style::{Tone, bytes, duration};
use crate::table::Cell;

/// Carries out a subcommand.
pub async fn run(global: &Global, jobs: Jobs, output: &mut Output) -> Result<(), CliError> {
    match jobs {
        Jobs::List => list::run(global, output).await,
        Jobs::Show { job } => show::run(global, &job, output).await,
        Jobs::Cancel { job } => cancel::run(global, &job, output).await,
    }
}

/// A job's state in its tone.
fn state_cell(state: JobState) -> Cell {
    let tone = match state {
        JobState::Done => Tone::Good,
        JobState::Open | JobState::Queued | JobState::Running | JobState::Unknown => Tone::Notice,
        JobState::FailedPermanent | JobState::FailedTransient => Tone::Bad,
        JobState::Cancelled => Tone::Quiet,
    };
    Cell::new(tone, &state.as_str().replace('_', " "))
}

/// What a job waits for, in words; nothing while it works, and once it has ended.
fn waits_for(view: &JobView) -> Option<&'static str> {
    match (view.state, view.waits_for?) {
        (state, _) if state.is_final() => None,
        (_, JobWait::Disk) => Some("room on the disk"),
        (_, JobWait::Model) => Some("its model, which is being loaded"),
        (_, JobWait::Lane) => Some("room on its lane"),
        (_, JobWait::Unknown) => Some("something that this version does not know"),
    }
}

/// What is left of a job: how long, or what it waits for; empty where nobody knows.
fn left(view: &JobView) -> String {
    match (waits_for(view), view.estimated_ms) {
        (Some(what), _) => format!("waits for {what}"),
        (None, Some(estimate)) => format!("about {}", duration(estimate)),
        (None, None) => String::new(),
    }
}

/// How far a job is, for example `embed 512 of 6000 items (8 %)`; empty where it has not said.
fn amount(progress: &JobProgress) -> String {
    let count = |count| match progress.unit.as_str() {
        "bytes" => bytes(count),
        _ => count.to_string(),
    };
    let unit = if progress.unit == "bytes" { "" } else { &progress.unit };
    let words = match progress.total {
        Some(total) => {
            let (done, all) = (count(progress.done), count(total));
            let words = format!("{} {done} of {all} {unit}", progress.phase);
            let percent = crate::progress::percent(progress);
            percent.map_or_else(|| words.clone(), |percent| format!("{} ({percent} %)", words.trim()))
        }
        None if progress.done > 0 => format!("{} {} {unit}", progress.phase, count(progress.done)),
        None => progress.phase.clone(),
    };
    words.trim().to_owned()
}

/// The time from `then` to `now`, both in milliseconds since 1970; nothing where the clocks disagree.
const fn since(then: u64, now: u64) -> u64 {
    now.saturating_sub(then)
}

/// Milliseconds since 1970-01-01 UTC.
fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod samples {
    //! Jobs as the daemon would show them.

    use synapse_client::wire::{Class, ErrorCode, Failure, JobKind, JobProgress, JobState, JobView};

    /// A job of a large batch that a restart has ended.
    pub fn interrupted() -> JobView {
        JobView {
            job_id: "job-2-7".to_owned(),
            kind: JobKind::EmbedBatch,
            state: JobState::FailedTransient,
            model: Some("m".to_owned()),
            progress: JobProgress {
                phase: "embed".to_owned(),
                done: 512,
                total: Some(6000),
                unit: "items".to_owned(),
            },
            waits_for: None,
            estimated_ms: None,
            created_ms: 1_000,
            updated_ms: 61_000,
            error: Some(Failure {
                code: ErrorCode::ModuleRestarted,
                message: "the daemon was started anew".to_owned(),
                class: Class::Transient,
                retry_after_ms: None,
                safe_to_retry_same_request: true,
                detail: None,
            }),
            result: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_say_phase_count_and_unit() {
        let progress = |phase: &str, done, total, unit: &str| JobProgress {
            phase: phase.to_owned(),
            done,
            total,
            unit: unit.to_owned(),
        };
        for (progress, words) in [
            (
                progress("embed", 512, Some(6000), "items"),
                "embed 512 of 6000 items (8 %)",
            ),
            (progress("embed", 0, Some(0), "items"), "embed 0 of 0 items"),
            (progress("append", 40, None, "items"), "append 40 items"),
            (
                progress("download", 1024, Some(4096), "bytes"),
                "download 1.0 KiB of 4.0 KiB (25 %)",
            ),
            (progress("load", 0, None, ""), "load"),
            (progress("", 0, None, ""), ""),
        ] {
            assert_eq!(amount(&progress), words);
        }
        assert_eq!(since(9, 5), 0);
    }

    #[test]
    fn a_job_says_what_it_waits_for_or_how_long_it_takes() {
        let mut job = samples::interrupted();
        (job.state, job.waits_for, job.estimated_ms) = (JobState::Running, None, None);
        assert_eq!(left(&job), "");
        job.estimated_ms = Some(182_000);
        assert_eq!(left(&job), "about 3 min 2 s");
        job.waits_for = Some(JobWait::Disk);
        assert_eq!(left(&job), "waits for room on the disk");
        job.state = JobState::Done;
        job.estimated_ms = None;
        assert_eq!(left(&job), "", "it waits no more");
    }
}
