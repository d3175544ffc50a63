//! Requests and replies (WP-20 to WP-39, WP-50, WP-51, WP-70 to WP-72).

use synapse_wire::worker::message::{EngineState, FinishReason};
use synapse_wire::worker::{HostMessage, MIN_MAX_FRAME, WorkerMessage};

use super::start::BATCHED;
use super::{Desk, Loaded, Peer, Reply, each_kind, files, tail, type_of};
use crate::catalogue::{Check, Level, Run, Stop, Verdict, fail, skip};
use crate::json;
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "worker-load",
        level: Level::Core,
        rules: &["WP-31", "WP-33"],
        says: "LOAD measures size and SHA-256 of every file, and never gives a model_ref twice.",
        why: "A file may have changed since the daemon looked.",
        fix: "Hash each file before you open it as a model, and answer artifact_invalid.",
        run: Run::Protocol(load),
    },
    Check {
        id: "worker-unserved",
        level: Level::Core,
        rules: &["WP-32"],
        says: "LOAD refuses a format, a dtype or a key of extra that the program does not know.",
        why: "Other numbers under the same fingerprint are corruption.",
        fix: "Answer unsupported for the first two, config_invalid for a key.",
        run: Run::Protocol(unserved),
    },
    Check {
        id: "worker-values",
        level: Level::Core,
        rules: &["WP-20", "WP-21", "WP-22", "WP-34", "WP-36"],
        says: "VECTORS and SCORES have one finite row an item, in one raw frame of the declared length.",
        why: "Vectors travel bit for bit, and each belongs to its item.",
        fix: "Write n times dims little-endian f32, and nothing between header and frame.",
        run: Run::Protocol(values),
    },
    Check {
        id: "worker-alone",
        level: Level::Full,
        rules: &["WP-35"],
        says: "An item's row is the same alone and in a batch.",
        why: "A query and its document meet in one space.",
        fix: "Mask padding; keep the items' order.",
        run: Run::Protocol(alone),
    },
    Check {
        id: "worker-text",
        level: Level::Core,
        rules: &["WP-37"],
        says: "TEXT has at most max_tokens tokens and as many ids, and a grammar is kept or refused.",
        why: "A constraint is kept or refused.",
        fix: "Count generated tokens; answer grammar_unavailable without grammars.",
        run: Run::Protocol(text),
    },
    Check {
        id: "worker-requests",
        level: Level::Core,
        rules: &["WP-24", "WP-30", "WP-38", "WP-51"],
        says: "A bad request gets one error that names it, is read to its end, and costs itself only.",
        why: "A refused request must not leave bytes behind for the next.",
        fix: "Read the raw frame before you judge the message; answer each request once.",
        run: Run::Protocol(requests),
    },
    Check {
        id: "worker-quiet",
        level: Level::Core,
        rules: &["WP-26"],
        says: "Between a reply and the next request the worker sends nothing.",
        why: "A doubled reply must not become somebody else's.",
        fix: "Send one reply, and no heartbeats.",
        run: Run::Protocol(quiet),
    },
    Check {
        id: "worker-errors",
        level: Level::Full,
        rules: &["WP-50"],
        says: "ERR has a code of the protocol's list and words.",
        why: "It is shown to people, and decided by.",
        fix: "Use the list; internal is for what is nobody else's.",
        run: Run::Protocol(errors),
    },
    Check {
        id: "worker-unload",
        level: Level::Core,
        rules: &["WP-39"],
        says: "UNLOAD frees the model, and PONG counts those that are loaded.",
        why: "Memory that was given back is given to others.",
        fix: "Forget the model and count it off.",
        run: Run::Protocol(unload),
    },
    Check {
        id: "worker-frame-bound",
        level: Level::Fault,
        rules: &["WP-14", "WP-23"],
        says: "A frame longer than agreed ends the worker before it is stored, and none is sent.",
        why: "Memory is bounded by what was agreed.",
        fix: "Compare the length with the agreed bound before you reserve it; answer invalid_argument for a reply that does not fit.",
        run: Run::Protocol(frame_bound),
    },
    Check {
        id: "worker-malformed",
        level: Level::Fault,
        rules: &["WP-25"],
        says: "A frame that is no message ends the worker in words, with a code that is not 0 and no signal.",
        why: "A partial result is worse than none.",
        fix: "Never guess: print what was wrong to standard error and end.",
        run: Run::Protocol(malformed),
    },
    Check {
        id: "worker-unknown-type",
        level: Level::Full,
        rules: &["WP-71", "WP-72"],
        says: "A message of an unknown type is skipped with its raw frame and answered with unknown_type.",
        why: "To a newer daemon that means: this worker has no such ability.",
        fix: "Read raw_bytes of whatever has a type; answer ERR unknown_type with its req_id.",
        run: Run::Protocol(unknown_type),
    },
    Check {
        id: "worker-unknown-fields",
        level: Level::Full,
        rules: &["WP-70"],
        says: "Fields that the program does not know are ignored, at every depth.",
        why: "A newer daemon serves an older worker.",
        fix: "Do not deny unknown fields when you parse.",
        run: Run::Protocol(unknown_fields),
    },
];

fn load(desk: &Desk) -> Verdict {
    let model = desk.first_model()?;
    let mut peer = desk.ready()?;
    let good = peer.load(&model)?;
    let copy = desk.job.work.join("copy");
    let mut listed = files(&model);
    let Some(first) = listed.first_mut() else {
        return skip("the model has no files");
    };
    let Ok(content) = std::fs::read(&first.path) else {
        return fail("the kit cannot read the model");
    };
    first.path = copy.display().to_string();
    let mut flipped = content.clone();
    if let Some(last) = flipped.last_mut() {
        *last ^= 1;
    }
    let longer = [content.as_slice(), &[0]].concat();
    for (what, bytes) in [("one bit was flipped", &flipped), ("one byte was added", &longer)] {
        if std::fs::write(&copy, bytes).is_err() {
            return fail("the kit cannot write its own file");
        }
        let reply = peer.ask_load(&model, listed.clone(), |_| {})?;
        reply.refuses(&format!("LOAD of a file in which {what}"), &["artifact_invalid"])?;
    }
    let second = peer.load(&model)?;
    if second.model_ref == good.model_ref {
        return fail(format!("model_ref {} was given twice", good.model_ref));
    }
    if second.max_tokens == 0 || (model.kind == Kind::Embed) != (second.dims > 0) {
        return fail(format!(
            "LOADED has dims {} and max_tokens {}",
            second.dims, second.max_tokens
        ));
    }
    if good.memory_bytes.abs_diff(second.memory_bytes) > good.memory_bytes / 10 + (1 << 20) {
        return fail(format!(
            "memory_bytes is {} and {} for the same model",
            good.memory_bytes, second.memory_bytes
        ));
    }
    Ok(())
}

fn unserved(desk: &Desk) -> Verdict {
    let model = desk.first_model()?;
    let mut peer = desk.ready()?;
    let reply = peer.ask_load(&model, files(&model), |config| {
        config.format = "no-such-format".to_owned()
    })?;
    reply.refuses("LOAD with format no-such-format", &["unsupported"])?;
    let reply = peer.ask_load(&model, files(&model), |config| config.dtype = "f7".to_owned())?;
    reply.refuses("LOAD with dtype f7", &["unsupported"])?;
    let reply = peer.ask_load(&model, files(&model), |config| {
        config.extra.insert("no-such-key".to_owned(), "1".to_owned());
    })?;
    reply.refuses("LOAD with extra no-such-key", &["config_invalid"])
}

/// The rows of a batch.
fn rows(peer: &mut Peer, loaded: &Loaded, items: &[Vec<i32>]) -> Result<Vec<Vec<f32>>, Stop> {
    let reply = peer.compute(loaded, items)?;
    let width = match (&reply.message, loaded.spec.kind) {
        (WorkerMessage::Vectors { dims, n, .. }, Kind::Embed) => {
            if (*dims, *n as usize) != (loaded.dims, items.len()) {
                return fail(format!(
                    "VECTORS of {n} times {dims}, expected {} times {}",
                    items.len(),
                    loaded.dims
                ));
            }
            *dims as usize
        }
        (WorkerMessage::Scores { n, .. }, Kind::Rerank) => {
            if *n as usize != items.len() {
                return fail(format!("SCORES of {n}, expected {}", items.len()));
            }
            1
        }
        (WorkerMessage::Err { code, msg, .. }, _) => return fail(format!("a good batch: ERR {code}: {msg}")),
        (other, _) => return fail(format!("{} to a batch", type_of(other))),
    };
    let values = reply.values();
    if values.len() != width * items.len() {
        return fail(format!(
            "a raw frame of {} values, expected {}",
            values.len(),
            width * items.len()
        ));
    }
    Ok(values.chunks(width.max(1)).map(<[f32]>::to_vec).collect())
}

fn values(desk: &Desk) -> Verdict {
    each_kind(BATCHED, |kind| {
        let (mut peer, loaded) = desk.loaded(kind)?;
        let items = loaded.items(3, &[1, 8, 30, 2]);
        for (at, row) in rows(&mut peer, &loaded, &items)?.iter().enumerate() {
            if let Some(value) = row.iter().find(|value| !value.is_finite()) {
                return fail(format!("the row of item {at} holds {value}"));
            }
        }
        Ok(())
    })
}

fn alone(desk: &Desk) -> Verdict {
    each_kind(BATCHED, |kind| {
        let (mut peer, loaded) = desk.loaded(kind)?;
        let items = loaded.items(4, &[6, 1, 25, 12]);
        let together = rows(&mut peer, &loaded, &items)?;
        for (at, item) in items.iter().enumerate() {
            let single = rows(&mut peer, &loaded, std::slice::from_ref(item))?;
            let (a, b) = (&together[at], &single[0]);
            let scale = a
                .iter()
                .chain(b)
                .fold(0.0f32, |max, value| max.max(value.abs()))
                .max(f32::MIN_POSITIVE);
            let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max) / scale;
            if apart.is_nan() || apart > 2e-2 {
                return fail(format!(
                    "item {at} differs by {apart:.1e} of its largest value alone and in a batch"
                ));
            }
        }
        Ok(())
    })
}

/// Changes a GENERATE.
fn generate(loaded: &Loaded, req_id: u64, most: u32, with: Option<&str>) -> (HostMessage, Vec<u8>) {
    let (mut message, bytes) = loaded.request(req_id, &loaded.items(5, &[9]));
    if let HostMessage::Generate {
        max_tokens, grammar, ..
    } = &mut message
    {
        *max_tokens = most;
        *grammar = with.map(str::to_owned);
    }
    (message, bytes)
}

fn text(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.loaded(Kind::Generate)?;
    for most in [1, 5] {
        let id = peer.id();
        let (message, bytes) = generate(&loaded, id, most, None);
        let reply: Reply = peer.ask(id, &message, &bytes)?;
        match reply.message {
            WorkerMessage::Text {
                n_prompt,
                n_gen,
                finish_reason,
                raw_bytes,
                ..
            } => {
                if n_gen > most || raw_bytes > u64::from(n_gen) * 4 || raw_bytes % 4 != 0 {
                    return fail(format!(
                        "TEXT of {n_gen} tokens and {raw_bytes} bytes of ids, at most {most} asked for"
                    ));
                }
                if n_prompt == 0 || finish_reason == FinishReason::Length && n_gen < most {
                    return fail(format!(
                        "TEXT after {n_prompt} prompt tokens ended by length at {n_gen} of {most}"
                    ));
                }
            }
            other => return fail(format!("{} to a GENERATE", type_of(&other))),
        }
    }
    let id = peer.id();
    let (message, bytes) = generate(&loaded, id, 8, Some("root ::= ((( \"a\""));
    peer.ask(id, &message, &bytes)?.refuses(
        "a grammar that does not parse",
        &["grammar_invalid", "grammar_unavailable"],
    )
}

fn requests(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.any()?;
    let items = loaded.items(6, &[5, 9]);
    // A model that nobody loaded.
    let stranger = Loaded {
        model_ref: loaded.model_ref + 1000,
        ..loaded.clone()
    };
    peer.compute(&stranger, &items)?
        .refuses("a request to an unknown model_ref", &["invalid_argument"])?;
    peer.in_order()?;
    // A sum of tokens that contradicts the raw frame.
    let id = peer.id();
    let (mut message, bytes) = loaded.request(id, &items);
    match &mut message {
        HostMessage::EmbedBatch { items, .. } | HostMessage::Rerank { items, .. } => items[0].n_tokens += 1,
        HostMessage::Generate { prompt, .. } => *prompt = synapse_wire::worker::message::PromptHeader::Ids(77),
        _ => {}
    }
    let reply = peer.ask(id, &message, &bytes)?;
    reply.refuses("a sum of tokens that contradicts the raw frame", &["invalid_argument"])?;
    peer.in_order()?;
    // An item that is too long.
    if loaded.spec.kind != Kind::Generate {
        let long = vec![vec![0; loaded.max_tokens as usize + 1]];
        peer.compute(&loaded, &long)?
            .refuses("an item of max_tokens + 1", &["input_too_long"])?;
        peer.in_order()?;
    }
    let id = peer.id();
    let model_ref = stranger.model_ref;
    let reply = peer.ask(id, &HostMessage::Unload { req_id: id, model_ref }, &[])?;
    reply.refuses("UNLOAD of an unknown model_ref", &["invalid_argument"])?;
    // Everything is as if nothing had been.
    match peer.compute(&loaded, &items)?.message {
        WorkerMessage::Err { code, msg, .. } => fail(format!("a good request after them: ERR {code}: {msg}")),
        _ => peer.in_order().map(|_| ()),
    }
}

fn quiet(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.any()?;
    peer.is_quiet()?;
    let items = loaded.items(7, &[5]);
    peer.compute(&loaded, &items)?;
    peer.is_quiet()
}

fn errors(desk: &Desk) -> Verdict {
    const CODES: [&str; 15] = [
        "invalid_argument",
        "config_invalid",
        "artifact_invalid",
        "unsupported",
        "oom",
        "input_too_long",
        "non_finite",
        "cancelled",
        "deadline_exceeded",
        "device",
        "grammar_invalid",
        "grammar_unavailable",
        "panic",
        "internal",
        "unknown_type",
    ];
    let model = desk.first_model()?;
    let mut peer = desk.ready()?;
    let provoked = [
        peer.ask_load(&model, Vec::new(), |_| {})?,
        peer.ask_load(&model, files(&model), |config| config.threads = 0)?,
        peer.ask_load(&model, files(&model), |config| {
            config.pooling = "no-such-pooling".to_owned()
        })?,
    ];
    for reply in provoked {
        match reply.message {
            WorkerMessage::Err { code, state, msg, .. } => {
                if !CODES.contains(&code.as_str()) {
                    return fail(format!("ERR {code}, which is not in the protocol's list"));
                }
                if msg.trim().is_empty() || state == EngineState::EngineBad {
                    return fail(format!("ERR {code}, {state:?} with the words {msg:?}"));
                }
            }
            // A model without pooling ignores nothing by taking one.
            WorkerMessage::Loaded { .. } => {}
            other => return fail(format!("{} to a LOAD", type_of(&other))),
        }
    }
    Ok(())
}

fn unload(desk: &Desk) -> Verdict {
    let model = desk.first_model()?;
    let mut peer = desk.ready()?;
    let counted = |peer: &mut Peer, expected: u32| match peer.in_order()? {
        found if found == expected => Ok(()),
        found => fail(format!("PONG counts {found} models, expected {expected}")),
    };
    counted(&mut peer, 0)?;
    let loaded = peer.load(&model)?;
    counted(&mut peer, 1)?;
    let (req_id, model_ref) = (peer.id(), loaded.model_ref);
    let reply = peer.ask(req_id, &HostMessage::Unload { req_id, model_ref }, &[])?;
    if !matches!(reply.message, WorkerMessage::Unloaded { .. }) {
        return fail(format!("{} to an UNLOAD", type_of(&reply.message)));
    }
    counted(&mut peer, 0)?;
    let items = loaded.items(8, &[4]);
    peer.compute(&loaded, &items)?
        .refuses("a request to an unloaded model", &["invalid_argument"])
}

fn frame_bound(desk: &Desk) -> Verdict {
    let mut peer = desk.ready_with(MIN_MAX_FRAME)?;
    peer.in_order()?;
    // Only the length, and not a byte of the frame.
    peer.send_bytes(&(MIN_MAX_FRAME + 1).to_le_bytes());
    if peer.payload()?.is_some() {
        return fail("an answer to a frame that is longer than agreed");
    }
    let finished = peer.wait()?;
    in_words(&finished, "after a frame that is longer than agreed")
}

/// Fails unless a process ended by itself, not with 0, and said why.
fn in_words(finished: &synapse_loader::process::Finished, when: &str) -> Verdict {
    match finished.status.code() {
        Some(code) if code != 0 && !finished.stderr.is_empty() => Ok(()),
        Some(code) if code != 0 => fail(format!("the worker ended with {code} {when}, without words")),
        _ => fail(format!(
            "the worker ended with {} {when}{}",
            finished.status,
            tail(Some(finished))
        )),
    }
}

fn malformed(desk: &Desk) -> Verdict {
    let model = desk.first_model()?;
    for payload in [&b"no message"[..], b"[]", b"{\"type\":\"LOAD\",\"req_id\":9}", b"{}"] {
        let mut peer = desk.ready()?;
        peer.in_order()?;
        peer.send_payload(payload, &[]);
        let shown = String::from_utf8_lossy(payload).into_owned();
        if let Some(answer) = peer.payload()? {
            let answer = String::from_utf8_lossy(&answer).into_owned();
            return fail(format!("{shown} was answered: {answer}"));
        }
        in_words(&peer.wait()?, &format!("after {shown}"))?;
    }
    // A raw frame of another length than declared.
    let mut peer = desk.ready()?;
    let loaded = peer.load(&model)?;
    let id = peer.id();
    let (message, mut bytes) = loaded.request(id, &loaded.items(9, &[5]));
    bytes.push(0);
    peer.send(&message, &bytes);
    if peer.payload()?.is_some() {
        return fail("a raw frame of another length than declared was answered");
    }
    in_words(&peer.wait()?, "after a raw frame of another length than declared")
}

fn unknown_type(desk: &Desk) -> Verdict {
    let mut peer = desk.ready()?;
    for raw in [&[][..], &[9; 24]] {
        let id = peer.id();
        peer.send_payload(&json::frame("LATER", id, raw.len()), raw);
        let reply = peer.reply()?;
        if reply.message.req_id() != Some(id) {
            return fail(format!("{} does not name the request {id}", type_of(&reply.message)));
        }
        reply.refuses("a message of an unknown type", &["unknown_type"])?;
        peer.in_order()?;
    }
    Ok(())
}

fn unknown_fields(desk: &Desk) -> Verdict {
    let model = desk.first_model()?;
    let mut peer = desk.ready()?;
    let loaded = peer.load(&model)?;
    let id = peer.id();
    let (message, bytes) = loaded.request(id, &loaded.items(10, &[5]));
    peer.send_payload(&json::with_unknown_fields(&message.to_payload()), &bytes);
    match peer.reply()?.message {
        WorkerMessage::Err { code, msg, .. } => fail(format!("a request with a later field: ERR {code}: {msg}")),
        _ => peer.in_order().map(|_| ()),
    }
}
