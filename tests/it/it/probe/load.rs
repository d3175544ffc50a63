//! A probe on a lane that serves: queries pass between its steps, and neither starves the other.

use serde_json::{Value, json};

use super::life::{steps, steps_taken};
use super::{lane, place, probe, pull, query};

const TOY: &str = "toy@reference:f32";

/// A query that waits as long as it must.
fn patient(text: &str) -> Value {
    let mut query = query("toy", text);
    query["deadline_ms"] = json!(120_000);
    query["max_queue_ms"] = json!(120_000);
    query
}

/// Proves API-21: the probe gets to its end although queries never stop, and each of them is answered meanwhile.
#[test]
fn a_probe_and_queries_get_on_together() {
    let place = place(&[], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    probe(&mut client, &[TOY]);
    client.load(TOY);
    let mut asking = daemon.connect();
    let started = client.ok("probe.start", &json!({"models": [TOY]}));
    let (mut answered, mut between) = (0_u32, 0_u32);
    let view = loop {
        let view = client.ok("job.status", &json!({"job_id": started["job_id"]}));
        match view["state"].as_str() {
            Some("done") => break view,
            Some("queued" | "running") => {}
            _ => panic!("{view}"),
        }
        asking.ok("embed.query", &patient(&format!("question {answered}")));
        answered += 1;
        between += u32::from(steps(&view) > 0);
    };
    assert_eq!(view["result"]["probed"][0]["state"], "certified", "{view}");
    assert!(
        between > 10,
        "only {between} of {answered} queries met the probe at work"
    );
    assert!(daemon.stop().success());
}

/// Proves SCHED-05: queries that wait together all pass before the probe's next steps. An item takes this engine 20 ms, in
/// a step or in a query, so that steps are counted and not the time between two looks.
#[test]
fn waiting_queries_pass_before_the_next_step_of_a_probe() {
    const QUERIES: u64 = 32;
    let place = place(&[("fault", "slow")], "").rewrite_config(&super::open_config());
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    client.load(TOY);
    let started = client.ok("probe.start", &json!({"models": [TOY]}));
    steps_taken(&mut client, &started);
    let mut asking = daemon.connect();
    let before = client.ok("job.status", &json!({"job_id": started["job_id"]}));
    for number in 0..QUERIES {
        asking.request("embed.query", &patient(&format!("question {number}")));
    }
    for _ in 0..QUERIES {
        let answer = asking.line().expect("an answer");
        assert!(answer["error"].is_null(), "{answer}");
    }
    let after = client.ok("job.status", &json!({"job_id": started["job_id"]}));
    assert_eq!(
        (&before["state"], &after["state"]),
        (&json!("running"), &json!("running")),
        "{after}"
    );
    // If each query waited for a step of its own, there would be as many steps as queries. The one that ran when they
    // came is counted, and those between the last answer and this look.
    let passed = steps(&after) - steps(&before);
    assert!(passed < QUERIES / 2, "{passed} steps passed before {QUERIES} queries");
    client.ok("job.cancel", &json!({"job_id": started["job_id"]}));
    assert_eq!(client.job(&started)["state"], "cancelled");
    assert_eq!(lane(&mut client, TOY)["verdict"], "unprobed");
    assert!(daemon.stop().success());
}
