//! Workers that do not start as they must, played by a scripted program: a typed error, no process left, no work done.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use super::{SHORT, has_zombie, place, pull, query, serving, signal, until, vector, worker, workers};

/// Runs a daemon whose worker program plays `script`, and gives the failed load's message.
fn refused(script: &str) -> String {
    let place = place(&[], r#", "handshake_ms": 600"#);
    let program = place.path().join(script);
    fs::copy(Path::new(env!("CARGO_BIN_EXE_synapse-scripted-worker")), &program).expect("copies");
    let place = place.worker(program);
    let mut daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy-a");
    let load = client.ok("model.load", &json!({"model": "toy-a"}));
    let view = client.job(&load);
    assert_eq!(
        (&view["state"], &view["error"]["code"]),
        (&json!("failed_permanent"), &json!("engine_crashed")),
        "{view}"
    );
    assert_eq!(view["error"]["detail"]["stage"], "start", "{view}");
    assert!(workers(&daemon).is_empty() && !has_zombie(&daemon) && daemon.is_running());
    let (code, _) = client.fails("embed.query", &query("toy-a", SHORT));
    assert_eq!(code, "engine_crashed");
    view["error"]["message"].as_str().expect("a message").to_owned()
}

/// Proves WPROTO-12, WSUP-01.
#[test]
fn a_stale_nonce_is_refused() {
    assert!(refused("stale-nonce").contains("nonce"));
}

/// Proves WPROTO-13.
#[test]
fn another_identity_is_refused() {
    assert!(refused("wrong-identity").contains("engines"));
}

/// Proves WPROTO-11, WPROTO-26.
#[test]
fn an_old_version_is_refused_by_name() {
    let message = refused("old-version");
    assert!(message.contains("v 2") && message.contains("expected 3"), "{message}");
}

/// Fault S11: what a worker says of itself is compared with what was scanned and what was started.
///
/// Proves WPROTO-13, WSUP-01.
#[test]
fn another_bundle_or_process_is_refused() {
    assert!(refused("wrong-bundle").contains("bundle"));
    assert!(refused("wrong-pid").contains("pid"));
}

/// Proves WPROTO-08.
#[test]
fn frames_too_small_for_the_messages_are_refused() {
    assert!(refused("small-frame").contains("max_frame"));
}

/// Proves WPROTO-15.
#[test]
fn anything_else_before_hello_is_refused() {
    assert!(refused("garbage").contains("HELLO"));
    assert!(refused("pong-first").contains("HELLO"));
    assert!(refused("huge-hello").contains("4294967295 bytes"));
}

/// Fault S6: one budget for the whole start. One byte at a time does not stretch it.
///
/// Proves WSUP-08.
#[test]
fn a_dripping_hello_runs_into_the_budget() {
    assert!(refused("drip-hello").contains("600 ms"));
}

/// Proves WPROTO-14.
#[test]
fn a_worker_that_ends_before_hello_says_how() {
    assert!(refused("mute").contains("exit"));
}

/// What a worker is started with: the arguments and the name that the protocol says, a nonce of its own, and nothing of
/// the daemon's environment that is not on the list.
///
/// Proves WPROTO-09, WPROTO-31, WSUP-01, WSUP-02.
#[test]
fn a_worker_gets_its_arguments_its_name_and_a_fresh_nonce() {
    let place = place(&[], "").env("SOMETHING_OF_THE_DAEMON", "secret");
    let (daemon, mut client) = serving(&place);
    let mut nonces = Vec::new();
    for round in 0..2 {
        let pid = worker(&daemon);
        let read = |file: &str| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).expect("the worker lives");
            let parts = bytes
                .split(|byte| *byte == 0)
                .map(|part| String::from_utf8_lossy(part).into_owned());
            parts.collect::<Vec<_>>()
        };
        let arguments = read("cmdline");
        let value = |name: &str| {
            let at = arguments.iter().position(|part| part == name).expect("is given");
            arguments[at + 1].clone()
        };
        let socket = value("--socket");
        assert!(
            socket.starts_with(place.data().join("run/workers").to_str().expect("UTF-8")),
            "{socket}"
        );
        assert!(Path::new(&value("--plugin")).join("plugin.toml").exists());
        let folder = fs::metadata(place.data().join("run/workers")).expect("the folder of sockets");
        assert_eq!(folder.permissions().mode() & 0o777, 0o700);
        nonces.push(value("--nonce"));
        let environment = read("environ");
        let name = environment
            .iter()
            .find_map(|entry| entry.strip_prefix("SYNAPSE_WORKER_ID="));
        assert!(
            name.is_some_and(|name| socket.ends_with(&format!("{name}.sock"))),
            "{environment:?}"
        );
        assert!(
            !environment.iter().any(|entry| entry.contains("secret")),
            "{environment:?}"
        );
        if round == 0 {
            signal(pid, Signal::KILL);
            until("the end of the worker", || !workers(&daemon).contains(&pid));
            vector(&mut client, "toy-a", SHORT);
        }
    }
    assert_ne!(nonces[0], nonces[1]);
    assert!(nonces.iter().all(|nonce| nonce.len() == 64), "{nonces:?}");
}
