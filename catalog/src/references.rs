//! The files of independent results: built in, or in the folder `references` beside a record's own.
//!
//! State: none. Caller: [`crate::Catalog::references`]. What the bytes mean is the probe's business; here they are what
//! the record says they are, or they are refused.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use synapse_core::digest::sha256;

use crate::record::ReferencesFile;

/// The corpus that all references are of (`references/corpus.toml`).
pub const CORPUS: &str = include_str!("../references/corpus.toml");

/// The built-in files by their paths.
const BUILTIN: [(&str, &[u8]); 2] = [
    (
        "all-minilm-l6-v2.refs",
        include_bytes!("../references/all-minilm-l6-v2.refs"),
    ),
    (
        "smollm2-135m-instruct.refs",
        include_bytes!("../references/smollm2-135m-instruct.refs"),
    ),
];

/// The largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

pub(crate) fn builtin(path: &str) -> Result<&'static [u8], String> {
    let found = BUILTIN.iter().find(|(name, _)| *name == path);
    found
        .map(|(_, bytes)| *bytes)
        .ok_or_else(|| "is not built in".to_owned())
}

/// The folder of a record's references: beside the record, or beside its folder `models`.
pub(crate) fn folder(record: &Path) -> PathBuf {
    let parent = record.parent().unwrap_or(Path::new(""));
    let base = match parent.file_name() {
        Some(name) if name == "models" => parent.parent().unwrap_or(parent),
        _ => parent,
    };
    base.join("references")
}

pub(crate) fn read(path: &Path, size: u64) -> Result<Vec<u8>, String> {
    if size > MAX_BYTES {
        return Err(format!("{size} bytes, at most {MAX_BYTES} are read"));
    }
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // A pipe or a device would block or never end.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(size + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

pub(crate) fn check(bytes: &[u8], file: &ReferencesFile) -> Result<(), String> {
    let found = sha256(bytes);
    if u64::try_from(bytes.len()) == Ok(file.size) && found == file.sha256 {
        return Ok(());
    }
    let (length, size, sha256) = (bytes.len(), file.size, file.sha256);
    Err(format!(
        "{length} bytes with SHA-256 {found}, the record says {size} with {sha256}"
    ))
}
