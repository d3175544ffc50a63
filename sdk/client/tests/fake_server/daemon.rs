//! The scripted daemon: a listener, and the daemon's end of one connection.
//!
//! It owns the socket's folder. Tests say what is answered; nothing is answered by itself.

use std::time::Duration;

use serde_json::{Value, json};
use synapse_client::{Options, RetryPolicy};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

/// Longer than anything here may take, on any machine: only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

/// A socket in a folder of its own.
pub struct FakeDaemon {
    pub listener: UnixListener,
    pub folder: TempDir,
}

impl FakeDaemon {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        Self { listener, folder }
    }

    pub fn options(&self) -> Options {
        Options {
            socket: Some(self.folder.path().join("s")),
            retry: RetryPolicy {
                first_wait: Duration::from_millis(1),
                ..RetryPolicy::default()
            },
            ..Options::default()
        }
    }

    pub async fn accept(&self) -> Peer {
        let (stream, _) = within(self.listener.accept()).await.unwrap();
        Peer::new(stream)
    }
}

/// What the future gives; a hang fails the test.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future)
        .await
        .expect("nothing happened for a minute")
}

/// The daemon's end of one connection.
pub struct Peer {
    lines: Lines<BufReader<OwnedReadHalf>>,
    pub write: OwnedWriteHalf,
}

impl Peer {
    fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            lines: BufReader::new(read).lines(),
            write,
        }
    }

    /// The next request, or `None` once the client has closed.
    pub async fn next(&mut self) -> Option<Value> {
        let line = within(self.lines.next_line()).await.unwrap()?;
        Some(serde_json::from_str(&line).unwrap())
    }

    pub async fn request(&mut self) -> Value {
        self.next().await.expect("the client closed the connection")
    }

    async fn say(&mut self, message: Value) {
        self.write.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    pub async fn answer(&mut self, request: &Value, generation: u64, mut result: Value) {
        result["request_id"] = json!("7c-000001");
        result["module_generation"] = json!(generation);
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
            .await;
    }

    pub async fn refuse(&mut self, request: &Value, code: &str, class: &str, safe: bool) {
        let mut data = json!({"code": code, "class": class, "safe_to_retry_same_request": safe,
            "module_generation": 1, "request_id": "7c-000002"});
        if class == "transient" {
            data["retry_after_ms"] = json!(1);
        }
        let error = json!({"code": -32_000, "message": "refused by the script", "data": data});
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "error": error}))
            .await;
    }
}
