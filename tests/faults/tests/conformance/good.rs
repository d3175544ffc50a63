//! The bundles that this repository ships, and what the kit says of them.

use std::path::PathBuf;

use synapse_conformance::{Outcome, Report};

use crate::{options, repository, run, skip, worker};

/// The bundles, in the order of the table.
pub const BUNDLES: [&str; 5] = ["reference", "owned", "ort", "llama-cpp", "python-example"];

/// The folder where this build's bundles lie.
fn bundles() -> PathBuf {
    let test = std::env::current_exe().expect("the test binary has a path");
    let build = test.ancestors().nth(2).expect("it lies in deps");
    build.join("bundles")
}

/// What the kit says of a bundle of this build; `None`, and words, where it was not laid out.
pub fn check(name: &str) -> Option<Report> {
    let bundle = bundles().join(name);
    if !bundle.join("plugin.toml").is_file() {
        skip(&format!("{} is not there; run `make plugins`", bundle.display()));
        return None;
    }
    let mut options = options(&bundle);
    options.worker = Some(worker());
    let subject = repository().join(format!("tests/fixtures/conformance/{name}.toml"));
    options.subject = subject.is_file().then_some(subject);
    Some(run(&options))
}

/// The good bundles pass every check that applies to them.
#[test]
fn the_bundles_of_this_repository_pass() {
    for name in BUNDLES {
        let Some(report) = check(name) else { continue };
        let bad: Vec<_> = report.lines.iter().filter(|line| line.outcome.is_bad()).collect();
        assert!(bad.is_empty(), "{name}: {bad:#?}");
        let passed = report.count(Outcome::Pass) + report.count(Outcome::Warn);
        // A bundle whose every check was skipped would pass too.
        assert!(passed > 25, "{name}: only {passed} checks applied: {report}");
        crate::table::assert_as_documented(name, &report);
    }
}
