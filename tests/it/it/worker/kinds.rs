//! Reranking and generation in a worker: the numbers of the engine inside the daemon, one error for the request that met a
//! death, and a worker that outlives a caller who left.

use rustix::process::Signal;
use serde_json::{Value, json};
use synapse_loader::trust;

use super::{QUICK, SHORT, has_zombie, place, pull, signal, until, until_running, worker, workers};
use crate::support::client::{Client, code};
use crate::support::daemon::{Daemon, Place};
use crate::support::toys::{self, Kind};

/// The prompt of every generation.
const PROMPT: &str = "a lock on the file";
/// So many tokens take a slow engine 12 s.
const MANY: usize = 600;

/// A place like [`place`], with a toy that reranks and one that generates; generations may be long.
fn kinds(settings: &[(&str, &str)]) -> Place {
    let place = place(settings, "").config(&format!(
        r#"{{"worker": {{{QUICK}}}, "microllm_max_tokens": 1000, "shutdown": {{"grace_ms": 200, "cancel_ms": 2000}}}}"#
    ));
    toys::write(&place, "ranker", Kind::Rerank);
    toys::write(&place, "writer", Kind::Generate);
    place
}

/// Promotes the reference bundle of a place that believes `trust_file`.
fn promote(place: &Place, trust_file: &std::path::Path) {
    let daemon = place.start();
    let listed = daemon.connect().ok("plugins.list", &json!({}));
    let found = listed["plugins"].as_array().expect("a list").iter();
    let entry = found
        .filter(|entry| entry["status"] != "shadowed")
        .find(|entry| entry["id"] == "reference");
    let digest = entry.expect("is listed")["digest"].as_str().expect("a digest");
    trust::trust(trust_file, "reference", &digest.parse().expect("a digest")).expect("writes");
    daemon.kill();
}

fn generation(max_tokens: usize, seed: u64) -> Value {
    json!({"model": "writer", "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 1.0, "seed": seed})
}

/// A seed with which the toy writes [`MANY`] tokens without ending by itself.
fn long_seed(client: &mut Client) -> u64 {
    // A prompt has the frame's begin and not its end.
    let mut ids = toys::ids(client, "toy-a", PROMPT);
    ids.pop();
    (0..)
        .find(|seed| !toys::text("writer", &ids, MANY, Some(*seed)).1)
        .expect("one in thirteen thousand is")
}

/// A running daemon with the toy that generates in a worker, and the embedder's files for its tokenizer.
fn writing(place: &Place) -> (Daemon, Client) {
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, place, "toy-a");
    toys::install(&mut client, place, "writer");
    (daemon, client)
}

/// Scores and texts, with the numeric spaces that they come from.
fn served(client: &mut Client, placement: &str) -> Vec<Value> {
    let candidates: Value = (0..40)
        .map(|n| json!({"id": n.to_string(), "text": (["one", "two words", ""][n % 3])}))
        .collect();
    let few: Value = candidates.as_array().expect("a list")[..4].iter().cloned().collect();
    let requests = [
        (
            "rerank.score",
            json!({"model": "ranker", "query": "a question", "candidates": few}),
        ),
        (
            "rerank.score",
            json!({"model": "ranker", "query": "a question", "candidates": candidates}),
        ),
        (
            "microllm.oneshot",
            json!({"model": "writer", "prompt": PROMPT, "max_tokens": 60}),
        ),
        ("microllm.oneshot", generation(60, 7)),
        (
            "microllm.oneshot",
            json!({"model": "writer", "prompt": PROMPT, "max_tokens": 60, "stop": ["e", "x"]}),
        ),
    ];
    let mut answers = Vec::new();
    for (method, params) in requests {
        let mut answer = client.ok(method, &params);
        assert_eq!(answer["provenance"]["placement"], placement, "{answer}");
        let answer = answer.as_object_mut().expect("an object");
        for own in ["provenance", "module_generation", "request_id"] {
            answer.remove(own);
        }
        answers.push(json!(answer));
    }
    answers
}

/// Proves ENG-03, WPROTO-07. The reference engine, promoted and not.
#[test]
fn scores_and_texts_are_the_same_in_a_worker() {
    let mut seen = Vec::new();
    for promoted in [false, true] {
        let place = kinds(&[]);
        let trust_file = place.path().join("trust.toml");
        let place = place.trust_file(trust_file.clone());
        if promoted {
            promote(&place, &trust_file);
        }
        let daemon = place.start();
        let mut client = daemon.connect();
        for model in ["ranker", "writer"] {
            toys::install(&mut client, &place, model);
        }
        seen.push(served(&mut client, if promoted { "in_process" } else { "worker" }));
        assert!(daemon.stop().success());
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0][0]["scores"].as_array().map(Vec::len), Some(4));
    assert!(seen[0][2]["text"].as_str().is_some_and(|text| !text.is_empty()));
}

/// A worker that dies in the middle of a generation, and one that dies in each call: one typed error for that request, the
/// next one is served by the next process, with the same text.
///
/// Proves ERR-07, ERR-08.
#[test]
fn a_death_in_a_generation_is_one_error_and_the_next_is_served() {
    let place = kinds(&[("fault", "slow")]);
    let (daemon, mut client) = writing(&place);
    let mut other = daemon.connect();
    let seed = long_seed(&mut client);
    let expected = client.ok("microllm.oneshot", &generation(5, seed));
    let pid = worker(&daemon);
    client.request("microllm.oneshot", &generation(MANY, seed));
    until_running(&mut other);
    signal(pid, Signal::KILL);
    let answer = client.line().expect("an answer");
    let error = &answer["error"];
    assert_eq!(code(error), "engine_crashed", "{answer}");
    assert_eq!(
        (&error["data"]["class"], &error["data"]["detail"]["stage"]),
        (&json!("transient"), &json!("exit")),
        "{error}"
    );
    let again = client.ok("microllm.oneshot", &generation(5, seed));
    assert_eq!(again["text"], expected["text"]);
    assert!(!has_zombie(&daemon));
    assert!(!workers(&daemon).contains(&pid));
}

/// A deadline and a cancellation reach the engine at its next token: were it not so, the next request could not be served
/// before the 12 s of the first one are over. Nobody's worker is ended for it.
///
/// Proves SCHED-17, WSUP-10.
#[test]
fn a_caller_who_leaves_stops_the_generation_and_not_the_worker() {
    let place = kinds(&[("fault", "slow")]);
    let (daemon, mut client) = writing(&place);
    let mut other = daemon.connect();
    let seed = long_seed(&mut client);
    let expected = client.ok("microllm.oneshot", &generation(5, seed));
    let pid = worker(&daemon);
    let mut next = generation(5, seed);
    next["deadline_ms"] = json!(6_000);
    next["max_queue_ms"] = json!(6_000);

    let mut hurried = generation(MANY, seed);
    hurried["deadline_ms"] = json!(300);
    let (late, error) = client.fails("microllm.oneshot", &hurried);
    assert_eq!(late, "deadline_exceeded", "{error}");
    assert_eq!(client.ok("microllm.oneshot", &next)["text"], expected["text"]);

    let id = client.request("microllm.oneshot", &generation(MANY, seed));
    until_running(&mut other);
    client.request("request.cancel", &json!({"id": id}));
    let answers = [client.line().expect("an answer"), client.line().expect("an answer")];
    let cancelled = answers
        .iter()
        .find(|answer| answer["id"] == id)
        .expect("of the request");
    assert_eq!(code(&cancelled["error"]), "cancelled", "{cancelled}");
    assert_eq!(client.ok("microllm.oneshot", &next)["text"], expected["text"]);
    assert_eq!(worker(&daemon), pid);
    assert_eq!(daemon.log().matches("worker started").count(), 1);
}

/// A generation that runs is no hindrance for a query of another lane.
///
/// Proves SCHED-12.
#[test]
fn a_query_does_not_wait_for_a_generation() {
    let place = kinds(&[("fault", "slow")]);
    let (daemon, mut client) = writing(&place);
    let mut other = daemon.connect();
    let seed = long_seed(&mut client);
    other.load("toy-a");
    client.request("microllm.oneshot", &generation(MANY, seed));
    until_running(&mut other);
    let query = json!({"model": "toy-a", "text": SHORT, "deadline_ms": 6_000});
    other.ok("embed.query", &query);
    let health = other.ok("health", &json!({}));
    let lanes = health["lanes"].as_array().expect("lanes").iter();
    let running = lanes.filter(|lane| lane["in_flight"] == 1).map(|lane| &lane["lane"]);
    assert_eq!(running.collect::<Vec<_>>(), ["writer@reference:f32"], "{health}");
}

/// A panic of one engine inside the daemon takes its whole bundle out: the lane that embeds moves to a worker too, without
/// an error of its own.
///
/// Proves ENG-06.
#[test]
fn a_panic_in_a_generation_moves_every_lane_of_the_bundle() {
    let place = kinds(&[("fault", "panic"), ("fault_tokens", "16")]);
    let trust_file = place.path().join("trust.toml");
    let place = place.trust_file(trust_file.clone());
    promote(&place, &trust_file);
    let (daemon, mut client) = writing(&place);
    client.load("toy-a");
    let query = json!({"model": "toy-a", "text": SHORT, "encoding": "base64"});
    let before = client.ok("embed.query", &query);
    assert_eq!(before["provenance"]["placement"], "in_process", "{before}");
    let (crashed, error) = client.fails("microllm.oneshot", &generation(5, 0));
    assert_eq!(
        (crashed.as_str(), &error["data"]["detail"]["stage"]),
        ("engine_crashed", &json!("panic")),
        "{error}"
    );
    let mut after = None;
    until("the query is served again", || {
        after = match client.call("embed.query", &query) {
            Ok(answer) => Some(answer),
            Err(error) => {
                assert_eq!(code(&error), "model_loading", "{error}");
                None
            }
        };
        after.is_some()
    });
    let after = after.expect("was served");
    assert_eq!(after["provenance"]["placement"], "worker", "{after}");
    assert_eq!(after["vectors"], before["vectors"]);
    assert_eq!(daemon.log().matches("the engine is not called again").count(), 1);
}
