//! Another process has the store: a start says so and may succeed later; a daemon that runs refuses what it cannot keep,
//! serves what needs no disk, and goes on when the lock is gone.

use std::io::{BufRead, BufReader};

use serde_json::json;
use synapse_loader::process::{Child, Command, Output, spawner};

use super::{TRANSIENT, assert_kept, assert_refused, done_job};
use crate::jobs::{MODEL, TEXTS, Walk, alone, creation, end, place, result, serving, start, start_large, status, walk};
use crate::support::daemon::Place;

/// Texts of a job that is far from its end when the store is locked.
const MANY: usize = 20_000;

/// Python's own SQLite, as an operator's shell or backup would have it.
const HOLD: &str = "
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement)
print('held', flush=True)
time.sleep(3600)
";

/// A process that holds the store's lock until it is dropped.
fn hold(place: &Place, statements: &[&str]) -> Child {
    let command = Command::new("python3")
        .args(["-c", HOLD])
        .arg(place.data().join("store.db"))
        .args(statements)
        .inherit_env("PATH")
        .inherit_env("HOME")
        .stdout(Output::Stream);
    let mut child = spawner().spawn(command).expect("python3 starts");
    let mut line = String::new();
    let stdout = child.take_stdout().expect("is a stream");
    BufReader::new(stdout).read_line(&mut line).expect("reads");
    assert_eq!(line, "held\n");
    child
}

#[test]
fn a_start_with_a_locked_store_says_so_and_succeeds_later() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let (id, pages) = done_job(&mut client, &expected);
    drop(client);
    assert!(daemon.stop().success());
    for statements in [
        &["BEGIN IMMEDIATE"][..],
        &["PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"],
    ] {
        let held = hold(&place, statements);
        assert_refused(&place, TRANSIENT, &["locked by another process", "state_unusable"]);
        drop(held);
    }
    let daemon = place.start();
    assert_kept(&mut daemon.connect(), &id, &pages);
    assert!(daemon.stop().success());
}

#[test]
fn a_job_waits_for_a_locked_store_and_goes_on() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let id = start_large(&mut client, "large", MANY);
    while !result(&mut client, &id, 1)["content"].is_object() {}
    let held = hold(&place, &["PRAGMA busy_timeout = 60000", "BEGIN IMMEDIATE"]);
    while !daemon.log().contains("the job waits for the disk") {
        assert_eq!(status(&mut client, &id)["state"], "running", "{}", daemon.log());
    }
    for (method, params) in [("job.create", creation("other")), ("job.cancel", json!({"job_id": id}))] {
        let (code, error) = client.fails(method, &params);
        assert_eq!(code, "storage_failed", "{method}: {error}");
        assert_eq!(error["data"]["class"], "transient", "{method}: {error}");
        let words = error["message"].as_str().expect("words");
        assert!(words.contains("locked by another process"), "{error}");
    }
    let params = json!({"model": MODEL, "text": TEXTS[0], "role": "document", "encoding": "base64"});
    assert_eq!(client.ok("embed.query", &params)["vectors"][0], *expected[0]);
    assert_eq!(status(&mut client, &id)["waits_for"], "disk");
    drop(held);

    let view = end(&mut client, &id);
    assert_eq!(view["state"], "done", "{view}");
    let mut seen = Walk::new(&expected);
    walk(&mut client, &id, &mut seen);
    assert!(seen.is_whole(MANY), "{} of {MANY}", seen.seen.len());
    let fresh = start(&mut client, "other", 70);
    assert_eq!(end(&mut client, &fresh)["state"], "done");
    assert!(daemon.stop().success());
}
