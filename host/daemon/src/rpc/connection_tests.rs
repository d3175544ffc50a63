//! Connections over a real socket pair, with a stand-in for the operations.
//!
//! The stand-in answers status operations at once and holds `embed.query` until it is released or cancelled, so every
//! test decides when what happens. Nothing here sleeps; what must happen is waited for.

use std::collections::HashMap;
use std::sync::Mutex;

use serde_json::{Value, json};
use synapse_wire::client::RequestCancelResult;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;

use super::*;
use crate::hang_bound::soon;

/// Holds `embed.query` and `embed.batch`; `model.unload` panics.
struct Held {
    /// The id of each call that is held, and what releases it.
    calls: Mutex<HashMap<Id, CancellationToken>>,
    /// Calls begun and cancelled so far.
    seen: watch::Sender<(usize, usize)>,
}

impl Dispatch for Held {
    async fn call(self: Arc<Self>, call: Call) -> Reply {
        let answer = |found| -> Reply { call.sender.outcome(&call.id, &Ok(RequestCancelResult { found })).into() };
        match call.method {
            Method::EmbedQuery | Method::EmbedBatch => {
                let release = CancellationToken::new();
                self.calls.lock().unwrap().insert(call.id.clone(), release.clone());
                self.seen.send_modify(|seen| seen.0 += 1);
                tokio::select! {
                    () = release.cancelled() => answer(true),
                    () = call.cancel.cancelled() => {
                        self.seen.send_modify(|seen| seen.1 += 1);
                        call.sender.failed(Some(&call.id), &ServiceError::cancelled()).into()
                    }
                }
            }
            Method::ModelUnload => panic!("at the operation"),
            // A large answer, for clients that do not read.
            Method::ModelsList => call
                .sender
                .failed(Some(&call.id), &ServiceError::internal("x".repeat(1 << 20)))
                .into(),
            _ => answer(true),
        }
    }
}

impl Held {
    /// Waits until so many calls have begun and so many were cancelled.
    async fn wait(&self, begun: usize, cancelled: usize) {
        let mut seen = self.seen.subscribe();
        seen.wait_for(|seen| seen.0 >= begun && seen.1 >= cancelled)
            .await
            .unwrap();
    }

    fn release(&self, id: i64) {
        self.calls.lock().unwrap().remove(&Id::Number(id)).unwrap().cancel();
    }
}

struct Client {
    shared: Arc<Shared<Held>>,
    reader: BufReader<tokio::net::unix::OwnedReadHalf>,
    writer: Option<tokio::net::unix::OwnedWriteHalf>,
    served: crate::task::TaskHandle<()>,
}

impl Client {
    fn new(limits: ConnectionConfig) -> Self {
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let shared = Arc::new(Shared {
            dispatch: Arc::new(Held {
                calls: Mutex::default(),
                seen: watch::channel((0, 0)).0,
            }),
            generation: 42,
            slots: ProcessSlots::new(limits.max_in_flight_per_process),
            limits,
            tasks,
            draining: CancellationToken::new(),
            cancel_all: CancellationToken::new(),
            close: CancellationToken::new(),
        });
        Self::beside(&shared, 1)
    }

    /// Another connection to the same daemon.
    fn beside(shared: &Arc<Shared<Held>>, number: u64) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let served = shared
            .tasks
            .spawn("connection", serve(Arc::clone(shared), number, Some(7), ours));
        let (reader, writer) = theirs.into_split();
        Self {
            shared: Arc::clone(shared),
            reader: BufReader::new(reader),
            writer: Some(writer),
            served,
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.writer.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    async fn request(&mut self, id: i64, method: &str) {
        self.send(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\"}}\n").as_bytes())
            .await;
    }

    async fn answer(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(
            soon(self.reader.read_line(&mut line)).await.unwrap(),
            0,
            "the connection was closed"
        );
        serde_json::from_str(&line).unwrap()
    }

    async fn answer_to(&mut self, bytes: &[u8]) -> Value {
        self.send(bytes).await;
        self.answer().await
    }

    /// Waits until the daemon has closed the connection; gives what it still sent.
    async fn closed(&mut self) -> String {
        let mut rest = String::new();
        soon(self.reader.read_to_string(&mut rest)).await.unwrap();
        rest
    }

    fn held(&self) -> &Held {
        &self.shared.dispatch
    }
}

fn code(answer: &Value) -> (i64, &str) {
    (
        answer["error"]["code"].as_i64().unwrap(),
        answer["error"]["data"]["code"].as_str().unwrap(),
    )
}

/// Proves API-13. Every kind of line that is no request has its typed answer, and the next request is served.
#[tokio::test]
async fn lines_that_are_no_requests_are_answered_and_the_connection_goes_on() {
    let mut client = Client::new(ConnectionConfig {
        max_line_bytes: 4096,
        ..ConnectionConfig::default()
    });
    let deep = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"health\",\"params\":{}1{}}}",
        "[".repeat(99),
        "]".repeat(99)
    );
    let cases: Vec<(Vec<u8>, i64, &str, Value)> = vec![
        (b"{".to_vec(), -32700, "invalid_request", Value::Null),
        (b"\xff\xfe".to_vec(), -32700, "invalid_request", Value::Null),
        (b"\xef\xbb\xbf{}".to_vec(), -32700, "invalid_request", Value::Null),
        (b"\0".to_vec(), -32700, "invalid_request", Value::Null),
        (b"[]".to_vec(), -32600, "invalid_request", Value::Null),
        (
            br#"[{"jsonrpc":"2.0","id":1,"method":"health"}]"#.to_vec(),
            -32600,
            "invalid_request",
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"1.0","id":1,"method":"health"}"#.to_vec(),
            -32600,
            "invalid_request",
            json!(1),
        ),
        (
            br#"{"jsonrpc":"2.0","id":1,"method":"health","more":1}"#.to_vec(),
            -32600,
            "invalid_request",
            json!(1),
        ),
        (deep.into_bytes(), -32600, "invalid_request", Value::Null),
        (
            br#"{"jsonrpc":"2.0","id":"a","method":"embed.everything"}"#.to_vec(),
            -32601,
            "invalid_request",
            json!("a"),
        ),
        (
            br#"{"jsonrpc":"2.0","id":3,"method":"request.cancel","params":{}}"#.to_vec(),
            -32602,
            "invalid_request",
            json!(3),
        ),
        (vec![b'x'; 4097], -32019, "limit_exceeded", Value::Null),
    ];
    for (mut line, integer, string, id) in cases {
        let shown = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
        line.push(b'\n');
        let answer = client.answer_to(&line).await;
        assert_eq!((code(&answer), &answer["id"]), ((integer, string), &id), "{shown}");
        assert_eq!(answer["error"]["data"]["module_generation"], 42, "{shown}");
        assert!(answer["error"]["data"]["request_id"].is_string(), "{shown}");
    }
    client.request(9, "health").await;
    let answer = client.answer().await;
    assert_eq!(
        (&answer["id"], &answer["result"]["module_generation"]),
        (&json!(9), &json!(42))
    );
}

#[tokio::test]
async fn a_notification_and_a_blank_line_are_not_answered() {
    let mut client = Client::new(ConnectionConfig::default());
    client
        .send(b"{\"jsonrpc\":\"2.0\",\"method\":\"health\"}\n{\"jsonrpc\":\"2.0\",\"method\":\"nonsense\"}\n\n \r\n")
        .await;
    client.request(1, "health").await;
    assert_eq!(client.answer().await["id"], 1);
}

/// Proves API-03.
#[tokio::test]
async fn requests_run_side_by_side_and_one_too_many_is_refused_while_status_is_free() {
    let mut client = Client::new(ConnectionConfig::default());
    for id in 0..32 {
        client.request(id, "embed.query").await;
    }
    client.held().wait(32, 0).await;
    client.request(32, "embed.query").await;
    let refused = client.answer().await;
    assert_eq!((code(&refused).1, &refused["id"]), ("queue_full", &json!(32)));
    assert_eq!(refused["error"]["data"]["class"], "transient");
    assert!(refused["error"]["data"]["retry_after_ms"].is_u64());
    client.request(33, "health").await;
    assert_eq!(client.answer().await["id"], 33);
    client.held().release(5);
    assert_eq!(client.answer().await["id"], 5);
    client.request(34, "embed.query").await;
    client.held().wait(33, 0).await;
}

#[tokio::test]
async fn a_process_has_a_bound_over_its_connections() {
    let limits = ConnectionConfig {
        max_in_flight_per_process: 3,
        ..ConnectionConfig::default()
    };
    let mut one = Client::new(limits);
    let mut two = Client::beside(&one.shared, 2);
    for id in 0..2 {
        one.request(id, "embed.query").await;
    }
    one.held().wait(2, 0).await;
    two.request(10, "embed.query").await;
    one.held().wait(3, 0).await;
    two.request(11, "embed.query").await;
    assert_eq!(code(&two.answer().await).1, "queue_full");
    drop(one.writer.take());
    drop(one);
    two.held().wait(3, 2).await;
}

#[tokio::test]
async fn an_id_in_flight_is_refused_and_the_first_is_not_disturbed() {
    let mut client = Client::new(ConnectionConfig::default());
    client.request(1, "embed.query").await;
    client.held().wait(1, 0).await;
    client.request(1, "health").await;
    assert_eq!(code(&client.answer().await), (-32600, "invalid_request"));
    client.held().release(1);
    assert_eq!(client.answer().await["result"]["found"], true);
    client.request(1, "health").await;
    assert_eq!(client.answer().await["result"]["found"], true);
}

#[tokio::test]
async fn cancelling_one_answers_both_and_leaves_the_others() {
    let mut client = Client::new(ConnectionConfig::default());
    client.request(1, "embed.query").await;
    client.request(2, "embed.query").await;
    client.held().wait(2, 0).await;
    client
        .send(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"request.cancel\",\"params\":{\"id\":1}}\n")
        .await;
    let mut answers = [client.answer().await, client.answer().await];
    answers.sort_by_key(|answer| answer["id"].as_i64());
    assert_eq!((code(&answers[0]).1, &answers[0]["id"]), ("cancelled", &json!(1)));
    assert_eq!(
        (&answers[1]["id"], &answers[1]["result"]["found"]),
        (&json!(3), &json!(true))
    );
    client
        .send(b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"request.cancel\",\"params\":{\"id\":1}}\n")
        .await;
    assert_eq!(
        client.answer().await["result"]["found"],
        false,
        "it has its answer, so it is not in flight"
    );
    client.held().release(2);
    assert_eq!(client.answer().await["id"], 2);
}

#[tokio::test]
async fn a_half_closed_client_gets_its_answers() {
    let mut client = Client::new(ConnectionConfig::default());
    client.request(1, "embed.query").await;
    client.request(2, "embed.query").await;
    client
        .send(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"health\"}")
        .await;
    client.writer.take().unwrap().shutdown().await.unwrap();
    assert_eq!(client.answer().await["id"], 3, "a last line needs no end");
    client.held().wait(2, 0).await;
    client.held().release(2);
    assert_eq!(client.answer().await["id"], 2);
    client.held().release(1);
    assert_eq!(client.answer().await["id"], 1);
    assert_eq!(client.closed().await, "");
    soon(client.served).await.unwrap();
}

#[tokio::test]
async fn a_vanished_client_cancels_what_it_asked_for() {
    let mut client = Client::new(ConnectionConfig::default());
    for id in 0..3 {
        client.request(id, "embed.query").await;
    }
    client.held().wait(3, 0).await;
    let Client {
        shared,
        reader,
        writer,
        served,
    } = client;
    drop((reader, writer));
    shared.dispatch.wait(3, 3).await;
    soon(served).await.unwrap();
    soon(shared.slots.idle()).await;
}

/// First a half-close, later the full one.
#[tokio::test]
async fn a_half_closed_client_that_vanishes_later_cancels_too() {
    let mut client = Client::new(ConnectionConfig::default());
    client.request(1, "embed.query").await;
    client.held().wait(1, 0).await;
    client.writer.take().unwrap().shutdown().await.unwrap();
    client
        .shared
        .tasks
        .spawn("let the reader see the end", tokio::task::yield_now())
        .await
        .unwrap();
    let Client {
        shared, reader, served, ..
    } = client;
    drop(reader);
    shared.dispatch.wait(1, 1).await;
    soon(served).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_line_is_answered_and_the_connection_closed() {
    let mut client = Client::new(ConnectionConfig::default());
    let answer = client.answer_to(b"{\"jsonrpc\":").await;
    assert_eq!(code(&answer), (-32600, "invalid_request"));
    assert_eq!(answer["error"]["data"]["detail"]["limit"], "connection.line_timeout_ms");
    assert_eq!(client.closed().await, "");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_closed() {
    let mut client = Client::new(ConnectionConfig {
        max_replies_waiting: 2,
        ..ConnectionConfig::default()
    });
    client.request(0, "embed.query").await;
    client.held().wait(1, 0).await;
    for id in 1..20 {
        client.request(id, "models.list").await;
    }
    client.held().wait(1, 1).await;
    soon(client.served).await.unwrap();
}

#[tokio::test]
async fn a_panic_is_answered_and_harms_nobody() {
    let mut client = Client::new(ConnectionConfig::default());
    client.request(1, "model.unload").await;
    let answer = client.answer().await;
    assert_eq!((code(&answer).1, &answer["id"]), ("internal", &json!(1)));
    client.request(1, "health").await;
    assert_eq!(client.answer().await["id"], 1);
}

#[tokio::test]
async fn a_stopping_daemon_refuses_new_work_and_answers_what_it_cancels() {
    let mut client = Client::new(ConnectionConfig::default());
    client.request(1, "embed.query").await;
    client.held().wait(1, 0).await;
    client.shared.draining.cancel();
    client.request(2, "embed.query").await;
    assert_eq!(code(&client.answer().await).1, "shutting_down");
    client.request(3, "health").await;
    assert_eq!(client.answer().await["id"], 3);
    client.shared.cancel_all.cancel();
    assert_eq!(client.answer().await["id"], 1);
    soon(client.shared.slots.idle()).await;
    client.shared.close.cancel();
    assert_eq!(client.closed().await, "");
    soon(client.served).await.unwrap();
}

#[tokio::test]
async fn request_ids_are_unique_and_named_after_the_connection() {
    let mut client = Client::new(ConnectionConfig::default());
    let mut seen = Vec::new();
    for id in 0..3 {
        client.request(id, "health").await;
        seen.push(
            client.answer().await["result"]["request_id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    assert_eq!(seen, ["01-000001", "01-000002", "01-000003"]);
}
