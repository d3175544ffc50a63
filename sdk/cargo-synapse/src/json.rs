//! The JSON of this crate: what cargo says about a project and a build, and what `--json` prints.
//!
//! State: none. Callers: `cargo.rs`, `output.rs`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What `cargo metadata --no-deps` says of a project.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// The workspace's packages.
    pub packages: Vec<Package>,
    /// Where builds go.
    pub target_directory: PathBuf,
}

/// One package.
#[derive(Clone, Debug, Deserialize)]
pub struct Package {
    /// Its version.
    pub version: String,
    /// Cargo's own name for it.
    pub id: String,
    /// Its Cargo.toml.
    pub manifest_path: PathBuf,
    /// What it builds.
    pub targets: Vec<Target>,
}

/// One thing that a package builds.
#[derive(Clone, Debug, Deserialize)]
pub struct Target {
    /// `cdylib`, `lib`, `bin`, …
    pub crate_types: Vec<String>,
}

/// What a build made that a bundle needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Files of the package's library.
    pub files: Vec<PathBuf>,
    /// The folder of the package's build script, if it has one.
    pub out_dir: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact {
        package_id: String,
        filenames: Vec<PathBuf>,
    },
    BuildScriptExecuted {
        package_id: String,
        out_dir: PathBuf,
    },
    #[serde(other)]
    Other,
}

/// Reads the answer of `cargo metadata`.
///
/// # Errors
/// What is wrong with it.
pub fn metadata(text: &str) -> Result<Metadata, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Adds what one line of `cargo build --message-format json` says about a package.
pub fn message(line: &str, package_id: &str, made: &mut Made) {
    match serde_json::from_str(line) {
        Ok(Message::CompilerArtifact {
            package_id: of,
            filenames,
        }) if of == package_id => made.files.extend(filenames),
        Ok(Message::BuildScriptExecuted {
            package_id: of,
            out_dir,
        }) if of == package_id => made.out_dir = Some(out_dir),
        // Other packages, other reasons, and what a build script printed.
        _ => {}
    }
}

/// A value as one JSON object.
pub fn of<T: Serialize>(value: &T) -> String {
    // Only values of this crate's own come here; they hold nothing that JSON has no form for.
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_read_for_one_package() {
        let mut made = Made::default();
        for line in [
            r#"{"reason":"compiler-artifact","package_id":"other","filenames":["/t/libother.rlib"]}"#,
            r#"{"reason":"build-script-executed","package_id":"mine","out_dir":"/t/out","env":[]}"#,
            r#"{"reason":"compiler-artifact","package_id":"mine","target":{"kind":["cdylib"]},"filenames":["/t/libmine.so"]}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "not json",
        ] {
            message(line, "mine", &mut made);
        }
        assert_eq!(made.files, [PathBuf::from("/t/libmine.so")]);
        assert_eq!(made.out_dir, Some(PathBuf::from("/t/out")));
    }
}
