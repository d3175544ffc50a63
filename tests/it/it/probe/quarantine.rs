//! A quarantine ends by a probe that the model passes, and by nothing else.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{lane, place, probe, pull, query, worker_pids};
use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::worker::{signal, until};

const TOY: &str = "toy@reference:f32";
/// Calls whose worker is killed at most: a kill that comes before the call has reached the worker is nobody's death.
const TRIES: u32 = 20;

/// Asserts that the toy is refused because of its quarantine.
fn quarantined(client: &mut Client) {
    let (code, error) = client.fails("embed.query", &query("toy", "a text"));
    assert_eq!(code, "probe_required", "{error}");
    assert_eq!(error["data"]["detail"]["reason"], "quarantined", "{error}");
}

/// A query that waits as long as it must.
fn patient() -> Value {
    let mut query = query("toy", "a text");
    query["deadline_ms"] = json!(120_000);
    query["max_queue_ms"] = json!(120_000);
    query
}

/// The daemon's worker, held by SIGSTOP: a call that reaches it is in the middle until it is killed.
fn stopped_worker(daemon: &Daemon) -> u32 {
    until("a worker runs", || !worker_pids(daemon).is_empty());
    let pid = worker_pids(daemon)[0];
    signal(pid, Signal::STOP);
    pid
}

/// Whether a call is in an engine.
fn in_flight(client: &mut Client) -> bool {
    let health = client.ok("health", &json!({}));
    let lanes = health["lanes"].as_array().expect("lanes").clone();
    lanes.iter().any(|lane| lane["in_flight"] == 1)
}

/// Proves ERR-13, WSUP-17, OQ-8: neither a load nor a restart lifts it; a probe that passes does.
#[test]
fn a_probe_that_passes_lifts_it() {
    let place = place(&[], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    probe(&mut client, &[TOY]);
    client.load(TOY);
    let expected = client.ok("embed.query", &query("toy", "a text"));
    // The engine is sound: three times its worker is killed in the middle of a call.
    let mut asking = daemon.connect();
    let mut deaths = 0;
    for _ in 0..TRIES {
        // An answer says that the next worker is up: one that is stopped while it starts would be a death of its own.
        client.ok("embed.query", &patient());
        let pid = stopped_worker(&daemon);
        asking.request("embed.query", &patient());
        until("the call runs", || in_flight(&mut client));
        super::kill(pid);
        let answer = asking.line().expect("an answer");
        if answer["error"]["data"]["code"] == "engine_crashed" {
            deaths += 1;
        }
        if deaths == 3 {
            break;
        }
    }
    assert_eq!(deaths, 3, "{}", daemon.log());
    quarantined(&mut client);
    let load = client.ok("model.load", &json!({"model": TOY}));
    client.job(&load);
    quarantined(&mut client);
    assert!(daemon.stop().success());

    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let load = client.ok("model.load", &json!({"model": TOY}));
    let view = client.job(&load);
    assert_eq!(
        (&view["state"], &view["error"]["code"]),
        (&json!("failed_permanent"), &json!("probe_required"))
    );
    quarantined(&mut client);
    assert_eq!(super::workers(&daemon), 0, "refused without a process");
    let view = probe(&mut client, &[TOY]);
    assert_eq!(view["result"]["probed"][0]["state"], "certified", "{view}");
    client.load(TOY);
    let reply = client.ok("embed.query", &query("toy", "a text"));
    assert_eq!(reply["vectors"], expected["vectors"]);
    assert!(daemon.stop().success());
}

/// Proves ERR-13: a probe of an engine that still dies fails, and the quarantine stays.
#[test]
fn a_probe_that_fails_leaves_it() {
    let place = place(&[("fault", "abort")], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    for round in 1..=2 {
        let view = probe(&mut client, &[TOY]);
        assert_eq!(view["result"]["probed"][0]["state"], "failed", "round {round}: {view}");
        assert_eq!(lane(&mut client, TOY)["verdict"], "failed", "round {round}");
    }
    let load = client.ok("model.load", &json!({"model": TOY}));
    let view = client.job(&load);
    assert_eq!(view["error"]["code"], "probe_required", "{view}");
    assert!(daemon.stop().success());
}
