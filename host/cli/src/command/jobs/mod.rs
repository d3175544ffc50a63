//! `synapse jobs …`: one file per subcommand.
//!
//! No state. A job belongs to the daemon: these commands look at it and ask it to stop.

mod cancel;
mod list;
mod show;

use synapse_client::JobState;
use synapse_client::wire::JobProgress;

use crate::args::{Global, Jobs};
use crate::error::CliError;
use crate::output::Output;
use crate::style::{Tone, bytes};
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

/// How far a job is, for example `embed 512 of 6000 items`; empty where it has not said.
fn amount(progress: &JobProgress) -> String {
    let count = |count| match progress.unit.as_str() {
        "bytes" => bytes(count),
        _ => count.to_string(),
    };
    let unit = if progress.unit == "bytes" { "" } else { &progress.unit };
    let words = match progress.total {
        Some(total) => format!("{} {} of {} {unit}", progress.phase, count(progress.done), count(total)),
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
            (progress("embed", 512, Some(6000), "items"), "embed 512 of 6000 items"),
            (progress("append", 40, None, "items"), "append 40 items"),
            (
                progress("download", 1024, Some(4096), "bytes"),
                "download 1.0 KiB of 4.0 KiB",
            ),
            (progress("load", 0, None, ""), "load"),
            (progress("", 0, None, ""), ""),
        ] {
            assert_eq!(amount(&progress), words);
        }
        assert_eq!(since(9, 5), 0);
    }
}
