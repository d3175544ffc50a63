//! The map in docs/ARCHITECTURE.md names only what exists.
//!
//! State: none. Two kinds of names are looked at: words in inline code that look like a path or a package of ours, and
//! the first word of each line in a fenced block where that word is a path (the drawn tree; two blanks are one level).

use crate::Violation;
use crate::arrows::package_names;
use crate::tree::Tree;

/// The page.
pub const PAGE: &str = "docs/ARCHITECTURE.md";

/// Every name on the page exists.
pub fn exists(tree: &Tree) -> Vec<Violation> {
    let Some(page) = tree.text(PAGE) else {
        return vec![Violation::new("map", PAGE, 0, "the page is missing")];
    };
    let packages = package_names(tree);
    let mut found = Vec::new();
    let mut wrong = |line: usize, name: &str| {
        found.push(Violation::new(
            "map",
            PAGE,
            line + 1,
            format!("{name} does not exist; the map shows what is there"),
        ));
    };
    let mut fenced = false;
    let mut drawn: Vec<(usize, String)> = Vec::new();
    for (index, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            drawn.clear();
            continue;
        }
        if fenced {
            let indent = line.len() - line.trim_start().len();
            let word = line.split_whitespace().next().unwrap_or("");
            if is_path(word) && line.is_ascii() {
                drawn.retain(|(depth, _)| *depth < indent);
                let parent = drawn.last().map_or("", |(_, path)| path.as_str());
                let path = format!("{parent}{word}");
                if !resolves(tree, &path) && !resolves(tree, word) {
                    wrong(index, &path);
                }
                if word.ends_with('/') {
                    drawn.push((indent, path));
                }
            }
        } else {
            for word in line.split('`').skip(1).step_by(2) {
                let package = word.starts_with("synapse-") && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
                let known = if package {
                    packages.iter().any(|name| name == word)
                } else {
                    resolves(tree, word)
                };
                if (package || is_path(word)) && !known {
                    wrong(index, word);
                }
            }
        }
    }
    found
}

/// A relative path of plain characters: with a `/`, or with an extension of ours.
fn is_path(word: &str) -> bool {
    let plain = word
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-'));
    let file = [".rs", ".toml", ".md", ".py", ".json"]
        .iter()
        .any(|end| word.ends_with(end));
    let folder = word.contains('/') && !word.starts_with('/') && !word.contains("//");
    plain && !word.starts_with('.') && word.len() > 1 && (file || folder)
}

/// Whether a path exists as written, inside a group of crates, or as CRATE/FILE for CRATE/src/FILE.
fn resolves(tree: &Tree, path: &str) -> bool {
    let groups = ["", "host/", "sdk/", "docs/", "host/daemon/src/", "plugins/", "tests/"];
    groups.iter().any(|group| {
        let full = format!("{group}{path}");
        let module = full.trim_end_matches('/').to_owned() + ".rs";
        let inside = path
            .split_once('/')
            .map(|(crate_name, rest)| format!("{group}{crate_name}/src/{rest}"));
        tree.has(&full)
            || tree.has(&module)
            || inside
                .is_some_and(|inside| tree.has(&inside) || tree.has(&(inside.trim_end_matches('/').to_owned() + ".rs")))
    })
}
