//! The real worker on the other side of a daemon that is played by hand: what it answers, what it refuses, and that its
//! place in the stream is known whatever it is sent.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use synapse_wire::worker::message::{EngineKind, EngineState, PromptHeader};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage};

use crate::host::{BUDGET, Host, NONCE, embed, load};

fn assert_error(message: &WorkerMessage, id: u64, expected: &str) {
    match message {
        WorkerMessage::Err {
            req_id, code, state, ..
        } => assert_eq!(
            (*req_id, code.as_str(), *state),
            (id, expected, EngineState::Usable),
            "{message:?}"
        ),
        other => panic!("expected {expected}, got {other:?}"),
    }
}

/// Proves WPROTO-10, WPROTO-12.
#[test]
fn hello_names_the_nonce_the_process_and_what_was_loaded() {
    let host = Host::start("good");
    let WorkerMessage::Hello {
        v,
        nonce,
        bundle,
        engines,
        max_frame,
        ..
    } = &host.hello
    else {
        panic!("{:?}", host.hello);
    };
    assert_eq!(
        (*v, nonce.as_str(), *max_frame),
        (PROTOCOL_VERSION, NONCE, DEFAULT_MAX_FRAME)
    );
    assert_eq!((bundle.id.as_str(), bundle.version.as_str()), ("stress", "0.1.0"));
    assert_eq!(engines.len(), 1);
    assert_eq!(
        (engines[0].kind, engines[0].engine.as_str()),
        (EngineKind::Embed, "stress")
    );
    // A daemon that closes instead of HELLO_ACK refuses it: it ends, and says why.
    let finished = host.close();
    assert_eq!(finished.status.code(), Some(1));
    let words = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert!(words.contains("the daemon refused this worker"), "{words}");
}

/// The acceptance of WPROTO-19: `4 × Σ n_tokens` bytes in, `4 × n × dims` bytes out, each row of its own item. The stress
/// engine's vector is the sum of the item's ids, and their number.
///
/// Proves WPROTO-19, WPROTO-22, WPROTO-23.
#[test]
fn a_model_is_loaded_used_and_forgotten() {
    let (mut host, model) = Host::loaded("good", DEFAULT_MAX_FRAME);
    let (message, ids) = embed(2, model, &[3, 1, 2]);
    assert_eq!(ids.len(), 4 * 6);
    host.send(&message, Some(&ids));
    let (reply, values) = host.reply();
    let expected = WorkerMessage::Vectors {
        req_id: 2,
        dims: 2,
        n: 3,
        raw_bytes: 4 * 3 * 2,
    };
    assert_eq!(reply, expected);
    assert_eq!(values, [6.0, 3.0, 4.0, 1.0, 11.0, 2.0]);
    host.send(&HostMessage::Ping { req_id: 3 }, None);
    assert!(matches!(
        host.message(),
        Some(WorkerMessage::Pong {
            req_id: 3,
            models_loaded: 1,
            placement_share: None,
            rss_mb: 1..,
        })
    ));
    let unload = |req_id| HostMessage::Unload {
        req_id,
        model_ref: model,
    };
    host.send(&unload(4), None);
    assert_eq!(host.message(), Some(WorkerMessage::Unloaded { req_id: 4 }));
    host.send(&unload(5), None);
    assert_error(&host.message().unwrap(), 5, "invalid_argument");
    let (message, ids) = embed(6, model, &[1]);
    host.send(&message, Some(&ids));
    assert_error(&host.message().unwrap(), 6, "invalid_argument");
}

/// What the daemon verified may have changed since: the worker measures again, before an engine sees the file.
///
/// Proves WPROTO-18, WPROTO-17, TEST-47.
#[test]
fn an_artifact_that_changed_never_reaches_the_engine() {
    let mut host = Host::ready("good", DEFAULT_MAX_FRAME);
    let file = host.file("weights", b"weights");
    for (req_id, content) in [(1, &b"Weights"[..]), (2, b"weight"), (3, b"weights!")] {
        std::fs::write(&file.path, content).unwrap();
        host.send(&load(req_id, vec![file.clone()]), None);
        assert_error(&host.message().unwrap(), req_id, "artifact_invalid");
    }
    std::fs::remove_file(&file.path).unwrap();
    host.send(&load(4, vec![file.clone()]), None);
    assert_error(&host.message().unwrap(), 4, "artifact_invalid");
    // The stress engine leaves a byte for each of its calls.
    assert!(!host.path("stress-1.tmp/calls").exists(), "the engine was called");
    std::fs::write(&file.path, b"weights").unwrap();
    host.send(&load(5, vec![file]), None);
    assert!(matches!(host.message(), Some(WorkerMessage::Loaded { req_id: 5, .. })));
    assert!(
        host.path("stress-1.tmp/calls").exists(),
        "the check above looks at the right place"
    );
}

/// Fault S1: the worker keeps the agreed size too. It refuses a longer frame before it stores it, and it does not make
/// one: the reply that would be too long is an error.
///
/// Proves WPROTO-08.
#[test]
fn the_worker_keeps_the_negotiated_frame_size() {
    let (mut host, model) = Host::loaded("wide", MIN_MAX_FRAME);
    // 4,096 values a vector: four of them are 64 KiB.
    let (message, ids) = embed(2, model, &[1; 4]);
    host.send(&message, Some(&ids));
    assert!(matches!(host.reply(), (WorkerMessage::Vectors { n: 4, .. }, values) if values.len() == 4 * 4096));
    let (message, ids) = embed(3, model, &[1; 5]);
    host.send(&message, Some(&ids));
    assert_error(&host.message().unwrap(), 3, "invalid_argument");
    // Exactly as long as agreed, then four bytes longer.
    let (message, ids) = embed(4, model, &[MIN_MAX_FRAME / 4]);
    host.send(&message, Some(&ids));
    assert!(matches!(
        host.reply().0,
        WorkerMessage::Vectors { req_id: 4, .. } | WorkerMessage::Err { req_id: 4, .. }
    ));
    let (message, ids) = embed(5, model, &[MIN_MAX_FRAME / 4 + 1]);
    host.send(&message, Some(&ids));
    assert_eq!(host.payload(), None, "no answer to a frame that broke the agreement");
    let finished = host.wait();
    assert_eq!(finished.status.code(), Some(1));
    let words = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert!(
        words.contains("frame of 65540 bytes, at most 65536 were agreed"),
        "{words}"
    );
}

/// Fault S7: an unknown type is an absent ability, and the worker goes on. A malformed message is a protocol fault, said
/// in words with an exit code of its own: no crash.
///
/// Proves WPROTO-25.
#[test]
fn unknown_is_answered_and_malformed_ends_in_words() {
    let mut host = Host::ready("good", DEFAULT_MAX_FRAME);
    host.send_payload(
        br#"{"type":"ADMIT","req_id":7,"raw_bytes":8,"shape":128}"#,
        Some(&[9; 8]),
    );
    assert_error(&host.message().unwrap(), 7, "unknown_type");
    host.assert_in_order(8);
    for malformed in [&b"{\"type\":\"LOAD\",\"req_id\":9}"[..], b"[]", b"no message", b""] {
        let mut host = Host::ready("good", DEFAULT_MAX_FRAME);
        host.assert_in_order(1);
        host.send_payload(malformed, None);
        assert_eq!(host.payload(), None);
        let finished = host.wait();
        assert_eq!(finished.status.code(), Some(1), "{malformed:?}");
        let words = String::from_utf8_lossy(&finished.stderr).into_owned();
        assert!(words.contains("protocol fault"), "{malformed:?}: {words}");
    }
}

/// SHUTDOWN in the middle of a request: its reply arrives first, then the process ends with 0. A CANCEL is seen while the
/// engine computes, and one that names another exchange changes nothing.
///
/// Proves WPROTO-24.
#[test]
fn shutdown_waits_for_the_running_request() {
    let (mut host, model) = Host::loaded("until-cancelled", DEFAULT_MAX_FRAME);
    let (message, ids) = embed(2, model, &[1]);
    host.send(&HostMessage::Cancel { req_id: 77 }, None);
    host.send(&message, Some(&ids));
    host.send(&HostMessage::Shutdown {}, None);
    host.send(&HostMessage::Cancel { req_id: 1 }, None);
    host.send(&HostMessage::Cancel { req_id: 2 }, None);
    assert_error(&host.message().unwrap(), 2, "cancelled");
    assert_eq!(host.payload(), None);
    assert_eq!(host.wait().status.code(), Some(0));
}

/// The daemon's end is the worker's end, also in the middle of a call.
///
/// Proves WSUP-23.
#[test]
fn a_closed_connection_ends_the_worker() {
    let (host, _) = Host::loaded("good", DEFAULT_MAX_FRAME);
    assert_eq!(host.close().status.code(), Some(0));
    let (mut host, model) = Host::loaded("until-cancelled", DEFAULT_MAX_FRAME);
    let (message, ids) = embed(2, model, &[1]);
    host.send(&message, Some(&ids));
    assert!(host.close().status.code().is_some(), "ended, not killed");
}

/// One request of any kind, well-formed or not, with its raw frame.
#[derive(Clone, Debug)]
enum Sent {
    /// Lengths of items, and ids more or fewer than they say.
    Embed {
        model: u64,
        lengths: Vec<u32>,
        extra: i8,
    },
    Rerank {
        items: u32,
        raw_words: u32,
    },
    Generate {
        ids: u32,
        raw_words: u32,
    },
    Unknown {
        raw_bytes: u32,
    },
    Unload {
        model: u64,
    },
    Cancel {
        req_id: u64,
    },
    Ping,
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        (0..3u64, prop::collection::vec(0..40u32, 0..6), -3..3i8).prop_map(|(model, lengths, extra)| Sent::Embed {
            model,
            lengths,
            extra
        }),
        (0..5u32, 0..50u32).prop_map(|(items, raw_words)| Sent::Rerank { items, raw_words }),
        (0..50u32, 0..50u32).prop_map(|(ids, raw_words)| Sent::Generate { ids, raw_words }),
        (0..500u32).prop_map(|raw_bytes| Sent::Unknown { raw_bytes }),
        (2..5u64).prop_map(|model| Sent::Unload { model }),
        (0..1_000_000u64).prop_map(|req_id| Sent::Cancel {
            req_id: req_id + (1 << 40)
        }),
        Just(Sent::Ping),
    ]
}

/// Sends one request; whether a reply is due.
fn send(host: &mut Host, req_id: u64, what: &Sent) -> bool {
    match what {
        Sent::Embed { model, lengths, extra } => {
            let (mut message, mut ids) = embed(req_id, *model, lengths);
            let length = (ids.len() / 4).saturating_add_signed(isize::from(*extra)) * 4;
            ids.resize(length, 0);
            if let HostMessage::EmbedBatch { raw_bytes, .. } = &mut message {
                *raw_bytes = ids.len() as u64;
            }
            host.send(&message, Some(&ids).filter(|ids| !ids.is_empty()).map(Vec::as_slice));
        }
        Sent::Rerank { items, raw_words } => {
            let HostMessage::EmbedBatch { items, .. } = embed(0, 0, &vec![2; *items as usize]).0 else {
                return false;
            };
            let raw = vec![0; *raw_words as usize * 4];
            let message = HostMessage::Rerank {
                req_id,
                model_ref: 1,
                budget: BUDGET,
                items,
                type_ids: true,
                raw_bytes: raw.len() as u64,
            };
            host.send(&message, Some(&raw).filter(|raw| !raw.is_empty()).map(Vec::as_slice));
        }
        Sent::Generate { ids, raw_words } => {
            let raw = vec![0; *raw_words as usize * 4];
            let message = HostMessage::Generate {
                req_id,
                model_ref: 1,
                budget: BUDGET,
                max_tokens: 4,
                temperature: 0.0,
                top_p: 1.0,
                seed: 0,
                stop: Vec::new(),
                grammar: None,
                prompt: PromptHeader::Ids(*ids),
                raw_bytes: raw.len() as u64,
            };
            host.send(&message, Some(&raw).filter(|raw| !raw.is_empty()).map(Vec::as_slice));
        }
        Sent::Unknown { raw_bytes } => {
            let header = format!("{{\"type\":\"LATER\",\"req_id\":{req_id},\"raw_bytes\":{raw_bytes}}}");
            // Bytes that would be a frame of their own if they were read as one.
            let raw = vec![1; *raw_bytes as usize];
            host.send_payload(
                header.as_bytes(),
                Some(&raw).filter(|raw| !raw.is_empty()).map(Vec::as_slice),
            );
        }
        Sent::Unload { model } => host.send(
            &HostMessage::Unload {
                req_id,
                model_ref: *model,
            },
            None,
        ),
        Sent::Cancel { req_id } => {
            host.send(&HostMessage::Cancel { req_id: *req_id }, None);
            return false;
        }
        Sent::Ping => host.send(&HostMessage::Ping { req_id }, None),
    }
    true
}

/// The number of the request that a reply names.
fn answered(reply: &WorkerMessage) -> u64 {
    match reply {
        WorkerMessage::Vectors { req_id, .. }
        | WorkerMessage::Pong { req_id, .. }
        | WorkerMessage::Unloaded { req_id }
        | WorkerMessage::Err { req_id, .. } => *req_id,
        other => panic!("{other:?}"),
    }
}

/// Fault S3: whatever a request asks, and whether or not the worker can do it, its raw frame is read with it. Each of a
/// random sequence of requests gets exactly one reply of its own, and the stream is in order after all of them.
///
/// Proves WPROTO-16, WPROTO-25.
#[test]
fn every_request_is_read_to_its_end_and_answered_once() {
    let (host, model) = Host::loaded("good", DEFAULT_MAX_FRAME);
    assert_eq!(model, 1);
    let host = std::cell::RefCell::new((host, 10u64));
    let config = Config {
        cases: 64,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&prop::collection::vec(sent(), 1..12), |requests| {
        let (host, next) = &mut *host.borrow_mut();
        let mut due = Vec::new();
        for request in &requests {
            *next += 1;
            if send(host, *next, request) {
                due.push(*next);
            }
        }
        for id in due {
            let (reply, _) = host.reply();
            prop_assert_eq!(answered(&reply), id, "{:?}", reply);
        }
        *next += 1;
        host.assert_in_order(*next);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
