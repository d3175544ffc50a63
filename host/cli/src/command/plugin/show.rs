//! `synapse plugin show ID`: all that is known of one bundle.
//!
//! No state.

use std::fmt::Write as _;

use synapse_client::wire::{ModelKind, Placement, PluginEntry};

use super::{find, status_word};
use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, clean};

/// Asks and prints.
pub async fn run(global: &Global, id: &str, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let list = client.plugins_list().await?.result;
    output.value(find(&list.plugins, id)?, render)
}

fn render(plugin: &PluginEntry, _: Style) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<9} {}", clean(value));
    };
    line("id", &plugin.id);
    line("version", plugin.version.as_deref().unwrap_or("-"));
    line("digest", plugin.digest.as_deref().unwrap_or("-"));
    line("folder", &plugin.dir);
    line("status", status_word(plugin).1);
    if let Some(message) = &plugin.message {
        line("why", message);
    }
    line(
        "runs",
        match plugin.placement {
            Some(Placement::InProcess) => "inside the daemon",
            Some(Placement::Worker) => "in a process of its own",
            _ => "nowhere",
        },
    );
    line("promotion", if plugin.promotable { "possible" } else { "not possible" });
    for engine in &plugin.engines {
        let kind = match engine.kind {
            ModelKind::Embed => "embed",
            ModelKind::Rerank => "rerank",
            ModelKind::Generate => "generate",
            ModelKind::Unknown => "unknown",
        };
        let offer = format!(
            "{} {}: {kind}, {} in {}, {}",
            engine.engine, engine.version, engine.format, engine.dtype, engine.preempt
        );
        line("engine", &offer);
    }
    if let Some(pending) = &plugin.pending {
        line("waits", &pending.message);
        line("reason", &pending.reason);
    }
    text
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::PluginPending;

    use super::super::sample;
    use super::*;

    #[test]
    fn a_bundle_with_new_files_that_wait() {
        let plugin = PluginEntry {
            pending: Some(PluginPending {
                version: Some("0.2.0".to_owned()),
                digest: Some("cd".to_owned()),
                reason: "needs_restart".to_owned(),
                message: "version 0.2.0 waits".to_owned(),
            }),
            ..sample()
        };
        assert_eq!(
            render(&plugin, Style::plain()),
            "\
id        owned
version   0.1.0
digest    ab
folder    /p/owned
status    ready
runs      inside the daemon
promotion possible
engine    owned 1: embed, safetensors in f32, checkpoint
waits     version 0.2.0 waits
reason    needs_restart
"
        );
    }
}
