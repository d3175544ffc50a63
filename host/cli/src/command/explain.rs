//! `synapse explain MODEL`: which lane would serve a model, and why every other would not.
//!
//! No state.

use synapse_client::wire::{ExplainedLane, ModelsExplainParams, ModelsExplainResult};

use crate::args::{Explain, Global};
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone};
use crate::table::{Cell, Table};

/// Asks and prints.
pub async fn run(global: &Global, explain: Explain, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let params = ModelsExplainParams {
        workload: explain.work.map(Into::into),
        required_fingerprint: explain.required_fingerprint,
        allow_equivalent: explain.allow_equivalent,
        target_fingerprint: explain.target_fingerprint,
        ..ModelsExplainParams::new(explain.model)
    };
    let explained = client.models_explain(&params).await?.result;
    output.value(&explained, render)
}

fn render(explained: &ModelsExplainResult, style: Style) -> String {
    let work = explained.workload.as_str();
    let mut text = match (&explained.serves, &explained.refusal) {
        (Some(lane), _) => format!("{lane} serves ({work}, knob {})\n", explained.knob),
        (None, Some(refusal)) => format!("no lane serves ({work}): {} ({})\n", refusal.message, refusal.code),
        (None, None) => format!("no lane serves ({work})\n"),
    };
    let mut table = Table::new(&["LANE", "", "LEVEL", "TOKENS/S", "WHY"]);
    for lane in &explained.lanes {
        table.row(vec![
            (&lane.lane).into(),
            bar(lane),
            lane.level.as_deref().unwrap_or("-").into(),
            lane.tokens_per_second
                .map_or_else(|| "-".to_owned(), |speed| format!("{speed:.0}"))
                .into(),
            (&lane.reason).into(),
        ]);
    }
    text.push_str(&table.render(style));
    text
}

fn bar(lane: &ExplainedLane) -> Cell {
    match &lane.bar {
        None => Cell::new(Tone::Good, "serves"),
        Some(bar) => Cell::new(Tone::Notice, &bar.replace('_', " ")),
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::{Class, ErrorCode, Failure, Workload};

    use super::*;

    fn lane(name: &str, bar: Option<&str>, reason: &str) -> ExplainedLane {
        ExplainedLane {
            lane: name.to_owned(),
            serves: bar.is_none(),
            bar: bar.map(str::to_owned),
            reason: reason.to_owned(),
            fingerprint: None,
            level: bar.is_none().then(|| "reference".to_owned()),
            tokens_per_second: bar.is_none().then_some(812.4),
        }
    }

    #[test]
    fn each_lane_says_why_it_does_not_serve() {
        let mut explained = ModelsExplainResult {
            model: "m".to_owned(),
            workload: Workload::Batch,
            knob: "balanced".to_owned(),
            table_epoch: 3,
            serves: Some("m@a:f32".to_owned()),
            refusal: None,
            lanes: vec![
                lane("m@a:f32", None, "it serves"),
                lane("m@b:f16", Some("hot_path"), "m@b:f16 serves batches only"),
            ],
        };
        assert_eq!(
            render(&explained, Style::plain()),
            "\
m@a:f32 serves (batch, knob balanced)
LANE               LEVEL      TOKENS/S  WHY
m@a:f32  serves    reference  812       it serves
m@b:f16  hot path  -          -         m@b:f16 serves batches only
"
        );
        explained.serves = None;
        explained.lanes.clear();
        explained.refusal = Some(Failure {
            code: ErrorCode::NotCertified,
            message: "m@a:f32 has no certificate".to_owned(),
            class: Class::Permanent,
            retry_after_ms: None,
            safe_to_retry_same_request: false,
            detail: None,
        });
        let text = render(&explained, Style::plain());
        assert!(
            text.starts_with("no lane serves (batch): m@a:f32 has no certificate (not_certified)\n"),
            "{text}"
        );
    }
}
