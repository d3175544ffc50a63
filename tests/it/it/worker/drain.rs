//! Deadlines, cancellations and stale faults: a worker that lives is never ended for them.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::{LONG, SHORT, bulk, place, query, serving, signal, until, until_running, vector, worker, workers};

/// What one item of a slow engine takes at least.
const STEP: Duration = Duration::from_millis(20);

/// The caller's deadline passes, the engine goes on; its late reply is read and thrown away while the lane's permit is
/// held, and the next request gets its own answer from the same process.
///
/// Proves TEST-14, WSUP-09, WSUP-10, WSUP-11, SCHED-17.
#[test]
fn live_worker_deadline_drains_before_next_correct_response() {
    let place = place(&[("fault", "ignore_cancel")], "");
    let (daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", LONG);
    let pid = worker(&daemon);
    let mut params = bulk(150);
    params["deadline_ms"] = json!(300);
    params["max_queue_ms"] = json!(300);
    let (code, error) = client.fails("embed.batch", &params);
    assert_eq!(code, "deadline_exceeded", "{error}");
    let health = client.ok("health", &json!({}));
    assert_eq!(
        health["lanes"][0]["in_flight"], 1,
        "the permit is held through the drain: {health}"
    );
    assert_eq!(vector(&mut client, "toy-a", LONG), expected);
    assert_eq!(worker(&daemon), pid);
    assert_eq!(daemon.log().matches("worker started").count(), 1);
}

/// Fault S2: a deadline belongs to its exchange. What the first caller allowed is not what the next one is held to, in
/// the same worker, on the same model.
///
/// Proves SCHED-17, WSUP-09.
#[test]
fn the_first_deadline_is_not_everybodys() {
    let place = place(&[("fault", "slow")], "");
    let (daemon, mut client) = serving(&place);
    let pid = worker(&daemon);
    let mut hurried = bulk(100);
    hurried["deadline_ms"] = json!(200);
    hurried["max_queue_ms"] = json!(200);
    let (code, error) = client.fails("embed.batch", &hurried);
    assert_eq!(code, "deadline_exceeded", "{error}");
    // Five times as long as the first caller would have waited.
    let reply = client.ok("embed.batch", &bulk(50));
    assert_eq!(reply["vectors"].as_array().map(Vec::len), Some(50));
    let (code, _) = client.fails("embed.batch", &hurried);
    assert_eq!(code, "deadline_exceeded");
    assert_eq!(worker(&daemon), pid);
}

/// Fault S9: a cancellation over the public socket reaches the engine, which stops at its next checkpoint.
///
/// Proves TEST-15, WSUP-09, WSUP-10.
#[test]
fn serving_caller_cancellation_drains_reply_without_restart() {
    let place = place(&[("fault", "slow")], "");
    let (daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", LONG);
    let pid = worker(&daemon);
    let mut other = daemon.connect();
    let began = Instant::now();
    let texts = 900;
    let batch = other.request("embed.batch", &bulk(texts));
    until_running(&mut client);
    let cancel = other.request("request.cancel", &json!({"id": batch}));
    let mut cancelled = 0;
    for _ in 0..2 {
        let answer = other.line().expect("an answer");
        if answer["id"] == batch {
            assert_eq!(answer["error"]["data"]["code"], "cancelled", "{answer}");
            cancelled += 1;
        } else {
            assert_eq!(answer["id"], cancel, "{answer}");
        }
    }
    assert_eq!(cancelled, 1);
    assert_eq!(vector(&mut client, "toy-a", LONG), expected);
    let whole = STEP * u32::try_from(texts).expect("a small number");
    assert!(
        began.elapsed() < whole,
        "the engine did not stop: one after the other it takes {whole:?}"
    );
    assert_eq!(worker(&daemon), pid);
    assert_eq!(daemon.log().matches("worker started").count(), 1);
}

/// Fault S4: one death, reported by everybody who can: the exchanges of several connections and the refresher. It is
/// counted once, replaced once, and the replacement stays.
///
/// Proves TEST-16, WSUP-13.
#[test]
fn stale_serving_fault_after_recovery_does_not_restart_restored_owner() {
    let place = place(&[], r#", "refresh_ms": 20"#);
    let (daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    let old = worker(&daemon);
    let mut others: Vec<_> = (0..8).map(|_| daemon.connect()).collect();
    signal(old, Signal::KILL);
    for other in &mut others {
        other.request("embed.query", &query("toy-a", SHORT));
    }
    for other in &mut others {
        let answer = other.line().expect("an answer");
        // A request that was written to the dying process is not repeated; it says so.
        if let Some(error) = answer.get("error") {
            assert_eq!(error["data"]["code"], "engine_crashed", "{answer}");
        } else {
            assert_eq!(answer["result"]["vectors"][0], expected.as_str(), "{answer}");
        }
    }
    until("a replacement", || workers(&daemon).iter().any(|pid| *pid != old));
    let new = worker(&daemon);
    for _ in 0..20 {
        assert_eq!(vector(&mut client, "toy-a", SHORT), expected);
    }
    assert_eq!(worker(&daemon), new);
    let log = daemon.log();
    assert_eq!(log.matches("worker started").count(), 2, "{log}");
    assert_eq!(log.matches("worker of reference lost").count(), 1, "{log}");
}
