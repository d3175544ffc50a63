//! A worker that starts wrongly, for tests of the daemon's side of the handshake. Its own file name is the script.
//!
//! It describes bundles as the real worker does, so that they are accepted; what it says when it is to serve is wrong in
//! one way.

#![forbid(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--describe") {
        return synapse_worker::run();
    }
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).cloned()
    };
    let (Some(socket), Some(nonce)) = (value("--socket"), value("--nonce")) else {
        return ExitCode::from(2);
    };
    let program = std::env::current_exe().unwrap_or_default();
    let script = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if script == "mute" {
        return ExitCode::SUCCESS;
    }
    let Ok(mut stream) = UnixStream::connect(socket) else {
        return ExitCode::FAILURE;
    };
    let payload = hello(script, &nonce);
    let mut frame = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    frame.extend_from_slice(&payload);
    if script == "drip" {
        // Nothing comes from the daemon before a whole HELLO: each read is a pause, unless the daemon closes.
        if stream.set_read_timeout(Some(Duration::from_millis(50))).is_err() {
            return ExitCode::FAILURE;
        }
        for byte in frame {
            if stream.write_all(&[byte]).is_err() || stream.read(&mut [0]).is_ok() {
                return ExitCode::FAILURE;
            }
        }
    } else if stream.write_all(&frame).is_err() {
        return ExitCode::FAILURE;
    }
    // Stays until it is ended: a daemon that refuses a worker does not leave it running.
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// The first message.
fn hello(script: &str, nonce: &str) -> Vec<u8> {
    if script == "garbage" {
        return b"no message at all".to_vec();
    }
    let engine = |kind: &str| {
        let version = if script == "wrong-identity" { "2" } else { "1" };
        json!({"kind": kind, "engine": "reference", "version": version, "build_flags": []})
    };
    let hello = json!({
        "type": "HELLO",
        "v": if script == "old-version" { 2 } else { 3 },
        "nonce": if script == "stale-nonce" { "0".repeat(64) } else { nonce.to_owned() },
        "bundle": {"id": "reference", "version": "0.1.0"},
        "engines": [engine("embed"), engine("rerank"), engine("generate")],
        "pid": std::process::id(),
        "max_frame": 1 << 20,
    });
    hello.to_string().into_bytes()
}
