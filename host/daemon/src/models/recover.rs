//! Recovery: what an ended process left in the model folder is cleared at the next start.
//!
//! State: none. Callers: `ModelStore::open`, once, before anything is pulled. Not known here: models.
//!
//! A kill can leave: a partial download (kept: the next pull resumes it, and its digest decides), a wheel that was
//! being fetched or a record that was being written (deleted), and blobs that no record names yet (kept: the next
//! pull finds them). Nothing else is possible, because blobs and records appear by rename.

use std::fs;
use std::path::Path;

use synapse_core::digest::Sha256Digest;

use super::ModelsError;
use super::store::{Blobs, storage};

/// Clears the leftovers. Returns how many were deleted.
///
/// # Errors
/// [`ModelsError::Storage`].
pub fn clear(blobs: &Blobs) -> Result<usize, ModelsError> {
    let partials = clear_folder(&blobs.partials(), |name| {
        name.strip_suffix(".part")
            .is_some_and(|digest| digest.parse::<Sha256Digest>().is_ok())
    })?;
    let records = clear_folder(&blobs.records(), |name| !name.ends_with(".next"))?;
    Ok(partials + records)
}

fn clear_folder(folder: &Path, keep: impl Fn(&str) -> bool) -> Result<usize, ModelsError> {
    let mut deleted = 0;
    for entry in fs::read_dir(folder).map_err(storage(folder))? {
        let entry = entry.map_err(storage(folder))?;
        if entry.file_name().to_str().is_some_and(&keep) {
            continue;
        }
        let path = entry.path();
        let is_folder = entry.file_type().map_err(storage(&path))?.is_dir();
        let done = if is_folder {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        done.map_err(storage(&path))?;
        deleted += 1;
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use synapse_core::digest::sha256;
    use tokio_util::sync::CancellationToken;

    use super::super::store::Expected;
    use super::*;

    #[test]
    fn resumable_files_stay_and_the_rest_goes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let blobs = Blobs::open(folder.path()).expect("opens");
        let expected = Expected {
            name: String::from("file"),
            sha256: sha256(b"hello"),
            size: 5,
        };
        let mut part = blobs
            .receive(&expected, false, &CancellationToken::new())
            .expect("starts");
        part.write(b"he").expect("writes");
        drop(part);
        fs::create_dir(blobs.partials().join("wheel-x")).expect("a folder");
        fs::write(blobs.partials().join("wheel-x/y.whl"), b"z").expect("a file");
        fs::write(blobs.records().join("m.safetensors.f32.next"), b"{").expect("a file");
        fs::write(blobs.records().join("m.safetensors.f32.json"), b"{}").expect("a file");
        assert_eq!(clear(&blobs).expect("clears"), 2);
        assert_eq!(clear(&blobs).expect("clears"), 0);
        let part = blobs
            .receive(&expected, true, &CancellationToken::new())
            .expect("resumes");
        assert_eq!(part.received(), 2);
        assert!(blobs.records().join("m.safetensors.f32.json").exists());
    }
}
