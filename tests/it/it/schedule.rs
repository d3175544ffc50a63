//! How busy the lanes are, as clients meet it: bytes that unread replies hold, and `admission.status`.

use serde_json::{Value, json};

use crate::support::HANG;
use crate::support::client::{Client, code};
use crate::support::daemon::Place;
use crate::support::toys::{self, Kind};

const MODEL: &str = "toy";

/// A batch of 64 texts of about a hundred tokens: 66,000 bytes by the lane's account.
fn batch() -> Value {
    let text = "one ".repeat(95);
    let items: Vec<Value> = (0..64).map(|n| json!({"id": n.to_string(), "text": text})).collect();
    json!({"model": MODEL, "items": items})
}

/// The toy's lane in `admission.status`.
fn lane(client: &mut Client) -> Value {
    let mut status = client.ok("admission.status", &json!({}));
    let lanes = status["lanes"].as_array_mut().expect("lanes");
    assert_eq!(lanes.len(), 1, "{lanes:?}");
    lanes.remove(0)
}

/// Looks at the lane until it is as wanted.
fn until(client: &mut Client, wanted: impl Fn(&Value) -> bool) -> Value {
    let bound = std::time::Instant::now() + HANG;
    loop {
        let lane = lane(client);
        if wanted(&lane) {
            return lane;
        }
        assert!(std::time::Instant::now() < bound, "it stays {lane}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn is_idle(lane: &Value) -> bool {
    ["interactive", "bulk", "control"]
        .iter()
        .all(|queue| lane[queue]["waiting"] == 0 && lane[queue]["running"] == 0)
}

/// Proves SCHED-13. Results that nobody reads hold their bytes: the lane fills, refuses, and is free again once they are
/// read.
#[test]
fn unread_replies_hold_their_bytes() {
    let place = Place::new().config(r#"{"schedule": {"lane_byte_budget": 1048576}}"#);
    toys::write(&place, MODEL, Kind::Embed);
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    let mut silent = daemon.connect();
    let (batch, mut sent) = (batch(), 0);
    let error = loop {
        silent.request("embed.batch", &batch);
        sent += 1;
        assert!(sent <= 60, "the lane does not fill: {}", lane(&mut client));
        // What is left when everything was computed is what waits for its reader.
        until(&mut client, is_idle);
        if let Err(error) = client.call("embed.batch", &batch) {
            break error;
        }
    };
    assert_eq!(code(&error), "queue_full", "{error}");
    assert!(error["data"]["retry_after_ms"].is_u64(), "{error}");
    let full = until(&mut client, is_idle);
    let (bytes, budget) = (full["bytes"].as_u64(), full["byte_budget"].as_u64());
    assert_eq!(budget, Some(1_048_576));
    assert!(bytes > Some(1_048_576 - 70_000) && bytes <= budget, "{full}");
    for _ in 0..sent {
        let answer = silent.line().expect("an answer");
        assert!(
            answer["result"]["vectors"].is_array() || code(&answer["error"]) == "queue_full",
            "{answer}"
        );
    }
    until(&mut client, |lane| lane["bytes"] == 0);
    client.ok("embed.batch", &batch);
    until(&mut client, |lane| lane["bytes"] == 0);
    assert!(daemon.stop().success());
}

/// Proves SCHED-13. A client that leaves without reading gives its bytes back too.
#[test]
fn a_client_that_leaves_gives_its_bytes_back() {
    let place = Place::new();
    toys::write(&place, MODEL, Kind::Embed);
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    let mut silent = daemon.connect();
    for _ in 0..12 {
        silent.request("embed.batch", &batch());
    }
    until(&mut client, |lane| {
        lane["bytes"].as_u64() > Some(100_000) && is_idle(lane)
    });
    drop(silent);
    until(&mut client, |lane| lane["bytes"] == 0 && is_idle(lane));
    assert!(daemon.stop().success());
}

/// Proves API-25, SCHED-01. The three queues, the bytes and the figures of a lane follow what happens on it.
#[test]
fn a_lane_says_how_busy_it_is() {
    let place = Place::new();
    toys::write(&place, MODEL, Kind::Embed);
    let daemon = place.start();
    let mut client = daemon.connect();
    let none = client.ok("admission.status", &json!({}));
    assert_eq!(none["lanes"], json!([]));
    assert!(none["permits"]["total"].as_u64() >= Some(1), "{none}");
    toys::install(&mut client, &place, MODEL);
    let fresh = lane(&mut client);
    assert!(is_idle(&fresh), "{fresh}");
    assert_eq!(
        (
            &fresh["bytes"],
            &fresh["meeting_deadlines"],
            &fresh["interactive"]["max_waiting"]
        ),
        (&json!(0), &json!(true), &json!(256)),
        "{fresh}"
    );
    for unmeasured in ["start_delay_p50_us", "quantum_us", "bulk_tokens_per_s"] {
        assert_eq!(fresh[unmeasured], Value::Null, "{fresh}");
    }
    client.ok("embed.query", &json!({"model": MODEL, "text": "one"}));
    client.ok("embed.batch", &batch());
    let used = lane(&mut client);
    assert!(used["start_delay_p50_us"].is_u64(), "{used}");
    assert!(used["quantum_us"]["count"].as_u64() >= Some(1), "{used}");
    assert!(used["bulk_tokens_per_s"].as_u64() >= Some(1), "{used}");
    assert!(daemon.stop().success());
}
