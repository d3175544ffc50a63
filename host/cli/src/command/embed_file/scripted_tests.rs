//! Sending and following against a scripted daemon on a real socket: what is sent, and what an ended job leads to.
//!
//! Each test plays the daemon's side of one connection line by line. A real daemon is in `tests/it`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use synapse_client::{Client, EmbedJobOptions, Options, RetryPolicy};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::rows::Rows;
use super::source::{Measure, Source};
use super::ticket::{Kept, Ticket, Work};
use super::{follow, upload};
use crate::error::CliError;
use crate::progress::Meter;

/// Longer than anything here may take, on any machine: only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

/// What the future gives; a hang fails the test.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future)
        .await
        .expect("nothing happened for a minute")
}

/// The daemon's end of one connection, and the folder of the test.
struct Peer {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
    folder: TempDir,
}

impl Peer {
    async fn connect() -> (Client, Self) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let options = Options {
            socket: Some(socket),
            retry: RetryPolicy::never(),
            ..Options::default()
        };
        let client = Client::connect(options).await.unwrap();
        let (read, write) = listener.accept().await.unwrap().0.into_split();
        let lines = BufReader::new(read).lines();
        (client, Self { lines, write, folder })
    }

    /// The next request, which has to be this one.
    async fn expect(&mut self, method: &str) -> Value {
        let line = within(self.lines.next_line()).await.unwrap().expect("a request");
        let request: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(request["method"], method, "{request}");
        request
    }

    async fn answer(&mut self, request: &Value, mut result: Value) {
        result["request_id"] = json!("r");
        result["module_generation"] = json!(1);
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        self.write.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// A file with so many lines, and what is known of it.
fn input(peer: &Peer, lines: usize) -> (Source, Work) {
    let path = peer.path("docs.txt");
    let text: String = (0..lines).map(|n| format!("text {n}\n")).collect();
    std::fs::write(&path, text).unwrap();
    let source = Source::new(&path, false, peer.path("spool")).unwrap();
    let mut measure = Measure::default();
    let mut texts = source.texts().unwrap();
    while let Some(item) = texts.next_item().unwrap() {
        measure.take(&item);
    }
    let work = Work {
        input_sha256: measure.digest(),
        items: measure.items,
        model: "m".to_owned(),
        options: EmbedJobOptions::default(),
    };
    (source, work)
}

#[tokio::test]
async fn what_the_job_has_is_not_sent_again() {
    let (client, mut peer) = Peer::connect().await;
    let (source, work) = input(&peer, 2_500);
    let mut meter = Meter::new();
    let script = async {
        for (seq, first, count) in [(1, 1_000, 1_000), (2, 2_000, 500)] {
            let request = peer.expect("job.append").await;
            let params = &request["params"];
            assert_eq!((&params["job_id"], &params["seq"]), (&json!("j"), &json!(seq)));
            let items = params["items"].as_array().unwrap();
            assert_eq!(items.len(), count);
            let expected = json!({"id": first.to_string(), "text": format!("text {first}")});
            assert_eq!(items[0], expected, "items are named by their rows");
            peer.answer(&request, json!({"kept": true, "next_seq": seq + 1})).await;
        }
    };
    let (sent, ()) = tokio::join!(upload::send(&client, "j", &source, &work, 1_000, &mut meter), script);
    sent.unwrap();
}

#[tokio::test]
async fn an_input_that_changed_and_a_gap_are_refused() {
    let (client, mut peer) = Peer::connect().await;
    let (source, mut work) = input(&peer, 2);
    let mut meter = Meter::new();
    let script = async {
        let request = peer.expect("job.append").await;
        peer.answer(&request, json!({"kept": false, "next_seq": 7})).await;
    };
    let (sent, ()) = tokio::join!(upload::send(&client, "j", &source, &work, 0, &mut meter), script);
    assert!(matches!(sent, Err(CliError::Internal(words)) if words.contains("append 7")));
    work.input_sha256 = "another".to_owned();
    let sent = within(upload::send(&client, "j", &source, &work, 0, &mut meter)).await;
    assert!(matches!(sent, Err(CliError::Usage(words)) if words.contains("was changed")));
}

fn page(state: &str, rows: &[&str]) -> Value {
    let items: Vec<Value> = rows
        .iter()
        .map(|row| json!({"id": row, "submitted_tokens": 3, "effective_tokens": 3, "truncated": false}))
        .collect();
    let vectors: Vec<Value> = rows.iter().map(|row| json!([row.parse::<f32>().unwrap()])).collect();
    let content = json!({"fingerprint": "f", "numeric_profile_id": "n", "table_epoch": 0, "dims": 1,
        "vectors": vectors, "items": items, "provenance": {"fingerprint": "f", "engine": "e", "engine_version": "1",
            "bundle_digest": "b", "lane": "m@e:f32", "placement": "worker", "model_digest": "d", "role": "document",
            "normalized": true, "machine_profile_hash": null, "certification": null}});
    json!({"state": state, "pages": 1, "content": content})
}

fn view(job: &str, state: &str) -> Value {
    let error = json!({"code": "module_restarted", "message": "started anew", "class": "transient",
        "safe_to_retry_same_request": true});
    json!({"job_id": job, "kind": "embed_batch", "state": state, "model": "m", "created_ms": 1, "updated_ms": 2,
        "progress": {"phase": "embed", "done": 0, "total": 3, "unit": "items"}, "error": error})
}

fn kept(peer: &Peer, work: Work) -> Kept {
    Kept::at(peer.path("ticket"), Ticket::new("j-1".to_owned(), work))
}

#[tokio::test]
async fn a_job_that_failed_for_now_goes_on_with_its_pages_under_another_name() {
    let (client, mut peer) = Peer::connect().await;
    let (_source, work) = input(&peer, 3);
    let mut kept = kept(&peer, work);
    let ticket = peer.path("ticket");
    let mut rows = Rows::open(peer.path("rows")).unwrap();
    rows.expect(3).unwrap();
    let mut meter = Meter::new();
    let script = async {
        for (job, number, answer) in [
            ("j-1", 0, page("running", &["2"])),
            ("j-1", 1, json!({"state": "running", "pages": 1})),
            ("j-1", 1, json!({"state": "failed_transient", "pages": 1})),
            ("j-2", 1, json!({"state": "queued", "pages": 1})),
            ("j-2", 1, page("done", &["0", "1"])),
            ("j-2", 2, json!({"state": "done", "pages": 2})),
        ] {
            let failed = answer["state"] == "failed_transient";
            let request = peer.expect("job.result").await;
            assert_eq!(
                (&request["params"]["job_id"], &request["params"]["page"]),
                (&json!(job), &json!(number))
            );
            peer.answer(&request, answer).await;
            if failed {
                let request = peer.expect("job.seal").await;
                assert_eq!(request["params"]["job_id"], "j-1");
                peer.answer(&request, view("j-2", "queued")).await;
            }
        }
    };
    let (followed, ()) = tokio::join!(follow::follow(&client, &mut kept, &mut rows, &mut meter), script);
    followed.unwrap();
    let mut values = Vec::new();
    rows.in_order(|_, row| {
        values.extend_from_slice(row);
        Ok(())
    })
    .unwrap();
    assert_eq!(values, [0.0, 1.0, 2.0]);
    assert_eq!(Ticket::read(&ticket).unwrap().unwrap().job_id, "j-2");
}

/// A job that gets no further is not queued for ever, and one that lost texts is not taken for whole.
#[tokio::test]
async fn a_job_without_hope_ends_in_its_own_words() {
    let (client, mut peer) = Peer::connect().await;
    let (_source, work) = input(&peer, 3);
    let mut kept = kept(&peer, work);
    let mut rows = Rows::open(peer.path("rows")).unwrap();
    let mut meter = Meter::new();
    rows.expect(3).unwrap();
    let script = async {
        for round in 0..4 {
            let request = peer.expect("job.result").await;
            let answer = json!({"state": "failed_transient", "pages": 0});
            peer.answer(&request, answer).await;
            if round < 3 {
                let request = peer.expect("job.seal").await;
                peer.answer(&request, view("j-2", "queued")).await;
            }
        }
        let request = peer.expect("job.status").await;
        peer.answer(&request, view("j-2", "failed_transient")).await;
    };
    let (followed, ()) = tokio::join!(follow::follow(&client, &mut kept, &mut rows, &mut meter), script);
    assert!(matches!(followed, Err(CliError::Job(failure)) if failure.message == "started anew"));
    let script = async {
        for answer in [page("done", &["0"]), json!({"state": "done", "pages": 1})] {
            let request = peer.expect("job.result").await;
            peer.answer(&request, answer).await;
        }
        let request = peer.expect("job.result").await;
        peer.answer(&request, json!({"state": "cancelled", "pages": 1})).await;
        let request = peer.expect("job.status").await;
        let mut cancelled = view("j-2", "cancelled");
        cancelled["error"] = Value::Null;
        peer.answer(&request, cancelled).await;
    };
    let calls = async {
        let short = follow::follow(&client, &mut kept, &mut rows, &mut meter).await;
        assert!(matches!(short, Err(CliError::Internal(words)) if words.contains("1 of 3")));
        rows.expect(3).unwrap();
        let cancelled = follow::follow(&client, &mut kept, &mut rows, &mut meter).await;
        assert!(matches!(cancelled, Err(CliError::JobCancelled(job)) if job == "j-2"));
    };
    tokio::join!(calls, script);
}
