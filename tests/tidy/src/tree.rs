//! The repository's text files, by path.
//!
//! State: a [`Tree`] in memory. What git ignores (build output, caches) and what is not UTF-8 is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Folders that are never part of the repository's text.
const SKIPPED: [&str; 6] = [".git", ".synapse", "__pycache__", "node_modules", "shared", "target"];

/// The largest file that is read: longer ones are data.
const LARGEST: u64 = 4 << 20;

/// Text files by path relative to the repository, with `/`.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
    paths: BTreeSet<String>,
}

impl Tree {
    /// A tree from pairs of path and text, for samples.
    pub fn from_pairs<P: Into<String>, T: Into<String>>(pairs: impl IntoIterator<Item = (P, T)>) -> Self {
        let files: BTreeMap<String, String> = pairs.into_iter().map(|(p, t)| (p.into(), t.into())).collect();
        let paths = files.keys().cloned().collect();
        Self { files, paths }
    }

    /// The tree below `root`.
    ///
    /// # Errors
    /// When a folder cannot be listed or a file cannot be read.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.walk(root, "")?;
        Ok(tree)
    }

    fn walk(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.walk(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                self.paths.insert(path.clone());
                let bytes = match entry.metadata() {
                    Ok(metadata) if metadata.len() <= LARGEST => std::fs::read(entry.path()),
                    _ => continue,
                };
                // A file that vanished between listing and reading was an editor's.
                if let Some(text) = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
                    self.files.insert(path, text);
                }
            }
        }
        Ok(())
    }

    /// Every text file.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The text of a file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Every Rust file.
    pub fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Whether a file or a folder is there; a trailing `/` asks for a folder.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let below = self
            .paths
            .range(folder.clone()..)
            .next()
            .is_some_and(|first| first.starts_with(&folder));
        below || (!path.ends_with('/') && self.paths.contains(path))
    }
}

/// Whether a Rust file is a test: its own folder, or the name that we give to a module of tests.
#[must_use]
pub fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.starts_with("tests/") || path.contains("/tests/") || name == "tests.rs" || name.ends_with("_tests.rs")
}
