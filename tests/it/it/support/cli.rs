//! The `synapse` command as a user types it, against a daemon of the test.
//!
//! No state: each run is a process of its own, with the environment of the place and nothing of the machine's.

use serde_json::Value;
use synapse_loader::process::{Command, Input, Output, spawner};

use super::HANG;
use super::daemon::{Place, build};

/// What a run left.
pub struct Run {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Run {
    /// Each line of standard output as JSON.
    pub fn lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(parse).collect()
    }
}

/// Runs `synapse ARGUMENTS --socket …` with bytes on standard input.
pub fn synapse(place: &Place, arguments: &[&str], stdin: &str) -> Run {
    const LIMIT: usize = 1 << 20;
    let command = Command::new(build().join("synapse"))
        .args(arguments)
        .arg("--socket")
        .arg(place.socket())
        .env("HOME", place.path())
        .dir(place.path())
        .stdin(Input::Bytes(stdin.as_bytes().to_vec()))
        .stdout(Output::Capture { limit: LIMIT })
        .stderr(Output::Capture { limit: LIMIT });
    let child = spawner().spawn(command).expect("`synapse` starts");
    let ended = child.wait_with_output(HANG).expect("`synapse` ends");
    Run {
        code: ended.status.code().expect("an exit code"),
        stdout: String::from_utf8(ended.stdout).expect("UTF-8"),
        stderr: String::from_utf8(ended.stderr).expect("UTF-8"),
    }
}
