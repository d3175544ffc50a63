//! `cargo synapse install`: a bundle into a plugin folder, and what the operator does next.
//!
//! No state.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::Install;
use crate::bundle::{self, Packed};
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
    let text = format!("{}\n\n{}", told.text(), next(&packed, &plugin_dir));
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
fn next(packed: &Packed, plugin_dir: &Path) -> String {
    let id = &packed.bundle.id;
    let elsewhere = plugin_dir.display();
    let mut steps = vec![("synapse plugin list".to_owned(), format!("{id} is there"))];
    for model in models(&packed.folder) {
        steps.push((format!("synapse models pull {model}"), "takes its files in".to_owned()));
        steps.push((
            format!("synapse probe run {model}"),
            "certifies its lane on this machine".to_owned(),
        ));
    }
    if packed.bundle.promotable {
        let what = "lets it run inside the daemon; until then it runs in a worker";
        steps.push((format!("synapse plugin trust {id}"), what.to_owned()));
    }
    let width = steps.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let lines: Vec<String> = steps
        .iter()
        .map(|(command, what)| format!("  {command:width$}  {what}"))
        .collect();
    format!(
        "Next, with a daemon running that searches this folder (synapse serve, or with --plugin-dir {elsewhere}):\n{}",
        lines.join("\n")
    )
}

/// The ids of the bundle's own models.
fn models(bundle: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(bundle.join("catalog")) else {
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
