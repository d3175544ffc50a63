//! The fuzzer finds what is planted, says with which call, and finds it again.

use super::ground::{edit, place};

/// The line that says which seed found it.
fn seed(report: &str) -> String {
    let line = report.lines().find_map(|line| line.split_once("--reproduce "));
    let (_, rest) = line.unwrap_or_else(|| panic!("no seed in:\n{report}"));
    rest.split(' ').next().expect("a seed").to_owned()
}

/// The call that the report blames.
fn call(report: &str) -> String {
    let line = report.lines().map(str::trim).find(|line| line.starts_with("call "));
    line.unwrap_or_else(|| panic!("no call in:\n{report}")).to_owned()
}

/// A process that dies, an answer that is wrong and a call that never ends each cost a batch, named by seed and call; the
/// same seed finds the same call again.
#[test]
fn a_planted_fault_is_found_and_found_again() {
    let place = place();
    let faults = [
        ("dies", "if batch.ids.len() > 40 { std::process::abort(); }", "crash"),
        ("panics", "assert!(batch.len() < 7, \"a batch of seven\");", "fail"),
        ("forgets", "if batch.len() == 5 { return Ok(()); }", "fail"),
        (
            "hangs",
            "if batch.ids.len() > 40 { loop { std::thread::park(); } }",
            "hang",
        ),
    ];
    for (name, fault, outcome) in faults {
        let project = place.project(name, "embed");
        let begin = "        // The host may hold the call at a checkpoint";
        edit(&project.join("src/lib.rs"), begin, &format!("        {fault}\n{begin}"));
        let arguments = [
            "fuzz",
            "--batches",
            "3",
            "--calls",
            "100",
            "--seed",
            "1",
            "--time-limit",
            "10",
        ];
        let ran = place.synapse(name, &arguments);
        assert_eq!(ran.code, Some(1), "{name}: {}\n{}", ran.stdout, ran.stderr);
        assert!(
            ran.stdout.contains(&format!("{outcome:5} seed")),
            "{name}: {}",
            ran.stdout
        );
        let (seed, blamed) = (seed(&ran.stdout), call(&ran.stdout));
        let again = place.synapse(
            name,
            &["fuzz", "--reproduce", &seed, "--calls", "100", "--time-limit", "10"],
        );
        assert_eq!(again.code, Some(1), "{name}: {}", again.stdout);
        assert_eq!(call(&again.stdout), blamed, "{name}");
        // Every call of the batch is told, in order, from the first to the one that is blamed.
        let told: Vec<&str> = again.stdout.lines().filter(|line| line.starts_with("call ")).collect();
        let numbered = (1..)
            .zip(&told)
            .all(|(number, line)| line.starts_with(&format!("call {number}: ")));
        assert!(
            numbered && told.last() == Some(&blamed.as_str()),
            "{name}: {}",
            again.stdout
        );
    }
}
