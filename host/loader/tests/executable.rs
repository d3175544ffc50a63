//! Executable bundles and repeated discoveries, with shell scripts as programs: what is run is the staged copy, and
//! what is wrong with a program is a typed refusal.

#![cfg(target_os = "linux")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use synapse_loader::{Bundle, BundleStatus, Loader, LoaderConfig, MemoryOnly, RefusalReason, trust};

const MANIFEST: &str = "schema = 1\nid = \"demo\"\nversion = \"1.2.0\"\nkind = \"executable\"\nprogram = \"bin/run\"\n\
                        protocol = 3\nengines = [\"embed\"]\n";
const DESCRIPTOR: &str = r#"{"form":1,"id":"demo","package_version":"1.2.0","engine":"demo","engine_version":"1","build_flags":[],"supports":[{"kind":"embed","format":"x","dtype":"f32","preempt":"quantum","thread_invariant":true,"f32_exact":true}]}"#;

/// A place with one executable bundle.
struct Place {
    folder: tempfile::TempDir,
    loader: Loader,
}

impl Place {
    /// A bundle whose program is a shell script with these lines.
    fn new(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("plugins/demo/bin")).unwrap();
        let config = LoaderConfig {
            plugin_dirs: vec![path("plugins")],
            staging_dir: path("staging"),
            // No library is described here.
            worker_binary: path("no-worker"),
            trust_file: path("trust.toml"),
            scan_timeout: Duration::from_secs(3),
            max_bundle_bytes: 1 << 20,
        };
        let loader = Loader::new(config, Arc::new(MemoryOnly::default())).unwrap();
        let place = Self { folder, loader };
        fs::write(place.bundle().join("plugin.toml"), MANIFEST).unwrap();
        place.program(&format!("#!/bin/sh\n{lines}\n"));
        place
    }

    fn bundle(&self) -> PathBuf {
        self.folder.path().join("plugins/demo")
    }

    fn program(&self, text: &str) {
        let file = self.bundle().join("bin/run");
        // A new file, as an installer makes it: a running one may not be written.
        let fresh = self.bundle().join("bin/fresh");
        fs::write(&fresh, text).unwrap();
        fs::set_permissions(&fresh, PermissionsExt::from_mode(0o755)).unwrap();
        fs::rename(fresh, file).unwrap();
    }

    fn found(&self) -> Bundle {
        let mut found = self.loader.discover();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

fn describes() -> String {
    format!("echo '{DESCRIPTOR}'")
}

#[test]
fn an_executable_is_described_from_its_copy_and_runs_isolated() {
    let place = Place::new(&describes());
    let bundle = place.found();
    let BundleStatus::NeedsWorker { reason } = &bundle.status else {
        panic!("{:?}", bundle.status);
    };
    assert!(reason.contains("a process of its own"), "{reason}");
    assert!(!bundle.promotable, "no promotion brings a program into another process");
    assert_eq!(bundle.descriptor.as_ref().unwrap().identity.engine, "demo");
    assert_eq!(
        (&bundle.library, bundle.program.as_deref()),
        (&None, Some(Path::new("bin/run")))
    );
    let staged = bundle.staged.clone().unwrap();
    assert_eq!(bundle.worker_program(Path::new("/w")), staged.join("bin/run"));
    // It says where it was run from, and with which arguments.
    let place = Place::new("echo \"{\\\"refused\\\":\\\"scan_failed\\\",\\\"message\\\":\\\"$0 $*\\\"}\"; exit 3");
    let bundle = place.found();
    let staged = bundle.staged.clone().unwrap();
    let expected = format!("{}/bin/run --describe --plugin {}", staged.display(), staged.display());
    assert_eq!(
        bundle.status.message(),
        Some(expected),
        "trusted or not, only the copy is run"
    );
}

#[test]
fn a_trusted_executable_runs_isolated_too() {
    let place = Place::new(&describes());
    let digest = place.found().digest.unwrap();
    trust::trust(&place.folder.path().join("trust.toml"), "demo", &digest).unwrap();
    assert!(matches!(place.found().status, BundleStatus::NeedsWorker { .. }));
}

#[test]
fn what_is_wrong_with_a_program_is_a_typed_refusal() {
    type Worsen = fn(&Place);
    fn edit(place: &Place, from: &str, to: &str) {
        let text = MANIFEST.replace(from, to);
        assert_ne!(text, MANIFEST, "{from}");
        fs::write(place.bundle().join("plugin.toml"), text).unwrap();
    }
    let good = describes();
    let rows: &[(&str, Worsen, RefusalReason, &str)] = &[
        (
            &good,
            |place| {
                let program = place.bundle().join("bin/run");
                fs::set_permissions(program, PermissionsExt::from_mode(0o644)).unwrap();
            },
            RefusalReason::NotExecutable,
            "chmod u+x",
        ),
        (
            &good,
            |place| place.program("echo no interpreter is named\n"),
            RefusalReason::NotAProgram,
            "begins with #!",
        ),
        (
            &good,
            |place| place.program("#!/no/such/interpreter\n"),
            RefusalReason::InterpreterMissing,
            "/no/such/interpreter",
        ),
        (
            &good,
            |place| place.program("#!/usr/bin/env no-such-interpreter\n"),
            RefusalReason::InterpreterMissing,
            "no-such-interpreter",
        ),
        (
            &good,
            |place| place.program("#! sh\n"),
            RefusalReason::NotAProgram,
            "absolute interpreter",
        ),
        (
            &good,
            |place| edit(place, "protocol = 3", "protocol = 4"),
            RefusalReason::ProtocolVersion,
            "protocol: plugin 4, host supports 3",
        ),
        (
            &good,
            |place| edit(place, "bin/run", "bin/other"),
            RefusalReason::ProgramMissing,
            "bin/other",
        ),
        (
            &good,
            |place| edit(place, "[\"embed\"]", "[\"rerank\"]"),
            RefusalReason::DescriptorInvalid,
            "it describes",
        ),
        (
            &good,
            |place| edit(place, "1.2.0", "1.3.0"),
            RefusalReason::VersionMismatch,
            "its descriptor",
        ),
        ("echo nonsense", |_| {}, RefusalReason::DescriptorInvalid, "expected"),
        (
            "echo '{}'; echo '{}'",
            |_| {},
            RefusalReason::DescriptorInvalid,
            "missing field",
        ),
        (
            "sleep 600",
            |_| {},
            RefusalReason::ScanTimeout,
            "the program did not describe",
        ),
        (
            "echo '{\"refused\":\"link_failed\",\"message\":\"no numpy\"}'; exit 3",
            |_| {},
            RefusalReason::LinkFailed,
            "no numpy",
        ),
    ];
    for (lines, worsen, expected, words) in rows {
        let place = Place::new(lines);
        worsen(&place);
        match place.found().status {
            BundleStatus::Refused { reason, message } => {
                assert_eq!(reason, *expected, "{message}");
                assert!(message.contains(words), "{expected}: {message}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn a_program_that_dies_while_it_describes_itself_is_quarantined() {
    for (lines, words) in [
        ("echo 'ImportError: x' >&2; exit 1", "its last words: ImportError: x"),
        ("kill -SEGV $$", "the program crashed"),
        ("exit 0", "before it described itself"),
    ] {
        let place = Place::new(lines);
        let BundleStatus::Quarantined { message } = place.found().status else {
            panic!("{lines}: {:?}", place.found().status);
        };
        assert!(message.contains(words), "{lines}: {message}");
    }
}

#[test]
fn a_bit_that_is_set_later_counts_for_the_copy_too() {
    let place = Place::new(&describes());
    let program = place.bundle().join("bin/run");
    fs::set_permissions(&program, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(place.found().status.name(), "refused");
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let bundle = place.found();
    assert_eq!(bundle.status.name(), "needs_worker", "{:?}", bundle.status);
    let copy = fs::metadata(bundle.worker_program(Path::new("/w"))).unwrap();
    assert_eq!(copy.permissions().mode() & 0o777, 0o500, "for this user alone");
}

/// A folder that still changes counts as it was, also when it is gone for a moment; its copy stays.
#[test]
fn an_unsettled_folder_counts_as_it_was() {
    let place = Place::new(&describes());
    let first = place.found();
    let unsettled = HashSet::from([place.bundle()]);
    let again = |unsettled: &HashSet<PathBuf>| {
        let found = place.loader.rediscover(unsettled, &HashSet::new());
        found.into_iter().map(|bundle| bundle.digest).collect::<Vec<_>>()
    };
    place.program("#!/bin/sh\nexit 1\n");
    assert_eq!(again(&unsettled), [first.digest]);
    fs::rename(place.bundle(), place.folder.path().join("aside")).unwrap();
    assert_eq!(again(&unsettled), [first.digest]);
    assert!(
        first.worker_program(Path::new("/w")).exists(),
        "what may serve has its copy"
    );
    assert_eq!(again(&HashSet::new()), [], "settled: it is gone");
    assert!(
        !first.worker_program(Path::new("/w")).exists(),
        "nobody has the digest any more"
    );
    // One that is new and unsettled is not seen at all.
    fs::rename(place.folder.path().join("aside"), place.bundle()).unwrap();
    assert_eq!(again(&unsettled), []);
}

#[test]
fn a_copy_in_use_outlives_its_bundle() {
    let place = Place::new(&describes());
    let first = place.found();
    place.program(&format!("#!/bin/sh\n# another\n{}\n", describes()));
    let keep = HashSet::from([first.digest.unwrap()]);
    let second = place.loader.rediscover(&HashSet::new(), &keep).remove(0);
    assert_ne!(second.digest, first.digest);
    let program = first.worker_program(Path::new("/w"));
    assert!(program.exists(), "it is in use");
    assert_eq!(place.found().digest, second.digest);
    assert!(!program.exists(), "it is not any more");
}

/// A second discovery does not read a bundle that looks as it did: its copy may then be gone without being made anew.
#[test]
fn what_looks_as_it_did_is_not_read_again() {
    let place = Place::new(&describes());
    let first = place.found();
    let glance = place.loader.glance();
    assert_eq!(glance, place.loader.glance());
    fs::remove_dir_all(first.staged.as_ref().unwrap()).unwrap();
    assert_eq!(place.found().digest, first.digest);
    assert!(!first.staged.as_ref().unwrap().exists());
    fs::write(place.bundle().join("note"), "new").unwrap();
    assert_ne!(glance, place.loader.glance());
    let second = place.found();
    assert_ne!(second.digest, first.digest);
    assert!(second.staged.unwrap().exists());
}

#[test]
fn a_bundle_that_is_switched_off_is_not_looked_into() {
    let place = Place::new("exit 1");
    let file = place.folder.path().join("trust.toml");
    trust::set_disabled(&file, "demo", true).unwrap();
    let bundle = place.found();
    assert_eq!((bundle.status, bundle.digest), (BundleStatus::Disabled, None));
    trust::set_disabled(&file, "demo", false).unwrap();
    assert_eq!(place.found().status.name(), "quarantined");
}

#[test]
fn one_folder_is_examined_without_its_siblings() {
    let place = Place::new(&describes());
    let sibling = place.folder.path().join("plugins/other");
    fs::create_dir(&sibling).unwrap();
    fs::write(sibling.join("plugin.toml"), "schema = 7").unwrap();
    let first = place.loader.examine_one(&place.bundle());
    assert_eq!(first.status.name(), "needs_worker", "{:?}", first.status);
    let other = place.loader.examine_one(&sibling);
    assert_eq!(other.status.name(), "refused");
    assert!(first.worker_program(Path::new("/w")).exists(), "no copy is removed");
    let nothing = place.loader.examine_one(Path::new("/no/such/bundle"));
    assert_eq!(nothing.status.name(), "refused", "{:?}", nothing.status);
}
