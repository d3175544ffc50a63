//! The rules of docs/ARCHITECTURE.md as tests over the tree, and the list of requirements with the tests that prove
//! them.
//!
//! State: none; a [`tree::Tree`] is read once and judged by functions from tree to violations. Callers: this package's
//! tests only, in two files: `tests/tree.rs` judges this repository, `tests/samples.rs` shows each rule a small tree
//! that breaks it. Not known here: any crate of ours; the rules read text, so they hold for code that does not build.
//!
//! A new rule is a function in the file of its kind, a line in [`violations`], and a sample. An exception is a row in
//! [`exceptions::EXCEPTIONS`] with its reason; one that is no longer needed is a violation itself.

#![forbid(unsafe_code)]

pub mod arrows;
pub mod code;
pub mod exceptions;
pub mod files;
pub mod map;
pub mod places;
pub mod requirements;
pub mod tree;

use std::fmt;

use tree::Tree;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The rule's name, as in [`exceptions::EXCEPTIONS`].
    pub rule: &'static str,
    /// The file, relative to the repository.
    pub path: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl Violation {
    pub(crate) fn new(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            rule,
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.message)
    }
}

/// Every violation of every rule, before exceptions, in order of rule and place.
#[must_use]
pub fn violations(tree: &Tree) -> Vec<Violation> {
    let rules: [fn(&Tree) -> Vec<Violation>; 20] = [
        arrows::allowed,
        arrows::names,
        arrows::outside,
        arrows::lints,
        places::sql,
        places::spawning,
        places::processes,
        places::unsafe_code,
        places::json,
        places::errors,
        places::purity,
        places::reasons,
        places::sleeps,
        files::headers,
        files::length,
        files::names,
        files::leftovers,
        files::machine_paths,
        files::hosts,
        map::exists,
    ];
    let mut all: Vec<Violation> = rules.iter().flat_map(|rule| rule(tree)).collect();
    all.sort();
    all
}

/// What remains of `found` after the exceptions, and a violation for each exception that excused nothing.
#[must_use]
pub fn without_exceptions(found: Vec<Violation>, exceptions: &[exceptions::Exception]) -> Vec<Violation> {
    let mut used = vec![false; exceptions.len()];
    let mut left: Vec<Violation> = Vec::new();
    for violation in found {
        let excuse = exceptions
            .iter()
            .position(|e| e.rule == violation.rule && e.path == violation.path);
        match excuse {
            Some(index) => used[index] = true,
            None => left.push(violation),
        }
    }
    let unused = exceptions.iter().zip(&used).filter(|(_, used)| !**used);
    left.extend(unused.map(|(e, _)| Violation::new(e.rule, e.path, 0, "the exception is not needed: remove its row")));
    left
}
