//! The catalogue against the documents: no rule without a check, no check without a rule, no check without an exhibit.

use std::collections::{BTreeMap, BTreeSet};

use synapse_conformance::{Group, catalogue, explain, find};
use synapse_faults::{kit, zoo};

use crate::repository;

/// The rules of a page: the first cell of the rows of its tables, where it is `PREFIX-` and a number.
fn rules_of(page: &str, prefix: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("docs").join(page)).expect("the page");
    let cells = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix('|')?.split('|').next()?.trim()));
    cells
        .filter(|cell| {
            let number = cell.strip_prefix(prefix);
            number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .map(str::to_owned)
        .collect()
}

/// Each rule of the two public contracts has a check, and no check names a rule that is not there.
#[test]
fn every_rule_has_a_check() {
    let plugin = rules_of("plugin-contract.md", "PC-");
    let protocol = rules_of("worker-protocol.md", "WP-");
    assert!(
        plugin.len() >= 60 && protocol.len() >= 45,
        "{} and {}",
        plugin.len(),
        protocol.len()
    );
    let written: BTreeSet<String> = plugin.union(&protocol).cloned().collect();
    let mut checked: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for check in catalogue() {
        assert!(!check.rules.is_empty(), "{} covers no rule", check.id);
        for rule in check.rules {
            assert!(written.contains(*rule), "{} names {rule}, which no page has", check.id);
            checked.entry(rule).or_default().push(check.id);
        }
    }
    let missing: Vec<_> = written
        .iter()
        .filter(|rule| !checked.contains_key(rule.as_str()))
        .collect();
    assert!(missing.is_empty(), "no check covers {missing:?}");
}

/// An id is unique and of its form, and every text of a check is there.
#[test]
fn every_check_explains_itself() {
    let mut seen = BTreeSet::new();
    for check in catalogue() {
        assert!(seen.insert(check.id), "{} stands twice", check.id);
        assert!(
            check.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
            "{}",
            check.id
        );
        let text = explain(check.id).expect("it is in the catalogue");
        for words in [check.says, check.why, check.fix] {
            assert!(words.len() > 15 && text.contains(words), "{}: {words:?}", check.id);
        }
        assert!(check.says.ends_with('.') && check.fix.ends_with('.'), "{}", check.id);
    }
}

/// Each check has a bundle or a worker that is made to fail it, and none of those fails a check that does not exist.
#[test]
fn every_check_has_an_exhibit() {
    let mut exhibited: BTreeSet<&str> = BTreeSet::from(["own-tests"]);
    for exhibit in kit::LIBRARIES.iter().chain(kit::WORKERS) {
        let group = find(exhibit.fails).unwrap_or_else(|| panic!("{exhibit:?}")).group();
        assert_ne!(group, Group::Package, "{exhibit:?}");
        exhibited.insert(exhibit.fails);
        for relative in exhibit.relatives.iter().filter(|relative| **relative != "*") {
            assert!(find(relative).is_some(), "{exhibit:?}");
        }
    }
    for (_, reason) in zoo::refused() {
        exhibited.insert(crate::zoo::package_check(reason));
    }
    let missing: Vec<_> = catalogue()
        .map(|check| check.id)
        .filter(|id| !exhibited.contains(id))
        .collect();
    assert!(missing.is_empty(), "nothing fails {missing:?}");
}
