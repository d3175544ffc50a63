//! Bad input over the real socket: each kind gets its typed answer, and the daemon is well afterwards.
//!
//! A line or a call that is answered at once is a row of a table here. What needs time, many connections or another
//! user has a test of its own below.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Client, code};
use crate::support::daemon::{Daemon, Place, build};
use crate::support::{models, skipped};

/// What the daemon must still do after each case.
fn serves(daemon: &Daemon) {
    let mut client = daemon.connect();
    client.healthy();
    let answer = client.ok("embed.query", &json!({"model": models::MEAN, "text": "well"}));
    assert_eq!(answer["vectors"][0].as_array().map(Vec::len), Some(48));
}

fn ready(place: &Place) -> Daemon {
    let daemon = place.start();
    daemon.connect().install(models::MEAN);
    daemon
}

/// Proves API-01, ERR-05. A line that is no request: its integer, and a word that the message must hold.
#[test]
fn lines_that_are_no_requests() {
    let place = Place::new();
    let daemon = ready(&place);
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"health","params":{{"deep":{open}{close}}}}}"#)
    };
    let cases: [(&str, Vec<u8>, i64, &str); 11] = [
        ("cut short", br#"{"jsonrpc":"2.0","id":1"#.to_vec(), -32700, "JSON"),
        ("no JSON at all", b"hello".to_vec(), -32700, "JSON"),
        (
            "not UTF-8",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}".to_vec(),
            -32700,
            "",
        ),
        (
            "two values",
            br#"{"jsonrpc":"2.0","id":1,"method":"health"}{}"#.to_vec(),
            -32700,
            "",
        ),
        (
            "an array of requests",
            br#"[{"jsonrpc":"2.0","id":1,"method":"health"}]"#.to_vec(),
            -32600,
            "",
        ),
        ("a number", b"17".to_vec(), -32600, ""),
        (
            "another version",
            br#"{"jsonrpc":"1.0","id":1,"method":"health"}"#.to_vec(),
            -32600,
            "2.0",
        ),
        ("no method", br#"{"jsonrpc":"2.0","id":1}"#.to_vec(), -32600, "method"),
        (
            "an unknown key",
            br#"{"jsonrpc":"2.0","id":1,"method":"health","priority":1}"#.to_vec(),
            -32600,
            "priority",
        ),
        (
            "an id that is an object",
            br#"{"jsonrpc":"2.0","id":{},"method":"health"}"#.to_vec(),
            -32600,
            "id",
        ),
        ("a nesting of 100,000 levels", nested(100_000).into_bytes(), -32700, ""),
    ];
    for (what, line, integer, word) in cases {
        let mut client = daemon.connect();
        client.send(&line).expect("the daemon reads");
        client.send(b"\n").expect("the daemon reads");
        let answer = client.line().unwrap_or_else(|| panic!("{what}: no answer"));
        let error = &answer["error"];
        let nested_invalid = what.starts_with("a nesting") && error["code"] == -32600;
        assert!(error["code"] == integer || nested_invalid, "{what}: {answer}");
        assert_eq!(code(error), "invalid_request", "{what}");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(word)),
            "{what}: {answer}"
        );
        assert!(
            error["data"]["module_generation"].is_u64() && error["data"]["request_id"].is_string(),
            "{what}"
        );
        // The connection lives on.
        client.ok("health", &json!({}));
        serves(&daemon);
    }
    assert!(daemon.stop().success());
}

/// Proves API-01, API-04, ERR-05. Calls that are refused as a whole.
#[test]
fn calls_that_are_refused() {
    let place = Place::new();
    let daemon = ready(&place);
    let items = |count: usize| -> Value { (0..count).map(|n| json!({"id": n.to_string(), "text": "a"})).collect() };
    let model = models::MEAN;
    let cases = [
        (
            "an unknown method",
            "embed.everything",
            json!({}),
            -32601,
            "invalid_request",
            "embed.everything",
        ),
        (
            "an unknown field",
            "embed.query",
            json!({"model": model, "text": "a", "trunctae": true}),
            -32602,
            "invalid_request",
            "trunctae",
        ),
        (
            "a missing field",
            "embed.query",
            json!({"model": model}),
            -32602,
            "invalid_request",
            "text",
        ),
        (
            "a field of another type",
            "embed.query",
            json!({"model": model, "text": 7}),
            -32602,
            "invalid_request",
            "",
        ),
        (
            "an unknown role",
            "embed.query",
            json!({"model": model, "text": "a", "role": "poet"}),
            -32602,
            "invalid_request",
            "poet",
        ),
        (
            "no items",
            "embed.batch",
            json!({"model": model, "items": []}),
            -32602,
            "invalid_request",
            "items",
        ),
        (
            "two items of one id",
            "embed.batch",
            json!({"model": model, "items": [{"id": "a", "text": "a"}, {"id": "a", "text": "b"}]}),
            -32602,
            "invalid_request",
            "twice",
        ),
        (
            "65 items",
            "embed.batch",
            json!({"model": model, "items": items(65)}),
            0,
            "limit_exceeded",
            "64",
        ),
        (
            "an unknown model",
            "embed.query",
            json!({"model": "no-such-model", "text": "a"}),
            0,
            "unknown_model",
            "no-such-model",
        ),
        (
            "a model that is not here",
            "embed.query",
            json!({"model": models::CLS, "text": "a"}),
            0,
            "model_not_installed",
            "models pull",
        ),
        (
            "a length that the model was not made for",
            "embed.query",
            json!({"model": model, "text": "a", "dimensions": 7}),
            0,
            "unsupported",
            "7",
        ),
        (
            "too long a text, not to be cut",
            "embed.query",
            json!({"model": model, "text": "word ".repeat(500), "truncate": false}),
            0,
            "input_too_long",
            "128",
        ),
        (
            "a lone surrogate in the one text",
            "text.tokenize",
            json!({"model": model, "text": "SURROGATE"}),
            0,
            "invalid_text",
            "",
        ),
        (
            "another fingerprint",
            "embed.query",
            json!({"model": model, "text": "a", "required_fingerprint": "0".repeat(64)}),
            0,
            "substitution_rejected",
            "",
        ),
        (
            "an unknown job",
            "job.status",
            json!({"job_id": "job-0-0"}),
            0,
            "unknown_job",
            "",
        ),
        (
            "a relative folder",
            "models.pull",
            json!({"model": model, "source": "local", "path": "x"}),
            -32602,
            "invalid_request",
            "absolute",
        ),
        (
            "a source that the record lacks",
            "models.pull",
            json!({"model": model, "source": "pypi"}),
            -32602,
            "invalid_request",
            "local, hf",
        ),
    ];
    let mut client = daemon.connect();
    for (what, method, params, integer, expected, word) in cases {
        let line = json!({"jsonrpc": "2.0", "id": what, "method": method, "params": params}).to_string();
        client
            .send(line.replace("SURROGATE", "x\\ud800y").as_bytes())
            .expect("the daemon reads");
        client.send(b"\n").expect("the daemon reads");
        let answer = client.line().unwrap_or_else(|| panic!("{what}: no answer"));
        let error = &answer["error"];
        assert_eq!(
            (&answer["id"], code(error).as_str()),
            (&json!(what), expected),
            "{what}: {answer}"
        );
        let server_error = error["code"]
            .as_i64()
            .is_some_and(|code| (-32_099..=-32_000).contains(&code));
        assert!(
            if integer == 0 {
                server_error
            } else {
                error["code"] == integer
            },
            "{what}: {answer}"
        );
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(word)),
            "{what}: {answer}"
        );
        assert!(
            ["transient", "permanent"]
                .map(Value::from)
                .contains(&error["data"]["class"]),
            "{what}: {answer}"
        );
    }
    serves(&daemon);
    assert!(daemon.stop().success());
}

/// Texts that look wrong and are texts: served, with the tokens that they have.
#[test]
fn unusual_texts_are_served() {
    let place = Place::new();
    let daemon = ready(&place);
    let mut client = daemon.connect();
    let long = "a".repeat(1_000_000);
    let texts = [
        "",
        " ",
        "a\u{0}b",
        "\u{feff}bom",
        "[CLS] [SEP] [PAD]",
        "\u{202e}rtl",
        "a\r\nb",
        &long,
    ];
    for text in texts {
        let shown: String = text.chars().take(20).collect();
        let tokens = client.ok("text.tokenize", &json!({"model": models::MEAN, "text": text}));
        let answer = client.ok("embed.query", &json!({"model": models::MEAN, "text": text}));
        assert_eq!(answer["real_token_counts"][0], tokens["count"], "{shown:?}");
        assert_eq!(answer["vectors"][0].as_array().map(Vec::len), Some(48), "{shown:?}");
        let ids = tokens["ids"].as_array().expect("ids");
        assert!(
            ids[1..ids.len() - 1].iter().all(|id| id.as_u64() > Some(4) || *id == 1),
            "{shown:?}: {tokens}"
        );
    }
    let empty = client.ok("text.tokenize", &json!({"model": models::MEAN, "text": ""}));
    assert_eq!(empty["ids"], json!([2, 3]), "its two special tokens");
    assert!(daemon.stop().success());
}

/// One broken text harms itself only; arrays keep the request's length and order.
#[test]
fn a_broken_item_fails_alone() {
    let place = Place::new();
    let daemon = ready(&place);
    let mut client = daemon.connect();
    let line = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"embed.batch","params":{{"model":"{}","truncate":false,"items":[
        {{"id":"good","text":"one"}},{{"id":"half","text":"x\ud800"}},{{"id":"long","text":"{}"}},
        {{"id":"also good","text":"two"}}]}}}}"#,
        models::MEAN,
        "word ".repeat(300)
    );
    client
        .send(line.replace('\n', " ").as_bytes())
        .expect("the daemon reads");
    client.send(b"\n").expect("the daemon reads");
    let answer = client.line().expect("an answer");
    let result = &answer["result"];
    let ids: Vec<&str> = result["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|i| i["id"].as_str())
        .collect();
    assert_eq!(ids, ["good", "half", "long", "also good"], "{answer}");
    let codes: Vec<&Value> = (0..4).map(|n| &result["items"][n]["error"]["code"]).collect();
    assert_eq!(
        codes,
        [
            &Value::Null,
            &json!("invalid_text"),
            &json!("input_too_long"),
            &Value::Null
        ],
        "{answer}"
    );
    for (n, served) in [true, false, false, true].into_iter().enumerate() {
        assert_eq!(result["vectors"][n].is_array(), served, "{answer}");
    }
    assert!(daemon.stop().success());
}

/// A line beyond 16 MiB is answered, whatever it holds, and the next one is read.
#[test]
fn a_line_of_17_mib_is_refused() {
    let place = Place::new();
    let daemon = ready(&place);
    let mut client = daemon.connect();
    let chunk = vec![b'a'; 1 << 20];
    for _ in 0..17 {
        client.send(&chunk).expect("the daemon reads to the end of the line");
    }
    client.send(b"\n").expect("the daemon reads");
    let answer = client.line().expect("an answer");
    assert_eq!(code(&answer["error"]), "limit_exceeded", "{answer}");
    assert_eq!(answer["error"]["data"]["detail"]["maximum"], 16 << 20, "{answer}");
    client.ok("health", &json!({}));
    serves(&daemon);
    assert!(daemon.stop().success());
}

/// Proves API-03. 32 requests may be in flight on a connection; the next is refused at once, status is not counted, and
/// an id in flight cannot be used again.
#[test]
fn the_33rd_request_in_flight_is_refused() {
    let place = Place::new();
    let daemon = ready(&place);
    let mut client = daemon.connect();
    // Each takes a while to tokenize, and only as many at a time as there are cores.
    let text = "!".repeat(400_000);
    let mut lines = Vec::new();
    for id in (1..=33).chain([1]) {
        let params = json!({"model": models::MEAN, "text": text, "truncate": true});
        lines.extend(
            json!({"jsonrpc": "2.0", "id": id, "method": "text.tokenize", "params": params})
                .to_string()
                .bytes(),
        );
        lines.push(b'\n');
    }
    lines.extend(b"{\"jsonrpc\":\"2.0\",\"id\":99,\"method\":\"health\"}\n");
    client.send(&lines).expect("the daemon reads");
    let mut refused = Vec::new();
    let mut health = false;
    while refused.len() < 2 || !health {
        let answer = client.line().expect("an answer");
        if answer["id"] == 99 {
            health = answer["result"].is_object();
        } else if answer.get("error").is_some() {
            refused.push((
                answer["id"].clone(),
                code(&answer["error"]),
                answer["error"]["code"].clone(),
            ));
        }
    }
    assert_eq!(refused[0].0, 33, "{refused:?}");
    assert_eq!(refused[0].1, "queue_full", "{refused:?}");
    assert_eq!(
        (&refused[1].0, &refused[1].2),
        (&json!(1), &json!(-32600)),
        "{refused:?}"
    );
    drop(client);
    serves(&daemon);
    assert!(daemon.stop().success());
}

#[test]
fn a_slow_line_is_answered_and_closed() {
    let place = Place::new().config(r#"{ "connection": { "line_timeout_ms": 200 } }"#);
    let daemon = place.start();
    let mut client = daemon.connect();
    client.send(br#"{"jsonrpc":"2.0","id":1,"#).expect("the daemon reads");
    let answer = client.line().expect("an answer");
    assert_eq!(code(&answer["error"]), "invalid_request", "{answer}");
    assert_eq!(
        answer["error"]["data"]["detail"]["limit"], "connection.line_timeout_ms",
        "{answer}"
    );
    assert!(client.line().is_none(), "the connection is closed");
    daemon.connect().ok("health", &json!({}));
    assert!(daemon.stop().success());
}

/// A client that sends no more still gets its answers; one that is gone harms nobody.
#[test]
fn half_closed_and_vanished_clients() {
    let place = Place::new();
    let daemon = ready(&place);
    let items: Value = (0..64)
        .map(|n| json!({"id": n.to_string(), "text": "word ".repeat(120)}))
        .collect();
    let mut client = daemon.connect();
    let id = client.request("embed.batch", &json!({"model": models::MEAN, "items": items}));
    client.half_close();
    let answer = client.line().expect("an answer after the half-close");
    assert_eq!(
        (&answer["id"], answer["result"]["vectors"].as_array().map(Vec::len)),
        (&json!(id), Some(64))
    );
    assert!(client.line().is_none(), "then the daemon closes too");

    for _ in 0..20 {
        let mut client = daemon.connect();
        client.request("embed.batch", &json!({"model": models::MEAN, "items": items}));
    }
    serves(&daemon);
    assert!(daemon.stop().success());
}

#[test]
fn five_hundred_connections_are_served() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum.map_or(Some(4096), |most| Some(most.min(4096))),
        ..limit
    };
    setrlimit(Resource::Nofile, wanted).expect("up to the hard limit");
    let place = Place::new();
    let daemon = ready(&place);
    let mut clients: Vec<Client> = (0..500).map(|_| daemon.connect()).collect();
    for client in &mut clients {
        client.request("embed.query", &json!({"model": models::MEAN, "text": "one of many"}));
    }
    let first = clients[0].line().expect("an answer")["result"]["vectors"].clone();
    assert!(first.is_array());
    for client in &mut clients[1..] {
        let answer = client.line().expect("an answer");
        // Interactive work waits in a bounded queue; beyond it the answer is typed too.
        match answer.get("error") {
            None => assert_eq!(answer["result"]["vectors"], first),
            Some(error) => assert_eq!(code(error), "queue_full", "{answer}"),
        }
    }
    drop(clients);
    serves(&daemon);
    assert!(daemon.stop().success());
}

/// Proves API-01. The kernel says who connects; another user is turned away even where the file's mode lets them in.
#[test]
fn another_user_is_turned_away() {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use synapse_loader::process::{Command, Output, spawner};
    const TEST: &str = "another_user_is_turned_away";
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return skipped(TEST, "only root can become another user");
    }
    let place = Place::new();
    let daemon = place.start();
    let open = |path: &std::path::Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("is ours");
    open(place.path(), 0o755);
    open(&place.socket(), 0o777);
    let program = place.path().join("synapse");
    fs::copy(build().join("synapse"), &program).expect("copies");
    open(&program, 0o755);
    let status = |command: Command| {
        let child = spawner().spawn(
            command
                .arg(&program)
                .args(["status", "--socket"])
                .arg(place.socket())
                .dir("/")
                .stderr(Output::Capture { limit: 4096 }),
        );
        child.map(|child| {
            child
                .wait_with_output(crate::support::HANG)
                .expect("ends")
                .status
                .success()
        })
    };
    assert!(
        status(Command::new("env")).expect("is everywhere"),
        "the same program as this user is served"
    );
    let uid = NOBODY.to_string();
    let as_nobody = Command::new("setpriv").args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--"]);
    let Ok(served) = status(as_nobody) else {
        return skipped(TEST, "setpriv is missing");
    };
    assert!(!served);
    let bound = std::time::Instant::now() + crate::support::HANG;
    while !daemon.log().contains("the peer is user 65534") {
        assert!(std::time::Instant::now() < bound, "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon.connect().ok("health", &json!({}));
    assert!(daemon.stop().success());
}
