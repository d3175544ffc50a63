//! `cargo synapse install`: a bundle into a plugin folder, and what the operator does next.
//!
//! No state.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::Install;
use crate::bundle;
use crate::command::pack::Told;
use crate::error::Error;
use crate::output::Output;
use crate::verdict;

/// Installs the bundle.
///
/// # Errors
/// As [`bundle::pack`], and [`Error::Io`] for the plugin folder.
pub fn run(install: &Install, output: &Output) -> Result<ExitCode, Error> {
    let plugin_dir = match &install.plugin_dir {
        Some(folder) => folder.clone(),
        None => user_folder()?,
    };
    let mut packed = super::bundle(&install.from)?;
    let digest = packed.bundle.digest;
    packed.folder = bundle::install(&packed, &plugin_dir)?;
    // What lies there now is what was looked at before.
    packed.bundle = verdict::of(&plugin_dir, &packed.bundle.id)?;
    if packed.bundle.digest != digest {
        return Err(Error::Project(format!(
            "{}: changed while it was installed; run the command again",
            packed.folder.display()
        )));
    }
    let told = Told::of(&packed);
    let text = format!("{}\n\n{}", told.text(), next(&packed.bundle, &plugin_dir));
    output.result(&text, &told);
    Ok(ExitCode::SUCCESS)
}

/// The user's plugin folder, which every daemon of the user searches.
fn user_folder() -> Result<PathBuf, Error> {
    let set = |key: &str| {
        std::env::var_os(key)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    data.map(|data| data.join("synapse/plugins")).ok_or_else(|| {
        Error::Usage("the environment names no home; name the plugin folder with --plugin-dir".to_owned())
    })
}

/// What the operator does next.
fn next(bundle: &synapse_loader::Bundle, plugin_dir: &Path) -> String {
    let id = &bundle.id;
    let mut lines = vec![
        "Next, with the daemon running (synapse serve, or the one that runs already):".to_owned(),
        format!(
            "  synapse plugin list                 {id} is there; a daemon that searches other folders needs --plugin-dir {}",
            plugin_dir.display()
        ),
    ];
    for model in models(bundle) {
        lines.push(format!("  synapse models pull {model}"));
        lines.push(format!(
            "  synapse probe run {model}           certifies the lane on this machine"
        ));
    }
    if bundle.promotable {
        lines.push(format!(
            "  synapse plugin trust {id}           lets it run inside the daemon; until then it runs in a worker"
        ));
    }
    lines.join("\n")
}

/// The ids of the bundle's own models.
fn models(bundle: &synapse_loader::Bundle) -> Vec<String> {
    let folder = bundle.dir.join("catalog");
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let texts = entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let tables = texts.filter_map(|text| toml::from_str::<toml::Table>(&text).ok());
    let mut ids: Vec<String> = tables
        .filter_map(|table| Some(table.get("id")?.as_str()?.to_owned()))
        .collect();
    ids.sort();
    ids
}
