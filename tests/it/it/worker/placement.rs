//! The same bundle in the daemon and in a worker: the same numbers, and both say where they come from.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use synapse_loader::trust;

use super::{LONG, SHORT, place, pull};
use crate::support::client::Client;
use crate::support::daemon::Place;
use crate::support::models;

fn entry(client: &mut Client, id: &str) -> Value {
    let listed = client.ok("plugins.list", &json!({}));
    let plugins = listed["plugins"].as_array().expect("a list").clone();
    let found = plugins
        .into_iter()
        .find(|entry| entry["id"] == id && entry["status"] != "shadowed");
    found.expect("is listed")
}

/// Vectors of a query, of a small batch and of a large one, and the fingerprint.
fn served(client: &mut Client, model: &str, placement: &str) -> BTreeMap<&'static str, Value> {
    let texts = [SHORT, LONG, "a few words", "b"];
    let items = |count: usize| -> Value {
        (0..count)
            .map(|n| json!({"id": n.to_string(), "text": texts[n % texts.len()]}))
            .collect()
    };
    let mut found = BTreeMap::new();
    let requests = [
        (
            "query",
            "embed.query",
            json!({"model": model, "text": LONG, "encoding": "base64"}),
        ),
        (
            "few",
            "embed.batch",
            json!({"model": model, "items": items(4), "encoding": "base64"}),
        ),
        (
            "many",
            "embed.batch",
            json!({"model": model, "items": items(60), "encoding": "base64"}),
        ),
    ];
    for (name, method, params) in requests {
        let reply = client.ok(method, &params);
        assert_eq!(reply["provenance"]["placement"], placement, "{reply}");
        found.insert(name, reply["vectors"].clone());
        found.insert("fingerprint", reply["fingerprint"].clone());
    }
    found
}

/// Proves WPROTO-07, ENG-06. The reference engine, promoted and not.
#[test]
fn the_reference_engine_gives_the_same_bits_in_a_worker() {
    let mut seen = Vec::new();
    for promoted in [false, true] {
        let place = place(&[], "");
        let trust_file = place.path().join("trust.toml");
        let place = place.trust_file(trust_file.clone());
        if promoted {
            let daemon = place.start();
            let found = entry(&mut daemon.connect(), "reference");
            let digest = found["digest"].as_str().expect("a digest").parse().expect("a digest");
            trust::trust(&trust_file, "reference", &digest).expect("writes");
            daemon.kill();
        }
        let daemon = place.start();
        let mut client = daemon.connect();
        let found = entry(&mut client, "reference");
        let placement = if promoted { "in_process" } else { "worker" };
        assert_eq!(
            (&found["status"], &found["placement"]),
            (&json!("ready"), &json!(placement))
        );
        let why = found["message"]
            .as_str()
            .unwrap_or_default()
            .contains("synapse plugin trust");
        assert_eq!(why, !promoted, "{found}");
        pull(&mut client, &place, "toy-a");
        client.load("toy-a");
        seen.push(served(&mut client, "toy-a", placement));
    }
    assert_eq!(seen[0], seen[1]);
}

/// A promoted bundle that panics in the daemon is never called there again; a worker takes its place, and keeps it over
/// a restart.
///
/// Proves ENG-06, ERR-08.
#[test]
fn a_bundle_that_panics_in_the_daemon_goes_on_in_a_worker() {
    let place = place(&[("fault", "panic"), ("fault_tokens", "16")], "");
    let trust_file = place.path().join("trust.toml");
    let place = place.trust_file(trust_file.clone());
    let daemon = place.start();
    let found = entry(&mut daemon.connect(), "reference");
    let digest = found["digest"].as_str().expect("a digest").parse().expect("a digest");
    trust::trust(&trust_file, "reference", &digest).expect("writes");
    daemon.kill();

    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy-a");
    client.load("toy-a");
    let short = json!({"model": "toy-a", "text": SHORT, "encoding": "base64"});
    let reply = client.ok("embed.query", &short);
    assert_eq!(reply["provenance"]["placement"], "in_process", "{reply}");
    let (code, error) = client.fails("embed.query", &json!({"model": "toy-a", "text": LONG}));
    assert_eq!(
        (code.as_str(), &error["data"]["detail"]["stage"]),
        ("engine_crashed", &json!("panic")),
        "{error}"
    );
    let mut running = Some(daemon);
    for _ in 0..2 {
        let daemon = running.take().unwrap_or_else(|| place.start());
        let mut client = daemon.connect();
        client.ok("plugins.list", &json!({}));
        let moved = loop {
            match client.call("embed.query", &short) {
                Ok(reply) => break reply,
                Err(error) => drop(client.job(&error["data"]["detail"])),
            }
        };
        assert_eq!(moved["provenance"]["placement"], "worker", "{moved}");
        assert_eq!(moved["vectors"], reply["vectors"]);
        let found = entry(&mut client, "reference");
        let message = found["message"].as_str().unwrap_or_default();
        assert!(
            found["placement"] == "worker" && message.contains("panicked"),
            "{found}"
        );
        daemon.kill();
    }
}

/// The raw scores of a cross-encoder on onnxruntime, promoted and not: one pair, a few, and pairs of unequal lengths.
///
/// Proves WPROTO-07, WPROTO-20, ENG-06.
#[test]
fn the_onnxruntime_engine_gives_the_same_bits_in_a_worker() {
    let texts = [SHORT, LONG, "a few words", "b", "take a lock on the file first"];
    let mut seen = Vec::new();
    for promoted in [false, true] {
        let mut place = Place::new();
        if !promoted {
            let nothing = place.path().join("trust.toml");
            place = place.trust_file(nothing);
        }
        let daemon = place.start();
        let mut client = daemon.connect();
        client.install(models::CROSS);
        let mut scores = Vec::new();
        for count in [1, 3, texts.len()] {
            let candidates: Value = (0..count)
                .map(|n| json!({"id": n.to_string(), "text": texts[n]}))
                .collect();
            let params = json!({"model": models::CROSS, "query": LONG, "candidates": candidates});
            let reply = client.ok("rerank.score", &params);
            let placement = if promoted { "in_process" } else { "worker" };
            assert_eq!(reply["provenance"]["placement"], placement, "{reply}");
            scores.push((reply["scores"].clone(), reply["fingerprint"].clone()));
        }
        seen.push(scores);
        assert!(daemon.stop().success());
    }
    assert_eq!(seen[0], seen[1]);
}

/// Proves WPROTO-07, ENG-06. The owned engine, promoted and not.
#[test]
fn the_owned_engine_gives_the_same_bits_in_a_worker() {
    let mut seen = Vec::new();
    for promoted in [false, true] {
        let mut place = Place::new();
        if !promoted {
            let nothing = place.path().join("trust.toml");
            place = place.trust_file(nothing);
        }
        let daemon = place.start();
        let mut client = daemon.connect();
        client.install(models::MEAN);
        let placement = if promoted { "in_process" } else { "worker" };
        seen.push(served(&mut client, models::MEAN, placement));
        assert!(daemon.stop().success());
    }
    assert_eq!(seen[0], seen[1]);
}
