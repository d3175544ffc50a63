//! Each kind of project that `new` writes is whole: its tests, the conformance kit and the fuzzer pass.

use super::ground::{Place, place};

fn passes(place: &Place, name: &str, kind: &str) {
    place.project(name, kind);
    // The profile that is packed, so that the dependencies are built once.
    let tests = place.cargo(name, &["test", "--release"]).well("cargo test");
    assert!(
        tests.contains("test result: ok.") && !tests.contains("0 passed"),
        "{tests}"
    );
    let report = place.synapse(name, &["check"]).well("check");
    assert!(report.contains(" 0 fail, 0 crash, 0 hang"), "{report}");
    let report = place
        .synapse(name, &["fuzz", "--batches", "2", "--calls", "150", "--seed", "7"])
        .well("fuzz");
    assert!(
        report.contains("2 batches of 150 calls, 0 failed") && !report.contains("skip"),
        "{report}"
    );
    place.cargo(name, &["fmt", "--check"]).well("cargo fmt");
}

#[test]
fn a_project_that_embeds_is_whole() {
    passes(&place(), "embeds", "embed");
}

#[test]
fn a_project_that_reranks_is_whole() {
    passes(&place(), "reranks", "rerank");
}

#[test]
fn a_project_that_generates_is_whole() {
    passes(&place(), "generates", "generate");
}
