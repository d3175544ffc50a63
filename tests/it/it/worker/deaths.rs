//! Every way in which a worker dies: one typed error for the request that met it, the next request served.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    LONG, SHORT, bulk, deaths_counted, has_zombie, place, pull, query, serving, signal, until, until_running, vector,
    worker, workers,
};
use crate::support::client::{Client, code};
use crate::support::daemon::Daemon;

/// A request that strikes, and its error: transient, of this stage, with the worker's last words.
fn strike(client: &mut Client, stage: &str) -> Value {
    let (code, error) = client.fails("embed.query", &query("toy-a", LONG));
    assert_eq!(code, "engine_crashed", "{error}");
    let data = &error["data"];
    assert_eq!(
        (&data["class"], &data["detail"]["stage"]),
        (&json!("transient"), &json!(stage)),
        "{error}"
    );
    assert!(
        data["detail"]["tail"].as_str().is_some_and(|tail| tail.len() <= 8192),
        "{error}"
    );
    error
}

/// The numbers of the worker generations that were started, in order.
fn generations(daemon: &Daemon) -> Vec<u64> {
    let log = daemon.log();
    let started = log.lines().filter(|line| line.contains("worker started"));
    started
        .filter_map(|line| line.split_once("generation=")?.1.split(' ').next()?.parse().ok())
        .collect()
}

/// Fault S8: a generation that was declared dead is never used again. One fault in a call: three strikes, each met by one
/// request alone, then the quarantine of this model alone, over a restart and whatever is loaded: only a probe lifts it.
fn dies(fault: &str, bounds: &str, stage: &str, words: &str) {
    let place = place(&[("fault", fault), ("fault_tokens", "16")], bounds);
    let (mut daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    let mut pid = worker(&daemon);
    for round in 1..=3 {
        let error = strike(&mut client, stage);
        assert!(
            error["data"]["detail"]["tail"]
                .as_str()
                .unwrap_or_default()
                .contains(words),
            "{error}"
        );
        if round < 3 {
            assert_eq!(vector(&mut client, "toy-a", SHORT), expected, "{fault}");
            let next = worker(&daemon);
            assert_ne!(next, pid, "{fault}: a process that was lost is never used again");
            pid = next;
        }
        assert!(daemon.is_running() && !has_zombie(&daemon), "{fault}");
    }
    until("the third generation is logged", || generations(&daemon).len() >= 3);
    assert_eq!(generations(&daemon), [1, 2, 3], "{fault}");
    quarantined(&mut client);
    assert_eq!(workers(&daemon).len(), 0, "{fault}: refused without a process");
    pull(&mut client, &place, "toy-b");
    client.load("toy-b");
    vector(&mut client, "toy-b", SHORT);
    assert!(daemon.stop().success());

    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let (code, error) = client.fails("embed.query", &query("toy-a", SHORT));
    assert_eq!(code, "model_loading", "{error}");
    assert_eq!(client.job(&error["data"]["detail"])["state"], "failed_permanent");
    quarantined(&mut client);
    let load = client.ok("model.load", &json!({"model": "toy-a"}));
    let view = client.job(&load);
    assert_eq!(view["error"]["code"], "probe_required", "{view}");
    quarantined(&mut client);
    assert_eq!(workers(&daemon).len(), 0, "{fault}: refused without a process");
    assert!(daemon.stop().success());
}

/// Asserts that `toy-a` is refused until a probe has passed it.
pub(super) fn quarantined(client: &mut Client) {
    let (code, error) = client.fails("embed.query", &query("toy-a", SHORT));
    assert_eq!(code, "probe_required", "{error}");
    let data = &error["data"];
    assert_eq!(
        (&data["class"], &data["detail"]["reason"]),
        (&json!("permanent"), &json!("quarantined"))
    );
}

/// Proves ERR-07, ERR-08, ERR-13, WSUP-03, WSUP-14, WSUP-17, TEST-46.
#[test]
fn an_engine_that_aborts() {
    dies("abort", "", "exit", "");
}

/// Proves ERR-07, WSUP-17.
#[test]
fn an_engine_that_ends_its_process_with_success() {
    dies("exit", "", "exit", "");
}

/// Proves ERR-07, WSUP-17.
#[test]
fn an_engine_that_writes_to_nowhere() {
    dies("segv", "", "exit", "");
}

/// Proves ERR-08, LOG-09, WSUP-17, WSUP-19.
#[test]
fn an_engine_that_panics() {
    dies("panic", "", "panic", "fault: panic");
}

/// Proves ERR-08, WSUP-12, WSUP-17.
#[test]
fn an_engine_that_hangs() {
    dies("hang", r#", "inference_silence_ms": 400"#, "timeout", "");
}

/// Descriptors that the daemon holds.
fn descriptors(daemon: &Daemon) -> usize {
    let folder = format!("/proc/{}/fd", daemon.pid());
    std::fs::read_dir(folder).expect("the daemon lives").count()
}

/// Asks for a short text until `over`. Every answer is the right vector, or says that its worker was lost; how many were
/// right.
fn load_until(over: &AtomicBool, mut client: Client, expected: &str) -> usize {
    let mut right = 0;
    while !over.load(Ordering::Acquire) {
        // A client whose answer does not come panics after its bound.
        match client.call("embed.query", &query("toy-a", SHORT)) {
            Ok(reply) => {
                assert_eq!(reply["vectors"][0], expected, "a wrong vector");
                right += 1;
            }
            Err(error) => assert_eq!(code(&error), "engine_crashed", "{error}"),
        }
    }
    right
}

/// Many deaths under load, by abort and by kill in turn, with the crash budget raised: no request hangs, no vector is
/// wrong, no process and no descriptor is left behind. `SYNAPSE_TEST_LONG` makes it 500.
///
/// Proves WSUP-03, WSUP-14, WSUP-16, WPROTO-03.
#[test]
fn many_deaths_under_load_leave_the_daemon_as_it_was() {
    let rounds = if std::env::var_os("SYNAPSE_TEST_LONG").is_some() {
        500
    } else {
        100
    };
    let settings = [("fault", "abort"), ("fault_tokens", "16")];
    let place = place(
        &settings,
        r#", "crashes_per_model": 100000, "crashes_per_lane": 100000"#,
    );
    let (mut daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    let before = descriptors(&daemon);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<Client> = (0..4).map(|_| daemon.connect()).collect();
        let loads: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(|| load_until(&over, client, &expected)))
            .collect();
        // However this part ends, the load ends too.
        let ends = EndsLoad(&over);
        for round in 0..rounds {
            if round % 2 == 0 {
                let (code, error) = client.fails("embed.query", &query("toy-a", LONG));
                assert_eq!(code, "engine_crashed", "{error}");
            } else {
                until("a worker", || !workers(&daemon).is_empty());
                for pid in workers(&daemon) {
                    signal(pid, Signal::KILL);
                }
            }
        }
        drop(ends);
        for load in loads {
            assert!(
                load.join().expect("no wrong answer") > 0,
                "nothing was served under load"
            );
        }
    });
    assert!(deaths_counted(&daemon) >= rounds / 2, "{}", deaths_counted(&daemon));
    // A request may meet the last killed process; then the next one serves.
    if let Err(error) = client.call("embed.query", &query("toy-a", SHORT)) {
        assert_eq!(code(&error), "engine_crashed", "{error}");
    }
    assert_eq!(vector(&mut client, "toy-a", SHORT), expected);
    assert_eq!(workers(&daemon).len(), 1);
    assert!(daemon.is_running() && !has_zombie(&daemon));
    // The streams of the last process may still be read to their end.
    until("the descriptors of before", || descriptors(&daemon) <= before);
    let sockets = std::fs::read_dir(place.data().join("run/workers"))
        .expect("the folder")
        .count();
    assert!(sockets <= 1, "at most the running worker's own folder");
}

/// Ends the load when it is dropped.
struct EndsLoad<'a>(&'a AtomicBool);

impl Drop for EndsLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A load that kills its worker fails for good, is tried once, and counts: after three the background does not try.
fn dies_at_load(fault: &str, bounds: &str, stage: &str) {
    let place = place(&[("fault", fault)], bounds);
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy-a");
    for _ in 0..3 {
        let load = client.ok("model.load", &json!({"model": "toy-a"}));
        let view = client.job(&load);
        assert_eq!(view["state"], "failed_permanent", "{view}");
        assert_eq!(view["error"]["code"], "engine_crashed", "{view}");
        assert_eq!(view["error"]["detail"]["stage"], stage, "{view}");
        assert!(workers(&daemon).is_empty() && !has_zombie(&daemon));
    }
    assert_eq!(daemon.log().matches("worker started").count(), 3, "one attempt a load");
    daemon.kill();
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let (_, error) = client.fails("embed.query", &query("toy-a", SHORT));
    let view = client.job(&error["data"]["detail"]);
    assert_eq!(view["error"]["code"], "probe_required", "{view}");
    assert!(!daemon.log().contains("worker started"), "refused without a process");
}

/// Proves ERR-06, ERR-13, WSUP-17.
#[test]
fn an_engine_that_aborts_at_load() {
    dies_at_load("abort_load", "", "exit");
}

/// Proves ERR-06, WSUP-17.
#[test]
fn an_engine_that_ends_its_process_at_load() {
    dies_at_load("exit_load", "", "exit");
}

/// Proves ERR-06, WSUP-17.
#[test]
fn an_engine_that_writes_to_nowhere_at_load() {
    dies_at_load("segv_load", "", "exit");
}

/// Proves ERR-06.
#[test]
fn an_engine_that_panics_at_load() {
    dies_at_load("panic_load", "", "panic");
}

/// Proves ERR-06, WSUP-06.
#[test]
fn an_engine_that_hangs_at_load() {
    dies_at_load("hang_load", r#", "setup_silence_ms": 400"#, "timeout");
}

/// Proves WSUP-13, WSUP-14, HEALTH-07.
#[test]
fn a_worker_that_is_killed_while_idle_is_replaced_unseen() {
    let place = place(&[], r#", "crashes_per_lane": 2"#);
    let (daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    for _ in 0..2 {
        let pid = worker(&daemon);
        signal(pid, Signal::KILL);
        until("the end of the worker", || !workers(&daemon).contains(&pid));
        assert_eq!(vector(&mut client, "toy-a", SHORT), expected);
        assert!(!has_zombie(&daemon));
    }
    let health = client.ok("health", &json!({}));
    assert_eq!(health["status"], "degraded", "{health}");
    assert!(
        health["text"]
            .as_str()
            .is_some_and(|text| text.contains("toy-a@reference")),
        "{health}"
    );
    assert_eq!(health["workers"][0]["alive"], true, "{health}");
    assert_eq!(vector(&mut client, "toy-a", SHORT), expected, "a degraded lane serves");
}

/// Proves ERR-07, WSUP-15.
#[test]
fn a_worker_that_is_killed_in_a_batch_costs_that_batch() {
    let place = place(&[("fault", "slow")], "");
    let (daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    let mut other = daemon.connect();
    let id = other.request("embed.batch", &bulk(500));
    until_running(&mut client);
    signal(worker(&daemon), Signal::KILL);
    let answer = other.line().expect("an answer");
    assert_eq!(
        (&answer["id"], code(&answer["error"]).as_str()),
        (&json!(id), "engine_crashed"),
        "{answer}"
    );
    assert_eq!(answer["error"]["data"]["detail"]["stage"], "exit", "{answer}");
    assert_eq!(vector(&mut client, "toy-a", SHORT), expected);
    assert_eq!(daemon.log().matches("worker started").count(), 2, "one replacement");
}

/// Proves WSUP-12, ERR-08.
#[test]
fn a_worker_that_is_stopped_in_a_batch_is_silent_too_long() {
    let place = place(&[("fault", "slow")], r#", "inference_silence_ms": 500"#);
    let (daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    let mut other = daemon.connect();
    other.request("embed.batch", &bulk(500));
    until_running(&mut client);
    let pid = worker(&daemon);
    signal(pid, Signal::STOP);
    let answer = other.line().expect("an answer");
    assert_eq!(answer["error"]["data"]["detail"]["stage"], "timeout", "{answer}");
    assert_eq!(vector(&mut client, "toy-a", SHORT), expected);
    assert!(!workers(&daemon).contains(&pid), "the stopped process is gone");
}

/// The refresher notices, without any request (HEALTH-06).
///
/// Proves HEALTH-06, WSUP-12.
#[test]
fn a_worker_that_is_stopped_while_idle_is_replaced() {
    let place = place(&[], r#", "inference_silence_ms": 400, "refresh_ms": 50"#);
    let (daemon, mut client) = serving(&place);
    let pid = worker(&daemon);
    signal(pid, Signal::STOP);
    until("another worker", || workers(&daemon).iter().any(|other| *other != pid));
    until("the end of the stopped one", || !workers(&daemon).contains(&pid));
    vector(&mut client, "toy-a", SHORT);
}

/// Proves ERR-06, WSUP-14.
#[test]
fn a_worker_that_is_killed_in_a_load_fails_that_load() {
    let place = place(&[("fault", "hang_load")], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy-a");
    let load = client.ok("model.load", &json!({"model": "toy-a"}));
    until("a started worker", || daemon.log().contains("worker started"));
    signal(worker(&daemon), Signal::KILL);
    let view = client.job(&load);
    assert_eq!(
        (&view["state"], &view["error"]["detail"]["stage"]),
        (&json!("failed_permanent"), &json!("exit")),
        "{view}"
    );
    assert!(!has_zombie(&daemon));
}
