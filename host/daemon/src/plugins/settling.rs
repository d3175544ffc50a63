//! When a changed folder is looked into: once it has not changed for a while, so that no half-copied bundle is taken.
//!
//! State: which folders are changing, and since when they look as they do. Callers: `pickup`, with each glance. Not
//! known here: clocks (time is an argument), what is in the folders.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use synapse_loader::{Glance, Stamp};

/// Folders on their way.
#[derive(Debug)]
pub struct Settling {
    quiet: Duration,
    moving: BTreeMap<PathBuf, (Option<Stamp>, Instant)>,
}

impl Settling {
    /// Nothing moves. A folder has settled when it looked the same for `quiet`.
    #[must_use]
    pub const fn new(quiet: Duration) -> Self {
        Self {
            quiet,
            moving: BTreeMap::new(),
        }
    }

    /// Takes a glance, with what was last `looked` into. When something has settled that is not as it was, it is time to
    /// look again, except into the folders that are given: those still change.
    pub fn observe(&mut self, looked: &Glance, now: &Glance, at: Instant) -> Option<HashSet<PathBuf>> {
        // The trust file settles like a folder; no bundle has the empty path.
        let trust = Path::new("");
        let bundles = looked.bundles.keys().chain(now.bundles.keys()).map(PathBuf::as_path);
        let paths: BTreeSet<&Path> = bundles.chain([trust]).collect();
        self.moving.retain(|path, _| paths.contains(path.as_path()));
        for path in paths {
            let stamp = |glance: &Glance| {
                if path == trust {
                    glance.trust
                } else {
                    glance.bundles.get(path).copied()
                }
            };
            let (was, is) = (stamp(looked), stamp(now));
            if was == is {
                self.moving.remove(path);
            } else if self.moving.get(path).is_none_or(|(seen, _)| *seen != is) {
                self.moving.insert(path.to_owned(), (is, at));
            }
        }
        let (settled, moving): (Vec<_>, Vec<_>) = self
            .moving
            .iter()
            .partition(|(_, (_, since))| at.saturating_duration_since(*since) >= self.quiet);
        (!settled.is_empty()).then(|| moving.into_iter().map(|(path, _)| path.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A glance at folders; each letter of a text is another look of the folder.
    fn glance(folders: &[(&str, &str)]) -> Glance {
        let root = tempfile::tempdir().unwrap();
        let stamp = |look: &str| {
            let file = root.path().join("look");
            std::fs::write(&file, look.repeat(look.len() + usize::from(look.as_bytes()[0]))).unwrap();
            Stamp::of(&file)
        };
        Glance {
            bundles: folders
                .iter()
                .map(|(path, look)| (PathBuf::from(path), stamp(look)))
                .collect(),
            trust: None,
        }
    }

    #[test]
    fn a_folder_is_looked_into_when_it_is_quiet() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (empty, a) = (Glance::default(), glance(&[("/p/a", "x")]));
        let mut settling = Settling::new(Duration::from_secs(3));
        assert_eq!(settling.observe(&empty, &empty, at(0)), None);
        assert_eq!(settling.observe(&empty, &a, at(1)), None, "just seen");
        assert_eq!(settling.observe(&empty, &a, at(3)), None, "two seconds");
        let grown = glance(&[("/p/a", "y")]);
        assert_eq!(settling.observe(&empty, &grown, at(4)), None, "it changed again");
        assert_eq!(settling.observe(&empty, &grown, at(6)), None);
        assert_eq!(settling.observe(&empty, &grown, at(7)), Some(HashSet::new()));
        assert_eq!(settling.observe(&grown, &grown, at(8)), None, "it was looked into");
        // A folder that is gone for a moment, as when it is copied anew, is no removed bundle.
        assert_eq!(settling.observe(&grown, &empty, at(9)), None);
        assert_eq!(settling.observe(&grown, &grown, at(10)), None);
        assert_eq!(settling.observe(&grown, &empty, at(11)), None);
        assert_eq!(settling.observe(&grown, &empty, at(14)), Some(HashSet::new()));
    }

    #[test]
    fn one_that_never_rests_holds_up_nobody() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut settling = Settling::new(Duration::from_secs(3));
        let empty = Glance::default();
        let looks = ["a", "b", "c", "d"];
        for (second, look) in looks.iter().enumerate() {
            let now = glance(&[("/p/busy", look)]);
            let mut now = now;
            now.bundles.insert("/p/done".into(), Stamp::of(Path::new("/")));
            let second = u64::try_from(second).unwrap();
            let expected = (second == 3).then(|| HashSet::from([PathBuf::from("/p/busy")]));
            assert_eq!(settling.observe(&empty, &now, at(second)), expected);
        }
    }

    #[test]
    fn the_trust_file_counts_as_well() {
        let start = Instant::now();
        let mut settling = Settling::new(Duration::from_secs(3));
        let empty = Glance::default();
        let trusted = Glance {
            trust: Some(Stamp::of(Path::new("/"))),
            ..Glance::default()
        };
        assert_eq!(settling.observe(&empty, &trusted, start), None);
        assert_eq!(
            settling.observe(&empty, &trusted, start + Duration::from_secs(3)),
            Some(HashSet::new())
        );
    }
}
