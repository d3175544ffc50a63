//! The progress of a job: a bar on a terminal, plain lines elsewhere; and a sign of life for a call that takes a while.
//!
//! It owns the bar of one wait. The lines are made by pure functions; how often a job is polled is the client's affair.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use synapse_client::wire::{JobProgress, JobView};
use synapse_client::{Client, JobState};

use crate::error::CliError;
use crate::style::{bytes, clean};

/// Plain lines are written at every step of so many percent.
const STEP: u64 = 10;
/// Between two pictures of a bar or spinner.
const TICK: Duration = Duration::from_millis(120);

/// Shows how far one piece of work is.
pub enum Meter {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere: the line that was written last.
    Lines {
        /// Its phase and percentage.
        last: Option<(String, u64)>,
    },
}

impl Meter {
    /// A bar or lines on stderr.
    pub fn new() -> Self {
        if io::stderr().is_terminal() {
            let bar = ProgressBar::new(0);
            bar.set_style(style(&JobProgress::default()));
            bar.enable_steady_tick(TICK);
            Self::Bar(bar)
        } else {
            Self::Lines { last: None }
        }
    }

    /// Shows so many of so many `unit`s (`bytes`, `files`, `items`) of a phase.
    pub fn amount(&mut self, phase: &str, done: u64, total: Option<u64>, unit: &str) {
        self.show(&JobProgress {
            phase: phase.to_owned(),
            done,
            total,
            unit: unit.to_owned(),
        });
    }

    fn show(&mut self, progress: &JobProgress) {
        match self {
            Self::Bar(bar) => {
                let begins = bar.message() != clean(&progress.phase);
                bar.set_message(clean(&progress.phase));
                bar.set_style(style(progress));
                bar.set_position(progress.done);
                bar.set_length(progress.total.unwrap_or(0));
                if begins {
                    // Time left is that of the phase, and what an earlier run did says nothing of this one's speed.
                    bar.reset_eta();
                }
            }
            Self::Lines { last } => {
                let step = step(progress);
                if last.as_ref() != Some(&step) {
                    // A closed stderr is no reason to stop.
                    let _ = writeln!(io::stderr().lock(), "{}", line(progress));
                    *last = Some(step);
                }
            }
        }
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn style(progress: &JobProgress) -> ProgressStyle {
    let template = match (progress.total, progress.unit.as_str()) {
        (Some(_), "bytes") => "{msg:10} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        (Some(_), _) => "{msg:10} [{wide_bar}] {pos}/{len} {eta} left",
        (None, _) => "{spinner} {msg} {elapsed}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Which line a view falls on: its phase, and its percentage in steps.
fn step(progress: &JobProgress) -> (String, u64) {
    let percent = percent(progress).unwrap_or(0);
    (progress.phase.clone(), percent / STEP * STEP)
}

/// How much of the phase is done; `None` where its size is not known.
pub fn percent(progress: &JobProgress) -> Option<u64> {
    let total = progress.total.filter(|total| *total > 0)?;
    u64::try_from(u128::from(progress.done.min(total)) * 100 / u128::from(total)).ok()
}

/// A view as one line, for example `download  40%  36.3 MiB of 90.9 MiB`.
fn line(progress: &JobProgress) -> String {
    let phase = if progress.phase.is_empty() {
        "waiting"
    } else {
        &progress.phase
    };
    let amount = |count| {
        if progress.unit == "bytes" {
            bytes(count)
        } else {
            count.to_string()
        }
    };
    let mut line = clean(phase);
    if let (Some(total), Some(percent)) = (progress.total, percent(progress)) {
        let unit = if progress.unit == "bytes" { "" } else { &progress.unit };
        line = format!(
            "{line:<10} {percent:>3}%  {} of {} {unit}",
            amount(progress.done),
            amount(total)
        );
    } else if progress.done > 0 {
        line = format!("{line:<10} {}", amount(progress.done));
    }
    line.trim_end().to_owned()
}

/// Follows a job to its end.
///
/// # Errors
/// [`CliError::Job`] where it failed, [`CliError::JobCancelled`] where someone cancelled it.
pub async fn follow(client: &Client, job_id: &str) -> Result<JobView, CliError> {
    let mut meter = Meter::new();
    let view = client
        .wait_job(job_id, synapse_client::JobWait::default(), |view| {
            meter.show(&view.progress);
        })
        .await;
    meter.finish();
    let view = view?;
    match (view.state, &view.error) {
        (JobState::Done, _) => Ok(view),
        (_, Some(failure)) => Err(CliError::Job(Box::new(failure.clone()))),
        (JobState::Cancelled, None) => Err(CliError::JobCancelled(view.job_id)),
        (state, None) => Err(CliError::Internal(format!(
            "the job ended as {state:?} without an error"
        ))),
    }
}

/// Waits for a call; on a terminal a spinner says what for.
pub async fn spin<T>(what: &str, call: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return call.await;
    }
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(
        ProgressStyle::with_template("{spinner} {msg} {elapsed}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    spinner.set_message(clean(what));
    spinner.enable_steady_tick(TICK);
    let result = call.await;
    spinner.finish_and_clear();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(phase: &str, done: u64, total: Option<u64>, unit: &str) -> JobProgress {
        JobProgress {
            phase: phase.to_owned(),
            done,
            total,
            unit: unit.to_owned(),
        }
    }

    #[test]
    fn plain_lines_say_phase_and_amount() {
        for (view, expected) in [
            (
                progress("download", 38_063_309, Some(95_420_416), "bytes"),
                "download    39%  36.3 MiB of 91.0 MiB",
            ),
            (progress("verify", 1, Some(3), "files"), "verify      33%  1 of 3 files"),
            (progress("download", 2048, None, "bytes"), "download   2.0 KiB"),
            (progress("load", 0, None, "bytes"), "load"),
            (progress("", 0, None, ""), "waiting"),
            (progress("over", 9, Some(3), "files"), "over       100%  9 of 3 files"),
            (progress("none", 0, Some(0), "files"), "none"),
        ] {
            assert_eq!(line(&view), expected);
        }
    }

    /// A job that goes on at nine tenths was not that fast.
    #[test]
    fn what_was_done_before_is_no_speed() {
        let bar = ProgressBar::hidden();
        let mut meter = Meter::Bar(bar.clone());
        meter.amount("embed", 90_000, Some(100_000), "items");
        // NaN where no time has passed.
        assert!(bar.per_sec().max(0.0) < 1.0, "{}", bar.per_sec());
    }

    #[test]
    fn a_line_is_written_per_phase_and_ten_percent() {
        let at = |done| step(&progress("download", done, Some(1000), "bytes"));
        assert_eq!(at(101), at(199));
        assert_ne!(at(199), at(200));
        assert_ne!(at(0), step(&progress("verify", 0, Some(1000), "bytes")));
    }
}
