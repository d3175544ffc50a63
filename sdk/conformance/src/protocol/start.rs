//! How a worker starts: describing, HELLO, what it is let in with (WP-01 to WP-16).

use std::time::Duration;

use synapse_loader::process::{Command, Output, spawner};
use synapse_wire::worker::message::EngineKind;
use synapse_wire::worker::{MIN_MAX_FRAME, PROTOCOL_VERSION, WorkerMessage};

use super::{BOUND, Desk, NONCE, tail};
use crate::catalogue::{Check, Level, Run, Stop, Verdict, fail};
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "worker-describe",
        level: Level::Full,
        rules: &["WP-01", "WP-02", "WP-03"],
        says: "The program describes the bundle in one line, the same every time, with arguments in any order.",
        why: "What serves later is compared with it.",
        fix: "Print the descriptor from constants; log to standard error.",
        run: Run::Protocol(describe),
    },
    Check {
        id: "worker-hello",
        level: Level::Core,
        rules: &["WP-10", "WP-11", "WP-12", "WP-15", "WP-73", "WP-74"],
        says: "The worker connects within ten seconds and sends HELLO and nothing else: version 3, the nonce, its own process id.",
        why: "Nothing is believed before it is known who speaks.",
        fix: "Repeat --nonce, use exec in a wrapper script, open models by LOAD only.",
        run: Run::Protocol(hello),
    },
    Check {
        id: "worker-identity",
        level: Level::Core,
        rules: &["WP-13"],
        says: "HELLO names the bundle and the engines as the descriptor has them.",
        why: "What serves is what was described.",
        fix: "Make both from one place; one row for each kind.",
        run: Run::Protocol(identity),
    },
    Check {
        id: "worker-refused",
        level: Level::Full,
        rules: &["WP-16"],
        says: "A connection that closes instead of HELLO_ACK ends the process, with a code that is not 0.",
        why: "It was refused; trying again would be a loop.",
        fix: "Treat the end of the stream before HELLO_ACK as an error.",
        run: Run::Protocol(refused),
    },
    Check {
        id: "worker-offers-frames",
        level: Level::Core,
        rules: &["WP-14"],
        says: "HELLO offers frames of at least 65,536 bytes.",
        why: "Every control message has to fit.",
        fix: "Offer 67,108,864 unless memory is short.",
        run: Run::Protocol(offers),
    },
    Check {
        id: "worker-settings",
        level: Level::Full,
        rules: &["WP-05"],
        says: "A setting that the program does not know makes LOAD config_invalid, and is named.",
        why: "A setting that nobody reads is an operator's mistake.",
        fix: "Check the keys of --settings, and answer LOAD with the one that is unknown.",
        run: Run::Protocol(settings),
    },
    Check {
        id: "worker-output",
        level: Level::Full,
        rules: &["WP-04"],
        says: "What the worker prints while it serves is text, and no protocol.",
        why: "Both streams become log lines.",
        fix: "Write frames to the socket only.",
        run: Run::Protocol(output),
    },
    Check {
        id: "worker-files",
        level: Level::Full,
        rules: &["WP-01", "WP-62"],
        says: "Temporary files go beside the socket, into PATH with .tmp for .sock, and nowhere else.",
        why: "The daemon removes them when the worker cannot; the bundle's copy is checked by its digest.",
        fix: "Make that folder at start, and point caches and TMPDIR of native libraries to it.",
        run: Run::Protocol(files),
    },
];

fn describe(desk: &Desk) -> Verdict {
    let describe = |first: bool| {
        let command = Command::new(desk.program()?);
        let command = if first {
            command.arg("--plugin").arg(&desk.job.bundle).arg("--describe")
        } else {
            command.arg("--describe").arg("--plugin").arg(&desk.job.bundle)
        };
        let keep = Output::Capture { limit: 1 << 20 };
        let command = command
            .inherit_env("LD_LIBRARY_PATH")
            .dir("/")
            .stdout(keep)
            .stderr(keep);
        let child = match spawner().spawn(command) {
            Ok(child) => child,
            Err(error) => return fail(format!("the program does not start: {error}")),
        };
        let Ok(finished) = child.wait_with_output(BOUND) else {
            return fail(format!("--describe did not end within {BOUND:?}"));
        };
        if finished.status.code() != Some(0) {
            return fail(format!(
                "--describe ended with {}{}",
                finished.status,
                tail(Some(&finished))
            ));
        }
        let text = String::from_utf8_lossy(&finished.stdout).into_owned();
        if text.len() > 256 * 1024 || text.trim_end().lines().count() != 1 {
            return fail(format!(
                "--describe printed {} bytes, expected one line of at most 256 KiB",
                text.len()
            ));
        }
        Ok::<String, Stop>(text.trim_end().to_owned())
    };
    let known = desk.descriptor()?;
    for first in [true, false, true] {
        let text = describe(first)?;
        match synapse_loader::Descriptor::from_json(&text) {
            Ok(found) if found == known => {}
            Ok(_) => return fail("--describe gives another descriptor than before"),
            Err(error) => return fail(format!("--describe: {error}")),
        }
    }
    Ok(())
}

fn hello(desk: &Desk) -> Verdict {
    let started = std::time::Instant::now();
    let mut peer = desk.start()?;
    let took = started.elapsed();
    let WorkerMessage::Hello { v, nonce, pid, .. } = &peer.hello else {
        return fail(format!(
            "the first message is {}, expected HELLO",
            super::type_of(&peer.hello)
        ));
    };
    if *v != PROTOCOL_VERSION {
        return fail(format!("v is {v}, expected {PROTOCOL_VERSION}"));
    }
    if nonce != NONCE {
        return fail(format!("the nonce is {nonce:?}, expected {NONCE:?}"));
    }
    if *pid != peer.pid {
        return fail(format!("the process id is {pid}, expected {}", peer.pid));
    }
    peer.is_quiet()?;
    if took > Duration::from_secs(10) {
        return fail(format!("HELLO came after {} s, expected at most 10", took.as_secs()));
    }
    Ok(())
}

fn identity(desk: &Desk) -> Verdict {
    let peer = desk.start()?;
    let WorkerMessage::Hello { bundle, engines, .. } = &peer.hello else {
        return fail("the first message is not HELLO");
    };
    if (bundle.id.as_str(), bundle.version.as_str()) != (desk.job.id.as_str(), desk.job.version.as_str()) {
        return fail(format!(
            "bundle {} {}, expected {} {}",
            bundle.id, bundle.version, desk.job.id, desk.job.version
        ));
    }
    let described = desk.descriptor()?;
    let mut expected: Vec<EngineKind> = described
        .supports
        .iter()
        .map(|row| match row.kind {
            synapse_core::engine::EngineKind::Embed => EngineKind::Embed,
            synapse_core::engine::EngineKind::Rerank => EngineKind::Rerank,
            synapse_core::engine::EngineKind::Generate => EngineKind::Generate,
        })
        .collect();
    expected.sort();
    expected.dedup();
    let mut found: Vec<EngineKind> = engines.iter().map(|row| row.kind).collect();
    found.sort();
    if found != expected {
        return fail(format!(
            "engines of the kinds {found:?}, the descriptor has {expected:?}"
        ));
    }
    for row in engines {
        let identity = &described.identity;
        if (&row.engine, &row.version, &row.build_flags) != (&identity.engine, &identity.version, &identity.build_flags)
        {
            return fail(format!("engine {row:?}, the descriptor has {identity:?}"));
        }
    }
    Ok(())
}

fn refused(desk: &Desk) -> Verdict {
    let finished = desk.start()?.close(BOUND)?;
    match finished.status.code() {
        Some(code) if code != 0 => Ok(()),
        _ => fail(format!(
            "the worker ended with {}, expected a code that is not 0",
            finished.status
        )),
    }
}

fn offers(desk: &Desk) -> Verdict {
    match desk.start()?.hello {
        WorkerMessage::Hello { max_frame, .. } if max_frame < MIN_MAX_FRAME => {
            fail(format!("max_frame is {max_frame}, expected at least {MIN_MAX_FRAME}"))
        }
        _ => Ok(()),
    }
}

fn settings(desk: &Desk) -> Verdict {
    let key = "no-such-setting";
    let mut settings = desk.job.settings.clone();
    settings.push((key.to_owned(), "1".to_owned()));
    let model = desk.first_model()?;
    let mut peer = desk.start_with(&settings)?;
    peer.acknowledge(u32::MAX);
    let reply = peer.ask_load(&model, super::files(&model), |_| {})?;
    reply.refuses("LOAD under an unknown setting", &["config_invalid"])?;
    match &reply.message {
        WorkerMessage::Err { msg, .. } if !msg.contains(key) => fail(format!("the refusal does not name {key}: {msg}")),
        _ => Ok(()),
    }
}

fn output(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.any()?;
    let items = loaded.items(1, &[5, 9]);
    peer.compute(&loaded, &items)?;
    let finished = peer.close(BOUND)?;
    for (name, bytes) in [("output", &finished.stdout), ("error", &finished.stderr)] {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return fail(format!(
                "standard {name} is not text: its first bytes are {:?}",
                &bytes[..bytes.len().min(16)]
            ));
        };
        if let Some(line) = text
            .lines()
            .find(|line| line.contains("\"type\":") && line.contains("\"req_id\":"))
        {
            return fail(format!("standard {name} holds a message of the protocol: {line}"));
        }
    }
    Ok(())
}

/// Every path below a folder.
fn below(folder: &std::path::Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        into.push(path.display().to_string());
        if path.is_dir() {
            below(&path, into);
        }
    }
}

fn files(desk: &Desk) -> Verdict {
    let work = &desk.job.work;
    let model = desk.first_model()?;
    let places = [
        work.join("home"),
        work.join("tmp"),
        work.join("cwd"),
        desk.job.bundle.clone(),
        work.join("run"),
    ];
    let all = || {
        let mut found = Vec::new();
        places.iter().for_each(|folder| below(folder, &mut found));
        found
    };
    let before = all();
    let mut peer = desk.ready()?;
    let loaded = peer.load(&model)?;
    let items = loaded.items(2, &[5, 9]);
    peer.compute(&loaded, &items)?;
    let beside = work.join("run/w-1").display().to_string();
    let new = all()
        .into_iter()
        .find(|path| !before.contains(path) && !path.starts_with(&beside));
    drop(peer);
    match new {
        None => Ok(()),
        Some(path) => fail(format!("{} was made", path.replace(&*work.to_string_lossy(), "…"))),
    }
}

/// The kinds that give values in a raw frame.
pub(super) const BATCHED: &[Kind] = &[Kind::Embed, Kind::Rerank];
