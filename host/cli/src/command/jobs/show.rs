//! `synapse jobs show ID`: one job, with what it gave or why it failed.
//!
//! No state.

use synapse_client::JobView;

use super::{amount, now_ms, since, state_cell, waits_for};
use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, duration};
use crate::table::{Cell, Table};

/// Asks and prints.
pub async fn run(global: &Global, job: &str, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let view = client.job_status(job).await?.result;
    output.value(&view, |view, style| render(view, now_ms(), style))
}

/// The facts of a job.
pub fn render(view: &JobView, now: u64, style: Style) -> String {
    let mut facts = Table::facts();
    facts.fact("job", &view.job_id);
    facts.fact("kind", view.kind.as_str().replace('_', " "));
    facts.fact("state", state_cell(view.state));
    if let Some(model) = &view.model {
        facts.fact("model", model);
    }
    let amount = amount(&view.progress);
    if !amount.is_empty() {
        facts.fact("progress", amount);
    }
    if let Some(what) = waits_for(view) {
        facts.fact("waits for", Cell::new(Tone::Notice, what));
    }
    if let Some(estimate) = view.estimated_ms {
        facts.fact(
            "left",
            format!("about {}, if nothing else is to be done", duration(estimate)),
        );
    }
    facts.fact("accepted", format!("{} ago", duration(since(view.created_ms, now))));
    facts.fact("changed", format!("{} ago", duration(since(view.updated_ms, now))));
    if let Some(failure) = &view.error {
        let words = format!("{} ({})", failure.message, failure.code);
        facts.fact("error", Cell::new(Tone::Bad, &words));
    }
    facts.render(style)
}

#[cfg(test)]
mod tests {
    use synapse_client::JobState;
    use synapse_client::wire::JobWait;

    use super::*;
    use crate::command::jobs::samples::interrupted;

    #[test]
    fn a_failed_job_says_why() {
        assert_eq!(
            render(&interrupted(), 121_000, Style::plain()),
            "\
job       job-2-7
kind      embed batch
state     failed transient
model     m
progress  embed 512 of 6000 items (8 %)
accepted  2 min 0 s ago
changed   1 min 0 s ago
error     the daemon was started anew (module_restarted)
"
        );
    }

    #[test]
    fn a_job_that_waits_says_for_what_and_how_much_is_left() {
        let mut job = interrupted();
        (job.state, job.error) = (JobState::Running, None);
        (job.waits_for, job.estimated_ms) = (Some(JobWait::Model), Some(90_000));
        let text = render(&job, 121_000, Style::plain());
        assert!(
            text.contains("waits for  its model, which is being loaded\n")
                && text.contains("left       about 1 min 30 s, if nothing else is to be done\n"),
            "{text}"
        );
    }
}
