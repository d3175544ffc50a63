//! The worker as a program: its answers and its exit codes.

use std::time::Duration;

use synapse_loader::process::{Command, Finished, Output, spawner};

use crate::{stage, worker};

fn run(args: &[&str]) -> Finished {
    let keep = Output::Capture { limit: 1 << 20 };
    let command = Command::new(worker()).args(args).stdout(keep).stderr(keep);
    let child = spawner().spawn(command).expect("the worker was built");
    child.wait_with_output(Duration::from_secs(60)).expect("it ends")
}

/// Runs the worker on a bundle and checks how it ends and what it says.
fn check(mode: &str, code: i32, words: &str) {
    let stage = stage();
    let files = stage.add("stress", mode);
    let finished = run(&["--describe", "--plugin", files.path("").to_str().unwrap()]);
    let answer = String::from_utf8(finished.stdout).unwrap();
    assert_eq!(finished.status.code(), Some(code), "{mode}: {answer}");
    assert!(answer.contains(words), "{mode}: {answer}");
    assert_eq!(answer.lines().count(), 1, "{mode}: {answer}");
}

#[test]
fn a_bundle_is_described_in_one_line() {
    check("good", 0, r#""id":"stress""#);
    check("load-noise", 0, r#""id":"stress""#);
    check("describe-nothing", 3, r#"{"refused":"descriptor_invalid","#);
}

#[test]
fn a_folder_that_is_no_bundle_is_refused_in_words() {
    let finished = run(&["--describe", "--plugin", "/nonexistent"]);
    assert_eq!(finished.status.code(), Some(3));
    let answer = String::from_utf8(finished.stdout).unwrap();
    assert!(answer.starts_with(r#"{"refused":"manifest_missing","#), "{answer}");
}

#[test]
fn wrong_arguments_are_a_mistake_of_the_caller() {
    for args in [&["--plugin", "/x"][..], &["--describe"], &["--nonsense"], &[]] {
        let finished = run(args);
        assert_eq!(finished.status.code(), Some(2), "{args:?}");
        assert!(finished.stdout.is_empty() && !finished.stderr.is_empty(), "{args:?}");
    }
    assert_eq!(run(&["--version"]).status.code(), Some(0));
}
