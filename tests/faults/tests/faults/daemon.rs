//! A whole daemon in front of a folder full of faults.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use synapse_faults::zoo;
use synapse_loader::process::{Child, Command, Output, spawner};

use crate::{stage, worker};

/// Ten times what a start takes on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// Proves ENG-14: every faulty bundle is listed with its reason, and the daemon starts, answers and stops as if they
/// were not there.
#[test]
fn the_daemon_starts_among_faulty_bundles() {
    let stage = stage();
    let exhibits = zoo::lay_out(&stage);
    let (data, socket) = (stage.path("data"), stage.path("s"));
    let command = Command::new(env!("CARGO_BIN_EXE_synapse-daemon-under-test"))
        .args([data.as_path(), &socket, &stage.path("plugins"), worker()])
        .stderr(Output::Capture { limit: 1 << 20 });
    let mut daemon = spawner().spawn(command).expect("the daemon was built");
    let mut stream = connect(&socket, &mut daemon);
    let listed = call(&mut stream, "plugins.list");
    for exhibit in &exhibits {
        let id = format!("\"id\":\"{}\"", exhibit.id);
        let entry = listed
            .split("{\"id\":")
            .find(|part| format!("\"id\":{part}").starts_with(&id));
        let entry = entry.unwrap_or_else(|| panic!("{} is not listed: {listed}", exhibit.id));
        // What needs a worker has one in the daemon.
        let shown = if exhibit.status == "needs_worker" {
            "ready"
        } else {
            exhibit.status
        };
        let status = format!("\"status\":\"{shown}\"");
        assert!(entry.contains(&status), "{}: {entry}", exhibit.id);
        if let Some(reason) = exhibit.reason {
            assert!(
                entry.contains(&format!("\"reason\":\"{reason}\"")),
                "{}: {entry}",
                exhibit.id
            );
        }
    }
    assert!(
        call(&mut stream, "health").contains("\"result\""),
        "the daemon answers after all of it"
    );
    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let finished = daemon.wait_with_output(BOUND).expect("it stops when it is told to");
    let log = String::from_utf8_lossy(&finished.stderr);
    assert!(finished.status.success(), "{}: {log}", finished.status);
    for id in ["cut-library", "aborts"] {
        let lines = log
            .lines()
            .filter(|line| line.contains("WARN") && line.contains(&format!("plugin={id} ")))
            .count();
        assert_eq!(lines, 1, "{id}: one warning: {log}");
    }
}

/// Connects as soon as the daemon listens.
fn connect(socket: &Path, daemon: &mut Child) -> UnixStream {
    let started = Instant::now();
    loop {
        if let Ok(stream) = UnixStream::connect(socket) {
            stream.set_read_timeout(Some(BOUND)).unwrap();
            return stream;
        }
        // Waits for an exit that should not come, a moment at a time.
        let ended = daemon.wait_for_exit(Duration::from_millis(20)).unwrap();
        assert!(
            ended.is_none() && started.elapsed() < BOUND,
            "the daemon does not listen: {ended:?}"
        );
    }
}

fn call(stream: &mut UnixStream, method: &str) -> String {
    let request = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{{}}}}\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}
