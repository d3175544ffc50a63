//! `synapse plugin …` as an operator types it, against a daemon that runs.

use std::fs;

use serde_json::{Value, json};

use super::{ID, drop_in, edit, embed, entry, install, place, prepare, query, until};
use crate::support::cli::{Run, synapse};
use crate::support::daemon::Place;
use crate::worker::children;

fn json_of(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {}", run.stdout))
}

/// The arguments that name the test's own places.
fn with_places<'a>(line: &[&'a str], trust_file: &'a str) -> Vec<&'a str> {
    [line, &["--trust-file", trust_file]].concat()
}

/// A place with the example and a trust file of its own.
fn with_example() -> (Place, String) {
    let (place, plugins) = place("");
    let trust_file = place.path().join("trust.toml");
    prepare(&plugins, ID);
    drop_in(&plugins, ID);
    let name = trust_file.to_str().expect("UTF-8").to_owned();
    (place.trust_file(trust_file), name)
}

/// A bundle that is switched off ends at once, stays off over a restart, and serves again when it is switched on.
#[test]
fn a_bundle_is_switched_off_and_on() {
    let (place, trust_file) = with_example();
    let run = |line: &[&str]| synapse(&place, &with_places(line, &trust_file), "");
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    install(&mut client);
    let before = embed(&mut client, "hello")["vectors"].clone();

    let off = run(&["plugin", "disable", ID]);
    assert_eq!(off.code, 0, "{}", off.stderr);
    assert!(off.stdout.contains("is switched off; its lanes end"), "{}", off.stdout);
    assert_eq!(entry(&mut client, ID)["status"], "disabled");
    let (code, error) = client.fails("embed.query", &query("hello"));
    assert!(["plugin_refused", "unknown_model"].contains(&code.as_str()), "{error}");
    until("its worker ends", || children(daemon.pid()).is_empty());
    assert!(run(&["plugin", "disable", ID]).stdout.contains("already"));
    assert_eq!(client.ok("health", &json!({}))["plugins"]["disabled"], 1);
    let unknown = run(&["plugin", "disable", "python-exmaple"]);
    assert_eq!(unknown.code, 3, "{}", unknown.stdout);
    assert!(unknown.stderr.contains("found:"), "{}", unknown.stderr);
    assert!(daemon.stop().success());

    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    assert_eq!(entry(&mut client, ID)["status"], "disabled", "kept over a restart");
    let on = json_of(&run(&["plugin", "enable", ID, "--json"]));
    assert_eq!(
        (&on["disabled"], &on["changed"], &on["counts_now"]),
        (&json!(false), &json!(true), &json!(true))
    );
    client.load("python-example/hashed");
    assert_eq!(embed(&mut client, "hello")["vectors"], before);
    assert!(daemon.stop().success());
}

/// A switch thrown while no daemon runs counts at the next start, and one in a file that the daemon does not read is no
/// success.
#[test]
fn a_switch_is_thrown_without_a_daemon_and_never_in_vain() {
    let (place, trust_file) = with_example();
    let data = place.data();
    let (plugins, data) = (place.path().join("plugins"), data.to_str().expect("UTF-8").to_owned());
    let plugins = plugins.to_str().expect("UTF-8").to_owned();
    let offline = ["--data-dir", data.as_str(), "--plugin-dir", plugins.as_str()];
    let off = synapse(
        &place,
        &[&with_places(&["plugin", "disable", ID], &trust_file)[..], &offline[..]].concat(),
        "",
    );
    assert_eq!(off.code, 0, "{}", off.stderr);
    assert!(off.stdout.contains("next start"), "{}", off.stdout);
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    assert_eq!(entry(&mut client, ID)["status"], "disabled");
    let elsewhere = place.path().join("other.toml");
    let wrong = synapse(
        &place,
        &with_places(&["plugin", "disable", "reference"], elsewhere.to_str().unwrap()),
        "",
    );
    assert_eq!(wrong.code, 3, "{}", wrong.stdout);
    assert!(wrong.stderr.contains("another trust file"), "{}", wrong.stderr);
    assert!(daemon.stop().success());
}

#[test]
fn bundles_are_listed_shown_and_looked_for() {
    let (place, trust_file) = with_example();
    let plugins = place.path().join("plugins");
    let run = |line: &[&str]| synapse(&place, line, "");
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let list = run(&["plugin", "list"]);
    let line = list
        .stdout
        .lines()
        .find(|line| line.starts_with(ID))
        .expect("is listed")
        .to_owned();
    assert!(line.contains("ready in a worker") && line.contains("hashed"), "{line}");
    let shown = run(&["plugin", "show", ID]);
    for words in [
        "in a process of its own",
        "promotion not possible",
        "it is an executable",
        "hashed 1: embed",
    ] {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    assert_eq!(json_of(&run(&["plugin", "show", ID, "--json"]))["promotable"], false);
    assert_eq!(run(&["plugin", "show", "nobody"]).code, 3);
    let trust = synapse(&place, &with_places(&["plugin", "trust", ID], &trust_file), "");
    assert_eq!(trust.code, 3, "{}", trust.stdout);
    assert!(
        trust.stderr.contains("cannot run inside the daemon"),
        "{}",
        trust.stderr
    );

    assert_eq!(run(&["plugin", "rescan"]).stdout, "nothing changed\n");
    edit(&prepare(&plugins, ID), "plugin.toml", "protocol = 3", "protocol = 9");
    drop_in(&plugins, ID);
    let rescan = run(&["plugin", "rescan"]);
    // The watcher may have been faster; then nothing is left to tell.
    if rescan.stdout != "nothing changed\n" {
        assert!(
            rescan.stdout.contains("waits") && rescan.stdout.contains("goes on serving"),
            "{}",
            rescan.stdout
        );
    }
    let list = run(&["plugin", "list"]);
    assert!(list.stdout.contains("(protocol_version)"), "{}", list.stdout);
    fs::remove_dir_all(plugins.join(ID)).expect("removes");
    assert!(daemon.stop().success());
}

/// The kit's rules of the protocol, run by the command that an operator has: the example keeps them.
#[test]
fn an_installed_bundle_is_checked() {
    let (place, trust_file) = with_example();
    let daemon = place.start();
    daemon.connect().healthy();
    let check = synapse(
        &place,
        &with_places(&["plugin", "check", ID, "--json"], &trust_file),
        "",
    );
    assert_eq!(check.code, 0, "{}{}", check.stdout, check.stderr);
    let report = json_of(&check);
    assert_eq!(report["bundle"], ID, "{report}");
    assert!(daemon.stop().success());
}
