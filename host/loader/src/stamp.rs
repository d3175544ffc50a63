//! What a bundle's folder looks like from outside: enough to see that it changed, without reading a file.
//!
//! State: none. Callers: discovery, which looks into a folder again only when its stamp changed, and through
//! [`crate::Loader::glance`] whoever watches the search path; and staging, which reads a folder again only then. A stamp
//! is no proof: what is loaded is decided by the digest of the copy.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};
use synapse_core::digest::Sha256Digest;

/// The deepest folder and the most entries that are looked at: a bundle with more is refused.
const MAX_DEPTH: usize = 10;
const MAX_ENTRIES: usize = 2048;
/// Two changes within so short a time may leave the same times behind.
const SETTLED: Duration = Duration::from_secs(2);

/// Names, lengths, modes and times of everything in a folder, as one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(Sha256Digest);

impl Stamp {
    /// The stamp of a file or folder; what cannot be read is part of it. Links are not followed.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        Look::at(path).stamp()
    }

    /// The stamp of what last changed so long before `now` that any later change gives another one.
    pub(crate) fn of_settled(path: &Path, now: SystemTime) -> Option<Self> {
        let look = Look::at(path);
        let now = i64::try_from(now.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()?;
        let settled = look.newest.saturating_add_unsigned(SETTLED.as_secs()) < now;
        settled.then(|| look.stamp())
    }
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One look at a tree.
struct Look {
    hash: Sha256,
    /// Entries that may still be looked at.
    left: usize,
    /// Seconds of the last change.
    newest: i64,
}

impl Look {
    fn at(path: &Path) -> Self {
        let mut look = Self {
            hash: Sha256::new(),
            left: MAX_ENTRIES,
            newest: i64::MIN,
        };
        look.add(path, 0);
        look
    }

    fn stamp(self) -> Stamp {
        Stamp(Sha256Digest(self.hash.finalize().into()))
    }

    fn add(&mut self, path: &Path, depth: usize) {
        let Ok(data) = std::fs::symlink_metadata(path) else {
            self.hash.update(b"-");
            return;
        };
        self.add_facts(&data);
        if !data.is_dir() || depth > MAX_DEPTH {
            return;
        }
        let Ok(entries) = std::fs::read_dir(path) else {
            self.hash.update(b"?");
            return;
        };
        let mut names: Vec<_> = entries
            .flatten()
            .take(MAX_ENTRIES)
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        for name in names {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                return;
            }
            self.hash.update((name.len() as u64).to_le_bytes());
            self.hash.update(name.as_encoded_bytes());
            self.add(&path.join(name), depth + 1);
        }
    }

    fn add_facts(&mut self, data: &Metadata) {
        // A folder's own times change with its entries, which are added themselves.
        let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
        for fact in [
            data.dev(),
            data.ino(),
            data.len(),
            u64::from(data.mode()),
            u64::from(data.uid()),
        ] {
            self.hash.update(fact.to_le_bytes());
        }
        for time in times {
            self.hash.update(time.to_le_bytes());
        }
        self.newest = self.newest.max(data.mtime()).max(data.ctime());
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

    #[test]
    fn what_just_changed_is_not_settled() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "1").unwrap();
        let after = |seconds| Stamp::of_settled(folder.path(), SystemTime::now() + Duration::from_secs(seconds));
        assert_eq!(after(0), None);
        assert_eq!(after(10), Some(Stamp::of(folder.path())));
    }
}
