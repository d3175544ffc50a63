//! What a bundle's folder looks like from outside: enough to see that it changed, without reading a file.
//!
//! State: none. Callers: discovery, which looks into a folder again only when its stamp changed, and through
//! [`crate::Loader::glance`] whoever watches the search path. A stamp is no proof: what is loaded is decided by the
//! digest of the copy.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use synapse_core::digest::Sha256Digest;

/// The deepest folder and the most entries that are looked at: a bundle with more is refused.
const MAX_DEPTH: usize = 10;
const MAX_ENTRIES: usize = 2048;

/// Names, lengths, modes and times of everything in a folder, as one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(Sha256Digest);

impl Stamp {
    /// The stamp of a file or folder; what cannot be read is part of it. Links are not followed.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let mut hash = Sha256::new();
        let mut left = MAX_ENTRIES;
        add(&mut hash, path, 0, &mut left);
        Self(Sha256Digest(hash.finalize().into()))
    }
}

fn add(hash: &mut Sha256, path: &Path, depth: usize, left: &mut usize) {
    let Ok(data) = std::fs::symlink_metadata(path) else {
        hash.update(b"-");
        return;
    };
    add_facts(hash, &data);
    if !data.is_dir() || depth > MAX_DEPTH {
        return;
    }
    let Ok(entries) = std::fs::read_dir(path) else {
        hash.update(b"?");
        return;
    };
    let mut names: Vec<_> = entries
        .flatten()
        .take(MAX_ENTRIES)
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    for name in names {
        *left = left.saturating_sub(1);
        if *left == 0 {
            return;
        }
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_encoded_bytes());
        add(hash, &path.join(name), depth + 1, left);
    }
}

fn add_facts(hash: &mut Sha256, data: &Metadata) {
    // A folder's own times change with its entries, which are added themselves.
    let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
    for fact in [
        data.dev(),
        data.ino(),
        data.len(),
        u64::from(data.mode()),
        u64::from(data.uid()),
    ] {
        hash.update(fact.to_le_bytes());
    }
    for time in times {
        hash.update(time.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_stamp_sees_every_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut seen = Vec::new();
        let mut step = |what: &str| {
            let stamp = Stamp::of(folder.path());
            assert_eq!(
                stamp,
                Stamp::of(folder.path()),
                "{what}: the same folder has the same stamp"
            );
            assert!(!seen.contains(&stamp), "{what} is not seen");
            seen.push(stamp);
        };
        step("an empty folder");
        std::fs::create_dir(path("lib")).unwrap();
        step("a folder in it");
        std::fs::write(path("lib/a"), "1").unwrap();
        step("a file");
        std::fs::write(path("lib/a"), "12").unwrap();
        step("more bytes");
        std::fs::set_permissions(path("lib/a"), PermissionsExt::from_mode(0o700)).unwrap();
        step("a mode");
        std::fs::rename(path("lib/a"), path("lib/b")).unwrap();
        step("a name");
        std::fs::write(path("lib/c"), "12").unwrap();
        std::fs::rename(path("lib/c"), path("lib/b")).unwrap();
        step("another file of the same length");
        assert_ne!(Stamp::of(&path("lib")), Stamp::of(&path("nowhere")));
    }
}
