//! `synapse plugin list`: every bundle, accepted or refused, with the reason.
//!
//! No state.

use std::collections::BTreeSet;

use synapse_client::wire::{PluginEntry, PluginStatus, PluginsListResult};

use super::status_cell;
use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::Style;
use crate::table::Table;

/// Asks and prints.
pub async fn run(global: &Global, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let list = client.plugins_list().await?.result;
    output.value(&list, render)
}

fn render(list: &PluginsListResult, style: Style) -> String {
    if list.plugins.is_empty() {
        return "no plugins found; `synapse doctor` says where they are looked for\n".to_owned();
    }
    let mut table = Table::new(&["ID", "VERSION", "STATUS", "ENGINES, OR THE REASON"]);
    for plugin in &list.plugins {
        table.row(vec![
            (&plugin.id).into(),
            plugin.version.as_deref().unwrap_or("-").into(),
            status_cell(plugin),
            remark(plugin).into(),
        ]);
    }
    table.render(style)
}

/// The reason of a bundle that does not serve, otherwise what it offers; then why its new files wait.
fn remark(plugin: &PluginEntry) -> String {
    let mut words = own_remark(plugin);
    if let Some(pending) = &plugin.pending {
        words.push_str(&format!("; {} ({})", pending.message, pending.reason));
    }
    words
}

fn own_remark(plugin: &PluginEntry) -> String {
    let said = match plugin.status {
        PluginStatus::Ready => (&None, &None),
        _ => (&plugin.message, &plugin.reason),
    };
    match said {
        (Some(message), Some(reason)) => format!("{message} ({reason})"),
        (Some(words), None) | (None, Some(words)) => words.clone(),
        (None, None) => {
            let offers: BTreeSet<String> = plugin
                .engines
                .iter()
                .map(|engine| format!("{} ({}, {})", engine.engine, engine.format, engine.dtype))
                .collect();
            offers.into_iter().collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::{Placement, PluginPending};

    use super::super::sample;
    use super::*;

    #[test]
    fn a_refused_bundle_says_why_and_a_ready_one_what_it_offers() {
        let ready = sample();
        let apart = PluginEntry {
            id: "apart".to_owned(),
            message: Some("its digest is not in the trust file".to_owned()),
            placement: Some(Placement::Worker),
            ..ready.clone()
        };
        let refused = PluginEntry {
            id: "old".to_owned(),
            version: None,
            status: PluginStatus::Refused,
            reason: Some("abi_major".to_owned()),
            message: Some("abi_major: plugin 2, host supports 1".to_owned()),
            engines: Vec::new(),
            placement: None,
            ..ready.clone()
        };
        let waits = PluginEntry {
            id: "waits".to_owned(),
            pending: Some(PluginPending {
                version: Some("0.2.0".to_owned()),
                digest: None,
                reason: "needs_restart".to_owned(),
                message: "version 0.2.0 counts from the daemon's next start on".to_owned(),
            }),
            ..ready.clone()
        };
        let list = PluginsListResult {
            plugins: vec![ready, apart, refused, waits],
        };
        assert_eq!(
            render(&list, Style::plain()),
            "\
ID     VERSION  STATUS             ENGINES, OR THE REASON
owned  0.1.0    ready              owned (safetensors, f32)
apart  0.1.0    ready in a worker  owned (safetensors, f32)
old    -        refused            abi_major: plugin 2, host supports 1 (abi_major)
waits  0.1.0    ready              owned (safetensors, f32); version 0.2.0 counts from the daemon's
                                   next start on (needs_restart)
"
        );
    }
}
