//! `rerank.score` and `microllm.oneshot` against the scripted daemon: what is sent, what is read, what is tried again.

use serde_json::{Value, json};
use synapse_client::wire::{FinishReason, ScoreKind};
use synapse_client::{
    BatchItem, Client, ClientError, ErrorCode, MicrollmOneshotParams, RerankOutcome, RerankScoreParams,
};

use crate::daemon::FakeDaemon;

fn served_by() -> Value {
    json!({"fingerprint": "f", "engine": "e", "engine_version": "1", "bundle_digest": "b", "lane": "m@e:f32",
        "placement": "worker", "model_digest": "d", "machine_profile_hash": null, "certification": null})
}

fn scores(scores: &Value, ids: &[&str]) -> Value {
    let items: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "submitted_tokens": 9, "effective_tokens": 9, "truncated": false}))
        .collect();
    json!({"model": "m", "fingerprint": "f", "numeric_profile_id": "n", "table_epoch": 0, "score_kind": "logit",
        "scores": scores, "items": items, "real_token_counts": vec![9; ids.len()], "provenance": served_by()})
}

fn generated(text: &str) -> Value {
    json!({"model": "m", "text": text, "finish_reason": "length", "prompt_tokens": 5, "generated_tokens": 2,
        "chat": false, "fingerprint": "f", "numeric_profile_id": "n", "table_epoch": 0, "provenance": served_by()})
}

#[tokio::test]
async fn scores_stay_in_order_and_a_failed_candidate_has_none() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        let request = peer.request().await;
        assert_eq!(request["method"], "rerank.score");
        let expected = json!({"model": "m", "query": "q", "candidates": [{"id": "0", "text": "a"},
            {"id": "1", "text": "b"}, {"id": "2", "text": "c"}, {"id": "3", "text": "d"}]});
        assert_eq!(request["params"], expected);
        let mut result = scores(&json!([-2.5, null, 4.25, -2.5]), &["0", "1", "2", "3"]);
        result["items"][1]["error"] = json!({"code": "invalid_text", "message": "half a pair", "class": "permanent",
            "safe_to_retry_same_request": false});
        peer.answer(&request, 1, result).await;
    };
    let (answer, ()) = tokio::join!(client.rerank_texts("m", "q", &["a", "b", "c", "d"]), script);
    let reranked = answer.unwrap();
    assert_eq!(reranked.reply.scores, [Some(-2.5), None, Some(4.25), Some(-2.5)]);
    assert_eq!(reranked.reply.score_kind, ScoreKind::Logit);
    assert_eq!(
        reranked.reply.items[1].error.as_ref().unwrap().code,
        ErrorCode::InvalidText
    );
    assert_eq!(reranked.ranking(), [2, 0, 3], "equal scores keep their order");
}

#[tokio::test]
async fn scores_of_another_shape_are_refused_and_a_job_is_told_apart() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let params = RerankScoreParams::new("m", "q", vec![BatchItem::new("a", "x")]);
    for (numbers, ids) in [
        (json!([1.0, 2.0]), vec!["a"]),
        (json!([1.0]), vec!["a", "b"]),
        (json!([]), vec![]),
        (json!(["1.0"]), vec!["a"]),
    ] {
        let script = async {
            let request = peer.request().await;
            peer.answer(&request, 1, scores(&numbers, &ids)).await;
        };
        let (answer, ()) = tokio::join!(client.rerank_score(&params), script);
        assert!(matches!(answer, Err(ClientError::Protocol(_))), "{answer:?}");
    }
    let script = async {
        let request = peer.request().await;
        peer.answer(&request, 1, json!({"job_id": "j-1"})).await;
        // Nothing may become a job without a key.
        let request = peer.request().await;
        peer.answer(&request, 1, json!({"job_id": "j-2"})).await;
    };
    let calls = async {
        let keyed = RerankScoreParams {
            request_key: Some("k".to_owned()),
            ..params.clone()
        };
        let outcome = client.rerank_score(&keyed).await.unwrap();
        assert!(matches!(outcome, RerankOutcome::Job(job) if job.job_id == "j-1"));
        let outcome = client.rerank_texts("m", "q", &["x"]).await;
        assert!(matches!(outcome, Err(ClientError::Protocol(words)) if words.contains("j-2")));
    };
    tokio::join!(calls, script);
}

#[tokio::test]
async fn a_text_comes_back_whole_and_only_what_was_asked_is_sent() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        let request = peer.request().await;
        assert_eq!(request["method"], "microllm.oneshot");
        assert_eq!(request["params"], json!({"model": "m", "prompt": "p"}));
        peer.answer(&request, 1, generated("\u{1f680}\n")).await;
        let request = peer.request().await;
        assert_eq!(
            request["params"],
            json!({"model": "m", "prompt": "p", "system": "s", "chat": true, "max_tokens": 2, "temperature": 0.5,
                "top_p": 0.25, "seed": 7, "stop": ["\n"], "grammar": "root ::= [a-z]+"})
        );
        let mut result = generated("ab");
        // A reason that this version does not know does not spoil the answer.
        result["finish_reason"] = json!("from_a_newer_daemon");
        peer.answer(&request, 1, result).await;
    };
    let calls = async {
        let params = MicrollmOneshotParams::new("m", "p");
        let result = client.oneshot(&params).await.unwrap().result;
        assert_eq!(
            (result.text.as_str(), result.finish_reason),
            ("\u{1f680}\n", FinishReason::Length)
        );
        let params = MicrollmOneshotParams {
            system: Some("s".into()),
            chat: Some(true),
            max_tokens: Some(2),
            temperature: Some(0.5),
            top_p: Some(0.25),
            seed: Some(7),
            stop: vec!["\n".to_owned()],
            grammar: Some("root ::= [a-z]+".to_owned()),
            ..params
        };
        let result = client.oneshot(&params).await.unwrap().result;
        assert_eq!(result.finish_reason, FinishReason::Unknown);
    };
    tokio::join!(calls, script);
}

/// Both only read: a safe transient refusal and a lost connection are tried again, a permanent refusal is not.
#[tokio::test]
async fn scores_and_texts_are_retried_as_vectors_are() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let script = async {
        let mut peer = daemon.accept().await;
        let request = peer.request().await;
        peer.refuse(&request, "model_loading", "transient", true).await;
        let request = peer.request().await;
        peer.answer(&request, 1, scores(&json!([1.0]), &["0"])).await;
        let request = peer.request().await;
        peer.refuse(&request, "model_loading", "transient", true).await;
        assert_eq!(peer.request().await["method"], "microllm.oneshot");
        drop(peer);
        let mut peer = daemon.accept().await;
        let request = peer.request().await;
        assert_eq!(request["method"], "microllm.oneshot");
        peer.answer(&request, 1, generated("ab")).await;
        for code in ["grammar_invalid", "input_too_long"] {
            let request = peer.request().await;
            peer.refuse(&request, code, "permanent", true).await;
        }
        peer
    };
    let calls = async {
        assert!(client.rerank_texts("m", "q", &["a"]).await.is_ok());
        let params = MicrollmOneshotParams::new("m", "p");
        assert!(client.oneshot(&params).await.is_ok());
        let refused = client.oneshot(&params).await.unwrap_err();
        assert_eq!(refused.code(), Some(&ErrorCode::GrammarInvalid));
        let refused = client.rerank_texts("m", "q", &["a"]).await.unwrap_err();
        assert_eq!(refused.code(), Some(&ErrorCode::InputTooLong));
    };
    let ((), mut peer) = tokio::join!(calls, script);
    drop(client);
    assert_eq!(peer.next().await, None, "a refused request was sent again");
}
