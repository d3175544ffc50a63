//! Each rule is shown a small tree that breaks it, and one that does not.

use synapse_tidy::exceptions::Exception;
use synapse_tidy::tree::Tree;
use synapse_tidy::{Violation, requirements, violations, without_exceptions};

const LINTS: &str = "[lints]\nworkspace = true\n";

/// A sound tree: one package per kind, a page, nothing else.
fn sound() -> Vec<(&'static str, String)> {
    let manifest = |name: &str, uses: &str| format!("{LINTS}[package]\nname = \"{name}\"\n[dependencies]\n{uses}");
    vec![
        (
            "docs/ARCHITECTURE.md",
            "The host's `host/core` (`synapse-core`).\n".to_owned(),
        ),
        ("host/core/Cargo.toml", manifest("synapse-core", "sha2 = \"1\"\n")),
        (
            "host/core/src/lib.rs",
            "//! Decisions as values.\n#![forbid(unsafe_code)]\n".to_owned(),
        ),
        (
            "plugin-api/Cargo.toml",
            manifest("synapse-plugin-api", "abi_stable = \"1\"\n"),
        ),
        (
            "host/loader/Cargo.toml",
            manifest("synapse-loader", "synapse-core = {}\nsynapse-plugin-api = {}\n"),
        ),
        (
            "sdk/plugin-sdk/Cargo.toml",
            manifest("synapse-plugin-sdk", "synapse-plugin-api = {}\n"),
        ),
        (
            "plugins/owned/Cargo.toml",
            manifest("synapse-owned", "synapse-plugin-sdk = {}\n"),
        ),
        (
            "tests/it/Cargo.toml",
            manifest(
                "synapse-it",
                "synapse-plugin-api = {}\nrusqlite = \"1\"\ntokio = \"1\"\n",
            ),
        ),
    ]
}

fn judge(path: &str, text: &str) -> Vec<Violation> {
    let mut files: Vec<(String, String)> = sound().into_iter().map(|(p, t)| (p.to_owned(), t)).collect();
    files.retain(|(existing, _)| existing != path);
    files.push((path.to_owned(), text.to_owned()));
    violations(&Tree::from_pairs(files))
}

#[test]
fn the_sound_tree_is_sound() {
    assert_eq!(violations(&Tree::from_pairs(sound())), []);
}

/// Rule, file, text with the fault on its last line.
#[test]
fn faults_are_found() {
    let work = ["/wo", "rk/main"].concat();
    let host = ["https://py", "pi.org"].concat();
    let note = ["// TO", "DO: later"].concat();
    let long = "//! Long enough a purpose.\n".to_owned() + &"\n".repeat(600);
    let table: Vec<(&str, &str, String)> = vec![
        (
            "arrows",
            "host/core/Cargo.toml",
            "[package]\nname = \"synapse-core\"\n[dependencies]\nsynapse-loader = {}".into(),
        ),
        (
            "arrows",
            "host/core/Cargo.toml",
            "[package]\nname = \"synapse-core\"\n[target.'cfg(unix)'.dependencies]\nsynapse-loader = {}".into(),
        ),
        (
            "arrows",
            "plugins/owned/Cargo.toml",
            "[package]\nname = \"synapse-owned\"\n[dependencies]\nsynapse-plugin-api = {}".into(),
        ),
        (
            "arrows",
            "host/new/Cargo.toml",
            "[package]\nname = \"synapse-new\"".into(),
        ),
        (
            "package-names",
            "plugins/owned/Cargo.toml",
            "[package]\nname = \"owned\"".into(),
        ),
        (
            "outside",
            "host/core/Cargo.toml",
            "[package]\nname = \"synapse-core\"\n[dependencies]\ntokio = \"1\"".into(),
        ),
        (
            "outside",
            "host/loader/Cargo.toml",
            "[package]\nname = \"synapse-loader\"\n[dependencies]\nrusqlite = \"1\"".into(),
        ),
        (
            "sql",
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\nuse rusqlite::Connection;".into(),
        ),
        (
            "spawning",
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\nfn a() { tokio::spawn(b()); }".into(),
        ),
        (
            "spawning",
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\nfn a() { std::thread::spawn(b); }".into(),
        ),
        (
            "processes",
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\nuse std::process::Command;".into(),
        ),
        (
            "processes",
            "sdk/client/src/a.rs",
            "//! A part of the client.\nuse std::process::{Child, Command};".into(),
        ),
        (
            "unsafe",
            "host/core/src/a.rs",
            "//! A part of core.\nfn a() { unsafe { b() } }".into(),
        ),
        ("unsafe", "host/core/src/lib.rs", "//! Decisions as values.".into()),
        (
            "json",
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\nlet a = serde_json::json!({});".into(),
        ),
        (
            "errors",
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\nimpl From<A> for ServiceError {}".into(),
        ),
        (
            "purity",
            "host/core/src/a.rs",
            "//! A part of core.\nlet now = std::time::Instant::now();".into(),
        ),
        (
            "purity",
            "host/core/src/a.rs",
            "//! A part of core.\nlet text = std::fs::read(path);".into(),
        ),
        ("headers", "host/core/src/a.rs", "use std::fmt;".into()),
        ("headers", "host/core/src/a.rs", "//! x".into()),
        ("length", "host/core/src/a.rs", long.clone()),
        ("length", "tests/it/src/a.rs", long + &"\n".repeat(200)),
        ("names", "host/core/src/utils.rs", "//! A part of core.".into()),
        ("names", "host/core/src/lane_manager/a.rs", "//! A part of core.".into()),
        (
            "leftovers",
            "host/core/src/a.rs",
            format!("//! A part of core.\n{note}"),
        ),
        (
            "leftovers",
            "host/core/src/a.rs",
            "//! A part of core.\nfn a() { todo!() }".into(),
        ),
        ("machine-paths", "scripts/a.py", format!("cd {work}")),
        (
            "machine-paths",
            "docs/a.md",
            ["/ho", "me/ada/models and /ho", "me/me/models"].concat(),
        ),
        ("hosts", "scripts/a.py", format!("index = '{host}'")),
        ("map", "docs/ARCHITECTURE.md", "It has `host/gateway`.".into()),
        ("map", "docs/ARCHITECTURE.md", "It has `synapse-gateway`.".into()),
        (
            "map",
            "docs/ARCHITECTURE.md",
            "```\nhost/\n  core/      decisions\n  gone/      nothing\n```".into(),
        ),
    ];
    for (rule, path, mut text) in table {
        if path.ends_with(".toml") && rule != "lints" {
            text.insert_str(0, LINTS);
        }
        let found = judge(path, &text);
        let rules: Vec<&str> = found.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, [rule], "{path}: {text}\n{found:?}");
    }
}

/// What looks like a fault and is none.
#[test]
fn what_is_no_fault() {
    let table = [
        (
            "host/daemon/src/lane.rs",
            "//! Never calls tokio::spawn, nor rusqlite, nor unsafe code.\nlet a = \"serde_json\";",
        ),
        (
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\n#[cfg(test)]\nmod tests {\n fn a() { std::thread::spawn(b); }\n}",
        ),
        (
            "host/daemon/src/task.rs",
            "//! Tasks of the daemon.\nfn a() { tokio::spawn(b()); }",
        ),
        (
            "host/daemon/src/store/a.rs",
            "//! A part of the store.\nuse rusqlite::Connection;",
        ),
        (
            "host/daemon/src/lane.rs",
            "//! Lanes of the daemon.\nuse synapse_loader::process::Command;",
        ),
        (
            "host/loader/src/process/a.rs",
            "//! A part of the spawner.\nuse std::process::Command;",
        ),
        (
            "plugins/owned/src/a.rs",
            "//! A part of the engine.\nfn a() { unsafe { b() } }",
        ),
        (
            "host/core/src/a.rs",
            "//! A part of core.\nuse std::time::Duration;\nlet operand = 1;",
        ),
        (
            "tests/it/src/a.rs",
            "//! A test with a process.\nuse std::process::Command;",
        ),
        (
            "docs/ARCHITECTURE.md",
            "`core/lib.rs`, `GET /metrics`, `a/b` is no path of ours when `<id>/x`\n```\nhost/\n  core/\n    src/lib.rs\n```",
        ),
    ];
    for (path, text) in table {
        let found: Vec<Violation> = judge(path, text)
            .into_iter()
            .filter(|v| !v.message.starts_with("a/b "))
            .collect();
        assert_eq!(found, [], "{path}: {text}");
    }
}

#[test]
fn exceptions_excuse_and_expire() {
    let found = judge("host/core/src/utils.rs", "//! A part of core.");
    let excuse = |path| Exception {
        rule: "names",
        path,
        reason: "a sample",
    };
    assert_eq!(
        without_exceptions(found.clone(), &[excuse("host/core/src/utils.rs")]),
        []
    );
    let left = without_exceptions(found, &[excuse("host/core/src/other.rs")]);
    let paths: Vec<&str> = left.iter().map(|violation| violation.path.as_str()).collect();
    assert_eq!(paths, ["host/core/src/utils.rs", "host/core/src/other.rs"]);
}

const LIST: &str = "# API: the socket\nAPI-01 One socket\nAPI-02 Jobs\n\n# TOK\nTOK-01 The daemon tokenizes\n";

fn claimed(text: &str) -> (Vec<requirements::Claim>, Vec<Violation>) {
    requirements::claims(
        &Tree::from_pairs([("tests/it/src/a.rs", text)]),
        &requirements::areas(LIST),
    )
}

#[test]
fn claims_reach_the_page() {
    let text = concat!(
        "/// Proves API-01, TOK-01. And more words. Of all kinds.\n/// More.\n",
        "#[tokio::test(flavor = \"multi_thread\")]\nasync fn serves() {}\n",
        "/// Proves API-01.\n#[test]\nfn refuses() {}\n",
    );
    for text in [
        "API-01, API-02.",
        "API-01, API-02: two things, in detail",
        "API-01, API-02 for all",
        "API-01, API-02",
    ] {
        let (claims, wrong) = claimed(&format!("/// Proves {text}\n#[test]\nfn a() {{}}"));
        assert_eq!((claims.len(), wrong.len()), (2, 0), "{text}");
    }
    let (claims, wrong) = claimed(text);
    assert_eq!(wrong, []);
    let page = requirements::page(&requirements::areas(LIST), &claims);
    assert!(page.contains("## API: the socket\n"), "{page}");
    let row = "| API-01 | One socket | `tests/it/src/a.rs` refuses<br>`tests/it/src/a.rs` serves |\n";
    assert!(page.contains(row), "{page}");
    assert!(page.contains("| API-02 | Jobs | not yet |\n"), "{page}");
    assert!(
        page.contains("| TOK-01 | The daemon tokenizes | `tests/it/src/a.rs` serves |\n"),
        "{page}"
    );
}

#[test]
fn wrong_claims_are_told() {
    for text in [
        "/// Proves API-99.\n#[test]\nfn a() {}",
        "/// Proves api-01.\n#[test]\nfn a() {}",
        "/// Proves that API-01 holds.\n#[test]\nfn a() {}",
        "/// Proves API-01.\nfn not_a_test() {}",
        "/// Proves API-01.\nstruct A;",
        "/// Proves API-01.\n",
    ] {
        let (claims, wrong) = claimed(text);
        assert_eq!((claims.len(), wrong.len()), (0, 1), "{text}: {wrong:?}");
    }
}
