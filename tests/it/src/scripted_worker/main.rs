//! A worker that lies or dies on command, in the real worker's place. Its own file name is the script.
//!
//! It describes bundles as the real worker does, so that they are accepted, and serves models of 32 dimensions whose
//! vectors are made of their ids. What it does wrong happens at its start, at a LOAD, or with a request that holds an item
//! of 16 tokens; everything else is answered as the protocol says. Each PING adds a byte to the file `pings` beside the
//! program.
//!
//! | file | purpose |
//! |---|---|
//! | `script.rs` | the scripts and their names |
//! | `peer.rs` | the connection, and honest messages |
//! | `main.rs` | what is done when |

#![forbid(unsafe_code)]

mod peer;
mod script;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use synapse_wire::worker::message::{EngineState, Phase};
use synapse_wire::worker::{HostMessage, WorkerMessage};

use peer::{Peer, control, frame, hello, vectors};
use script::{How, Lie, Moment, Script, Start};

/// An item of so many tokens makes the script's moment.
const STRIKE: u32 = 16;

/// Between two bytes of a dripped frame: a whole one takes far longer than any window of the tests.
const DRIP: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--describe") {
        return synapse_worker::run();
    }
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).cloned()
    };
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (Some(socket), Some(nonce), Some(script)) = (value("--socket"), value("--nonce"), Script::parse(name)) else {
        return ExitCode::from(2);
    };
    if script == Script::Start(Start::Mute) {
        return ExitCode::SUCCESS;
    }
    let Some(mut peer) = Peer::connect(Path::new(&socket)) else {
        return ExitCode::FAILURE;
    };
    let first = hello(script, &nonce);
    match script {
        Script::Start(Start::Drip) => drip(&mut peer, &first),
        _ => peer.send(&first),
    }
    if let Script::Start(_) = script {
        // Stays until it is ended: a daemon that refuses a worker does not leave it running.
        stay();
    }
    let worker = Worker {
        script,
        beside: program.with_file_name(""),
    };
    worker.serve(&mut peer)
}

fn stay() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Writes bytes one at a time; ends the process when the daemon closes.
fn drip(peer: &mut Peer, bytes: &[u8]) {
    for byte in bytes {
        peer.send(&[*byte]);
        peer.pause(DRIP);
    }
}

struct Worker {
    script: Script,
    /// The program's folder, which outlives its generations.
    beside: PathBuf,
}

impl Worker {
    /// Answers until the daemon is gone, or the script ends it.
    fn serve(&self, peer: &mut Peer) -> ExitCode {
        while let Some((request, ids)) = peer.next() {
            match request {
                HostMessage::HelloAck { .. } => {}
                HostMessage::Shutdown {} => return ExitCode::SUCCESS,
                HostMessage::Load { req_id, .. } => {
                    if let Script::Die(Moment::Load, how) = self.script
                        && self.first_time()
                    {
                        die(how);
                    }
                    peer.send(&control(&WorkerMessage::Loaded {
                        req_id,
                        model_ref: 1,
                        dims: peer::DIMS,
                        max_tokens: STRIKE,
                        memory_bytes: 0,
                        cold_load_ms: 0,
                    }));
                }
                HostMessage::EmbedBatch { req_id, items, .. } => {
                    let strikes = items.iter().any(|item| item.n_tokens == STRIKE);
                    let (header, raw) = vectors(req_id, &items, &ids);
                    match self.script {
                        Script::Lie(lie) if strikes => self.lie(lie, peer, req_id, (&header, &raw)),
                        Script::Die(moment, how) if strikes => self.die_at(moment, how, peer, (&header, &raw)),
                        _ => peer.send(&[control(&header), frame(&raw)].concat()),
                    }
                }
                HostMessage::Ping { req_id } => {
                    self.count_ping();
                    peer.send(&control(&WorkerMessage::Pong {
                        req_id,
                        rss_mb: 1,
                        models_loaded: 1,
                        placement_share: None,
                    }));
                }
                HostMessage::Unload { req_id, .. } => peer.send(&control(&WorkerMessage::Unloaded { req_id })),
                HostMessage::Cancel { .. } => {}
                HostMessage::Rerank { req_id, .. } | HostMessage::Generate { req_id, .. } => {
                    peer.send(&peer::error(req_id, "unsupported", EngineState::Usable));
                }
            }
        }
        ExitCode::SUCCESS
    }

    /// Whether no generation before this one came here.
    fn first_time(&self) -> bool {
        std::fs::File::create_new(self.beside.join("struck")).is_ok()
    }

    fn count_ping(&self) {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.beside.join("pings"));
        // A ping that cannot be counted fails the test that counts.
        let _ = file.and_then(|mut file| file.write_all(b"."));
    }

    fn die_at(&self, moment: Moment, how: How, peer: &mut Peer, (header, raw): (&WorkerMessage, &[u8])) {
        let (header, raw) = (control(header), frame(raw));
        match moment {
            // Its moment is another one.
            Moment::Load => peer.send(&[header, raw].concat()),
            Moment::Batch => die(how),
            Moment::Raw => {
                peer.send(&[&header, &raw[..raw.len() / 2]].concat());
                die(how);
            }
            Moment::Idle => {
                peer.send(&[header, raw].concat());
                die(how);
            }
        }
    }

    fn lie(&self, lie: Lie, peer: &mut Peer, req_id: u64, (header, raw): (&WorkerMessage, &[u8])) {
        let honest = || [control(header), frame(raw)].concat();
        let progress = |req_id, phase, completed, total| {
            control(&WorkerMessage::Progress {
                req_id,
                phase,
                completed,
                total: Some(total),
            })
        };
        let work = |completed| progress(req_id, Phase::Inference, completed, 100);
        let bytes = match lie {
            Lie::ShortRaw => [control(header), frame(&raw[..raw.len() - 4])].concat(),
            Lie::ShortRawThenEof => {
                let cut = frame(raw);
                peer.send(&[&control(header), &cut[..cut.len() - 1]].concat());
                std::process::exit(0);
            }
            Lie::LongRaw => [control(header), frame(&[raw, &[0; 4]].concat())].concat(),
            Lie::ProgressBeforeRaw => [control(header), work(1), frame(raw)].concat(),
            Lie::Oversize => [&u32::MAX.to_le_bytes(), raw].concat(),
            Lie::BadJson => frame(b"{\"type\":\"VECTORS\",\"req_id\":"),
            Lie::UnknownReply => frame(format!("{{\"type\":\"ADMITTED\",\"req_id\":{req_id}}}").as_bytes()),
            Lie::WrongId => {
                let mut header = header.clone();
                if let WorkerMessage::Vectors { req_id, .. } = &mut header {
                    *req_id += 1;
                }
                [control(&header), frame(raw)].concat()
            }
            Lie::ErrorWithWrongId => peer::error(req_id + 1, "oom", EngineState::Usable),
            Lie::WrongKind => [
                control(&WorkerMessage::Scores {
                    req_id,
                    n: 1,
                    raw_bytes: 4,
                }),
                frame(&[0; 4]),
            ]
            .concat(),
            Lie::WrongKindWithoutRaw => control(&WorkerMessage::Unloaded { req_id }),
            Lie::WrongCount => {
                let raw = [raw, raw].concat();
                let header = WorkerMessage::Vectors {
                    req_id,
                    dims: peer::DIMS,
                    n: 2,
                    raw_bytes: raw.len() as u64,
                };
                [control(&header), frame(&raw)].concat()
            }
            Lie::WrongDims => {
                let header = WorkerMessage::Vectors {
                    req_id,
                    dims: peer::DIMS - 1,
                    n: 1,
                    raw_bytes: raw.len() as u64 - 4,
                };
                [control(&header), frame(&raw[4..])].concat()
            }
            Lie::Duplicate => [honest(), honest()].concat(),
            Lie::Heartbeat => [work(1), work(1), honest()].concat(),
            Lie::ZeroProgress => [work(0), honest()].concat(),
            Lie::BackwardProgress => [work(2), work(1), honest()].concat(),
            Lie::StaleProgress => [progress(req_id - 1, Phase::Inference, 1, 100), honest()].concat(),
            Lie::SetupProgress => [progress(req_id, Phase::Setup, 1, 100), honest()].concat(),
            Lie::ChangedTotal => [work(1), progress(req_id, Phase::Inference, 2, 99), honest()].concat(),
            Lie::Drip => {
                drip(peer, &honest());
                return;
            }
            Lie::Silent => return,
            Lie::EngineBad => peer::error(req_id, "device", EngineState::EngineBad),
            Lie::LastWords => {
                let mut out = std::io::stderr().lock();
                for line in 0..2_000 {
                    let _ = writeln!(out, "line {line:05}");
                }
                // Without an end of line.
                let _ = out.write_all(b"the last words");
                let _ = out.flush();
                std::process::abort();
            }
            Lie::None => honest(),
        };
        peer.send(&bytes);
    }
}

/// Ends or stops this process.
fn die(how: How) {
    let send = |signal| {
        // What it does to this process is the outcome.
        let _ = kill_process(getpid(), signal);
    };
    match how {
        How::Kill => send(Signal::KILL),
        // The standard library's handler takes the first one for a stack overflow that is none, and steps aside.
        How::Segv => (0..2).for_each(|_| send(Signal::SEGV)),
        How::Abort => std::process::abort(),
        How::Exit => std::process::exit(0),
        How::Stop => send(Signal::STOP),
    }
    stay();
}
