//! `synapse models load MODEL`: loads a model and waits until it serves.
//!
//! No state. Stopping this command leaves the job running.

use synapse_client::wire::{JobResult, JobView};

use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::progress;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, bytes, clean, duration};

/// Starts the job, follows it, and prints its result.
pub async fn run(global: &Global, model: &str, no_wait: bool, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let accepted = client.model_load(model).await?.result;
    if no_wait {
        return output.value(&accepted, |accepted, _| format!("{}\n", clean(&accepted.job_id)));
    }
    let view = progress::follow(&client, &accepted.job_id).await?;
    output.value(&view, render)
}

fn render(view: &JobView, style: Style) -> String {
    let done = style.paint(Tone::Good, "loaded");
    match &view.result {
        Some(JobResult::Load(load)) => format!(
            "{done} {} on {} ({} in {})\nfingerprint {}\n",
            clean(&load.model),
            clean(&load.lane),
            bytes(load.memory_bytes),
            duration(load.load_ms),
            clean(&load.fingerprint)
        ),
        _ => format!("{done} {}\n", clean(view.model.as_deref().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::JobState;
    use synapse_client::wire::{JobKind, JobProgress, LoadOutcome};

    use super::*;

    #[test]
    fn the_end_says_lane_memory_time_and_fingerprint() {
        let view = JobView {
            job_id: "j".to_owned(),
            kind: JobKind::ModelLoad,
            state: JobState::Done,
            model: Some("m".to_owned()),
            progress: JobProgress::default(),
            waits_for: None,
            estimated_ms: None,
            created_ms: 0,
            updated_ms: 0,
            error: None,
            result: Some(JobResult::Load(LoadOutcome {
                model: "m".to_owned(),
                lane: "m@owned:f32".to_owned(),
                fingerprint: "ab".to_owned(),
                memory_bytes: 4096,
                load_ms: 250,
            })),
        };
        assert_eq!(
            render(&view, Style::plain()),
            "loaded m on m@owned:f32 (4.0 KiB in 250 ms)\nfingerprint ab\n"
        );
    }
}
