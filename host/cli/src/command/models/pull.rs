//! `synapse models pull MODEL`: says what it will cost, then fetches and shows the progress.
//!
//! No state. The fetching is the daemon's; stopping this command leaves the job running.

use synapse_client::ModelsPullParams;
use synapse_client::wire::{JobView, ModelEntry, ModelState};

use super::find;
use crate::args::{Global, Pull};
use crate::error::CliError;
use crate::output::Output;
use crate::progress;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, bytes, clean};
use crate::table::{Cell, Table};

/// Shows the plan on stderr, starts the job, follows it, and prints its result.
pub async fn run(global: &Global, pull: Pull, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let list = client.models_list().await?.result;
    let model = find(&list, &pull.model)?;
    for line in plan(model, list.free_bytes).render(Style::plain()).lines() {
        output.say(line);
    }
    let path = match &pull.path {
        Some(path) => Some(absolute(path)?),
        None => None,
    };
    let params = ModelsPullParams {
        model: pull.model,
        source: pull.source,
        path,
        format: pull.format,
    };
    let accepted = client.models_pull(&params).await?.result;
    if pull.no_wait {
        return output.value(&accepted, |accepted, _| format!("{}\n", clean(&accepted.job_id)));
    }
    let view = progress::follow(&client, &accepted.job_id).await?;
    output.value(&view, render)
}

/// The daemon has another current directory, so a path goes out absolute.
fn absolute(path: &std::path::Path) -> Result<String, CliError> {
    let path = std::path::absolute(path).map_err(|error| CliError::io("finding the current directory", error))?;
    path.into_os_string()
        .into_string()
        .map_err(|path| CliError::Usage(format!("the path {} is not UTF-8", path.display())))
}

/// Size, free space and licence: what to know before the first byte.
fn plan(model: &ModelEntry, free: Option<u64>) -> Table {
    let mut facts = Table::facts();
    facts.fact("model", &model.id);
    facts.fact("licence", &model.licence);
    facts.fact("size", bytes(model.size_bytes));
    if let Some(free) = free {
        let words = if free < model.size_bytes {
            Cell::new(Tone::Bad, &format!("{}: not enough", bytes(free)))
        } else {
            bytes(free).into()
        };
        facts.fact("free space", words);
    }
    if matches!(
        model.state,
        ModelState::Installed | ModelState::Loading | ModelState::Loaded
    ) {
        facts.fact("state", "its files are here already");
    }
    facts
}

fn render(view: &JobView, style: Style) -> String {
    use synapse_client::wire::JobResult;
    let done = style.paint(Tone::Good, "installed");
    match &view.result {
        Some(JobResult::Pull(pull)) => {
            let source = pull
                .source
                .as_deref()
                .map_or(String::new(), |source| format!(" from {}", clean(source)));
            format!(
                "{done} {} ({}, {} in {} files{source})\n",
                clean(&pull.model),
                clean(&pull.format),
                bytes(pull.size_bytes),
                pull.files
            )
        }
        _ => format!("{done} {}\n", clean(view.model.as_deref().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::JobState;
    use synapse_client::wire::{JobKind, JobProgress, JobResult, PullOutcome};

    use super::*;
    use crate::command::models::samples::model;

    #[test]
    fn the_plan_names_licence_size_and_space() {
        assert_eq!(
            plan(&model(), Some(10 << 30)).render(Style::plain()),
            "model       all-minilm-l6-v2\nlicence     Apache-2.0\nsize        87.1 MiB\nfree space  10.0 GiB\n"
        );
        let text = plan(&model(), Some(1 << 20)).render(Style::plain());
        assert!(text.contains("1.0 MiB: not enough"), "{text}");
    }

    #[test]
    fn the_end_says_what_was_installed() {
        let view = JobView {
            job_id: "j".to_owned(),
            kind: JobKind::ModelPull,
            state: JobState::Done,
            model: Some("m".to_owned()),
            progress: JobProgress::default(),
            waits_for: None,
            estimated_ms: None,
            created_ms: 0,
            updated_ms: 0,
            error: None,
            result: Some(JobResult::Pull(PullOutcome {
                model: "m".to_owned(),
                source: Some("pypi".to_owned()),
                format: "safetensors".to_owned(),
                files: 3,
                size_bytes: 2048,
            })),
        };
        assert_eq!(
            render(&view, Style::plain()),
            "installed m (safetensors, 2.0 KiB in 3 files from pypi)\n"
        );
    }
}
