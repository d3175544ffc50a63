//! A whole daemon in the test's own process, and a client of its socket.
//!
//! State: a data directory, the daemon's task. Callers: the test files beside this folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use synapse_daemon::paths::Environment;
use synapse_daemon::{ServeOptions, StartError, Stop, serve_until};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// After this a test counts as hanging.
const HANG: Duration = Duration::from_secs(120);

/// Folders of one daemon, kept between its starts.
pub struct Place {
    dir: TempDir,
}

impl Place {
    /// Fresh folders.
    pub fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir_all(place.dir.path().join("config/cortexkit")).unwrap();
        place
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.data().join("run/synapse.sock")
    }

    /// Writes the user's configuration.
    pub fn write_user_config(&self, text: &str) {
        std::fs::write(self.dir.path().join("config/cortexkit/synapse.jsonc"), text).unwrap();
    }

    fn environment(&self, more: &[(&str, &str)]) -> Environment {
        let home = self.dir.path().to_str().unwrap().to_owned();
        let config = format!("{home}/config");
        let fixed = [("HOME", home.as_str()), ("XDG_CONFIG_HOME", config.as_str())];
        fixed
            .iter()
            .chain(more)
            .map(|(name, value)| ((*name).to_owned(), (*value).into()))
            .collect()
    }

    fn options(&self) -> ServeOptions {
        let project = Some(self.dir.path().to_owned());
        ServeOptions {
            data_dir: Some(self.data()),
            project,
            ..ServeOptions::default()
        }
    }
}

/// Stops the daemon when it is told to.
struct Asked(Arc<Notify>);

impl Stop for Asked {
    async fn next(&mut self) {
        self.0.notified().await;
    }
}

/// A daemon that serves.
pub struct Running {
    stop: Arc<Notify>,
    served: JoinHandle<Result<(), StartError>>,
    socket: PathBuf,
}

impl Running {
    /// Starts a daemon and waits until it answers.
    pub async fn start(place: &Place) -> Self {
        Self::start_in(place, &[]).await
    }

    /// The same, with further variables.
    pub async fn start_in(place: &Place, variables: &[(&str, &str)]) -> Self {
        let stop = Arc::new(Notify::new());
        let (options, environment, asked) = (place.options(), place.environment(variables), Asked(Arc::clone(&stop)));
        let served = tokio::spawn(async move { serve_until(options, &environment, asked).await });
        let running = Self {
            stop,
            served,
            socket: place.socket(),
        };
        let connected = async {
            while UnixStream::connect(&running.socket).await.is_err() {
                assert!(!running.served.is_finished(), "the daemon did not start");
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HANG, connected)
            .await
            .expect("the daemon's socket");
        running
    }

    /// Starts a daemon that must not start.
    pub async fn refused(place: &Place, variables: &[(&str, &str)]) -> StartError {
        let environment = place.environment(variables);
        let served = serve_until(place.options(), &environment, Asked(Arc::new(Notify::new())));
        tokio::time::timeout(HANG, served)
            .await
            .expect("the start ends")
            .unwrap_err()
    }

    /// Another connection.
    pub async fn connect(&self) -> Client {
        Client::connect(&self.socket).await
    }

    /// Stops the daemon and waits for its end.
    pub async fn stop(self) -> Result<(), StartError> {
        self.stop.notify_one();
        tokio::time::timeout(HANG, self.served)
            .await
            .expect("the stop ends")
            .unwrap()
    }
}

/// A connection that sends one request after another.
pub struct Client {
    stream: BufReader<UnixStream>,
    next: i64,
}

impl Client {
    async fn connect(socket: &Path) -> Self {
        Self {
            stream: BufReader::new(UnixStream::connect(socket).await.unwrap()),
            next: 0,
        }
    }

    /// Sends a request and waits for its answer.
    pub async fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        let answer = self.line(request.to_string().as_bytes()).await;
        assert_eq!(answer["id"], self.next);
        answer
    }

    /// Sends a line as it is and waits for an answer.
    pub async fn line(&mut self, bytes: &[u8]) -> Value {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.write_all(b"\n").await.unwrap();
        let mut line = String::new();
        let read = tokio::time::timeout(HANG, self.stream.read_line(&mut line))
            .await
            .expect("an answer")
            .unwrap();
        assert_ne!(read, 0, "the connection was closed");
        serde_json::from_str(&line).unwrap()
    }

    /// What the daemon still sends until it closes the connection.
    pub async fn rest(&mut self) -> String {
        let mut rest = String::new();
        tokio::time::timeout(HANG, self.stream.read_to_string(&mut rest))
            .await
            .expect("the end")
            .unwrap();
        rest
    }
}
