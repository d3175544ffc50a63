//! A raw client: lines in, lines out, on one blocking connection. It checks nothing and helps with nothing, so that a
//! test can send what no proper client would.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use super::HANG;

/// One connection.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    next: u64,
}

impl Client {
    /// Connects.
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        stream.set_write_timeout(Some(HANG)).expect("a timeout");
        Self {
            reader: BufReader::new(stream.try_clone().expect("a second handle")),
            writer: stream,
            next: 0,
        }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.writer.write_all(bytes)
    }

    /// Sends a request with the next number as its id, and gives that id.
    pub fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let line = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.send(format!("{line}\n").as_bytes()).expect("the daemon reads");
        self.next
    }

    /// The next line; `None` when the daemon closed the connection.
    pub fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Calls a method and waits for its answer.
    ///
    /// # Errors
    /// The answer's `error` object.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        let id = self.request(method, params);
        let mut answer = self.line().expect("an answer");
        assert_eq!(answer["id"], id, "{answer}");
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].take()),
        }
    }

    /// Calls a method that has to succeed.
    pub fn ok(&mut self, method: &str, params: &Value) -> Value {
        self.call(method, params)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method that has to fail, and gives the public code and the error.
    pub fn fails(&mut self, method: &str, params: &Value) -> (String, Value) {
        let error = self
            .call(method, params)
            .err()
            .unwrap_or_else(|| panic!("{method} succeeded"));
        (code(&error), error)
    }

    /// Waits until the daemon calls itself healthy: the bundles of a start are described in the background.
    pub fn healthy(&mut self) {
        let bound = std::time::Instant::now() + HANG;
        loop {
            let health = self.ok("health", &json!({}));
            if health["status"] == "ok" {
                return;
            }
            assert!(std::time::Instant::now() < bound, "the daemon is not healthy: {health}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Waits for the end of a job and gives its last view.
    pub fn job(&mut self, started: &Value) -> Value {
        let id = &started["job_id"];
        let bound = std::time::Instant::now() + HANG;
        loop {
            let view = self.ok("job.status", &json!({"job_id": id}));
            let state = view["state"]
                .as_str()
                .or(view["job"]["state"].as_str())
                .expect("a state");
            if !["queued", "running"].contains(&state) {
                return view;
            }
            assert!(std::time::Instant::now() < bound, "the job hangs: {view}");
            // The socket has no push: a job is polled.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Pulls a test model from its folder and loads it.
    pub fn install(&mut self, model: &str) {
        let path = super::models::folder(model);
        let pull = self.ok("models.pull", &json!({"model": model, "source": "local", "path": path}));
        let view = self.job(&pull);
        assert_eq!(view["state"], "done", "{view}");
        self.load(model);
    }

    /// Loads an installed model.
    pub fn load(&mut self, model: &str) {
        let load = self.ok("model.load", &json!({"model": model}));
        let view = self.job(&load);
        assert_eq!(view["state"], "done", "{view}");
    }

    /// Ends the sending half only.
    pub fn half_close(&self) {
        self.writer.shutdown(std::net::Shutdown::Write).expect("is open");
    }
}

/// The public code of an error object.
pub fn code(error: &Value) -> String {
    error["data"]["code"]
        .as_str()
        .unwrap_or_else(|| panic!("no code: {error}"))
        .to_owned()
}
