//! `synapse plugin rescan`: lets the daemon look for changed bundles now, and says what changed.
//!
//! No state.

use synapse_client::wire::{PluginChange, PluginChangeKind, PluginsRescanResult};

use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, clean};
use crate::table::{Cell, Table};

/// Asks and prints.
pub async fn run(global: &Global, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let result = client.plugins_rescan().await?.result;
    output.value(&result, render)
}

fn render(result: &PluginsRescanResult, style: Style) -> String {
    if result.changes.is_empty() {
        return "nothing changed\n".to_owned();
    }
    let mut table = Table::new(&["ID", "CHANGE", "WHAT COUNTS"]);
    for change in &result.changes {
        let (tone, word) = word(change.change);
        table.row(vec![
            (&change.id).into(),
            Cell::new(tone, word),
            clean(&remark(change)).as_str().into(),
        ]);
    }
    table.render(style)
}

const fn word(change: PluginChangeKind) -> (Tone, &'static str) {
    match change {
        PluginChangeKind::Added => (Tone::Good, "added"),
        PluginChangeKind::Replaced => (Tone::Good, "replaced"),
        PluginChangeKind::Removed => (Tone::Quiet, "removed"),
        PluginChangeKind::Disabled => (Tone::Quiet, "disabled"),
        PluginChangeKind::Waits => (Tone::Notice, "waits"),
        PluginChangeKind::Unknown => (Tone::Notice, "unknown"),
    }
}

fn remark(change: &PluginChange) -> String {
    match (&change.message, &change.to) {
        (Some(message), _) => message.clone(),
        (None, Some(digest)) => digest.clone(),
        (None, None) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_a_line() {
        let change = |id: &str, change, to: Option<&str>, message: Option<&str>| PluginChange {
            id: id.to_owned(),
            change,
            from: Some("aa".to_owned()),
            to: to.map(str::to_owned),
            message: message.map(str::to_owned),
        };
        let result = PluginsRescanResult {
            changes: vec![
                change("a", PluginChangeKind::Replaced, Some("bb"), None),
                change(
                    "b",
                    PluginChangeKind::Waits,
                    Some("aa"),
                    Some("the new files are not taken: worse"),
                ),
                change("c", PluginChangeKind::Removed, None, None),
            ],
            plugins: Vec::new(),
        };
        assert_eq!(
            render(&result, Style::plain()),
            "\
ID  CHANGE    WHAT COUNTS
a   replaced  bb
b   waits     the new files are not taken: worse
c   removed   -
"
        );
        let nothing = PluginsRescanResult {
            changes: Vec::new(),
            plugins: Vec::new(),
        };
        assert_eq!(render(&nothing, Style::plain()), "nothing changed\n");
    }
}
