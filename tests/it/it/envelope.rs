//! What every answer carries, whatever was asked, and what the socket is.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::models;

/// Every method with parameters that succeed on a daemon that has the test model, and parameters that fail.
fn methods() -> Vec<(&'static str, Value, Value)> {
    let model = json!({"model": models::MEAN});
    let unknown = json!({"model": "no-such-model"});
    let bad = json!({"no_such_field": 1});
    vec![
        ("server.info", json!({}), bad.clone()),
        ("health", json!({}), bad.clone()),
        ("request.cancel", json!({"id": 1_000_000}), bad.clone()),
        (
            "embed.query",
            json!({"model": models::MEAN, "text": "a"}),
            json!({"model": "no-such-model", "text": "a"}),
        ),
        (
            "embed.batch",
            json!({"model": models::MEAN, "items": [{"id": "a", "text": "a"}]}),
            json!({"model": models::MEAN, "items": []}),
        ),
        (
            "text.tokenize",
            json!({"model": models::MEAN, "text": "a"}),
            json!({"model": "no-such-model", "text": "a"}),
        ),
        ("models.list", json!({}), bad.clone()),
        (
            "models.pull",
            json!({"model": models::MEAN, "source": "local", "path": models::folder(models::MEAN)}),
            unknown.clone(),
        ),
        ("models.explain", model.clone(), unknown.clone()),
        ("aliases.list", json!({}), bad.clone()),
        (
            "aliases.check_index",
            json!({"index_fingerprint": "0".repeat(64), "provenance_set": []}),
            json!({"index_fingerprint": "no fingerprint", "provenance_set": []}),
        ),
        ("model.status", model.clone(), unknown.clone()),
        ("model.load", model.clone(), unknown.clone()),
        ("job.list", json!({}), bad.clone()),
        ("job.status", Value::Null, json!({"job_id": "job-0-0"})),
        ("job.cancel", Value::Null, json!({"job_id": "job-0-0"})),
        ("plugins.list", json!({}), bad),
        ("model.unload", model.clone(), unknown.clone()),
        ("models.remove", model, unknown),
    ]
}

/// Proves API-13, ERR-04, ERR-05. Every method, succeeding and failing: the start number, which is one number, and a
/// request id, which is another one each time; every error has its code, class and advice.
#[test]
fn every_answer_says_which_start_and_which_request() {
    let place = Place::new();
    let daemon = place.start();
    let mut client = daemon.connect();
    client.install(models::MEAN);
    let job = client.ok("job.list", &json!({}))["jobs"][0]["job_id"].clone();
    let mut numbers = BTreeSet::new();
    let mut requests = BTreeSet::new();
    for (method, good, bad) in methods() {
        let good = if good.is_null() { json!({"job_id": job}) } else { good };
        let answer = client.ok(method, &good);
        let mut seen = |carrier: &Value| {
            numbers.insert(
                carrier["module_generation"]
                    .as_u64()
                    .unwrap_or_else(|| panic!("{method}: {carrier}")),
            );
            let request = carrier["request_id"]
                .as_str()
                .unwrap_or_else(|| panic!("{method}: {carrier}"));
            assert!(requests.insert(request.to_owned()), "{method}: {request} twice");
        };
        seen(&answer);
        let error = client
            .call(method, &bad)
            .err()
            .unwrap_or_else(|| panic!("{method} takes {bad}"));
        let data = &error["data"];
        seen(data);
        assert!(
            data["code"].is_string() && data["safe_to_retry_same_request"].is_boolean(),
            "{method}: {error}"
        );
        assert!(
            data["class"] == "permanent" && data.get("retry_after_ms").is_none(),
            "{method}: {error}"
        );
        if answer["job_id"].is_string() {
            client.job(&answer);
        }
    }
    assert_eq!(numbers.len(), 1, "{numbers:?}");
    assert!(daemon.stop().success());
}

/// Proves API-12. Both operations answer with the same fields; the provenance says how the vector was made.
#[test]
fn every_vector_has_its_envelope() {
    let place = Place::new();
    let daemon = place.start();
    let mut client = daemon.connect();
    client.install(models::MEAN);
    client.install(models::CLS);
    let query = client.ok("embed.query", &json!({"model": models::MEAN, "text": "a"}));
    let items = json!([{"id": "x", "text": "a"}, {"id": "y", "text": "b"}]);
    let batch = client.ok("embed.batch", &json!({"model": models::MEAN, "items": items}));
    for (answer, count) in [(&query, 1), (&batch, 2)] {
        assert_eq!(
            (&answer["table_epoch"], &answer["dims"]),
            (&json!(0), &json!(48)),
            "{answer}"
        );
        for list in ["vectors", "real_token_counts", "items"] {
            assert_eq!(answer[list].as_array().map(Vec::len), Some(count), "{list}: {answer}");
        }
        assert_eq!(answer["equivalent_to"], json!([]));
        let provenance = &answer["provenance"];
        for digest in [
            &answer["fingerprint"],
            &answer["numeric_profile_id"],
            &provenance["model_digest"],
        ] {
            assert_eq!(digest.as_str().map(str::len), Some(64), "{answer}");
        }
        assert_eq!(provenance["fingerprint"], answer["fingerprint"]);
        assert_eq!(provenance["engine"], "owned");
        assert_eq!(provenance["placement"], "in_process");
        assert_eq!(provenance["certification"], Value::Null);
    }
    assert_eq!(query["fingerprint"], batch["fingerprint"]);
    let other = client.ok("embed.query", &json!({"model": models::CLS, "text": "a"}));
    assert_ne!(
        query["fingerprint"], other["fingerprint"],
        "another model, another space"
    );
    let raw = client.ok(
        "embed.query",
        &json!({"model": models::MEAN, "text": "a", "normalize": false}),
    );
    assert_ne!(
        query["fingerprint"], raw["fingerprint"],
        "another normalisation, another space"
    );
    assert_eq!(
        query["numeric_profile_id"], raw["numeric_profile_id"],
        "the same arithmetic"
    );
    assert!(daemon.stop().success());
}

/// Proves API-01. The socket is this user's alone, and no TCP port is open.
#[test]
fn the_socket_is_private_and_the_only_door() {
    let place = Place::new();
    let daemon = place.start();
    let mode = fs::symlink_metadata(place.socket()).expect("is there").mode();
    assert_eq!(mode & 0o777, 0o600);
    let of_daemon: BTreeSet<String> = fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
        .expect("is ours")
        .flatten()
        .filter_map(|entry| {
            fs::read_link(entry.path())
                .ok()?
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')
                .map(str::to_owned)
        })
        .collect();
    assert!(!of_daemon.is_empty());
    for table in ["tcp", "tcp6"] {
        let lines = fs::read_to_string(format!("/proc/{}/net/{table}", daemon.pid())).unwrap_or_default();
        for line in lines.lines().skip(1) {
            let inode = line.split_whitespace().nth(9).unwrap_or_default();
            assert!(!of_daemon.contains(inode), "{line}");
        }
    }
    assert!(daemon.stop().success());
}
