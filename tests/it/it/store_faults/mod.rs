//! What a daemon does when its `store.db` is damaged, locked, read-only or out of room: a typed error, or a start that
//! says in words and by its exit code what is wrong; and nothing that was committed is lost by that.
//!
//! The faults are those of real files, locks and file systems. `jobs/disk.rs` has the same for a limit of the process.

mod corrupt;
mod locked;
#[cfg(target_os = "linux")]
mod room;

use std::path::Path;

use serde_json::Value;
use synapse_loader::process::{Command, spawner};

use crate::jobs::{Walk, end, result, start, walk};
use crate::support::HANG;
use crate::support::client::Client;
use crate::support::daemon::{Place, Refused};

/// The exit code of a start that fails for good, until someone acts.
const PERMANENT: i32 = 3;
/// The exit code of a start that may succeed later.
const TRANSIENT: i32 = 4;

/// Texts of a job that is done before the fault.
const DONE: usize = 640;

/// A job that is done, and its pages.
fn done_job(client: &mut Client, expected: &[String]) -> (String, Vec<Value>) {
    let id = start(client, "done", DONE);
    assert_eq!(end(client, &id)["state"], "done");
    let mut seen = Walk::new(expected);
    let (pages, _) = walk(client, &id, &mut seen);
    assert!(seen.is_whole(DONE));
    (id, pages)
}

/// Every page is there and is what it was.
fn assert_kept(client: &mut Client, id: &str, pages: &[Value]) {
    for (number, page) in pages.iter().enumerate() {
        assert_eq!(&result(client, id, number)["content"], page, "page {number}");
    }
    assert_eq!(result(client, id, pages.len())["pages"], pages.len());
}

/// A start that was refused for the store, in words.
fn assert_refused(place: &Place, code: i32, words: &[&str]) -> Refused {
    let refused = place.refused();
    assert_eq!(refused.code, code, "{}", refused.words);
    for word in words.iter().chain(&["store.db"]) {
        assert!(refused.words.contains(word), "{word}: {}", refused.words);
    }
    refused
}

/// Lets SQLite, as `python3` has it, do something with a `store` that no daemon has open.
fn sqlite(python3: Command, path: &Path, script: &str) {
    let script = format!("import os, sqlite3, sys\nstore = sqlite3.connect(sys.argv[1])\n{script}");
    let command = python3.args(["-c", &script]).arg(path);
    let command = command.inherit_env("PATH").inherit_env("HOME");
    let child = spawner().spawn(command).expect("python3 starts");
    let ended = child.wait_with_output(HANG).expect("python3 ends");
    assert!(ended.status.success());
}
