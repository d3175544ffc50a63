//! `synapse models show MODEL`: everything known about one model.
//!
//! No state.

use synapse_client::wire::{LaneEntry, LaneStatus, ModelStatusResult};

use crate::args::Global;
use crate::command::status::state_cell;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, bytes};
use crate::table::{Cell, Table};

/// Asks and prints.
pub async fn run(global: &Global, model: &str, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let status = client.model_status(model).await?.result;
    output.value(&status, render)
}

/// Whether a lane can serve, in words.
pub fn lane_cell(lane: &LaneEntry) -> Cell {
    let (tone, word) = match lane.status {
        LaneStatus::Available => (Tone::Plain, "available"),
        LaneStatus::Loaded => (Tone::Good, "loaded"),
        LaneStatus::Loading => (Tone::Notice, "loading"),
        LaneStatus::NoPlugin => (Tone::Bad, "no plugin"),
        LaneStatus::PluginRefused => (Tone::Bad, "plugin refused"),
        LaneStatus::Closed => (Tone::Bad, "closed"),
        LaneStatus::Unknown => (Tone::Notice, "unknown"),
    };
    Cell::new(tone, word)
}

fn render(status: &ModelStatusResult, style: Style) -> String {
    let model = &status.model;
    let mut facts = Table::facts();
    facts.fact("model", &model.id);
    facts.fact("state", state_cell(model.state));
    if let Some(reason) = &model.reason {
        facts.fact("reason", Cell::new(Tone::Bad, reason));
    }
    facts.fact("kind", format!("{} ({})", model.kind.as_str(), model.family));
    facts.fact("licence", &model.licence);
    facts.fact("dims", model.dims.to_string());
    facts.fact("max tokens", model.max_tokens.to_string());
    facts.fact("size", bytes(model.size_bytes));
    facts.fact("formats", model.formats.join(", "));
    if let Some(fingerprint) = &model.fingerprint {
        facts.fact("fingerprint", fingerprint);
    }
    if let Some(job) = &status.job {
        facts.fact("last job", format!("{} ({})", job.job_id, job.state.as_str()));
    }
    let mut text = facts.render(style);
    let mut lanes = Table::new(&["LANE", "STATUS", "REASON"]);
    for lane in &model.lanes {
        let reason = lane.reason.as_deref().unwrap_or_default();
        lanes.row(vec![(&lane.lane).into(), lane_cell(lane), reason.into()]);
    }
    text.push('\n');
    text.push_str(&lanes.render(style));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::models::samples::model;

    #[test]
    fn a_lane_that_cannot_serve_says_why() {
        let mut entry = model();
        entry.lanes[0].status = LaneStatus::NoPlugin;
        entry.lanes[0].reason = Some("no bundle offers the engine owned".to_owned());
        let status = ModelStatusResult {
            model: entry,
            job: None,
        };
        assert_eq!(
            render(&status, Style::plain()),
            "\
model       all-minilm-l6-v2
state       not installed
kind        embed (bert)
licence     Apache-2.0
dims        384
max tokens  256
size        87.1 MiB
formats     safetensors

LANE                        STATUS     REASON
all-minilm-l6-v2@owned:f32  no plugin  no bundle offers the engine owned
"
        );
    }
}
