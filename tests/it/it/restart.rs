//! Processes that start, stop and start again: numbers that grow, models that stay, logs that tell nothing.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::support::daemon::Place;
use crate::support::models;

/// Proves API-13. A crash counts as much as a stop; what was installed is there, what was loaded is not.
#[test]
fn each_start_has_a_greater_number_and_finds_its_models() {
    let place = Place::new();
    let mut numbers = Vec::new();
    for round in 0..4 {
        let daemon = place.start();
        let mut client = daemon.connect();
        if round == 0 {
            client.install(models::MEAN);
        } else {
            client.healthy();
            let (code, error) = client.fails("embed.query", &json!({"model": models::MEAN, "text": "a"}));
            assert_eq!(code, "model_loading", "{error}");
            assert_eq!(error["data"]["class"], "transient");
            assert!(error["data"]["retry_after_ms"].is_u64(), "{error}");
            client.job(&error["data"]["detail"]);
        }
        let answer = client.ok("embed.query", &json!({"model": models::MEAN, "text": "a"}));
        numbers.push(answer["module_generation"].as_u64().expect("a number"));
        if round % 2 == 0 {
            daemon.kill();
        } else {
            assert!(daemon.stop().success());
        }
    }
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    assert!(numbers.iter().all(|number| *number < 1 << 53));
}

/// Vectors and fingerprints do not depend on the process that made them.
#[test]
fn the_same_text_has_the_same_vector_in_every_process() {
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let place = Place::new();
        let daemon = place.start();
        let mut client = daemon.connect();
        client.install(models::MEAN);
        let params = json!({"model": models::MEAN, "text": "once more", "encoding": "base64"});
        let answer = client.ok("embed.query", &params);
        seen.insert((answer["vectors"][0].to_string(), answer["fingerprint"].to_string()));
        daemon.kill();
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
}

/// Proves LOG-11. Texts, tokens and vectors of good and of refused requests are in no log line and no file.
#[test]
fn nothing_of_a_text_is_written_down() {
    const MARK: &str = "zanzibarquartz";
    let place = Place::new().env("SYNAPSE_LOG", "trace");
    let daemon = place.start();
    let mut client = daemon.connect();
    client.install(models::MEAN);
    let model = models::MEAN;
    client.ok("embed.query", &json!({"model": model, "text": MARK}));
    client.ok("text.tokenize", &json!({"model": model, "text": MARK}));
    client.ok(
        "embed.batch",
        &json!({"model": model, "items": [{"id": "x", "text": MARK}]}),
    );
    let long = format!("{MARK} ").repeat(300);
    client.fails("embed.query", &json!({"model": model, "text": long, "truncate": false}));
    client.fails("embed.query", &json!({"model": "no-such-model", "text": MARK}));
    client.fails("embed.query", &json!({"model": model, "text": {"nested": MARK}}));
    client
        .send(format!("{{\"broken\": \"{MARK}\"\n").as_bytes())
        .expect("the daemon reads");
    client.line().expect("an answer");
    let log = daemon.log();
    assert!(!log.contains(MARK), "{log}");
    assert!(daemon.stop().success());
    let mut folders = vec![place.path().to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder)
            .expect("lists")
            .flatten()
            .map(|entry| entry.path())
        {
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                files += 1;
                let bytes = fs::read(&path).expect("reads");
                let found = bytes.windows(MARK.len()).any(|part| part == MARK.as_bytes());
                assert!(!found, "{}", path.display());
            }
        }
    }
    assert!(files > 5);
}

/// A stop that finds work in flight ends it in an orderly way: the answer, or a typed error, and exit 0.
#[test]
fn a_stop_answers_what_is_in_flight() {
    let place = Place::new();
    let daemon = place.start();
    let mut client = daemon.connect();
    client.install(models::MEAN);
    let items: serde_json::Value = (0..64)
        .map(|n| json!({"id": n.to_string(), "text": "word ".repeat(120)}))
        .collect();
    for _ in 0..8 {
        client.request("embed.batch", &json!({"model": models::MEAN, "items": items}));
    }
    daemon.terminate();
    let mut answers = 0;
    while let Some(answer) = client.line() {
        if let Some(error) = answer.get("error") {
            let code = crate::support::client::code(error);
            assert!(["shutting_down", "cancelled"].contains(&code.as_str()), "{answer}");
        }
        answers += 1;
    }
    assert!(answers <= 8);
    assert!(daemon.wait().success());
    assert!(!place.socket().exists(), "the socket is removed");
}
