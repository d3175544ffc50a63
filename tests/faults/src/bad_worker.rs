//! A worker that breaks one rule of the protocol: the real one behind a go-between that alters what passes.
//!
//! State: the two connections, what was seen so far. Callers: the conformance kit, as `--worker`. The mode is the part of
//! the program's name behind `--`, so that any number of bad workers are links to one program;
//! `tests/faults/src/kit.rs` says which check each fails.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use synapse_core::digest::sha256;
use synapse_loader::process::{Command, Output, spawner};
use synapse_wire::worker::frame::{Decoder, FrameError, encode};
use synapse_wire::worker::message::{EngineState, Parsed, Phase};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, WorkerMessage};

/// How long the real worker may take to connect.
const BOUND: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let name = arguments.next().unwrap_or_default();
    let mode = name.rsplit_once("--").map_or("", |(_, mode)| mode).to_owned();
    let arguments: Vec<String> = arguments.collect();
    let real = std::env::current_exe()
        .map(|path| path.with_file_name("synapse-worker-under-test"))
        .unwrap_or_default();
    if arguments.iter().any(|argument| argument == "--describe") {
        return describe(&real, &arguments, &mode, &PathBuf::from(format!("{name}.described")));
    }
    let code = serve(&real, arguments, &mode).unwrap_or(9);
    ExitCode::from(code)
}

fn describe(real: &Path, arguments: &[String], mode: &str, before: &Path) -> ExitCode {
    let keep = Output::Capture { limit: 1 << 20 };
    let command = Command::new(real).args(arguments).stdout(keep);
    let Ok(child) = spawner().spawn(command) else {
        return ExitCode::from(9);
    };
    let Ok(finished) = child.wait_with_output(BOUND) else {
        return ExitCode::from(9);
    };
    let mut text = String::from_utf8_lossy(&finished.stdout).into_owned();
    if mode == "describe-wanders" && before.exists() {
        text = text.replace("\"build_flags\":[]", "\"build_flags\":[\"later\"]");
    }
    let _ = std::fs::write(before, "");
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(
        finished
            .status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(9),
    )
}

/// What both directions know.
#[derive(Default)]
struct Known {
    /// HELLO_ACK was seen.
    let_in: bool,
    /// Something was computed.
    computed: bool,
    /// Requests with 5 ids, and loads with no threads.
    short: HashSet<u64>,
    no_threads: HashSet<u64>,
}

/// The way back to the daemon, and what is known.
struct Between {
    mode: String,
    up: Mutex<UnixStream>,
    known: Mutex<Known>,
}

impl Between {
    fn is(&self, mode: &str) -> bool {
        self.mode == mode
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes frames to the daemon, together.
    fn tell(&self, payloads: &[&[u8]]) {
        let mut stream = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = write(&mut stream, payloads);
    }

    fn tell_error(&self, req_id: u64, code: &str) {
        let message = WorkerMessage::Err {
            req_id,
            code: code.to_owned(),
            state: EngineState::Usable,
            msg: "made up".to_owned(),
        };
        self.tell(&[&message.to_payload()]);
    }
}

fn write(stream: &mut UnixStream, payloads: &[&[u8]]) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    for payload in payloads {
        let _ = encode(payload, u32::MAX, &mut bytes);
    }
    stream.write_all(&bytes)
}

/// A control frame and, where there is one, its raw frame.
fn with_raw<'a>(head: &'a [u8], raw: Option<&'a [u8]>) -> Vec<&'a [u8]> {
    std::iter::once(head).chain(raw).collect()
}

/// One direction, frame by frame.
struct Frames {
    stream: UnixStream,
    decoder: Decoder,
}

enum Frame {
    Whole(Vec<u8>),
    TooLong(u32),
    End,
}

impl Frames {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            decoder: Decoder::new(DEFAULT_MAX_FRAME),
        }
    }

    fn next(&mut self) -> Frame {
        let mut chunk = [0; 16 * 1024];
        loop {
            match self.decoder.next_payload() {
                Ok(Some(payload)) => return Frame::Whole(payload),
                Ok(None) => {}
                Err(FrameError::TooLong { length, .. }) => return Frame::TooLong(length),
                Err(FrameError::Truncated { .. }) => return Frame::End,
            }
            match self.stream.read(&mut chunk) {
                Ok(count) if count > 0 => self.decoder.feed(&chunk[..count]),
                _ => return Frame::End,
            }
        }
    }

    fn raw(&mut self, bytes: u64) -> Vec<u8> {
        match self.next() {
            Frame::Whole(payload) if bytes > 0 => payload,
            _ => Vec::new(),
        }
    }
}

fn serve(real: &Path, mut arguments: Vec<String>, mode: &str) -> std::io::Result<u8> {
    let value = |name: &str| arguments.iter().position(|argument| argument == name).map(|at| at + 1);
    let (Some(socket), settings) = (value("--socket"), value("--settings")) else {
        return Ok(2);
    };
    let outer = PathBuf::from(&arguments[socket]);
    let inner = outer.with_extension("inner.sock");
    arguments[socket] = inner.display().to_string();
    if let Some(settings) = settings.filter(|_| mode == "drops-settings") {
        arguments[settings] = "{}".to_owned();
    }
    if mode == "litters" {
        std::fs::write("litter", "")?;
    }
    // A check may start one worker after another in its folder.
    let _ = std::fs::remove_file(&inner);
    let listener = UnixListener::bind(&inner)?;
    let command = Command::new(real)
        .args(&arguments)
        .inherit_env("SYNAPSE_WORKER_ID")
        .stderr(Output::Capture { limit: 1 << 16 });
    let child = spawner().spawn(command).map_err(std::io::Error::other)?;
    // A worker that never connects is ended with this process, by the kit's time limit.
    let (down, _) = listener.accept()?;
    let up = UnixStream::connect(&outer)?;
    let between = Arc::new(Between {
        mode: mode.to_owned(),
        up: Mutex::new(up.try_clone()?),
        known: Mutex::default(),
    });
    let upward = {
        let (between, frames) = (Arc::clone(&between), Frames::new(down.try_clone()?));
        std::thread::spawn(move || to_daemon(&between, frames))
    };
    // Its own thread, since the process ends when the worker does, whatever the daemon says.
    let downward = Arc::clone(&between);
    std::thread::spawn(move || to_worker(&downward, Frames::new(up), down));
    let finished = child
        .wait_with_output(Duration::from_secs(600))
        .map_err(std::io::Error::other)?;
    let _ = upward.join();
    let _ = std::io::stderr().write_all(&finished.stderr);
    let known = between.known();
    let code = finished
        .status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(9);
    Ok(match code {
        0 if between.is("bad-exit") && known.let_in => 3,
        _ if between.is("exits-well") && !known.let_in => 0,
        code => {
            if between.is("lives-on") && code == 0 && known.let_in && !known.computed {
                // Until the kit ends it.
                loop {
                    std::thread::park();
                }
            }
            code
        }
    })
}

/// What the daemon says, on its way to the worker.
fn to_worker(between: &Between, mut frames: Frames, mut down: UnixStream) {
    loop {
        let payload = match frames.next() {
            Frame::Whole(payload) => payload,
            Frame::TooLong(_) if between.is("takes-long-frames") => {
                between.tell(&[&pong(0)]);
                return;
            }
            Frame::TooLong(length) => {
                let _ = down.write_all(&length.to_le_bytes());
                return;
            }
            Frame::End => {
                // The other direction holds this connection too, so its end has to be said.
                let _ = down.shutdown(Shutdown::Both);
                return;
            }
        };
        if between.is("strict-fields") && payload.windows(13).any(|window| window == b"a_later_field") {
            between.tell_error(0, "invalid_argument");
            continue;
        }
        match HostMessage::parse(&payload) {
            Ok(Parsed::Message(message)) => {
                let bytes = message.raw_bytes();
                let raw = (bytes > 0).then(|| frames.raw(bytes));
                if let HostMessage::HelloAck { max_frame, .. } = &message {
                    frames.decoder.set_max(*max_frame);
                    between.known().let_in = true;
                }
                if let Some(message) = altered(between, message) {
                    let _ = write(&mut down, &with_raw(&message.to_payload(), raw.as_deref()));
                }
            }
            Ok(Parsed::UnknownType { req_id, raw_bytes, .. }) => {
                let raw = (raw_bytes > 0).then(|| frames.raw(raw_bytes));
                if between.is("knows-no-unknown") {
                    between.tell_error(req_id, "internal");
                } else {
                    let _ = write(&mut down, &with_raw(&payload, raw.as_deref()));
                }
            }
            Err(_) if between.is("guesses") => between.tell_error(0, "internal"),
            _ => {
                let _ = write(&mut down, &[&payload]);
            }
        }
    }
}

/// What the worker hears instead; `None`: nothing.
fn altered(between: &Between, mut message: HostMessage) -> Option<HostMessage> {
    match &mut message {
        HostMessage::Load {
            req_id,
            files,
            runtime_config,
            ..
        } => {
            if between.is("trusts-digests") {
                for file in files {
                    let bytes = std::fs::read(&file.path).unwrap_or_default();
                    (file.sha256, file.size) = (sha256(&bytes).to_string(), bytes.len() as u64);
                }
            }
            if between.is("any-format") {
                (runtime_config.format, runtime_config.dtype) = ("bin".to_owned(), "f32".to_owned());
            }
            if runtime_config.threads == 0 {
                between.known().no_threads.insert(*req_id);
            }
        }
        HostMessage::EmbedBatch { req_id, budget, .. } => {
            let id = *req_id;
            let late = budget.deadline_ms.is_some();
            let mut known = between.known();
            known.computed = true;
            if message.raw_bytes() == 20 {
                known.short.insert(id);
            }
            drop(known);
            if late && between.is("dies-late") {
                std::process::exit(9);
            }
        }
        HostMessage::Unload { req_id, model_ref: 1 } if between.is("keeps-models") => {
            between.tell(&[&WorkerMessage::Unloaded { req_id: *req_id }.to_payload()]);
            return None;
        }
        HostMessage::Cancel { req_id } if between.is("answers-cancel") => between.tell_error(*req_id, "cancelled"),
        _ => {}
    }
    Some(message)
}

fn pong(req_id: u64) -> Vec<u8> {
    let message = WorkerMessage::Pong {
        req_id,
        rss_mb: 1,
        models_loaded: 0,
        placement_share: None,
    };
    message.to_payload()
}

/// What the worker says, on its way to the daemon.
fn to_daemon(between: &Arc<Between>, mut frames: Frames) {
    while let Frame::Whole(payload) = frames.next() {
        let Ok(Parsed::Message(mut message)) = WorkerMessage::parse(&payload) else {
            return;
        };
        let bytes = message.raw_bytes();
        let mut raw = (bytes > 0).then(|| frames.raw(bytes));
        let req_id = message.req_id().unwrap_or(0);
        if between.is("heartbeats") && matches!(message, WorkerMessage::Vectors { .. }) {
            let beat = WorkerMessage::Progress {
                req_id,
                phase: Phase::Inference,
                completed: 1,
                total: None,
            };
            between.tell(&[&beat.to_payload(), &beat.to_payload()]);
        }
        worsen(between, &mut message, raw.as_mut());
        let head = message.to_payload();
        between.tell(&with_raw(&head, raw.as_deref()));
        if between.is("prints-frames") {
            let _ = std::io::stdout().write_all(&[&head[..], b"\n"].concat());
        }
        if between.is("early") && matches!(message, WorkerMessage::Hello { .. }) {
            between.tell(&[&pong(0)]);
        }
        if between.is("doubles") && between.known().short.remove(&req_id) {
            let between = Arc::clone(between);
            std::thread::spawn(move || {
                // Nobody sends: the reply is read by then, and nothing else was asked for.
                let (_keep, never) = std::sync::mpsc::channel::<()>();
                let _ = never.recv_timeout(Duration::from_millis(100));
                between.tell(&[&pong(0)]);
            });
        }
    }
}

/// What the daemon hears instead.
fn worsen(between: &Between, message: &mut WorkerMessage, raw: Option<&mut Vec<u8>>) {
    let is = |mode: &str| between.is(mode);
    match message {
        WorkerMessage::Hello {
            v,
            nonce,
            bundle,
            pid,
            max_frame,
            ..
        } => {
            *pid = std::process::id();
            match between.mode.as_str() {
                "wrong-nonce" => "00".clone_into(nonce),
                "wrong-pid" => *pid += 1,
                "wrong-version" => *v = 4,
                "wrong-bundle" => "9.9.9".clone_into(&mut bundle.version),
                "small-frames" => *max_frame = 1000,
                _ => {}
            }
        }
        WorkerMessage::Vectors { dims, .. } => {
            let width = *dims as usize * 4;
            if let Some(raw) = raw {
                if is("nan-values") {
                    raw[..4].copy_from_slice(&f32::NAN.to_le_bytes());
                }
                if is("turns-rows") {
                    *raw = raw.chunks(width).rev().flatten().copied().collect();
                }
            }
        }
        WorkerMessage::Text { n_gen, .. } if is("counts-more") => *n_gen += 100,
        WorkerMessage::Err { req_id, code, .. } => {
            if is("forgets-numbers") && code == "input_too_long" {
                *req_id += 1;
            }
            if is("odd-code") && between.known().no_threads.contains(req_id) {
                "because".clone_into(code);
            }
        }
        _ => {}
    }
}
