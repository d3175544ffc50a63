//! What every file owes its reader: a header, a bearable length, a name of the field, and nothing of the machine that it
//! was written on.
//!
//! State: none.

use crate::Violation;
use crate::code::{code_only, lines_with};
use crate::tree::{Tree, is_test_file};

/// The length at which a file has two purposes.
const LONGEST: usize = 600;
/// The same for tests, which are tables and scripts.
const LONGEST_TEST: usize = 800;

/// Every Rust file opens with its purpose.
pub fn headers(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let purpose = text.lines().next().and_then(|line| line.strip_prefix("//! "));
        if purpose.is_none_or(|purpose| purpose.trim().len() < 10) {
            found.push(Violation::new(
                "headers",
                path,
                1,
                "the file does not open with `//! ` and its purpose",
            ));
        }
    }
    found
}

/// Files stay short; tests may be somewhat longer, but they are read as well.
pub fn length(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let lines = text.lines().count();
        let most = if is_test_file(path) { LONGEST_TEST } else { LONGEST };
        if lines > most {
            let message = format!("{lines} lines, at most {most}: the file has two purposes, give each its own");
            found.push(Violation::new("length", path, 0, message));
        }
    }
    found
}

/// Names say what is inside.
pub fn names(tree: &Tree) -> Vec<Violation> {
    const EMPTY: [&str; 9] = [
        "util", "utils", "helper", "helpers", "common", "manager", "managers", "misc", "stuff",
    ];
    let mut found = Vec::new();
    for (path, _) in tree.rust() {
        for part in path.split('/') {
            let part = part.strip_suffix(".rs").unwrap_or(part);
            let empty = part.split(['_', '-']).any(|word| EMPTY.contains(&word));
            if empty {
                let message = format!("{part} says nothing about what is inside; use the field's word");
                found.push(Violation::new("names", path, 0, message));
            }
        }
    }
    found
}

/// No notes to self.
pub fn leftovers(tree: &Tree) -> Vec<Violation> {
    // Put together, so that this file does not hold them.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["HA", "CK"]].map(|halves| halves.concat());
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        for mark in &marks {
            let hits = lines_with(text, mark).into_iter();
            found.extend(hits.map(|line| Violation::new("leftovers", path, line, format!("{mark}: do it or file it"))));
        }
        if !is_test_file(path) {
            let code = code_only(text);
            let hits = ["todo!", "unimplemented!", "dbg!"]
                .into_iter()
                .flat_map(|word| lines_with(&code, word));
            found.extend(hits.map(|line| Violation::new("leftovers", path, line, "unfinished code")));
        }
    }
    found
}

/// Folders of one machine or one person. Ada is the person of the examples; a lane has a room of the same name.
pub fn machine_paths(tree: &Tree) -> Vec<Violation> {
    let marks = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"]].map(|halves| halves.concat());
    let found = containing(
        tree,
        "machine-paths",
        &marks,
        "a path of one machine; derive it or take it as an argument",
    );
    let example = [&marks[2], "ada"].concat();
    let room = ["lane", &marks[0]].concat();
    let only_example = |violation: &Violation| {
        let line = tree
            .text(&violation.path)
            .and_then(|text| text.lines().nth(violation.line - 1))
            .unwrap_or("");
        let rest = line.replace(&example, "").replace(&room, "");
        !marks.iter().any(|mark| rest.contains(mark.as_str()))
    };
    found.into_iter().filter(|violation| !only_example(violation)).collect()
}

/// Hosts that a build or a test would have to reach. Clients of registries know them already.
pub fn hosts(tree: &Tree) -> Vec<Violation> {
    let marks = [
        ["py", "pi.org"],
        ["python", "hosted.org"],
        ["crat", "es.io"],
        ["hugging", "face.co"],
        ["rust-", "lang.org"],
        ["deb", "ian.org"],
    ]
    .map(|halves| halves.concat());
    containing(
        tree,
        "hosts",
        &marks,
        "a registry's host; use its ordinary client, or name the exception",
    )
}

fn containing(tree: &Tree, rule: &'static str, marks: &[String], message: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        for (index, line) in text.lines().enumerate() {
            for mark in marks.iter().filter(|mark| line.contains(mark.as_str())) {
                found.push(Violation::new(rule, path, index + 1, format!("{mark}: {message}")));
            }
        }
    }
    found
}
