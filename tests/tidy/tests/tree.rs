//! This repository obeys its rules, and docs/requirements.md says what its tests prove.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use synapse_tidy::exceptions::EXCEPTIONS;
use synapse_tidy::tree::Tree;
use synapse_tidy::{Violation, requirements, violations, without_exceptions};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tree() -> Tree {
    Tree::read(&root()).expect("the repository can be read")
}

fn told(violations: &[Violation]) -> String {
    violations.iter().map(|violation| format!("\n{violation}")).collect()
}

#[test]
fn the_tree_obeys_its_rules() {
    let tree = tree();
    assert!(tree.rust().count() > 50, "the tree was not found");
    let left = without_exceptions(violations(&tree), EXCEPTIONS);
    assert!(left.is_empty(), "{} violations:{}", left.len(), told(&left));
}

#[test]
fn exceptions_have_reasons() {
    for exception in EXCEPTIONS {
        assert!(exception.reason.len() > 20, "{}: say why", exception.path);
    }
}

/// Every id once, in the shape that claims use.
#[test]
fn the_list_of_requirements_is_sound() {
    let tree = tree();
    let areas = requirements::areas(tree.text(requirements::LIST).expect("the list is there"));
    let mut seen = BTreeSet::new();
    for (heading, ids) in &areas {
        assert!(!ids.is_empty(), "{heading} is empty");
        for (id, title) in ids {
            assert!(seen.insert(id), "{id} twice");
            let (area, number) = id.rsplit_once('-').expect("AREA-NN");
            assert!(
                area.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') && number.parse::<u32>().is_ok(),
                "{id}"
            );
            assert!(
                (5..=110).contains(&title.len()) && !title.contains('|'),
                "{id}: {title}"
            );
        }
    }
    assert_eq!(seen.len(), 472, "the requirements as numbered");
}

#[test]
fn the_page_says_what_tests_prove() {
    let tree = tree();
    let areas = requirements::areas(tree.text(requirements::LIST).expect("the list is there"));
    let (claims, wrong) = requirements::claims(&tree, &areas);
    assert!(wrong.is_empty(), "{}", told(&wrong));
    let page = requirements::page(&areas, &claims);
    if std::env::var_os("SYNAPSE_BLESS").is_some() {
        std::fs::write(root().join(requirements::PAGE), &page).expect("the page can be written");
        return;
    }
    let found = tree.text(requirements::PAGE).unwrap_or_default();
    for (line, (expected, found)) in page.lines().zip(found.lines()).enumerate() {
        assert_eq!(
            expected,
            found,
            "{}:{}; SYNAPSE_BLESS=1 rewrites it",
            requirements::PAGE,
            line + 1
        );
    }
    assert!(
        page == found,
        "{} is shorter or longer than it should be; SYNAPSE_BLESS=1 rewrites it",
        requirements::PAGE
    );
}
