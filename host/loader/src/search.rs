//! What lies in the folders of the search path: one level deep, without following links.
//!
//! State: none. Callers: discovery. Not known here: which folders they are (the daemon says), and what a bundle holds.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::bundle::{Refusal, RefusalReason};
use crate::staging::check_writers;

/// The most entries looked at in one folder.
const MAX_ENTRIES: usize = 1024;

/// One entry of a plugin folder that is, or wants to be, a bundle.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub dir: PathBuf,
    pub name: String,
    /// Set when it is refused for its place alone.
    pub refusal: Option<Refusal>,
}

/// The candidates of every folder, in order, by name within a folder.
pub(crate) fn candidates(dirs: &[PathBuf]) -> Vec<Candidate> {
    let mut found = Vec::new();
    for dir in dirs {
        match in_folder(dir) {
            Ok(candidates) => found.extend(candidates),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(target: "synapse.config", folder = %dir.display(), %error, "a plugin folder cannot be read");
            }
        }
    }
    found
}

fn in_folder(folder: &Path) -> std::io::Result<Vec<Candidate>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(folder, flags, Mode::empty())?;
    // Whoever may write here may replace a bundle at any time, its own owner and mode notwithstanding.
    let place = check_writers(&rustix::fs::fstat(&open)?, "the plugin folder").err();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MAX_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        if name.starts_with('.') {
            continue;
        }
        let refusal = if kind.is_symlink() {
            let message = "the entry is a symbolic link; copy the bundle's folder into the plugin folder instead";
            Some(Refusal::new(RefusalReason::Symlink, message))
        } else if kind.is_dir() {
            place.clone()
        } else if is_library_name(&name) {
            let message = "the entry is a loose library; a bundle is a folder with plugin.toml and the library in it";
            Some(Refusal::new(RefusalReason::NotABundle, message))
        } else {
            // A README or an archive beside the bundles is nobody's fault.
            continue;
        };
        found.push(Candidate {
            dir: entry.path(),
            name,
            refusal,
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn is_library_name(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("so" | "dylib" | "dll"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn folders_are_candidates_and_links_and_loose_libraries_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("b")).unwrap();
        std::fs::create_dir(path("a")).unwrap();
        std::fs::create_dir(path(".hidden")).unwrap();
        std::fs::write(path("README"), "").unwrap();
        std::fs::write(path("lib.so"), "").unwrap();
        symlink("a", path("link")).unwrap();
        let dirs = [path("missing"), dir.path().to_owned()];
        let found = candidates(&dirs);
        let rows: Vec<_> = found
            .iter()
            .map(|candidate| {
                (
                    candidate.name.as_str(),
                    candidate.refusal.as_ref().map(|refusal| refusal.reason),
                )
            })
            .collect();
        let expect = [
            ("a", None),
            ("b", None),
            ("lib.so", Some(RefusalReason::NotABundle)),
            ("link", Some(RefusalReason::Symlink)),
        ];
        assert_eq!(rows, expect);
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let found = candidates(&dirs);
        assert_eq!(found[0].refusal.as_ref().unwrap().reason, RefusalReason::WorldWritable);
    }
}
