//! The handshake's checks, and exchanges over a real socket with a scripted worker at the other end.
//!
//! The scripted worker is a thread that writes exactly the bytes that a test says. Supervision of real processes is
//! tested in `tests/it`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use synapse_core::engine::{CallControl, Flow};
use synapse_core::supervision::exchange::{Budgets, Expired, Phase, ProgressFault};
use synapse_transport::Stream;
use synapse_wire::worker::frame::{Decoder, FrameError, encode};
use synapse_wire::worker::message::{self, Budget, BundleHello, EngineHello, EngineKind, EngineState, Parsed};
use synapse_wire::worker::raw::RawLength;
use synapse_wire::worker::{HostMessage, MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage};

use super::connection::Connection;
use super::exchange::{ExchangeError, Reply, Terms, run};
use super::fault::{Fault, Stage};
use super::launch::{LaunchError, Plan, check_hello};

const MS: u64 = 1_000_000;
/// Long enough that only a lost exchange meets it.
const PATIENT: Budgets = Budgets {
    setup_silence: 20_000 * MS,
    inference_silence: 20_000 * MS,
    ceiling: 60_000 * MS,
};
/// A silence window that a test crosses on purpose.
const WINDOW: Duration = Duration::from_millis(100);
const IMPATIENT: Budgets = Budgets {
    setup_silence: 20_000 * MS,
    inference_silence: 100 * MS,
    ceiling: 60_000 * MS,
};

fn plan() -> Plan {
    Plan {
        program: PathBuf::new(),
        bundle: PathBuf::new(),
        socket_dir: PathBuf::new(),
        expected_bundle: BundleHello {
            id: "toy".into(),
            version: "1.0.0".into(),
        },
        expected_engines: vec![identity("1")],
        settings: Vec::new(),
        handshake: Duration::from_secs(10),
        max_frame: 1 << 20,
        log_lines_per_second: 50,
    }
}

fn identity(version: &str) -> EngineHello {
    EngineHello {
        kind: EngineKind::Embed,
        engine: "toy".into(),
        version: version.into(),
        build_flags: vec!["fma".into()],
    }
}

fn hello(v: u32, nonce: &str, engine: EngineHello, pid: u32, max_frame: u32) -> WorkerMessage {
    let bundle = BundleHello {
        id: "toy".into(),
        version: "1.0.0".into(),
    };
    WorkerMessage::Hello {
        v,
        nonce: nonce.into(),
        bundle,
        engines: vec![engine],
        pid,
        max_frame,
    }
}

fn refused_field(hello: &WorkerMessage) -> &'static str {
    match check_hello(&plan(), "fresh", 7, hello) {
        Err(LaunchError::Refused { field, .. }) => field,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Proves TEST-01, WPROTO-12.
#[test]
fn rejects_stale_worker_nonce() {
    assert_eq!(
        refused_field(&hello(PROTOCOL_VERSION, "stale", identity("1"), 7, 1 << 20)),
        "nonce"
    );
    assert_eq!(
        refused_field(&hello(PROTOCOL_VERSION, "", identity("1"), 7, 1 << 20)),
        "nonce"
    );
    let fresh = hello(PROTOCOL_VERSION, "fresh", identity("1"), 7, 1 << 20);
    assert_eq!(check_hello(&plan(), "fresh", 7, &fresh).unwrap(), 1 << 20);
}

/// Proves TEST-02, WPROTO-11, WPROTO-13, WPROTO-26.
#[test]
fn wrong_engine_identity_and_old_protocol_are_rejected() {
    for v in [1, 2, 4] {
        assert_eq!(refused_field(&hello(v, "fresh", identity("1"), 7, 1 << 20)), "v");
    }
    assert_eq!(refused_field(&hello(3, "fresh", identity("2"), 7, 1 << 20)), "engines");
    let other_flags = EngineHello {
        build_flags: Vec::new(),
        ..identity("1")
    };
    assert_eq!(refused_field(&hello(3, "fresh", other_flags, 7, 1 << 20)), "engines");
    // Fault S11: the process that says HELLO is the one that was started.
    assert_eq!(refused_field(&hello(3, "fresh", identity("1"), 8, 1 << 20)), "pid");
    assert_eq!(
        refused_field(&hello(3, "fresh", identity("1"), 7, MIN_MAX_FRAME - 1)),
        "max_frame"
    );
}

/// What the daemon starts from its asynchronous side goes through the same spawner and loses its launch credentials
/// too.
///
/// Proves TEST-04, WSUP-02.
#[tokio::test]
async fn stripped_tokio_child_environment_contains_neither_launch_nonce_variable() {
    use synapse_loader::process::{Command, Output, spawner};
    let tasks = crate::task::Tasks::new(tokio::runtime::Handle::current());
    let spawned = tasks.blocking("child", || {
        let command = Command::new("/usr/bin/env")
            .env(super::launch::WORKER_ID, "w-1")
            .env("SYNAPSE_LAUNCH_NONCE", "secret")
            .env("SYNAPSE_LAUNCH_NONCE_FILE", "/secret")
            .stdout(Output::Capture { limit: 1 << 16 });
        let child = spawner().spawn(command).unwrap();
        child.wait_with_output(Duration::from_secs(60)).unwrap().stdout
    });
    let printed = String::from_utf8(spawned.await.unwrap()).unwrap();
    assert!(printed.contains("SYNAPSE_WORKER_ID=w-1"), "{printed}");
    assert!(!printed.contains("NONCE") && !printed.contains("secret"), "{printed}");
}

/// Fault S1: the smaller offer is what both sides keep. The host's side refuses beyond it in both directions; the
/// worker's side is tried in `tests/faults`.
///
/// Proves WPROTO-08.
#[test]
fn the_negotiated_frame_size_is_the_one_in_force() {
    let small = hello(3, "fresh", identity("1"), 7, MIN_MAX_FRAME);
    assert_eq!(check_hello(&plan(), "fresh", 7, &small).unwrap(), MIN_MAX_FRAME);
    let mut rig = Rig::new(|mut worker| worker.write(&[(MIN_MAX_FRAME + 1).to_le_bytes().to_vec()]));
    rig.connection.set_max_frame(MIN_MAX_FRAME);
    let too_long = vec![0u8; MIN_MAX_FRAME as usize + 4];
    let request = embed(9, 1, too_long.len() as u64);
    let refused = run(
        &mut rig.connection,
        &request,
        Some(&too_long),
        terms(9, PATIENT, &Quiet),
    );
    assert!(
        matches!(refused, Err(ExchangeError::Engine(_))),
        "the worker lives: {refused:?}"
    );
    let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
    let max = MIN_MAX_FRAME;
    assert!(
        matches!(fault, Fault::Frame(FrameError::TooLong { length, max: agreed }) if length == max + 1 && agreed == max)
    );
}

/// A call that nobody cancels.
struct Quiet;

impl CallControl for Quiet {
    fn cancelled(&self) -> bool {
        false
    }

    fn checkpoint(&self, _done: u64, _total: u64) -> Flow {
        Flow::Continue
    }
}

/// A call that is cancelled from the start.
struct CancelledCall;

impl CallControl for CancelledCall {
    fn cancelled(&self) -> bool {
        true
    }

    fn checkpoint(&self, _done: u64, _total: u64) -> Flow {
        Flow::Cancel
    }
}

/// The scripted worker's end of the socket.
struct Scripted {
    stream: Stream,
    decoder: Decoder,
}

impl Scripted {
    /// The next control message from the host, with its raw frame skipped.
    fn read(&mut self) -> Option<HostMessage> {
        let payload = self.payload()?;
        let Ok(Parsed::Message(message)) = HostMessage::parse(&payload) else {
            panic!("the host sent no message: {payload:?}");
        };
        if message.raw_bytes() > 0 {
            self.payload()?;
        }
        Some(message)
    }

    fn payload(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(payload) = self.decoder.next_payload().unwrap() {
                return Some(payload);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk, None) {
                Ok(Some(0) | None) | Err(_) => return None,
                Ok(Some(count)) => self.decoder.feed(&chunk[..count]),
            }
        }
    }

    fn write(&mut self, pieces: &[Vec<u8>]) {
        for piece in pieces {
            // A host that gave up is what some tests want.
            if self.stream.write_all(piece, None).is_err() {
                return;
            }
        }
    }
}

struct Rig {
    connection: Connection,
    worker: Option<JoinHandle<()>>,
}

impl Rig {
    /// A connected pair; `script` runs at the worker's end after it has read one request.
    fn new(script: impl FnOnce(Scripted) + Send + 'static) -> Self {
        let (ours, theirs) = Stream::pair().unwrap();
        let worker = std::thread::spawn(move || {
            let mut scripted = Scripted {
                stream: theirs,
                decoder: Decoder::new(1 << 20),
            };
            if scripted.read().is_some() {
                script(scripted);
            }
        });
        Self {
            connection: Connection::new(ours, 1 << 20),
            worker: Some(worker),
        }
    }

    fn exchange(&mut self, req_id: u64, budgets: Budgets, control: &dyn CallControl) -> Result<Reply, ExchangeError> {
        run(
            &mut self.connection,
            &embed(req_id, 1, 8),
            Some(&[0; 8]),
            terms(req_id, budgets, control),
        )
    }

    fn embed(&mut self, req_id: u64, budgets: Budgets, control: &dyn CallControl) -> Result<Reply, Fault> {
        self.exchange(req_id, budgets, control).map_err(|error| match error {
            ExchangeError::Fault(fault) => fault,
            ExchangeError::Engine(error) => panic!("expected a fault, got the engine's {error}"),
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The script ends when its socket does.
        self.connection = Connection::new(Stream::pair().unwrap().0, 1024);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn terms(req_id: u64, budgets: Budgets, control: &dyn CallControl) -> Terms<'_> {
    Terms {
        req_id,
        phase: Phase::Inference,
        budgets,
        control,
    }
}

fn embed(req_id: u64, model_ref: u64, raw_bytes: u64) -> HostMessage {
    let items = vec![message::BatchItem {
        id: 0,
        n_tokens: 2,
        doc_start: None,
    }];
    let budget = Budget {
        deadline_ms: None,
        threads: 1,
    };
    HostMessage::EmbedBatch {
        req_id,
        model_ref,
        budget,
        items,
        type_ids: false,
        raw_bytes,
    }
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(payload, u32::MAX, &mut bytes).unwrap();
    bytes
}

fn control(message: &WorkerMessage) -> Vec<u8> {
    frame(&message.to_payload())
}

/// A reply header for one vector of two values.
fn vectors(req_id: u64) -> Vec<u8> {
    control(&WorkerMessage::Vectors {
        req_id,
        dims: 2,
        n: 1,
        raw_bytes: 8,
    })
}

fn progress(req_id: u64, completed: u64) -> Vec<u8> {
    control(&WorkerMessage::Progress {
        req_id,
        phase: message::Phase::Inference,
        completed,
        total: Some(1_000),
    })
}

/// Proves TEST-07, WPROTO-27.
#[test]
fn terminal_short_raw_then_eof_faults_real_host() {
    let mut short = frame(&[1; 8]);
    short.truncate(9);
    let mut rig = Rig::new(move |mut worker| worker.write(&[vectors(1), short]));
    let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
    assert!(
        matches!(fault, Fault::Frame(FrameError::Truncated { have: 9, want: 12 })),
        "{fault:?}"
    );
    assert_eq!(fault.stage(), Stage::Exit);
    // A whole frame that is shorter than declared is as bad.
    let mut rig = Rig::new(|mut worker| worker.write(&[vectors(1), frame(&[1; 4])]));
    let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
    assert!(
        matches!(fault, Fault::Raw(RawLength { expected: 8, found: 4 })),
        "{fault:?}"
    );
}

/// Proves TEST-08, WPROTO-27.
#[test]
fn raw_payload_longer_than_terminal_header_faults_real_host() {
    let mut rig = Rig::new(|mut worker| worker.write(&[vectors(1), frame(&[1; 12])]));
    let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
    assert!(
        matches!(fault, Fault::Raw(RawLength { expected: 8, found: 12 })),
        "{fault:?}"
    );
    // A header whose own counts disagree is refused before its raw frame is read.
    let lying = control(&WorkerMessage::Vectors {
        req_id: 1,
        dims: 2,
        n: 1,
        raw_bytes: 12,
    });
    let mut rig = Rig::new(move |mut worker| worker.write(&[lying, frame(&[1; 12])]));
    let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
    assert!(
        matches!(fault, Fault::Raw(RawLength { expected: 8, found: 12 })),
        "{fault:?}"
    );
}

/// Proves TEST-09, WPROTO-27.
#[test]
fn progress_between_terminal_header_and_raw_faults_real_host() {
    let mut rig = Rig::new(|mut worker| worker.write(&[vectors(1), progress(1, 1), frame(&[1; 8])]));
    let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
    assert!(matches!(fault, Fault::Raw(RawLength { expected: 8, .. })), "{fault:?}");
}

/// Work of many silence windows ends well, because each window sees progress.
///
/// Proves TEST-12, WSUP-04.
#[test]
fn real_transport_progress_renews_multiple_idle_windows() {
    let mut rig = Rig::new(|mut worker| {
        for completed in 1..=10 {
            std::thread::sleep(WINDOW * 3 / 10);
            worker.write(&[progress(1, completed)]);
        }
        worker.write(&[vectors(1), frame(&[1; 8])]);
    });
    let reply = rig
        .exchange(1, IMPATIENT, &Quiet)
        .expect("three windows of work, each with progress");
    assert_eq!(reply.raw, [1; 8]);
}

/// Bytes of a frame that never completes do not renew the window.
///
/// Proves TEST-13, WSUP-08.
#[test]
fn fragmented_progress_crossing_idle_deadline_faults_real_host() {
    let mut rig = Rig::new(|mut worker| {
        let message = progress(1, 1);
        for byte in message {
            std::thread::sleep(WINDOW / 10);
            worker.write(&[vec![byte]]);
        }
    });
    let fault = rig.embed(1, IMPATIENT, &Quiet).unwrap_err();
    assert!(matches!(fault, Fault::Expired(Expired::Silence { .. })), "{fault:?}");
    assert_eq!(fault.stage(), Stage::Timeout);
}

/// A heartbeat without work is a fault at once, not a sign of life.
///
/// Proves WSUP-05.
#[test]
fn a_heartbeat_is_a_protocol_fault() {
    let mut rig = Rig::new(|mut worker| worker.write(&[progress(1, 1), progress(1, 1)]));
    let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
    assert!(
        matches!(
            fault,
            Fault::Progress(ProgressFault::NotAdvancing { last: 1, found: 1 })
        ),
        "{fault:?}"
    );
    assert_eq!(fault.stage(), Stage::Protocol);
}

/// Fault S13: ids are checked on every reply, errors included. Fault S14: the kind of a reply decides what follows.
///
/// Proves WPROTO-16.
#[test]
fn replies_of_another_request_or_kind_are_faults() {
    let error = |req_id| {
        let (code, msg) = ("oom".to_owned(), String::new());
        control(&WorkerMessage::Err {
            req_id,
            code,
            state: EngineState::Usable,
            msg,
        })
    };
    for wrong in [
        vectors(2),
        error(2),
        error(0),
        control(&WorkerMessage::Unloaded { req_id: 2 }),
    ] {
        let mut rig = Rig::new(move |mut worker| worker.write(&[wrong]));
        let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
        assert!(matches!(fault, Fault::WrongId { expected: 1, .. }), "{fault:?}");
    }
    let scores = control(&WorkerMessage::Scores {
        req_id: 1,
        n: 1,
        raw_bytes: 4,
    });
    let unknown = frame(br#"{"type":"ADMITTED","req_id":1}"#);
    for wrong in [
        scores,
        control(&WorkerMessage::Unloaded { req_id: 1 }),
        unknown,
        frame(b"not json"),
    ] {
        let mut rig = Rig::new(move |mut worker| worker.write(&[wrong]));
        let fault = rig.embed(1, PATIENT, &Quiet).unwrap_err();
        assert_eq!(fault.stage(), Stage::Protocol, "{fault:?}");
    }
}

/// A doubled reply is met before the next request is written, so it can never become that request's answer.
#[test]
fn a_doubled_reply_never_answers_the_next_request() {
    let mut rig = Rig::new(|mut worker| {
        worker.write(&[vectors(1), frame(&[1; 8]), vectors(1), frame(&[9; 8])]);
        assert!(worker.read().is_none(), "no second request may be written");
    });
    assert_eq!(rig.exchange(1, PATIENT, &Quiet).unwrap().raw, [1; 8]);
    while rig.connection.expect_quiet().is_ok() {
        std::thread::yield_now();
    }
    let fault = rig.embed(2, PATIENT, &Quiet).unwrap_err();
    assert!(matches!(fault, Fault::Unsolicited { .. }), "{fault:?}");
}

/// A cancelled call says CANCEL once and still reads its reply, so the stream is in order for the next request.
///
/// Proves WSUP-10.
#[test]
fn a_cancelled_exchange_drains_its_reply() {
    static CANCELS: AtomicBool = AtomicBool::new(false);
    let mut rig = Rig::new(|mut worker| {
        assert_eq!(worker.read(), Some(HostMessage::Cancel { req_id: 1 }));
        CANCELS.store(true, Ordering::Release);
        worker.write(&[vectors(1), frame(&[1; 8])]);
        assert!(
            matches!(worker.read(), Some(HostMessage::EmbedBatch { req_id: 2, .. })),
            "exactly one CANCEL"
        );
        worker.write(&[vectors(2), frame(&[2; 8])]);
    });
    assert_eq!(rig.exchange(1, PATIENT, &CancelledCall).unwrap().raw, [1; 8]);
    assert!(CANCELS.load(Ordering::Acquire));
    assert_eq!(rig.exchange(2, PATIENT, &Quiet).unwrap().raw, [2; 8]);
}

/// A worker's own error leaves the stream in order; a type that it does not know is an absent ability.
///
/// Proves WPROTO-25, ERR-03.
#[test]
fn engine_errors_keep_the_worker() {
    use synapse_core::engine::EngineErrorCode as Code;
    for (name, code) in [
        ("artifact_invalid", Code::ArtifactInvalid),
        ("oom", Code::OutOfMemory),
        ("config_invalid", Code::ConfigInvalid),
        ("unknown_type", Code::Unsupported),
        ("of a later version", Code::Internal),
    ] {
        let error = WorkerMessage::Err {
            req_id: 1,
            code: name.to_owned(),
            state: EngineState::Usable,
            msg: "why".to_owned(),
        };
        let mut rig = Rig::new(move |mut worker| {
            worker.write(&[control(&error)]);
            worker.read();
            worker.write(&[vectors(2), frame(&[2; 8])]);
        });
        match rig.exchange(1, PATIENT, &Quiet) {
            Err(ExchangeError::Engine(error)) => assert_eq!((error.code, error.message.as_str()), (code, "why")),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(rig.exchange(2, PATIENT, &Quiet).unwrap().raw, [2; 8]);
    }
}
