//! The end of the daemon is the end of its workers: in order when it is told to stop, by the system when it is killed.

use std::fs;

use serde_json::json;

use super::{LONG, SHORT, children, place, query, serving, until, until_running, vector, worker};

fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !matches!(
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()),
        None | Some('Z' | 'X')
    )
}

/// Proves WSUP-23. The worker of a killed daemon ends, also one whose engine hangs, and the next daemon serves at once.
#[test]
fn a_killed_daemon_leaves_no_worker() {
    let place = place(&[("fault", "hang"), ("fault_tokens", "16")], "");
    let (daemon, mut client) = serving(&place);
    vector(&mut client, "toy-a", SHORT);
    let pid = worker(&daemon);
    client.request("embed.query", &query("toy-a", LONG));
    until_running(&mut daemon.connect());
    daemon.kill();
    until("the end of the worker", || !runs(pid));
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    client.load("toy-a");
    vector(&mut client, "toy-a", SHORT);
}

/// Fault S10: a stop tells an idle worker, which ends in order.
///
/// Proves WPROTO-24.
#[test]
fn a_stop_ends_an_idle_worker_in_order() {
    let place = place(&[], "");
    let (daemon, mut client) = serving(&place);
    vector(&mut client, "toy-a", SHORT);
    let pid = worker(&daemon);
    daemon.terminate();
    until("the end of the worker", || !runs(pid));
    assert!(daemon.wait().success());
    let log = fs::read_dir(place.data().join("logs")).expect("a log").flatten();
    let log: String = log
        .map(|file| fs::read_to_string(file.path()).unwrap_or_default())
        .collect();
    assert!(
        log.contains("worker ended in order") && !log.contains("worker of reference lost"),
        "{log}"
    );
    let left: Vec<_> = fs::read_dir(place.data().join("run/workers"))
        .expect("the folder")
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Fault S10: a stop does not wait for an engine that hangs; its worker is killed after the bound.
///
/// Proves WSUP-14.
#[test]
fn a_stop_kills_a_worker_that_hangs() {
    let place = place(&[("fault", "hang"), ("fault_tokens", "16")], "");
    let (daemon, mut client) = serving(&place);
    let pid = worker(&daemon);
    let parent = daemon.pid();
    client.request("embed.query", &query("toy-a", LONG));
    until_running(&mut daemon.connect());
    assert!(daemon.stop().success());
    until("the end of the worker", || !runs(pid));
    assert!(children(parent).is_empty());
}

/// Proves WSUP-20. An unloaded model takes its process along; a loaded one has its own.
#[test]
fn a_model_and_its_worker_leave_together() {
    let place = place(&[], "");
    let (daemon, mut client) = serving(&place);
    super::pull(&mut client, &place, "toy-b");
    client.load("toy-b");
    assert_eq!(super::workers(&daemon).len(), 2);
    client.ok("model.unload", &json!({"model": "toy-a"}));
    until("one worker less", || super::workers(&daemon).len() == 1);
    vector(&mut client, "toy-b", SHORT);
}
