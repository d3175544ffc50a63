//! Golden files: compared for equality, rewritten when `SYNAPSE_BLESS=1`.
//!
//! Owns no state. A difference is reported by its first line, because the files are long.

use std::path::{Path, PathBuf};

/// A folder or file of this crate's source.
#[must_use]
pub fn source(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// Whether golden files are to be rewritten instead of compared.
#[must_use]
pub fn blessing() -> bool {
    std::env::var_os("SYNAPSE_BLESS").is_some_and(|value| value == "1")
}

/// Compares a text with `golden/NAME`.
///
/// # Errors
/// The first line that differs, with its number, or why the file cannot be read.
pub fn check(name: &str, found: &str) -> Result<(), String> {
    let path = source("golden").join(name);
    if blessing() {
        return std::fs::write(&path, found).map_err(|error| format!("{}: {error}", path.display()));
    }
    let golden = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut left, mut right) = (golden.lines(), found.lines());
    for number in 1.. {
        match (left.next(), right.next()) {
            (None, None) => return Ok(()),
            (golden, found) if golden == found => {}
            (golden, found) => {
                let (golden, found) = (golden.unwrap_or("end of file"), found.unwrap_or("end of text"));
                return Err(format!(
                    "golden/{name}, line {number}: the file has `{golden}`, the crate has `{found}`"
                ));
            }
        }
    }
    Ok(())
}
