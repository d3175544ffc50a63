//! Which test proves which requirement: `/// Proves API-13.` above a test, gathered into docs/requirements.md.
//!
//! A claim is one doc line that begins with `Proves` and the ids, with commas between them; what follows is free.
//!
//! State: none. The ids and their titles are in `tests/tidy/requirements.txt`: `# HEADING` opens an area, then one id and
//! title a line. The page has one line per id and no totals, so that two branches that prove different requirements
//! merge without a conflict.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::Violation;
use crate::tree::Tree;

/// The list of ids.
pub const LIST: &str = "tests/tidy/requirements.txt";
/// The generated page.
pub const PAGE: &str = "docs/requirements.md";

/// One area: its heading, and pairs of id and title.
pub type Area = (String, Vec<(String, String)>);

/// A claim in a test's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The requirement.
    pub id: String,
    /// The file.
    pub path: String,
    /// The line of the claim, from 1.
    pub line: usize,
    /// The test.
    pub test: String,
}

/// The areas in their order.
#[must_use]
pub fn areas(list: &str) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(heading) = line.strip_prefix("# ") {
            areas.push((heading.to_owned(), Vec::new()));
        } else if let (Some((_, ids)), Some((id, title))) = (areas.last_mut(), line.split_once(' ')) {
            ids.push((id.to_owned(), title.trim().to_owned()));
        }
    }
    areas
}

/// Every claim in the tree, and a violation for each that is malformed, unknown, or not above a test.
#[must_use]
pub fn claims(tree: &Tree, areas: &[Area]) -> (Vec<Claim>, Vec<Violation>) {
    let known = |id: &str| areas.iter().any(|(_, ids)| ids.iter().any(|(known, _)| known == id));
    let (mut claims, mut wrong) = (Vec::new(), Vec::new());
    for (path, text) in tree.rust() {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(rest) = line.strip_prefix("/// Proves ") else {
                continue;
            };
            let mut fault = |message: String| wrong.push(Violation::new("requirements", path, index + 1, message));
            let ids = leading_ids(rest);
            if ids.is_empty() {
                fault("write `/// Proves ID, ID.`: ids of requirements, then what you like".to_owned());
                continue;
            }
            let Some(test) = test_below(&lines[index + 1..]) else {
                fault("the claim is not directly above a test".to_owned());
                continue;
            };
            for id in ids {
                if !known(id) {
                    fault(format!("{id:?} is not in {LIST}"));
                    continue;
                }
                let (id, path, test) = (id.to_owned(), path.to_owned(), test.clone());
                claims.push(Claim {
                    id,
                    path,
                    line: index + 1,
                    test,
                });
            }
        }
    }
    (claims, wrong)
}

/// The ids at the start of a claim: `API-01, API-02: …` and `API-01 for …` alike.
fn leading_ids(text: &str) -> Vec<&str> {
    let mut ids = Vec::new();
    for word in text.split_whitespace() {
        let id = word.trim_end_matches(['.', ',', ':', ';']);
        let shaped = id.rsplit_once('-').is_some_and(|(area, number)| {
            area.starts_with(|c: char| c.is_ascii_uppercase())
                && area.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')
                && number.len() >= 2
                && number.bytes().all(|b| b.is_ascii_digit())
        });
        if shaped {
            ids.push(id);
        }
        if !(word.ends_with(',') && shaped) {
            break;
        }
    }
    ids
}

/// The name of the test that the doc comment belongs to.
fn test_below(lines: &[&str]) -> Option<String> {
    let mut is_test = false;
    for line in lines {
        if line.starts_with("///") {
            continue;
        }
        if line.starts_with("#[") || line.ends_with(")]") {
            is_test |= line.starts_with("#[") && line.contains("test");
            continue;
        }
        let name = line.split_once("fn ")?.1;
        let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        return (is_test && !name.is_empty()).then_some(name);
    }
    None
}

/// The page.
#[must_use]
pub fn page(areas: &[Area], claims: &[Claim]) -> String {
    let mut proofs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for claim in claims {
        proofs
            .entry(&claim.id)
            .or_default()
            .push(format!("`{}` {}", claim.path, claim.test));
    }
    let mut out = String::from(concat!(
        "# Requirements and the tests that prove them\n\n",
        "Generated from the `/// Proves ID.` lines above tests; `SYNAPSE_BLESS=1 cargo test -p synapse-tidy` rewrites it.\n",
        "Titles are short forms; *not yet* means that no test claims the requirement.\n",
    ));
    for (heading, ids) in areas {
        let _ = write!(
            out,
            "\n## {heading}\n\n| id | requirement | proved by |\n|---|---|---|\n"
        );
        for (id, title) in ids {
            let tests = proofs.get_mut(id.as_str()).map(|tests| {
                tests.sort();
                tests.dedup();
                tests.join("<br>")
            });
            let _ = writeln!(out, "| {id} | {title} | {} |", tests.as_deref().unwrap_or("not yet"));
        }
    }
    out
}
