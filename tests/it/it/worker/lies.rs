//! Workers that lie or die in an exchange, played by a real process that follows a script: one typed error for the
//! request that met it, the requests beside it answered right, one death counted, no process left.
//!
//! A row of a table is a script of `src/scripted_worker/script.rs` and where the loss shows (`detail.stage`).

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::deaths::quarantined;
use super::{LONG, SHORT, deaths_counted, has_zombie, place, pull, query, serving, until, vector, workers};
use crate::support::client::{Client, code};
use crate::support::daemon::{Daemon, Place};

/// A window of silence that only a silent worker crosses, also on a busy machine.
const SILENCE: &str = r#", "inference_silence_ms": 1500, "setup_silence_ms": 1500"#;

/// A place whose worker program follows `script`, with these bounds (JSON members).
fn scripted(script: &str, bounds: &str) -> Place {
    let place = place(&[], bounds);
    let program = place.path().join(script);
    fs::copy(Path::new(env!("CARGO_BIN_EXE_synapse-scripted-worker")), &program).expect("copies");
    place.worker(program)
}

/// Sends three requests at once, of which the second meets the script, and gives the answers in that order.
fn three_at_once(client: &mut Client) -> [Value; 3] {
    let ids = [SHORT, LONG, SHORT].map(|text| client.request("embed.query", &query("toy-a", text)));
    let mut answers = [Value::Null, Value::Null, Value::Null];
    for _ in ids {
        let answer = client.line().expect("an answer");
        let place = ids.iter().position(|id| answer["id"] == *id).expect("one of the three");
        assert!(answers[place].is_null(), "answered twice: {answer}");
        answers[place] = answer;
    }
    answers
}

fn assert_lost(script: &str, error: &Value, stage: &str) {
    assert_eq!(code(error), "engine_crashed", "{script}: {error}");
    let data = &error["data"];
    assert_eq!(
        (&data["class"], &data["detail"]["stage"]),
        (&json!("transient"), &json!(stage)),
        "{script}: {error}"
    );
}

fn assert_nothing_left(script: &str, daemon: &mut Daemon) {
    assert!(daemon.is_running() && !has_zombie(daemon), "{script}");
    assert!(workers(daemon).len() <= 1, "{script}: {:?}", workers(daemon));
}

/// Exactly so many deaths are counted. The daemon's log is read by a thread, so its last line may be on its way.
fn assert_deaths(script: &str, daemon: &Daemon, expected: usize) {
    until("the death is counted", || deaths_counted(daemon) >= expected);
    assert_eq!(deaths_counted(daemon), expected, "{script}\n{}", daemon.log());
}

/// Two strikes: each one error for its own request, the second one the quarantine.
fn strikes(script: &str, stage: &str) {
    let silence = if stage == "timeout" { SILENCE } else { "" };
    let place = scripted(script, &format!(r#", "crashes_per_model": 2{silence}"#));
    let (mut daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    let [before, struck, after] = three_at_once(&mut client);
    for beside in [before, after] {
        assert_eq!(beside["result"]["vectors"][0], expected.as_str(), "{script}: {beside}");
    }
    assert_lost(script, &struck["error"], stage);
    assert_deaths(script, &daemon, 1);
    assert_eq!(vector(&mut client, "toy-a", SHORT), expected, "{script}");
    assert_nothing_left(script, &mut daemon);
    let (_, error) = client.fails("embed.query", &query("toy-a", LONG));
    assert_lost(script, &error, stage);
    quarantined(&mut client);
    assert_deaths(script, &daemon, 2);
    assert!(workers(&daemon).is_empty(), "{script}: refused without a process");
    assert!(!has_zombie(&daemon), "{script}");
}

/// The worker that all of this is measured against: the same program, telling the truth.
#[test]
fn an_honest_worker_is_kept() {
    let place = scripted("honest", r#", "refresh_ms": 20"#);
    let (daemon, mut client) = serving(&place);
    let [before, long, after] = three_at_once(&mut client);
    assert_eq!(before["result"]["vectors"], after["result"]["vectors"]);
    assert_ne!(before["result"]["vectors"], long["result"]["vectors"]);
    assert_deaths("honest", &daemon, 0);
}

/// Proves WPROTO-27, WSUP-12, WSUP-15.
#[test]
fn a_raw_frame_that_is_not_as_declared() {
    strikes("short-raw", "protocol");
    strikes("short-raw-then-eof", "exit");
    strikes("long-raw", "protocol");
    strikes("progress-before-raw", "protocol");
}

/// Fault S7: what is no message has a class of its own, and is not taken for a death.
///
/// Proves WPROTO-08, WSUP-12.
#[test]
fn a_frame_that_is_no_message() {
    strikes("oversize", "protocol");
    strikes("bad-json", "protocol");
    strikes("unknown-reply", "protocol");
}

/// Fault S13: ids are checked on every reply, errors included. Fault S14: a reply of another kind is a fault at once,
/// and nothing waits for a raw frame that never comes.
///
/// Proves WPROTO-16.
#[test]
fn an_answer_to_something_else() {
    strikes("wrong-id", "protocol");
    strikes("error-with-wrong-id", "protocol");
    strikes("wrong-kind", "protocol");
    strikes("wrong-kind-without-raw", "protocol");
    strikes("wrong-count", "protocol");
    strikes("wrong-dims", "protocol");
}

/// Proves WSUP-05, WPROTO-28.
#[test]
fn progress_without_work() {
    for script in [
        "heartbeat",
        "zero-progress",
        "backward-progress",
        "stale-progress",
        "setup-progress",
        "changed-total",
    ] {
        strikes(script, "protocol");
    }
}

/// One byte at a time is silence: only work renews the window.
///
/// Proves WSUP-08, ERR-08.
#[test]
fn silence_in_whatever_form() {
    strikes("drip", "timeout");
    strikes("silent", "timeout");
}

/// Fault S8: an engine that gave itself up is not asked again, though its process still runs: the next request goes to
/// another process.
///
/// Proves WSUP-14.
#[test]
fn a_worker_that_lives_on_after_its_engine_gave_up() {
    strikes("engine-bad", "engine");
}

/// A doubled reply answers nobody: the request that it belongs to has its answer, and the next one gets its own.
///
/// Proves WPROTO-16, WSUP-10.
#[test]
fn a_doubled_reply() {
    let place = scripted("duplicate", "");
    let (mut daemon, mut client) = serving(&place);
    let expected = vector(&mut client, "toy-a", SHORT);
    let mut long = None;
    for round in 1..=2 {
        for answer in three_at_once(&mut client).into_iter().step_by(2) {
            assert_eq!(answer["result"]["vectors"][0], expected.as_str(), "{answer}");
        }
        let doubled = vector(&mut client, "toy-a", LONG);
        assert_eq!(*long.get_or_insert_with(|| doubled.clone()), doubled);
        assert_eq!(vector(&mut client, "toy-a", SHORT), expected);
        assert_deaths("duplicate", &daemon, 2 * round);
    }
    assert!(daemon.log().contains("bytes that nobody asked for"), "{}", daemon.log());
    assert_nothing_left("duplicate", &mut daemon);
}

/// Fault S12: a last line without its end is part of the last words.
///
/// Proves ERR-08, LOG-09.
#[test]
fn the_last_words_ride_on_the_error() {
    let place = scripted("last-words", r#", "crashes_per_model": 9"#);
    let (_daemon, mut client) = serving(&place);
    let (_, error) = client.fails("embed.query", &query("toy-a", LONG));
    assert_lost("last-words", &error, "exit");
    let tail = error["data"]["detail"]["tail"].as_str().expect("a tail");
    assert!(tail.len() <= 8192 && tail.len() > 8000, "{} bytes", tail.len());
    assert!(tail.ends_with("line 01999\nthe last words"), "{tail}");
}

/// The stage at which a death of this kind shows: a stopped process does not end, it falls silent.
fn stage(how: &str) -> &'static str {
    if how == "stop" { "timeout" } else { "exit" }
}

const WAYS: [&str; 5] = ["kill", "segv", "abort", "exit", "stop"];

/// Proves ERR-07, WSUP-12, WSUP-14, WSUP-15.
#[test]
fn a_death_in_a_batch() {
    for how in WAYS {
        strikes(&format!("die-batch-{how}"), stage(how));
    }
}

/// Proves ERR-07, WPROTO-27, WSUP-12, WSUP-14.
#[test]
fn a_death_inside_a_raw_frame() {
    for how in WAYS {
        strikes(&format!("die-raw-{how}"), stage(how));
    }
}

/// Nobody's request meets it: the lane alone is charged, and the next request is served by the next process.
///
/// Proves WSUP-12, WSUP-14, WSUP-18, HEALTH-07.
#[test]
fn a_death_while_idle() {
    for how in WAYS {
        let script = format!("die-idle-{how}");
        let silence = if how == "stop" { SILENCE } else { "" };
        let place = scripted(
            &script,
            &format!(r#", "crashes_per_lane": 2, "crashes_per_model": 1, "refresh_ms": 50{silence}"#),
        );
        let (mut daemon, mut client) = serving(&place);
        let expected = vector(&mut client, "toy-a", SHORT);
        for round in 1..=2 {
            vector(&mut client, "toy-a", LONG);
            assert_deaths(&script, &daemon, round);
            assert_eq!(vector(&mut client, "toy-a", SHORT), expected, "{script}");
            assert_nothing_left(&script, &mut daemon);
        }
        let health = client.ok("health", &json!({}));
        assert_eq!(health["status"], "degraded", "{script}: {health}");
    }
}

/// The load that met it fails for good and is not tried again by itself; the next one, asked for by hand, serves.
///
/// Proves ERR-07, WSUP-06, WSUP-14.
#[test]
fn a_death_in_a_load() {
    for how in WAYS {
        let script = format!("die-load-{how}");
        let place = scripted(&script, if how == "stop" { SILENCE } else { "" });
        let mut daemon = place.start();
        let mut client = daemon.connect();
        pull(&mut client, &place, "toy-a");
        let load = client.ok("model.load", &json!({"model": "toy-a"}));
        let view = client.job(&load);
        assert_eq!(
            (
                &view["state"],
                &view["error"]["code"],
                &view["error"]["detail"]["stage"]
            ),
            (&json!("failed_permanent"), &json!("engine_crashed"), &json!(stage(how))),
            "{script}: {view}"
        );
        assert_deaths(&script, &daemon, 1);
        assert_nothing_left(&script, &mut daemon);
        assert!(workers(&daemon).is_empty(), "{script}");
        client.load("toy-a");
        vector(&mut client, "toy-a", SHORT);
        assert_deaths(&script, &daemon, 1);
    }
}
