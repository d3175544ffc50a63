//! `job.create`, `job.append`, `job.seal` and `job.result` against the scripted daemon: what is sent, what is read,
//! what is sent again.

use serde_json::{Value, json};
use synapse_client::{
    BatchItem, Client, ClientError, EmbedJobOptions, ErrorCode, JobCreateParams, JobOperation, JobState,
};

use crate::daemon::FakeDaemon;

/// `base64.b64encode(struct.pack('<2f', 1.0, -0.5))` in Python.
const ONE_AND_MINUS_HALF: &str = "AACAPwAAAL8=";

fn create() -> JobCreateParams {
    JobCreateParams {
        operation: JobOperation::EmbedBatch,
        model: "m".to_owned(),
        options: EmbedJobOptions {
            dimensions: Some(2),
            ..EmbedJobOptions::default()
        },
        request_key: None,
        weight: None,
    }
}

fn view(job: &str, state: &str) -> Value {
    json!({"job_id": job, "kind": "embed_batch", "state": state, "model": "m", "created_ms": 1, "updated_ms": 2,
        "progress": {"phase": "embed", "done": 0, "total": 2, "unit": "items"}})
}

fn page(vectors: &Value, ids: &[&str]) -> Value {
    let items: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "submitted_tokens": 3, "effective_tokens": 3, "truncated": false}))
        .collect();
    json!({"fingerprint": "f", "numeric_profile_id": "n", "table_epoch": 0, "dims": 2, "vectors": vectors,
        "items": items, "provenance": {"fingerprint": "f", "engine": "e", "engine_version": "1", "bundle_digest": "b",
            "lane": "m@e:f32", "placement": "worker", "model_digest": "d", "role": "document", "normalized": true,
            "machine_profile_hash": null, "certification": null}})
}

#[tokio::test]
async fn a_large_input_is_appended_sealed_and_read_in_pages() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let script = async {
        let request = peer.request().await;
        assert_eq!(request["method"], "job.create");
        let expected = json!({"operation": "embed.batch", "model": "m", "options": {"dimensions": 2}});
        assert_eq!(request["params"], expected);
        peer.answer(&request, 1, json!({"job_id": "j-1"})).await;
        let request = peer.request().await;
        assert_eq!(request["method"], "job.append");
        let expected = json!({"job_id": "j-1", "seq": 7, "items": [{"id": "a", "text": "x"}]});
        assert_eq!(request["params"], expected);
        peer.answer(&request, 1, json!({"kept": false, "next_seq": 0})).await;
        let request = peer.request().await;
        assert_eq!(request["method"], "job.seal");
        assert_eq!(request["params"], json!({"job_id": "j-1"}));
        peer.answer(&request, 1, view("j-2", "queued")).await;
        let request = peer.request().await;
        assert_eq!(request["method"], "job.result");
        assert_eq!(
            request["params"],
            json!({"job_id": "j-2", "page": 3, "encoding": "base64"})
        );
        let mut content = page(&json!([ONE_AND_MINUS_HALF, null]), &["b", "a"]);
        content["items"][1]["error"] = json!({"code": "invalid_text", "message": "half a pair", "class": "permanent",
            "safe_to_retry_same_request": false});
        peer.answer(&request, 1, json!({"state": "running", "pages": 4, "content": content}))
            .await;
        let request = peer.request().await;
        assert_eq!(request["params"]["page"], 4);
        peer.answer(&request, 1, json!({"state": "done", "pages": 4})).await;
    };
    let calls = async {
        assert_eq!(client.job_create(&create()).await.unwrap().result.job_id, "j-1");
        let items = vec![BatchItem::new("a", "x")];
        let appended = client.job_append("j-1", 7, items).await.unwrap().result;
        assert_eq!((appended.kept, appended.next_seq), (false, 0));
        assert_eq!(client.job_seal("j-1").await.unwrap().result.job_id, "j-2");
        let read = client.job_page("j-2", 3).await.unwrap();
        assert_eq!((read.state, read.pages), (JobState::Running, 4));
        let embedded = read.page.expect("the page is there");
        assert_eq!(embedded.vectors, [Some(vec![1.0, -0.5]), None]);
        let ids: Vec<&str> = embedded.page.items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["b", "a"], "in the order in which they were computed");
        assert_eq!(
            embedded.page.items[1].error.as_ref().unwrap().code,
            ErrorCode::InvalidText
        );
        let read = client.job_page("j-2", 4).await.unwrap();
        assert_eq!((read.state, read.page), (JobState::Done, None));
    };
    tokio::join!(calls, script);
}

#[tokio::test]
async fn a_page_of_another_shape_is_refused() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    for (vectors, ids) in [
        (json!([[1.0, 2.0]]), vec!["a", "b"]),
        (json!([[1.0, 2.0, 3.0]]), vec!["a"]),
        (json!(["AACA"]), vec!["a"]),
        (json!(["no base64"]), vec!["a"]),
    ] {
        let script = async {
            let request = peer.request().await;
            let content = page(&vectors, &ids);
            peer.answer(&request, 1, json!({"state": "running", "pages": 1, "content": content}))
                .await;
        };
        let (read, ()) = tokio::join!(client.job_page("j-1", 0), script);
        assert!(matches!(read, Err(ClientError::Protocol(_))), "{read:?}");
    }
}

/// An append, a seal and a page are known again by the daemon, so a lost answer is asked for once more; a create is
/// not, because it could leave a second open job.
#[tokio::test]
async fn what_the_daemon_knows_again_is_sent_again() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let script = async {
        let mut peer = daemon.accept().await;
        for (method, answer) in [
            ("job.append", json!({"kept": true, "next_seq": 1})),
            ("job.seal", view("j-1", "queued")),
            ("job.result", json!({"state": "queued", "pages": 0})),
        ] {
            let lost = peer.request().await;
            assert_eq!(lost["method"], method);
            drop(peer);
            peer = daemon.accept().await;
            let again = peer.request().await;
            assert_eq!((&again["method"], &again["params"]), (&lost["method"], &lost["params"]));
            peer.answer(&again, 2, answer).await;
        }
        assert_eq!(peer.request().await["method"], "job.create");
        drop(peer);
        // What comes next on a new connection is the next call, and not the create once more.
        let mut peer = daemon.accept().await;
        let request = peer.request().await;
        assert_eq!(request["method"], "job.result");
        peer.refuse(&request, "unknown_job", "permanent", false).await;
    };
    let calls = async {
        let items = vec![BatchItem::new("a", "x")];
        assert!(client.job_append("j-1", 0, items).await.unwrap().result.kept);
        assert_eq!(client.job_seal("j-1").await.unwrap().result.state, JobState::Queued);
        assert_eq!(client.job_page("j-1", 0).await.unwrap().page, None);
        let lost = client.job_create(&create()).await;
        assert!(matches!(lost, Err(ClientError::Closed { .. })), "{lost:?}");
        let refused = client.job_page("j-9", 0).await.unwrap_err();
        assert_eq!(refused.code(), Some(&ErrorCode::UnknownJob));
    };
    tokio::join!(calls, script);
}
