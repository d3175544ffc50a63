//! The bounds of inputs, and appends that come twice, too early or not at all.

use serde_json::{Value, json};

use super::{batch, creation, end, job_id, place, result, serving, start, texts};
use crate::support::client::Client;

fn append(id: &str, seq: usize, items: &Value) -> Value {
    json!({"job_id": id, "seq": seq, "items": items})
}

/// An append that has to be refused for a bound, by name.
fn beyond(client: &mut Client, id: &str, seq: usize, items: &Value, limit: &str) -> (u64, u64) {
    let (code, error) = client.fails("job.append", &append(id, seq, items));
    assert_eq!(code, "limit_exceeded", "{error}");
    let detail = &error["data"]["detail"];
    assert_eq!(detail["limit"], limit, "{error}");
    (
        detail["maximum"].as_u64().expect("a bound"),
        detail["actual"].as_u64().expect("a size"),
    )
}

/// An append is kept once, in order; a repetition changes nothing, and a gap says what is missing.
#[test]
fn appends_are_kept_in_order_and_once() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let id = job_id(&client.ok("job.create", &creation("key")));
    let (code, error) = client.fails("job.seal", &json!({"job_id": id}));
    assert_eq!(code, "invalid_request", "a job without texts: {error}");
    let mut answered = |seq: usize, from: usize, to: usize| {
        let answer = client.ok("job.append", &append(&id, seq, &texts(from, to)));
        (
            answer["kept"].as_bool().expect("a word"),
            answer["next_seq"].as_u64().expect("a number"),
        )
    };
    assert_eq!(answered(1, 40, 70), (false, 0), "the first is missing");
    assert_eq!(answered(0, 0, 40), (true, 1));
    assert_eq!(answered(0, 0, 40), (true, 1), "once more");
    assert_eq!(answered(3, 40, 70), (false, 1));
    assert_eq!(answered(1, 40, 70), (true, 2));
    assert_eq!(answered(0, 0, 40), (true, 2), "an old one, late");
    for (seq, items, expected) in [
        (0, texts(0, 39), "idempotency_conflict"),
        (1, texts(70, 71), "idempotency_conflict"),
        (2, texts(69, 71), "invalid_request"),
    ] {
        let (code, error) = client.fails("job.append", &append(&id, seq, &items));
        assert_eq!(code, expected, "{error}");
    }
    let open = super::status(&mut client, &id);
    assert_eq!(
        (&open["state"], &open["progress"]["done"]),
        (&json!("open"), &json!(70)),
        "{open}"
    );
    assert_eq!(result(&mut client, &id, 0)["pages"], 0);
    assert_eq!(job_id(&client.ok("job.seal", &json!({"job_id": id}))), id);
    let (code, error) = client.fails("job.append", &append(&id, 2, &texts(70, 71)));
    assert_eq!(code, "invalid_request", "it is sealed: {error}");
    let view = end(&mut client, &id);
    assert_eq!(
        (&view["state"], &view["progress"]["done"]),
        (&json!("done"), &json!(70)),
        "{view}"
    );
    assert_eq!(
        job_id(&client.ok("job.seal", &json!({"job_id": id}))),
        id,
        "sealed again"
    );
    assert_eq!(start(&mut client, "key", 70), id, "the same texts in one piece");
    assert!(daemon.stop().success());
}

/// Inputs are bounded in items, in bytes, and all open ones together; a refused append keeps nothing.
#[test]
fn inputs_are_bounded() {
    let place = place(
        r#"{"jobs": {"max_open": 3, "max_items": 100, "max_bytes": 4000, "max_open_bytes": 6000},
            "inline": {"max_items": 8}}"#,
    );
    let (daemon, mut client) = serving(&place);
    let ids: Vec<String> = (0..3)
        .map(|n| job_id(&client.ok("job.create", &creation(&format!("key-{n}")))))
        .collect();
    let (code, error) = client.fails("job.create", &creation("key-3"));
    assert_eq!(
        (code.as_str(), &error["data"]["detail"]["limit"]),
        ("queue_full", &json!("jobs.max_open")),
        "{error}"
    );
    assert!(error["data"]["retry_after_ms"].is_u64(), "{error}");

    assert_eq!(
        beyond(&mut client, &ids[0], 0, &texts(0, 101), "jobs.max_items"),
        (100, 101)
    );
    let long = |id: &str, bytes: usize| json!([{"id": id, "text": "x".repeat(bytes)}]);
    client.ok("job.append", &append(&ids[0], 0, &long("a", 3_900)));
    assert_eq!(
        beyond(&mut client, &ids[0], 1, &long("b", 101), "jobs.max_bytes"),
        (4_000, 4_001)
    );
    client.ok("job.append", &append(&ids[1], 0, &long("a", 2_000)));
    assert_eq!(
        beyond(&mut client, &ids[1], 1, &long("b", 101), "jobs.max_open_bytes"),
        (6_000, 6_001)
    );
    client.ok("job.append", &append(&ids[1], 1, &long("b", 100)));

    // A batch that is a job at once is bounded like any other, and takes no place among the open ones.
    let over = client.fails("embed.batch", &batch("batch", 101));
    assert_eq!(
        (over.0.as_str(), &over.1["data"]["detail"]["limit"]),
        ("limit_exceeded", &json!("jobs.max_items"))
    );
    client.ok("job.cancel", &json!({"job_id": ids[0]}));
    let whole = start(&mut client, "batch", 9);
    assert_eq!(end(&mut client, &whole)["state"], "done");
    // The cancelled one has made room, for one.
    let fourth = job_id(&client.ok("job.create", &creation("key-3")));
    assert_eq!(client.fails("job.create", &creation("key-4")).0, "queue_full");
    let whole = start(&mut client, "another", 9);
    assert_eq!(end(&mut client, &whole)["state"], "done");

    // Open jobs outlive the daemon, with what was kept of them.
    daemon.kill();
    let daemon = place.start();
    let mut client = daemon.connect();
    for (id, items) in [(&ids[1], 2), (&ids[2], 0), (&fourth, 0)] {
        let view = super::status(&mut client, id);
        assert_eq!(
            (&view["state"], &view["progress"]["done"]),
            (&json!("open"), &json!(items)),
            "{view}"
        );
    }
    assert_eq!(client.fails("job.create", &creation("key-4")).0, "queue_full");
    let answer = client.ok("job.append", &append(&ids[1], 1, &long("b", 100)));
    assert_eq!(
        (&answer["kept"], &answer["next_seq"]),
        (&json!(true), &json!(2)),
        "{answer}"
    );
    assert!(daemon.stop().success());
}
