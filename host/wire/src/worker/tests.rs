//! Golden frames, round trips and refusals of the worker protocol.

use super::frame::{Decoder, FrameError, encode};
use super::message::{
    ArtifactFile, BatchItem, Budget, BundleHello, EngineHello, EngineKind, EngineState, FinishReason, Parsed, Phase,
    PromptHeader, RuntimeConfig,
};
use super::{HostMessage, WorkerMessage, negotiate_max_frame, raw};

fn host_messages() -> Vec<HostMessage> {
    let budget = Budget {
        deadline_ms: Some(250),
        threads: 2,
    };
    let item = |id, n_tokens, doc_start| BatchItem {
        id,
        n_tokens,
        doc_start,
    };
    vec![
        HostMessage::HelloAck {
            v: 3,
            accept: true,
            max_frame: 65_536,
        },
        HostMessage::Load {
            req_id: 1,
            engine: EngineKind::Embed,
            files: vec![ArtifactFile {
                role: "weights".into(),
                path: "/models/blobs/ab".into(),
                sha256: "ab".repeat(32),
                size: 12,
            }],
            runtime_config: RuntimeConfig {
                format: "gguf".into(),
                dtype: "f16".into(),
                pooling: "mean".into(),
                max_tokens: 512,
                max_batch: 64,
                max_batch_tokens: 8192,
                threads: 2,
                extra: [("flash_attention".to_owned(), "off".to_owned())].into(),
            },
        },
        HostMessage::EmbedBatch {
            req_id: 2,
            model_ref: 7,
            budget,
            items: vec![item(0, 3, None), item(1, 2, None)],
            type_ids: false,
            raw_bytes: 20,
        },
        HostMessage::Rerank {
            req_id: 3,
            model_ref: 7,
            budget: Budget {
                deadline_ms: None,
                threads: 1,
            },
            items: vec![item(0, 9, Some(4))],
            type_ids: true,
            raw_bytes: 72,
        },
        HostMessage::Generate {
            req_id: 4,
            model_ref: 8,
            budget,
            max_tokens: 16,
            temperature: 0.5,
            top_p: 1.0,
            seed: 9,
            stop: vec!["\n".into()],
            grammar: Some("root ::= \"a\"".into()),
            prompt: PromptHeader::Ids(5),
            raw_bytes: 20,
        },
        HostMessage::Cancel { req_id: 4 },
        HostMessage::Unload {
            req_id: 5,
            model_ref: 8,
        },
        HostMessage::Ping { req_id: 6 },
        HostMessage::Shutdown {},
    ]
}

fn worker_messages() -> Vec<WorkerMessage> {
    vec![
        WorkerMessage::Hello {
            v: 3,
            nonce: "00ff".into(),
            bundle: BundleHello {
                id: "reference".into(),
                version: "0.1.0".into(),
            },
            engines: vec![EngineHello {
                kind: EngineKind::Embed,
                engine: "reference".into(),
                version: "1".into(),
                build_flags: vec![],
            }],
            pid: 4242,
            max_frame: 1_048_576,
        },
        WorkerMessage::Loaded {
            req_id: 1,
            model_ref: 7,
            dims: 384,
            max_tokens: 512,
            memory_bytes: 90_868_376,
            cold_load_ms: 31,
        },
        WorkerMessage::Vectors {
            req_id: 2,
            dims: 2,
            n: 2,
            raw_bytes: 16,
        },
        WorkerMessage::Scores {
            req_id: 3,
            n: 1,
            raw_bytes: 4,
        },
        WorkerMessage::Text {
            req_id: 4,
            text: "a".into(),
            n_prompt: 5,
            n_gen: 1,
            finish_reason: FinishReason::Stop,
            raw_bytes: 4,
        },
        WorkerMessage::Unloaded { req_id: 5 },
        WorkerMessage::Pong {
            req_id: 6,
            rss_mb: 120,
            models_loaded: 1,
            placement_share: None,
        },
        WorkerMessage::Pong {
            req_id: 6,
            rss_mb: 120,
            models_loaded: 1,
            placement_share: Some(0.5),
        },
        WorkerMessage::Progress {
            req_id: 2,
            phase: Phase::Inference,
            completed: 3,
            total: Some(10),
        },
        WorkerMessage::Err {
            req_id: 2,
            code: "artifact_invalid".into(),
            state: EngineState::Usable,
            msg: "weights: expected 12 bytes, found 11".into(),
        },
    ]
}

/// Every message is one line of a golden file, and reads back as itself.
///
/// Proves WPROTO-10, WPROTO-14, WPROTO-17, WPROTO-20, WPROTO-21, WPROTO-22, WPROTO-23, WPROTO-28.
#[test]
fn messages_match_the_golden_file() {
    let mut lines = String::new();
    for message in host_messages() {
        let payload = message.to_payload();
        assert_eq!(HostMessage::parse(&payload).unwrap(), Parsed::Message(message));
        lines.push_str(std::str::from_utf8(&payload).unwrap());
        lines.push('\n');
    }
    for message in worker_messages() {
        let payload = message.to_payload();
        assert_eq!(WorkerMessage::parse(&payload).unwrap(), Parsed::Message(message));
        lines.push_str(std::str::from_utf8(&payload).unwrap());
        lines.push('\n');
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/worker-messages.jsonl");
    if std::env::var_os("SYNAPSE_BLESS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata")).unwrap();
        std::fs::write(path, &lines).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), lines);
}

/// Bytes written by hand from the seed's words: a length in little-endian order, then the payload.
///
/// Proves WPROTO-05.
#[test]
fn a_frame_is_a_little_endian_length_and_a_payload() {
    let mut bytes = Vec::new();
    encode(b"{\"type\":\"SHUTDOWN\"}", 64, &mut bytes).unwrap();
    assert_eq!(&bytes[..4], [19, 0, 0, 0]);
    assert_eq!(HostMessage::Shutdown {}.to_payload(), &bytes[4..]);
}

/// Proves WPROTO-08.
#[test]
fn a_frame_beyond_the_agreed_size_is_refused_before_it_is_stored() {
    let mut decoder = Decoder::new(16);
    decoder.feed(&u32::MAX.to_le_bytes());
    assert_eq!(
        decoder.next_payload(),
        Err(FrameError::TooLong {
            length: u32::MAX,
            max: 16
        })
    );
    assert_eq!(
        encode(&[0; 17], 16, &mut Vec::new()),
        Err(FrameError::TooLong { length: 17, max: 16 })
    );
    assert!(encode(&[0; 16], 16, &mut Vec::new()).is_ok());
    assert_eq!(negotiate_max_frame(5, 9), 5);
    assert_eq!(negotiate_max_frame(9, 5), 5);
}

/// Whatever the pieces in which a stream arrives, the payloads are the same, and an end inside a frame is seen.
#[test]
fn payloads_do_not_depend_on_the_pieces() {
    let payloads: [&[u8]; 4] = [b"", b"one", b"{}", &[7; 300]];
    let mut stream = Vec::new();
    for payload in payloads {
        encode(payload, 1024, &mut stream).unwrap();
    }
    for piece in 1..=stream.len() {
        let mut decoder = Decoder::new(1024);
        let mut found = Vec::new();
        for bytes in stream.chunks(piece) {
            decoder.feed(bytes);
            while let Some(payload) = decoder.next_payload().unwrap() {
                found.push(payload);
            }
        }
        assert_eq!(found, payloads);
        assert_eq!((decoder.pending(), decoder.finish()), (0, Ok(())));
    }
    let mut decoder = Decoder::new(1024);
    decoder.feed(&stream[..stream.len() - 1]);
    while decoder.next_payload().unwrap().is_some() {}
    assert_eq!(decoder.finish(), Err(FrameError::Truncated { have: 303, want: 304 }));
}

/// Proves TEST-05, WPROTO-06, WPROTO-07.
#[test]
fn raw_i32_frames_round_trip() {
    let ids = [0, 1, -1, i32::MIN, i32::MAX, 101, 30_521];
    let mut bytes = Vec::new();
    raw::put_i32(&ids, &mut bytes);
    assert_eq!(&bytes[4..12], [1, 0, 0, 0, 255, 255, 255, 255]);
    assert_eq!(raw::get_i32(&bytes, 7).unwrap(), ids);
    assert!(raw::get_i32(&bytes, 6).is_err());
    assert!(raw::get_i32(&bytes[..27], 7).is_err());
}

/// Proves TEST-06, WPROTO-06, WPROTO-07.
#[test]
fn raw_f32_frames_round_trip() {
    let values = [
        0.0,
        -0.0,
        1.0,
        f32::MIN_POSITIVE / 2.0,
        f32::INFINITY,
        f32::from_bits(0x7fc0_1234),
    ];
    let mut bytes = Vec::new();
    raw::put_f32(&values, &mut bytes);
    assert_eq!(&bytes[8..12], [0, 0, 128, 63]);
    let mut back = [9.0; 6];
    raw::get_f32(&bytes, &mut back).unwrap();
    assert_eq!(back.map(f32::to_bits), values.map(f32::to_bits));
    let untouched = back;
    assert!(raw::get_f32(&bytes[..20], &mut back).is_err());
    assert_eq!(back.map(f32::to_bits), untouched.map(f32::to_bits));
}

/// Proves WPROTO-25.
#[test]
fn an_unknown_type_says_what_to_skip_and_unknown_fields_are_ignored() {
    let parsed = HostMessage::parse(br#"{"type":"ADMIT","req_id":9,"raw_bytes":8,"shape":128}"#).unwrap();
    assert_eq!(
        parsed,
        Parsed::UnknownType {
            name: "ADMIT".into(),
            req_id: 9,
            raw_bytes: 8
        }
    );
    let parsed = HostMessage::parse(br#"{"type":"PING","req_id":9,"later":true}"#).unwrap();
    assert_eq!(parsed, Parsed::Message(HostMessage::Ping { req_id: 9 }));
}

/// A control frame that is no message is an error that names the type where there is one.
#[test]
fn malformed_messages_are_told_from_unknown_ones() {
    for payload in [
        &b"[]"[..],
        b"",
        b"{}",
        b"\xff",
        b"{\"type\":3}",
        b"{\"type\":\"PING\"} x",
    ] {
        assert!(HostMessage::parse(payload).is_err());
    }
    let error = HostMessage::parse(br#"{"type":"LOAD","req_id":1}"#).unwrap_err();
    assert!(error.to_string().starts_with("LOAD message is malformed"), "{error}");
}
