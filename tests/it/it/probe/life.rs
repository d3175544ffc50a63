//! A lane's life with its certificate: closed, probed, open, and the same after a restart.

use std::time::Duration;

use serde_json::{Value, json};

use super::{closed, lane, place, probe, pull, query};
use crate::support::HANG;
use crate::support::client::Client;

const TOY: &str = "toy@reference:f32";

/// Loads the toy and gives the answer to a query.
fn served(client: &mut Client) -> Value {
    client.load(TOY);
    client.ok("embed.query", &query("toy", "a text"))
}

/// Proves API-21, API-22, CERT-11, CERT-13.
#[test]
fn a_probe_opens_a_lane_and_its_report_survives_a_restart() {
    let place = place(&[], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    let error = closed(&mut client, "toy", "not_certified");
    assert_eq!(error["data"]["detail"]["reason"], "unprobed", "{error}");
    let before = lane(&mut client, TOY);
    assert_eq!(
        (&before["verdict"], &before["findings"]),
        (&json!("unprobed"), &Value::Null)
    );
    assert_eq!(before["blocking_reason"], "probe_required", "{before}");
    assert_eq!(
        client.ok("probe.status", &json!({}))["lanes"],
        json!([]),
        "nothing was probed yet"
    );

    let view = probe(&mut client, &["toy"]);
    let probed = &view["result"]["probed"];
    assert_eq!(
        (&probed[0]["lane"], &probed[0]["state"]),
        (&json!(TOY), &json!("certified")),
        "{view}"
    );
    let status = client.ok("probe.status", &json!({}));
    assert_eq!((&status["job"]["job_id"], &status["lanes"]), (&view["job_id"], probed));

    let report = client.ok("probe.report", &json!({}));
    let after = lane(&mut client, TOY);
    assert_eq!(
        (&after["verdict"], &after["blocking_reason"]),
        (&json!("certified"), &Value::Null),
        "{after}"
    );
    for stamp in ["at_ms", "machine_profile_hash", "os_build", "module_generation"] {
        assert!(!after["probed"][stamp].is_null(), "{stamp}: {after}");
    }
    let works = |report: &Value| -> Vec<Value> {
        let assignments = report["assignments"].as_array().expect("assignments");
        assignments
            .iter()
            .map(|assigned| assigned["workload"].clone())
            .collect()
    };
    assert_eq!(works(&report), ["batch", "query"], "{report}");
    let reply = served(&mut client);
    assert_eq!(
        reply["provenance"]["machine_profile_hash"], after["key"]["machine_profile_hash"],
        "{reply}"
    );
    assert_eq!(reply["provenance"]["certification"], after["level"], "{reply}");
    assert!(daemon.stop().success());

    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let kept = client.ok("probe.report", &json!({}));
    for part in ["lanes", "assignments", "machine", "knob"] {
        assert_eq!(kept[part], report[part], "{part}");
    }
    assert_eq!(served(&mut client)["fingerprint"], reply["fingerprint"]);
    assert!(daemon.stop().success());
}

/// How many steps the job of a probe has done.
pub(super) fn steps(view: &Value) -> u64 {
    match view["progress"]["unit"].as_str() {
        Some("steps") => view["progress"]["done"].as_u64().expect("a count"),
        _ => 0,
    }
}

/// Waits until the probe of `started` has answered a step.
pub(super) fn steps_taken(client: &mut Client, started: &Value) {
    let bound = std::time::Instant::now() + HANG;
    loop {
        let view = client.ok("job.status", &json!({"job_id": started["job_id"]}));
        if steps(&view) > 0 {
            return;
        }
        assert!(std::time::Instant::now() < bound, "no step is taken: {view}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Proves API-21: cancelled between two steps, a probe leaves everything as it was.
#[test]
fn a_probe_that_is_cancelled_writes_nothing() {
    let place = place(&[("fault", "slow")], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    let started = client.ok("probe.start", &json!({"models": [TOY]}));
    let again = client.ok("probe.start", &json!({"models": [TOY]}));
    assert_eq!(started["job_id"], again["job_id"], "one probe of one lane at a time");
    steps_taken(&mut client, &started);
    client.ok("job.cancel", &json!({"job_id": started["job_id"]}));
    let view = client.job(&started);
    assert_eq!(view["state"], "cancelled", "{view}");
    assert_eq!(
        client.ok("probe.status", &json!({"job_id": started["job_id"]}))["lanes"][0]["state"],
        "dropped"
    );
    assert_eq!(lane(&mut client, TOY)["verdict"], "unprobed");
    closed(&mut client, "toy", "not_certified");
    assert!(daemon.stop().success());
}

/// Proves CERT-11, JOB-04: a daemon that dies in the middle of a probe has certified nothing.
#[test]
fn a_probe_that_a_kill_ends_has_written_nothing() {
    let place = place(&[("fault", "slow")], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    let started = client.ok("probe.start", &json!({"models": [TOY]}));
    steps_taken(&mut client, &started);
    daemon.kill();
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let view = client.ok("job.status", &json!({"job_id": started["job_id"]}));
    assert_eq!(view["state"], "failed_transient", "{view}");
    assert_eq!(view["error"]["code"], "module_restarted", "{view}");
    assert_eq!(lane(&mut client, TOY)["verdict"], "unprobed");
    assert!(daemon.stop().success());
}

/// Proves CERT-14, CONF-12.
#[test]
fn the_knob_is_read_at_the_start() {
    let place = place(&[], r#", "knob": "quiet""#);
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    probe(&mut client, &[TOY]);
    let place = place.rewrite_config(&super::config("", r#", "knob": "performance""#));
    let knob = |client: &mut Client| client.ok("probe.report", &json!({}))["knob"].clone();
    assert_eq!(knob(&mut client), "quiet", "the file is edited, the daemon is not");
    assert!(daemon.stop().success());
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    assert_eq!(knob(&mut client), "performance");
    let times = lane(&mut client, TOY)["performance"].clone();
    assert!(
        times[0]["knob"] == "quiet",
        "a figure belongs to the knob that it was measured under: {times}"
    );
    assert!(daemon.stop().success());
}

/// Proves API-21: what is asked for wrongly starts nothing.
#[test]
fn a_probe_of_nothing_is_refused_with_what_to_do() {
    let place = place(&[], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    for (models, code, words) in [
        (json!(["no-such-model"]), "unknown_model", "models list"),
        (json!(["toy@nowhere"]), "unknown_model", "toy@reference:f32"),
        (json!(["toy"]), "model_not_installed", "models pull toy"),
        (json!([]), "model_not_installed", "models pull"),
        (json!(["toy@@"]), "invalid_request", ""),
    ] {
        let (found, error) = client.fails("probe.start", &json!({"models": models}));
        assert_eq!(found, code, "{models}: {error}");
        assert!(
            error["message"].as_str().expect("words").contains(words),
            "{models}: {error}"
        );
    }
    let (code, error) = client.fails("probe.status", &json!({"job_id": "job-0-0"}));
    assert_eq!(code, "unknown_job", "{error}");
    assert!(daemon.stop().success());
}
