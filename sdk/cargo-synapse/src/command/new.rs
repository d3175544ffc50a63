//! `cargo synapse new`: a whole project that builds, passes the conformance kit and serves.
//!
//! No state. Writes into a folder that is not there yet.

use std::fs;
use std::process::ExitCode;

use serde::Serialize;

use crate::args::New;
use crate::error::Error;
use crate::output::Output;
use crate::template;

#[derive(Serialize)]
struct Written {
    id: String,
    folder: String,
    files: Vec<&'static str>,
}

/// Writes the project.
///
/// # Errors
/// [`Error::Usage`] for a name that is no id, or a folder that is there; [`Error::Io`].
pub fn run(new: &New, output: &Output) -> Result<ExitCode, Error> {
    let id = new.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // Cargo's names of packages begin with a letter.
    if !synapse_plugin_api::magic::is_id(id) || !id.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Err(Error::Usage(format!(
            "{:?} is no plugin's id: expected 1 to 64 of a-z, 0-9 and '-', with a letter first and no '-' at the end",
            new.path.display().to_string()
        )));
    }
    if fs::symlink_metadata(&new.path).is_ok() {
        return Err(Error::Usage(format!(
            "{} is there already; choose another name, or move it away",
            new.path.display()
        )));
    }
    let files = template::project(id, new.kind);
    for (path, text) in &files {
        let path = new.path.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io("cannot make", parent))?;
        }
        fs::write(&path, text).map_err(Error::io("cannot write", &path))?;
    }
    let folder = new.path.display().to_string();
    let text = format!(
        "{folder}: {} files\n\n  cd {folder}\n  cargo test               the engine's own tests\n  cargo synapse check      the \
         conformance kit\n  cargo synapse install    into the user's plugin folder",
        files.len()
    );
    let written = Written {
        id: id.to_owned(),
        folder,
        files: files.iter().map(|(path, _)| *path).collect(),
    };
    output.result(&text, &written);
    Ok(ExitCode::SUCCESS)
}
