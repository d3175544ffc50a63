//! The folder source: files that lie on this machine, for example a hub snapshot that was copied here.
//!
//! State: none. Callers: `source::fetch`. Not known here: how the files got into the folder. Links are followed,
//! because hub snapshots are made of them; what counts is the digest.

use std::fs::File;
use std::path::Path;

use synapse_catalog::ModelFile;

use super::{Fetch, expected, total};
use crate::models::ModelsError;
use crate::models::store::{copy, storage};

/// Copies the files from `folder`.
///
/// # Errors
/// [`ModelsError::Storage`] for a file that is missing or cannot be read, [`ModelsError::ArtifactInvalid`] for one
/// that differs, [`ModelsError::NoSpace`], [`ModelsError::Cancelled`].
pub fn fetch(folder: &Path, files: &[ModelFile], on: Fetch<'_>) -> Result<(), ModelsError> {
    let all = total(files);
    on.blobs.require_space(all)?;
    let mut before = 0;
    for file in files {
        let path = folder.join(&file.path);
        // A pipe or a device would block or never end; its length says nothing.
        let found = std::fs::metadata(&path).map_err(storage(&path))?;
        if !found.is_file() {
            return Err(expected(file).invalid(format!("{} is not a file", path.display())));
        }
        if found.len() != file.size {
            return Err(expected(file).invalid(format!(
                "{} has {} bytes, expected {}",
                path.display(),
                found.len(),
                file.size
            )));
        }
        let mut from = File::open(&path).map_err(storage(&path))?;
        let mut into = on.blobs.receive(&expected(file), false, on.cancel)?;
        copy(
            &mut from,
            &mut into,
            on.cancel,
            &|error| storage(&path)(error),
            &mut |done| {
                on.progress.report("copy", before + done, all);
            },
        )?;
        into.finish()?;
        before += file.size;
    }
    Ok(())
}
