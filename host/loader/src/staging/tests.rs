//! The staging folder against good, bad and changed bundles.

use std::os::unix::fs::symlink;

use super::*;

struct Rig {
    dir: tempfile::TempDir,
    folder: StagingFolder,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = StagingFolder::open(&dir.path().join("staging"), 1000).unwrap();
        let bundle = dir.path().join("bundle");
        std::fs::create_dir_all(bundle.join("lib")).unwrap();
        std::fs::write(bundle.join("a"), "one").unwrap();
        std::fs::write(bundle.join("lib/b"), "two").unwrap();
        Self { dir, folder }
    }

    fn bundle(&self, path: &str) -> PathBuf {
        self.dir.path().join("bundle").join(path)
    }

    fn stage(&self) -> Result<Staged, Refusal> {
        self.folder.stage(&self.bundle(""))
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(&self.folder.path).unwrap().count()
    }
}

#[test]
fn a_bundle_is_copied_with_its_tree_into_a_private_folder() {
    let rig = Rig::new();
    let staged = rig.stage().unwrap();
    assert_eq!(std::fs::read_to_string(staged.dir.join("lib/b")).unwrap(), "two");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&rig.folder.path), 0o700);
    assert_eq!(mode(&staged.dir), 0o700);
    assert_eq!(mode(&staged.dir.join("lib/b")), 0o400);
    // Computed with: printf 'synapse bundle 1\n%s  a\n%s  lib/b\n' $(printf one|sha256sum|cut -c-64) \
    // $(printf two|sha256sum|cut -c-64) | sha256sum
    assert_eq!(
        staged.digest.to_string(),
        "79d96f86ecd5ee63a74963cd154565955c9450029cd28be23fabedfe91de85d2"
    );
    assert_eq!(rig.stage().unwrap().digest, staged.digest);
    assert_eq!(rig.entries(), 1, "a second staging leaves nothing behind");
}

#[test]
fn every_change_gives_another_digest() {
    let rig = Rig::new();
    let first = rig.stage().unwrap().digest;
    std::fs::write(rig.bundle("a"), "One").unwrap();
    let second = rig.stage().unwrap().digest;
    std::fs::write(rig.bundle("a"), "one").unwrap();
    std::fs::rename(rig.bundle("a"), rig.bundle("c")).unwrap();
    let third = rig.stage().unwrap().digest;
    assert!(first != second && second != third && first != third);
    assert_eq!(rig.entries(), 3);
    rig.folder.collect(&HashSet::from([second]));
    assert_eq!(rig.entries(), 1);
}

#[test]
fn a_copy_that_was_changed_is_made_again() {
    let rig = Rig::new();
    let staged = rig.stage().unwrap();
    let file = staged.dir.join("a");
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, "evil").unwrap();
    rig.stage().unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
    std::fs::write(staged.dir.join("extra"), "evil").unwrap();
    rig.stage().unwrap();
    assert!(!staged.dir.join("extra").exists());
}

#[test]
fn a_source_that_did_not_change_is_not_copied_again_and_its_copy_is_measured() {
    let rig = Rig::new();
    std::fs::set_permissions(rig.bundle("a"), Permissions::from_mode(0o700)).unwrap();
    let later = SystemTime::now() + std::time::Duration::from_secs(10);
    let staged = rig.folder.stage_at(&rig.bundle(""), later).unwrap();
    let again = || rig.folder.copied_before(Stamp::of(&rig.bundle("")));
    let known = again().unwrap();
    assert_eq!(
        (known.digest, &known.dir, &known.files),
        (staged.digest, &staged.dir, &staged.files)
    );
    assert_eq!(known.executable, BTreeSet::from(["a".to_owned()]));
    assert_eq!(known.executable, staged.executable);

    // A changed copy is found out, and made again although the source is as it was.
    let file = staged.dir.join("lib/b");
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, "2wo").unwrap();
    assert!(again().is_none());
    rig.folder.stage_at(&rig.bundle(""), later).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
    assert!(again().is_some());

    // So is a changed source, and a stamp that somebody wrote under another digest gives no other copy.
    let note = rig.folder.path.join(format!("{SOURCE}{}", staged.digest));
    let forged = rig.folder.path.join(format!("{SOURCE}{}", "0".repeat(64)));
    std::fs::rename(&note, &forged).unwrap();
    assert!(again().is_none());
    std::fs::rename(&forged, &note).unwrap();
    std::fs::write(rig.bundle("lib/b"), "tWo").unwrap();
    assert!(again().is_none());
    assert_ne!(
        rig.folder.stage_at(&rig.bundle(""), later).unwrap().digest,
        staged.digest
    );
    rig.folder.collect(&HashSet::new());
    assert_eq!(rig.entries(), 0, "copies and notes are gone");
}

#[test]
fn what_must_not_be_staged_is_refused() {
    let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    type Prepare<'a> = &'a dyn Fn(&Rig);
    let table: &[(&str, Prepare<'_>, RefusalReason)] = &[
        (
            "file link",
            &|rig| symlink("a", rig.bundle("l")).unwrap(),
            RefusalReason::Symlink,
        ),
        (
            "folder link",
            &|rig| symlink("lib", rig.bundle("l")).unwrap(),
            RefusalReason::Symlink,
        ),
        (
            "open file",
            &|rig| mode(&rig.bundle("a"), 0o666),
            RefusalReason::WorldWritable,
        ),
        (
            "open folder",
            &|rig| mode(&rig.bundle("lib"), 0o777),
            RefusalReason::WorldWritable,
        ),
        (
            "open root",
            &|rig| mode(&rig.bundle(""), 0o777),
            RefusalReason::WorldWritable,
        ),
        (
            "too long",
            &|rig| std::fs::write(rig.bundle("x"), [0; 1001]).unwrap(),
            RefusalReason::TooLarge,
        ),
        (
            "too long together",
            &|rig| {
                std::fs::write(rig.bundle("x"), [0; 500]).unwrap();
                std::fs::write(rig.bundle("y"), [0; 500]).unwrap();
            },
            RefusalReason::TooLarge,
        ),
        (
            "too many",
            &|rig| (0..=MAX_FILES).for_each(|n| std::fs::write(rig.bundle(&n.to_string()), "").unwrap()),
            RefusalReason::TooLarge,
        ),
        (
            "too deep",
            &|rig| {
                let deep = rig.bundle("d/d/d/d/d/d/d/d/d/d");
                std::fs::create_dir_all(&deep).unwrap();
                std::fs::write(deep.join("x"), "").unwrap();
            },
            RefusalReason::TooLarge,
        ),
        (
            "socket",
            &|rig| drop(std::os::unix::net::UnixListener::bind(rig.bundle("s")).unwrap()),
            RefusalReason::SpecialFile,
        ),
        (
            "odd name",
            &|rig| std::fs::write(rig.bundle("a\nb"), "").unwrap(),
            RefusalReason::SpecialFile,
        ),
    ];
    for (name, prepare, reason) in table {
        let rig = Rig::new();
        prepare(&rig);
        let refusal = rig.stage().unwrap_err();
        assert_eq!(refusal.reason, *reason, "{name}: {}", refusal.message);
        assert_eq!(rig.entries(), 0, "{name}: something was left behind");
    }
}

#[test]
fn interrupted_copies_are_removed_and_noexec_is_said_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("staging");
    std::fs::create_dir_all(path.join(".incoming-1-1/lib")).unwrap();
    let folder = StagingFolder::open(&path, 1000).unwrap();
    assert_eq!(std::fs::read_dir(&folder.path).unwrap().count(), 0);
    let error = check_exec(&path, true).unwrap_err();
    assert!(error.to_string().contains("mounted noexec"), "{error}");
    check_exec(&path, false).unwrap();
}
