//! `synapse plugin trust ID` and `untrust ID`: promotes a bundle, by its digest, to run inside the daemon, and back.
//!
//! No state. The digest comes from the running daemon, or from a scan of our own where none runs; the trust file is
//! written here, because it belongs to the operator and not to the daemon.

use std::path::Path;

use serde::Serialize;
use synapse_client::wire::{PluginEntry, PluginStatus};
use synapse_daemon::offline;

use super::{find, look};
use crate::args::{Global, PluginPlace};
use crate::error::CliError;
use crate::output::Output;
use crate::style::{Style, clean};

#[derive(Serialize)]
struct Done {
    id: String,
    trusted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    trust_file: String,
    restart_needed: bool,
}

/// Writes the row, or removes it.
pub async fn run(global: &Global, bundle: PluginPlace, trusted: bool, output: &mut Output) -> Result<(), CliError> {
    let sight = look(global, &bundle).await?;
    let file = &sight.places.trust_file;
    let done = if trusted {
        promote(pick(&sight.plugins, &bundle.id)?, file)?
    } else {
        revoke(&bundle.id, file)?
    };
    output.value(&done, render)
}

/// The bundle of that id, if it can be promoted at all.
fn pick<'a>(plugins: &'a [PluginEntry], id: &str) -> Result<&'a PluginEntry, CliError> {
    let found = find(plugins, id)?;
    let words = found.message.as_deref().unwrap_or("see `synapse plugin list`");
    match found.status {
        PluginStatus::Refused | PluginStatus::Quarantined => Err(CliError::Found(format!(
            "{id} is not sound, so it is not promoted: {words}"
        ))),
        PluginStatus::Disabled => Err(CliError::Found(format!(
            "{id} is switched off; first: synapse plugin enable {id}"
        ))),
        _ if !found.promotable => Err(CliError::Found(format!("{id} cannot run inside the daemon: {words}"))),
        _ => Ok(found),
    }
}

fn promote(plugin: &PluginEntry, file: &Path) -> Result<Done, CliError> {
    let digest = plugin.digest.clone().ok_or_else(|| {
        CliError::Found(format!(
            "the digest of {} is not known: see `synapse doctor`",
            plugin.id
        ))
    })?;
    let already = offline::trusted(file)
        .map_err(CliError::Found)?
        .contains(&(plugin.id.clone(), digest.clone()));
    if !already {
        offline::trust(file, &plugin.id, &digest).map_err(CliError::Found)?;
    }
    Ok(Done {
        id: plugin.id.clone(),
        trusted: true,
        digest: Some(digest),
        trust_file: file.display().to_string(),
        restart_needed: !already,
    })
}

fn revoke(id: &str, file: &Path) -> Result<Done, CliError> {
    let removed = offline::untrust(file, id).map_err(CliError::Found)?;
    Ok(Done {
        id: id.to_owned(),
        trusted: false,
        digest: None,
        trust_file: file.display().to_string(),
        restart_needed: removed,
    })
}

fn render(done: &Done, _: Style) -> String {
    let (id, file) = (clean(&done.id), clean(&done.trust_file));
    let mut text = match (&done.digest, done.restart_needed) {
        (Some(digest), true) => format!("trusted {id} {digest}\nwritten to {file}\n"),
        (Some(digest), false) => format!("{id} {digest} was trusted already\n"),
        (None, true) => format!("{id} is no longer trusted\nwritten to {file}\n"),
        (None, false) => format!("{id} was not trusted\n"),
    };
    if done.restart_needed {
        text.push_str("it counts from the daemon's next start on\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(id: &str, status: PluginStatus) -> PluginEntry {
        PluginEntry {
            id: id.to_owned(),
            version: None,
            dir: "/p".to_owned(),
            digest: Some("ab".repeat(32)),
            status,
            reason: None,
            message: Some("words".to_owned()),
            engines: Vec::new(),
            placement: None,
            promotable: true,
            pending: None,
        }
    }

    #[test]
    fn only_sound_bundles_are_promoted() {
        let plugins = [
            plugin("a", PluginStatus::NeedsWorker),
            plugin("b", PluginStatus::Refused),
            plugin("c", PluginStatus::Shadowed),
        ];
        assert_eq!(pick(&plugins, "a").unwrap().id, "a");
        assert!(pick(&plugins, "b").unwrap_err().to_string().contains("words"));
        assert!(pick(&plugins, "c").unwrap_err().to_string().contains("found: a, b, c"));
        let capable = PluginEntry {
            promotable: false,
            ..plugin("d", PluginStatus::Ready)
        };
        assert!(
            pick(&[capable], "d")
                .unwrap_err()
                .to_string()
                .contains("inside the daemon: words")
        );
        assert!(pick(&[], "x").unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_row_is_written_once_and_taken_back() {
        let folder = std::env::temp_dir().join(format!("synapse-trust-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("trust.toml");
        let bundle = plugin("owned", PluginStatus::NeedsWorker);
        let first = promote(&bundle, &file).unwrap();
        assert!(render(&first, Style::plain()).contains("next start"));
        assert!(render(&promote(&bundle, &file).unwrap(), Style::plain()).contains("already"));
        assert!(revoke("owned", &file).unwrap().restart_needed);
        assert_eq!(
            render(&revoke("owned", &file).unwrap(), Style::plain()),
            "owned was not trusted\n"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
