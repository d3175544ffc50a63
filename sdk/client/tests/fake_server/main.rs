//! The client against a scripted daemon on a real Unix socket.
//!
//! Each test owns a socket in a folder of its own and plays the daemon's side line by line, so it decides what is
//! answered, in which order, and when the connection ends. How a real daemon behaves is tested in `tests/it`.
//!
//! This file: the connection, retries, embedding and jobs. `large_jobs`: inputs that are appended, and pages.
//! `scores_and_texts`: reranking and generation.

mod daemon;
mod index;
mod large_jobs;
mod scores_and_texts;

use std::time::Duration;

use serde_json::{Value, json};
use synapse_client::{
    BatchItem, BatchOutcome, Client, ClientError, EmbedBatchParams, EmbedQueryParams, ErrorCode, JobState, JobWait,
    Options, RetryPolicy,
};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use crate::daemon::{FakeDaemon, within};

fn health() -> Value {
    json!({"status": "ok", "text": "serving", "uptime_ms": 5, "lanes": [], "models": [], "store_ok": true,
        "workers": [], "jobs": {"queued": 0, "running": 0},
        "plugins": {"ready": 1, "needs_worker": 0, "refused": 0, "quarantined": 0, "shadowed": 0}})
}

fn embedding(vectors: Value, dims: u32, ids: &[&str]) -> Value {
    let items: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "submitted_tokens": 3, "effective_tokens": 3, "truncated": false}))
        .collect();
    json!({"model": "m", "fingerprint": "f", "numeric_profile_id": "n", "table_epoch": 0, "dims": dims,
        "vectors": vectors, "items": items, "real_token_counts": vec![3; ids.len()], "equivalent_to": [],
        "provenance": {"fingerprint": "f", "engine": "e", "engine_version": "1", "bundle_digest": "b", "lane": "m@e:f32",
            "placement": "in_process", "model_digest": "d", "role": "query", "normalized": true,
            "machine_profile_hash": null, "certification": null}})
}

/// `base64.b64encode(struct.pack('<2f', 1.0, -0.5))` in Python.
const ONE_AND_MINUS_HALF: &str = "AACAPwAAAL8=";

#[tokio::test]
async fn requests_are_pipelined_and_matched_by_id() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        let (first, second) = (peer.request().await, peer.request().await);
        assert_ne!(first["id"], second["id"]);
        for request in [&second, &first] {
            let vectors = json!([[request["params"]["text"].as_str().unwrap().parse::<f32>().unwrap()]]);
            peer.answer(request, 1, embedding(vectors, 1, &["0"])).await;
        }
    };
    let (one, two, ()) = tokio::join!(
        client.embed_query(EmbedQueryParams::new("m", "1")),
        client.embed_query(EmbedQueryParams::new("m", "2")),
        script
    );
    assert_eq!(one.unwrap().vectors, [Some(vec![1.0])]);
    assert_eq!(two.unwrap().vectors, [Some(vec![2.0])]);
}

#[tokio::test]
async fn vectors_travel_as_base64_by_default_and_a_failed_item_has_none() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        let request = peer.request().await;
        assert_eq!(request["method"], "embed.batch");
        assert_eq!(request["params"]["encoding"], "base64");
        let mut result = embedding(json!([ONE_AND_MINUS_HALF, null]), 2, &["a", "b"]);
        result["items"][1]["error"] = json!({"code": "invalid_text", "message": "half a pair", "class": "permanent",
            "safe_to_retry_same_request": false});
        peer.answer(&request, 1, result).await;
    };
    let params = EmbedBatchParams::new("m", vec![BatchItem::new("a", "x"), BatchItem::new("b", "y")]);
    let (outcome, ()) = tokio::join!(client.embed_batch(params), script);
    let BatchOutcome::Vectors(embedded) = outcome.unwrap() else {
        panic!("the script answered with vectors");
    };
    assert_eq!(embedded.vectors, [Some(vec![1.0, -0.5]), None]);
    assert_eq!(
        embedded.reply.items[1].error.as_ref().unwrap().code,
        ErrorCode::InvalidText
    );
}

#[tokio::test]
async fn a_reply_of_another_shape_is_refused() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    for (vectors, ids) in [
        (json!([[1.0, 2.0, 3.0]]), vec!["0"]),
        (json!(["AACA"]), vec!["0"]),
        (json!([[1.0, 2.0], [1.0, 2.0]]), vec!["0", "1"]),
    ] {
        let script = async {
            let request = peer.request().await;
            peer.answer(&request, 1, embedding(vectors, 2, &ids)).await;
        };
        let (answer, ()) = tokio::join!(client.embed_query(EmbedQueryParams::new("m", "t")), script);
        assert!(matches!(answer, Err(ClientError::Protocol(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn a_batch_may_become_a_job() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        let request = peer.request().await;
        peer.answer(&request, 1, json!({"job_id": "j-1"})).await;
    };
    let (outcome, ()) = tokio::join!(client.embed_batch(EmbedBatchParams::new("m", Vec::new())), script);
    assert!(matches!(outcome.unwrap(), BatchOutcome::Job(job) if job.job_id == "j-1"));
}

#[tokio::test]
async fn a_safe_transient_refusal_is_retried_and_the_others_are_not() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        for _ in 0..2 {
            let request = peer.request().await;
            peer.refuse(&request, "queue_full", "transient", true).await;
        }
        let request = peer.request().await;
        peer.answer(&request, 1, embedding(json!([[1.0]]), 1, &["0"])).await;
        // One attempt each from here on: a second one would be the next request that this script reads.
        for (method, code, class, safe) in [
            ("embed.query", "engine_crashed", "transient", false),
            ("embed.query", "unknown_model", "permanent", true),
            ("model.load", "queue_full", "transient", true),
        ] {
            let request = peer.request().await;
            assert_eq!(request["method"], method);
            peer.refuse(&request, code, class, safe).await;
        }
    };
    let calls = async {
        let query = || client.embed_query(EmbedQueryParams::new("m", "t"));
        assert!(query().await.is_ok());
        assert_eq!(query().await.unwrap_err().code(), Some(&ErrorCode::EngineCrashed));
        assert_eq!(query().await.unwrap_err().code(), Some(&ErrorCode::UnknownModel));
        assert_eq!(
            client.model_load("m").await.unwrap_err().code(),
            Some(&ErrorCode::QueueFull)
        );
    };
    tokio::join!(calls, script);
    drop(client);
    assert_eq!(peer.next().await, None);
}

/// Proves API-13.
#[tokio::test]
async fn a_restarted_daemon_is_found_again_and_noticed() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut generation = client.generation();
    assert_eq!(*generation.borrow_and_update(), None);
    let script = async {
        let mut peer = daemon.accept().await;
        let request = peer.request().await;
        peer.answer(&request, 1, health()).await;
        let request = peer.request().await;
        assert_eq!(request["method"], "health");
        drop(peer); // in mid-request: the read is sent again on a new connection
        let mut peer = daemon.accept().await;
        let request = peer.request().await;
        assert_eq!(request["method"], "health");
        peer.answer(&request, 2, health()).await;
    };
    let calls = async {
        assert!(client.health().await.is_ok());
        assert_eq!(*generation.borrow_and_update(), Some(1));
        assert!(!generation.has_changed().unwrap());
        assert!(client.health().await.is_ok());
        assert!(generation.has_changed().unwrap());
        assert_eq!(*generation.borrow_and_update(), Some(2));
    };
    tokio::join!(calls, script);
}

/// Between a daemon's end and the next one's start nobody listens: calls of a client that was connected wait for it.
#[tokio::test]
async fn the_moment_of_a_restart_is_bridged() {
    let daemon = FakeDaemon::new();
    let mut options = daemon.options();
    options.retry.max_attempts = u32::MAX;
    let client = Client::connect(options).await.unwrap();
    drop(daemon.accept().await);
    let FakeDaemon { listener, folder } = daemon;
    drop(listener);
    std::fs::remove_file(folder.path().join("s")).unwrap();
    let call = tokio::spawn(async move { client.health().await });
    tokio::task::yield_now().await;
    let listener = UnixListener::bind(folder.path().join("s")).unwrap();
    let daemon = FakeDaemon { listener, folder };
    let mut peer = daemon.accept().await;
    let request = peer.request().await;
    peer.answer(&request, 2, health()).await;
    assert_eq!(within(call).await.unwrap().unwrap().stamp.module_generation, 2);
}

/// A change that may have happened is not sent again: the caller learns that the connection ended.
#[tokio::test]
async fn a_lost_change_is_reported_and_not_repeated() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        assert_eq!(peer.request().await["method"], "models.remove");
        drop(peer);
    };
    let (answer, ()) = tokio::join!(client.models_remove("m"), script);
    assert!(matches!(answer, Err(ClientError::Closed { .. })), "{answer:?}");
}

#[tokio::test]
async fn dropping_a_call_cancels_that_request_only() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let kept = {
        let client = client.clone();
        tokio::spawn(async move { client.embed_query(EmbedQueryParams::new("m", "kept")).await })
    };
    let kept_request = peer.request().await;
    let dropped = {
        let client = client.clone();
        tokio::spawn(async move { client.embed_query(EmbedQueryParams::new("m", "dropped")).await })
    };
    let dropped_request = peer.request().await;
    dropped.abort();
    let cancel = peer.request().await;
    assert_eq!(cancel["method"], "request.cancel");
    assert_eq!(cancel["params"]["id"], dropped_request["id"]);
    assert_ne!(cancel["id"], dropped_request["id"]);
    // Answers to what nobody waits for are ignored.
    peer.answer(&cancel, 1, json!({"found": true})).await;
    peer.refuse(&dropped_request, "cancelled", "permanent", true).await;
    peer.answer(&kept_request, 1, embedding(json!([[1.0]]), 1, &["0"]))
        .await;
    assert!(within(kept).await.unwrap().is_ok());
}

#[tokio::test]
async fn calls_beyond_the_bound_wait_while_status_goes_through() {
    let daemon = FakeDaemon::new();
    let options = Options {
        max_in_flight: 1,
        ..daemon.options()
    };
    let client = Client::connect(options).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        let mut engine = Vec::new();
        let mut status = None;
        // Whatever the order of the calls, one embedding and the health call arrive, and not the second embedding.
        for _ in 0..2 {
            let request = peer.request().await;
            match request["method"].as_str() {
                Some("health") => status = Some(request),
                _ => engine.push(request),
            }
        }
        assert_eq!(engine.len(), 1);
        peer.answer(&status.expect("health was held back"), 1, health()).await;
        peer.answer(&engine[0], 1, embedding(json!([[1.0]]), 1, &["0"])).await;
        let request = peer.request().await;
        assert_eq!(request["method"], "embed.query");
        peer.answer(&request, 1, embedding(json!([[1.0]]), 1, &["0"])).await;
    };
    let (one, two, three, ()) = tokio::join!(
        client.embed_query(EmbedQueryParams::new("m", "1")),
        client.embed_query(EmbedQueryParams::new("m", "2")),
        client.health(),
        script
    );
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
}

/// Proves API-29.
#[tokio::test]
async fn every_call_in_flight_ends_with_the_connection() {
    let daemon = FakeDaemon::new();
    let options = Options {
        retry: RetryPolicy::never(),
        ..daemon.options()
    };
    let client = Client::connect(options).await.unwrap();
    let mut peer = daemon.accept().await;
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.embed_query(EmbedQueryParams::new("m", "t")).await })
        })
        .collect();
    for _ in 0..8 {
        peer.request().await;
    }
    drop(peer);
    for call in calls {
        let answer = within(call).await.unwrap();
        assert!(matches!(answer, Err(ClientError::Closed { .. })), "{answer:?}");
    }
}

/// A daemon that turns the whole connection away says why in an error without id.
#[tokio::test]
async fn the_last_word_of_a_connection_reaches_the_caller() {
    let daemon = FakeDaemon::new();
    let options = Options {
        retry: RetryPolicy::never(),
        ..daemon.options()
    };
    let client = Client::connect(options).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        peer.request().await;
        peer.refuse(&json!({"id": null}), "shutting_down", "transient", true)
            .await;
        drop(peer);
    };
    let (answer, ()) = tokio::join!(client.health(), script);
    assert_eq!(answer.unwrap_err().code(), Some(&ErrorCode::ShuttingDown));
}

#[tokio::test]
async fn nonsense_from_the_daemon_ends_the_connection_in_words() {
    for nonsense in ["hello", "{}", r#"{"jsonrpc":"2.0","id":1}"#] {
        let daemon = FakeDaemon::new();
        let options = Options {
            retry: RetryPolicy::never(),
            ..daemon.options()
        };
        let client = Client::connect(options).await.unwrap();
        let mut peer = daemon.accept().await;
        let script = async {
            peer.request().await;
            peer.write.write_all(format!("{nonsense}\n").as_bytes()).await.unwrap();
        };
        let (answer, ()) = tokio::join!(within(client.health()), script);
        let ClientError::Closed { reason } = answer.unwrap_err() else {
            panic!("{nonsense} was taken for an answer");
        };
        assert!(reason.contains("answer"), "{reason}");
    }
}

#[tokio::test]
async fn an_absent_daemon_is_told_from_other_failures() {
    let daemon = FakeDaemon::new();
    let absent = Options {
        socket: Some(daemon.folder.path().join("absent")),
        ..daemon.options()
    };
    let error = Client::connect(absent).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::NoDaemon { socket, .. } if socket.ends_with("absent")),
        "{error}"
    );
    let options = daemon.options();
    drop(daemon.listener); // the file stays behind, as after a kill
    assert!(matches!(
        Client::connect(options).await,
        Err(ClientError::NoDaemon { .. })
    ));
}

#[tokio::test]
async fn a_job_is_followed_to_its_end() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        for (state, done) in [
            ("queued", 0),
            ("running", 5),
            ("running", 5),
            ("some_new_state", 9),
            ("done", 10),
        ] {
            let request = peer.request().await;
            assert_eq!(request["params"]["job_id"], "j-1");
            let job = json!({"job_id": "j-1", "kind": "model_pull", "state": state, "model": "m", "created_ms": 1,
                "updated_ms": 2, "progress": {"phase": "download", "done": done, "total": 10, "unit": "bytes"}});
            peer.answer(&request, 1, job).await;
        }
    };
    let wait = JobWait {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(1),
    };
    let mut seen = Vec::new();
    let (view, ()) = tokio::join!(
        client.wait_job("j-1", wait, |view| seen.push(view.progress.done)),
        script
    );
    assert_eq!(view.unwrap().state, JobState::Done);
    assert_eq!(seen, [0, 5, 9, 10]);
}
