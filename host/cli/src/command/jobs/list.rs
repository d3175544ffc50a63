//! `synapse jobs list`: the jobs that the daemon remembers, the newest first.
//!
//! No state.

use synapse_client::wire::{JobListResult, JobProgress};

use super::{amount, left, now_ms, since, state_cell};
use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, duration};
use crate::table::Table;

/// Asks and prints.
pub async fn run(global: &Global, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let list = client.job_list().await?.result;
    output.value(&list, |list, style| render(list, now_ms(), style))
}

fn render(list: &JobListResult, now: u64, style: Style) -> String {
    if list.jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut table = Table::new(&["JOB", "KIND", "STATE", "MODEL", "AGE", "PROGRESS", "LEFT"]);
    for job in &list.jobs {
        table.row(vec![
            (&job.job_id).into(),
            job.kind.as_str().replace('_', " ").into(),
            state_cell(job.state),
            job.model.as_deref().unwrap_or_default().into(),
            duration(since(job.created_ms, now)).into(),
            how_far(&job.progress).into(),
            left(job).into(),
        ]);
    }
    table.render(style)
}

/// How far a job is. Where its end is known the phase is left out: a line has room for the figures or for the phase.
fn how_far(progress: &JobProgress) -> String {
    let phase = match progress.total {
        Some(_) => String::new(),
        None => progress.phase.clone(),
    };
    amount(&JobProgress {
        phase,
        ..progress.clone()
    })
}

#[cfg(test)]
mod tests {
    use synapse_client::JobState;

    use super::*;
    use crate::command::jobs::samples::interrupted;

    #[test]
    fn each_job_has_a_line() {
        let mut running = interrupted();
        (running.state, running.error, running.estimated_ms) = (JobState::Running, None, Some(61_000));
        let list = JobListResult {
            jobs: vec![running, interrupted()],
        };
        assert_eq!(
            render(&list, 121_000, Style::plain()),
            "\
JOB      KIND         STATE             MODEL  AGE        PROGRESS                 LEFT
job-2-7  embed batch  running           m      2 min 0 s  512 of 6000 items (8 %)  about 1 min 1 s
job-2-7  embed batch  failed transient  m      2 min 0 s  512 of 6000 items (8 %)
"
        );
        let none = JobListResult { jobs: Vec::new() };
        assert_eq!(render(&none, 0, Style::plain()), "no jobs\n");
    }
}
