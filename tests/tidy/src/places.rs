//! Which words may stand where: SQL, threads, processes, `unsafe`, JSON, clocks, sleeps, lints switched off.
//!
//! State: none. Comments and literals never count; most rules do not read tests either.

use crate::Violation;
use crate::code::{code_only, lines_with, product_code};
use crate::tree::{Tree, is_test_file};

/// Product files below `folder` and their code.
fn product<'a>(tree: &'a Tree, folder: &'a str) -> impl Iterator<Item = (&'a str, String)> {
    let files = tree
        .rust()
        .filter(move |(path, _)| path.starts_with(folder) && !is_test_file(path));
    files.map(|(path, text)| (path, product_code(text)))
}

fn words(rule: &'static str, path: &str, code: &str, words: &[&str], message: &str) -> Vec<Violation> {
    let hits = words
        .iter()
        .flat_map(|word| lines_with(code, word).into_iter().map(move |line| (line, *word)));
    hits.map(|(line, word)| Violation::new(rule, path, line, format!("{word}: {message}")))
        .collect()
}

/// Only daemon/store knows SQL.
pub fn sql(tree: &Tree) -> Vec<Violation> {
    let outside = product(tree, "").filter(|(path, _)| !path.starts_with("host/daemon/src/store/"));
    outside
        .flat_map(|(path, code)| words("sql", path, &code, &["rusqlite"], "only daemon/store knows SQL"))
        .collect()
}

/// Only daemon/task.rs starts tasks and threads of the daemon.
pub fn spawning(tree: &Tree) -> Vec<Violation> {
    const WORDS: [&str; 6] = [
        "tokio::spawn",
        "task::spawn",
        "spawn_blocking",
        "thread::spawn",
        "thread::Builder",
        "JoinSet",
    ];
    let others = product(tree, "host/daemon/src/").filter(|(path, _)| *path != "host/daemon/src/task.rs");
    let message = "tasks and threads are started in daemon/task.rs, which knows how to end them";
    others
        .flat_map(|(path, code)| words("spawning", path, &code, &WORDS, message))
        .collect()
}

/// Processes are started by loader::process only. Tests start daemons and workers as a user would.
pub fn processes(tree: &Tree) -> Vec<Violation> {
    let inside = |path: &str| path == "host/loader/src/process.rs" || path.starts_with("host/loader/src/process/");
    let mut found = Vec::new();
    for (path, code) in product(tree, "").filter(|(path, _)| !inside(path)) {
        let message = "processes are started by loader::process, which cleans their environment and watches them";
        found.extend(words(
            "processes",
            path,
            &code,
            &["std::process::Command", "tokio::process"],
            message,
        ));
        // The list form of an import.
        for (index, line) in code.lines().enumerate() {
            if line.contains("std::process::{") && !lines_with(line, "Command").is_empty() {
                found.push(Violation::new("processes", path, index + 1, message));
            }
        }
    }
    found
}

/// Where `unsafe` may stand, besides one `sys.rs` per crate that must map or fork.
const UNSAFE_ROOMS: [&str; 7] = [
    "plugin-api/",
    "sdk/plugin-sdk/",
    "host/loader/",
    "plugins/",
    // Plugins, which their authors may give what they need.
    "sdk/cargo-synapse/template/",
    "tests/abi/",
    "tests/faults/stress/",
];

/// `unsafe` stays in its rooms, and every other crate forbids it.
pub fn unsafe_code(tree: &Tree) -> Vec<Violation> {
    let in_room = |path: &str| UNSAFE_ROOMS.iter().any(|room| path.starts_with(room)) || path.ends_with("/src/sys.rs");
    let mut found = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !in_room(path)) {
        let message = "unsafe lives in plugin-api, plugin-sdk, loader, plugins and sys.rs";
        found.extend(words("unsafe", path, &code_only(text), &["unsafe"], message));
        let Some(folder) = path
            .strip_suffix("/src/lib.rs")
            .or_else(|| path.strip_suffix("/src/main.rs"))
        else {
            continue;
        };
        let own_sys = tree.has(&format!("{folder}/src/sys.rs"));
        let declared = if own_sys {
            "#![deny(unsafe_code)]"
        } else {
            "#![forbid(unsafe_code)]"
        };
        if !text.contains(declared) {
            found.push(Violation::new(
                "unsafe",
                path,
                0,
                format!("the crate root does not say {declared}"),
            ));
        }
    }
    found
}

/// Where JSON is read or written, and which JSON it is. Client JSON is in wire and daemon/rpc; any other kind has one
/// place per crate.
const JSON_PLACES: &[(&str, &str)] = &[
    ("catalog/src/json.rs", "a model's own configs"),
    ("host/cli/src/", "client JSON as the user types and reads it"),
    ("host/daemon/src/config/", "the daemon's JSONC config"),
    (
        "host/daemon/src/models/record",
        "the store's own records beside the blobs",
    ),
    ("host/daemon/src/rpc/", "client JSON"),
    ("host/daemon/src/text/json_guard.rs", "published tokenizer files"),
    ("host/daemon/src/worker/", "worker control frames"),
    ("host/loader/src/descriptor.rs", "descriptors"),
    ("host/wire/src/", "client JSON and worker control frames"),
    ("host/worker/src/", "worker control frames and the printed descriptor"),
    (
        "plugins/owned/src/artifact/",
        "a model's config and safetensors headers",
    ),
    (
        "sdk/cargo-synapse/src/json.rs",
        "cargo's messages, and what --json prints",
    ),
    ("sdk/client/src/", "client JSON"),
    (
        "sdk/conformance/src/json.rs",
        "reports, notes to a check's process, odd control frames",
    ),
    ("sdk/plugin-sdk/src/config.rs", "an engine's config"),
];

/// JSON has its places.
pub fn json(tree: &Tree) -> Vec<Violation> {
    let outside = product(tree, "").filter(|(path, _)| !JSON_PLACES.iter().any(|(place, _)| path.starts_with(place)));
    let message = "this file is no place for JSON; see JSON_PLACES in tests/tidy/src/places.rs";
    outside
        .flat_map(|(path, code)| words("json", path, &code, &["serde_json", "jsonc_parser"], message))
        .collect()
}

/// An error of a crate becomes a public one in daemon/rpc, beside the table, and nowhere else.
pub fn errors(tree: &Tree) -> Vec<Violation> {
    let others = product(tree, "host/daemon/src/").filter(|(path, _)| !path.starts_with("host/daemon/src/rpc/"));
    let message = "conversions to public errors stand in daemon/rpc, beside the table";
    others
        .flat_map(|(path, code)| words("errors", path, &code, &["for ServiceError"], message))
        .collect()
}

/// Core has no clock, no randomness and no I/O.
pub fn purity(tree: &Tree) -> Vec<Violation> {
    const WORDS: [&str; 9] = [
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "std::thread",
        "std::io",
        "Instant",
        "SystemTime",
        "rand",
    ];
    let message = "core maps values to values; the daemon hands in time and carries out decisions";
    product(tree, "host/core/src/")
        .flat_map(|(path, code)| words("purity", path, &code, &WORDS, message))
        .collect()
}

/// A lint is switched off with a reason or not at all.
pub fn reasons(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let code = code_only(text);
        for opening in ["[allow(", "[expect("] {
            for (at, _) in code.match_indices(opening) {
                let attribute = code[at..]
                    .split_once(")]")
                    .map_or(&code[at..], |(attribute, _)| attribute);
                if !attribute.contains("reason") {
                    let line = code[..at].lines().count();
                    let message = format!("{opening}…)] without a reason");
                    found.push(Violation::new("reasons", path, line, message));
                }
            }
        }
    }
    found
}

/// Tests wait for events, never for time to pass: a pause stands in a loop that polls for one.
pub fn sleeps(tree: &Tree) -> Vec<Violation> {
    /// How far above a pause its loop may open.
    const REACH: usize = 12;
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let (code, product) = (code_only(text), product_code(text));
        let lines: Vec<&str> = code.lines().collect();
        for word in ["thread::sleep", "time::sleep"] {
            let in_product = if is_test_file(path) {
                Vec::new()
            } else {
                lines_with(&product, word)
            };
            for line in lines_with(&code, word) {
                let above = &lines[line.saturating_sub(REACH)..line];
                let polls = above
                    .iter()
                    .any(|line| line.contains("loop {") || line.contains("while "));
                if !polls && !in_product.contains(&line) {
                    let message = format!("{word} outside a polling loop: wait for the event, or pause tokio's time");
                    found.push(Violation::new("sleeps", path, line, message));
                }
            }
        }
    }
    found
}
