//! Both directions: what is good passes every check, what is bad fails its own check and no other.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use synapse_conformance::{Group, Options, Outcome, Report, catalogue};
use synapse_faults::kit::{self, Exhibit};
use synapse_faults::{Stage, zoo};
use synapse_loader::RefusalReason;

use crate::{options, run, stage, worker};

/// How many exhibits are looked at at once: most of their time is waiting.
const AT_ONCE: usize = 3;

/// The check that owns a reason of a refusal.
pub fn package_check(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::ManifestMissing | RefusalReason::ManifestInvalid | RefusalReason::ManifestSchema => {
            "package-manifest"
        }
        RefusalReason::DigestMismatch => "package-digests",
        RefusalReason::IdMismatch | RefusalReason::VersionMismatch => "package-names",
        RefusalReason::NotALibrary | RefusalReason::TargetMismatch => "package-library",
        RefusalReason::MagicMissing | RefusalReason::MagicInvalid => "package-magic",
        RefusalReason::AbiMajor | RefusalReason::AbiVendor => "package-abi",
        RefusalReason::LinkFailed => "package-link",
        RefusalReason::AbiLayout => "package-layout",
        RefusalReason::DescriptorInvalid | RefusalReason::ScanTimeout => "package-describe",
        _ => "package-files",
    }
}

/// What is wrong with a report of something that fails one check; empty when it is as it should be.
fn wrong(report: &Report, exhibit: &Exhibit) -> String {
    let bad: Vec<_> = report.lines.iter().filter(|line| line.outcome.is_bad()).collect();
    let name = exhibit.mode;
    let mut words = String::new();
    if !bad.iter().any(|line| line.id == exhibit.fails) {
        let line = report.lines.iter().find(|line| line.id == exhibit.fails);
        words += &format!("{name} does not fail {}: {line:?}\n", exhibit.fails);
    }
    let expected =
        |id: &str| id == exhibit.fails || exhibit.relatives.iter().any(|known| *known == id || *known == "*");
    for line in bad.iter().filter(|line| !expected(&line.id)) {
        words += &format!("{name} fails also {line}\n");
    }
    words
}

/// Runs something for each item, a few at a time; what it says of them.
fn for_each<T: Sync>(items: &[T], body: impl Fn(&T) -> String + Sync) -> String {
    let (next, said) = (AtomicUsize::new(0), Mutex::new(String::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::SeqCst)) {
                    *said.lock().expect("no panic holds it") += &body(item);
                }
            });
        }
    });
    said.into_inner().expect("no panic held it")
}

/// Ids of a group, for `only`.
fn ids(groups: &[Group]) -> String {
    let ids = catalogue()
        .filter(|check| groups.contains(&check.group()))
        .map(|check| check.id);
    ids.collect::<Vec<_>>().join(",")
}

fn kit_bundle(stage: &Stage, mode: &str) -> PathBuf {
    stage.add_kit("stress", mode).path("")
}

/// A library that keeps the contract passes every check, in the library and in the worker, and skips none but those that
/// say why: drawn memory is asked for, tables are there, tests are there.
#[test]
fn the_good_exhibit_passes_every_check() {
    let stage = stage();
    let mut options = options(&kit_bundle(&stage, ""));
    options.worker = Some(worker());
    let report = run(&options);
    let odd: Vec<_> = report
        .lines
        .iter()
        .filter(|line| line.outcome != Outcome::Pass)
        .collect();
    let odd: Vec<_> = odd.iter().filter(|line| line.outcome != Outcome::Warn).collect();
    assert!(odd.is_empty(), "{odd:#?}");
    assert_eq!(report.lines.len(), catalogue().count());
    assert!(!report.digest.is_empty() && report.passed());
}

#[test]
fn every_bad_library_fails_its_own_check() {
    let only = ids(&[Group::Package, Group::Library]);
    let said = for_each(kit::LIBRARIES, |exhibit| {
        let stage = stage();
        let mut options = options(&kit_bundle(&stage, exhibit.mode));
        options.only = Some(only.clone());
        wrong(&run(&options), exhibit)
    });
    assert!(said.is_empty(), "{said}");
}

/// A link whose name says what the bad worker does.
fn bad_worker(folder: &Path, mode: &str) -> PathBuf {
    let link = folder.join(format!("worker--{mode}"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_synapse-bad-worker"), &link).expect("a link");
    link
}

#[test]
fn every_bad_worker_fails_its_own_check() {
    let stage = stage();
    let bundle = kit_bundle(&stage, "");
    let only = ids(&[Group::Package, Group::Protocol]);
    let with = |mode: &str| -> Report {
        let mut options: Options = options(&bundle);
        options.worker = Some(bad_worker(&stage.path(""), mode));
        options.only = Some(only.clone());
        run(&options)
    };
    let fair = with("fair");
    assert!(fair.passed(), "the go-between alone spoils nothing: {fair}");
    let said = for_each(kit::WORKERS, |exhibit| wrong(&with(exhibit.mode), exhibit));
    assert!(said.is_empty(), "{said}");
}

#[test]
fn every_bad_file_fails_its_own_check() {
    let refused: Vec<_> = zoo::refused().collect();
    let said = for_each(&refused, |(id, reason)| {
        let stage = stage();
        zoo::add_refused(&stage, id);
        let report = run(&options(&stage.path("plugins").join(id)));
        let exhibit = Exhibit {
            mode: id,
            fails: package_check(*reason),
            relatives: &[],
        };
        wrong(&report, &exhibit)
    });
    assert!(said.is_empty(), "{said}");
}

/// A library that ends the process that describes it is a crash, and one that never answers a hang.
#[test]
fn a_crash_and_a_hang_are_told_apart() {
    for (mode, outcome) in [("describe-abort", Outcome::Crash), ("load-hang", Outcome::Hang)] {
        let stage = stage();
        let files = stage.add("stress", mode);
        let report = run(&options(&files.path("")));
        let bad: Vec<_> = report.lines.iter().filter(|line| line.outcome.is_bad()).collect();
        assert_eq!(
            (bad.len(), bad[0].id.as_str(), bad[0].outcome),
            (1, "package-describe", outcome),
            "{bad:?}"
        );
    }
}

/// The author's own tests are run, and fail when their values do not hold.
#[test]
fn a_test_of_the_authors_own_fails_with_its_values() {
    let stage = stage();
    let files = stage.add_kit("stress", "");
    let path = files.path("conformance.toml");
    let text = std::fs::read_to_string(&path).expect("a subject");
    // Every expected letter is another one.
    let other = text.replace("expect_ids = [", "expect_ids = [9, ");
    assert_ne!(text, other);
    std::fs::write(&path, other).expect("a subject");
    let mut options = options(&files.path(""));
    options.only = Some(ids(&[Group::Library]));
    let report = run(&options);
    let exhibit = Exhibit {
        mode: "own-tests",
        fails: "own-tests",
        relatives: &[],
    };
    assert_eq!(wrong(&report, &exhibit), "");
}
