//! One suite for both systems: whichever transport this system has runs it. Only the names of the framing test differ,
//! because each system's check has its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use synapse_wire::worker::frame::{Decoder, encode};
use synapse_wire::worker::message::Parsed;
use synapse_wire::worker::{HostMessage, WorkerMessage, raw};

use super::name::{address, pipe_name, socket_path};
use super::{Listener, Stream};

/// Longer than anything here takes.
const PATIENT: Duration = Duration::from_secs(60);

/// The digest was computed with coreutils: `printf '%s' /run/user/1000/synapse/workers/owned-1-1 | sha256sum`.
///
/// Proves TEST-17, WPROTO-04.
#[test]
fn pipe_name_matches_contract() {
    let name = pipe_name(Path::new("/run/user/1000/synapse/workers"), "owned-1-1");
    assert_eq!(name, r"\\.\pipe\synapse-b5825af943a59748722eb4bce4aa7031");
    // The same folder, however it is written, is the same pipe; another worker or folder is another.
    for same in [
        "/run/user/1000/synapse/workers/",
        r"\run\user\1000\synapse\workers",
        r"/run\user/1000\synapse/workers\",
    ] {
        assert_eq!(pipe_name(Path::new(same), "owned-1-1"), name, "{same}");
    }
    assert_ne!(
        pipe_name(Path::new("/run/user/1000/synapse/workers"), "owned-1-2"),
        name
    );
    assert_ne!(
        pipe_name(Path::new("/run/user/1001/synapse/workers"), "owned-1-1"),
        name
    );
    let expected = if cfg!(windows) {
        PathBuf::from(name)
    } else {
        socket_path(Path::new("/run/user/1000/synapse/workers"), "owned-1-1")
    };
    assert_eq!(
        address(Path::new("/run/user/1000/synapse/workers"), "owned-1-1"),
        expected
    );
}

fn frames(message: &[u8], raw: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for payload in [Some(message), raw].into_iter().flatten() {
        encode(payload, u32::MAX, &mut bytes).expect("fits");
    }
    bytes
}

/// The next payload.
fn payload(stream: &mut Stream, decoder: &mut Decoder) -> Vec<u8> {
    let mut chunk = [0; 7];
    loop {
        if let Some(payload) = decoder.next_payload().expect("whole frames") {
            return payload;
        }
        let count = stream.read(&mut chunk, Some(PATIENT)).expect("reads").expect("in time");
        assert_ne!(count, 0, "the peer is there");
        decoder.feed(&chunk[..count]);
    }
}

/// A whole exchange, JSON and raw frames both ways, and the end of both sides as the other sees it.
fn framing_round_trip() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = address(folder.path(), "framing-1");
    let mut listener = Listener::bind(&address).expect("listens");
    assert!(listener.accept(Duration::ZERO).expect("listens").is_none());
    let worker = std::thread::spawn(move || {
        let mut stream = Stream::connect(&address).expect("connects");
        let mut decoder = Decoder::new(1 << 20);
        let request = HostMessage::parse(&payload(&mut stream, &mut decoder)).expect("a message");
        let Parsed::Message(HostMessage::Rerank { raw_bytes, .. }) = request else {
            panic!("{request:?}");
        };
        let ids = raw::get_i32(&payload(&mut stream, &mut decoder), raw_bytes / 4).expect("ids");
        let mut values = Vec::new();
        raw::put_f32(&[-0.0, f32::from_bits(0x7fc0_1234)], &mut values);
        let reply = WorkerMessage::Scores {
            req_id: 9,
            n: 2,
            raw_bytes: 8,
        };
        stream
            .write_all(&frames(&reply.to_payload(), Some(&values)), None)
            .expect("writes");
        // Ends when the daemon does.
        assert_eq!(stream.read(&mut [0; 1], None).expect("reads"), Some(0));
        ids
    });
    let mut stream = listener.accept(PATIENT).expect("listens").expect("the worker comes");
    drop(listener);
    assert_eq!(stream.read(&mut [0; 1], Some(Duration::ZERO)).expect("reads"), None);
    let mut ids = Vec::new();
    raw::put_i32(&[i32::MIN, -1, 7, i32::MAX], &mut ids);
    let request = HostMessage::Rerank {
        req_id: 9,
        model_ref: 1,
        budget: synapse_wire::worker::message::Budget {
            deadline_ms: None,
            threads: 1,
        },
        items: Vec::new(),
        type_ids: false,
        raw_bytes: 16,
    };
    stream
        .write_all(&frames(&request.to_payload(), Some(&ids)), Some(PATIENT))
        .expect("writes");
    let mut decoder = Decoder::new(1 << 20);
    let reply = WorkerMessage::parse(&payload(&mut stream, &mut decoder)).expect("a message");
    assert!(
        matches!(reply, Parsed::Message(WorkerMessage::Scores { n: 2, .. })),
        "{reply:?}"
    );
    let scores = payload(&mut stream, &mut decoder);
    assert_eq!(scores, [0, 0, 0, 0x80, 0x34, 0x12, 0xc0, 0x7f]);
    drop(stream);
    assert_eq!(worker.join().expect("no panic"), [i32::MIN, -1, 7, i32::MAX]);
}

/// Proves WPROTO-02.
#[cfg(unix)]
#[test]
fn socket_framing_round_trip() {
    framing_round_trip();
}

/// Proves TEST-18, WPROTO-02.
#[cfg(windows)]
#[test]
fn pipe_framing_round_trip() {
    framing_round_trip();
}

/// A peer that does not read holds a writer no longer than its bound.
///
/// Proves WPROTO-02.
#[test]
fn a_write_to_a_peer_that_does_not_read_has_a_bound() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = address(folder.path(), "full-1");
    let mut listener = Listener::bind(&address).expect("listens");
    let quiet = Stream::connect(&address).expect("connects");
    let mut stream = listener.accept(PATIENT).expect("listens").expect("the worker comes");
    let more_than_any_buffer = vec![0; 64 << 20];
    let error = stream.write_all(&more_than_any_buffer, Some(Duration::from_millis(10)));
    assert_eq!(error.expect_err("nobody reads").kind(), std::io::ErrorKind::TimedOut);
    drop(quiet);
    let error = stream.write_all(&[0], Some(PATIENT));
    assert_eq!(
        error.expect_err("nobody is there").kind(),
        std::io::ErrorKind::BrokenPipe
    );
}

/// The name is taken while a listener holds it, free after it, and a file left by a killed daemon is no obstacle.
#[cfg(unix)]
#[test]
fn a_socket_file_goes_with_its_listener() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let address = address(folder.path(), "left-1");
    std::fs::write(&address, "left behind").expect("writes");
    let listener = Listener::bind(&address).expect("listens");
    let mode = std::fs::metadata(&address).expect("is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(listener);
    assert!(!address.exists());
    assert!(Stream::connect(&address).is_err());
}
