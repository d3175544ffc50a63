//! Progress, cancellation, deadlines, and how a worker ends (WP-40 to WP-45, WP-60, WP-61).

use std::time::{Duration, Instant};

use synapse_wire::worker::{HostMessage, WorkerMessage};

use super::{Desk, type_of};
use crate::catalogue::{Check, Level, Run, Verdict, fail};

/// Five times what an orphan may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "worker-progress",
        level: Level::Full,
        rules: &["WP-40", "WP-41", "WP-42"],
        says: "PROGRESS names the running exchange and grows; it comes at most every 100 ms, and within 5 s of work.",
        why: "Only work done renews the silence window.",
        fix: "Report finished work, never a heartbeat; fix the total at the first report.",
        run: Run::Protocol(progress),
    },
    Check {
        id: "worker-cancel",
        level: Level::Core,
        rules: &["WP-43", "WP-44"],
        says: "CANCEL has no answer of its own; for a finished or unknown number it changes nothing.",
        why: "It may cross the reply on the way.",
        fix: "Read the socket on a thread of its own, and compare the number with the running exchange's.",
        run: Run::Protocol(cancel),
    },
    Check {
        id: "worker-deadline",
        level: Level::Full,
        rules: &["WP-45"],
        says: "A deadline that passes ends the exchange at most, and never the process.",
        why: "The caller was answered already; the next one is waiting.",
        fix: "Answer deadline_exceeded, or the result.",
        run: Run::Protocol(deadline),
    },
    Check {
        id: "worker-shutdown",
        level: Level::Core,
        rules: &["WP-60"],
        says: "SHUTDOWN ends the running exchange by its reply, then the process with 0.",
        why: "A stop is no crash.",
        fix: "Finish the request that runs, stop the engine's threads, end with 0.",
        run: Run::Protocol(shutdown),
    },
    Check {
        id: "worker-orphan",
        level: Level::Core,
        rules: &["WP-61"],
        says: "When the daemon's side of the socket ends, the process ends.",
        why: "No worker outlives its daemon.",
        fix: "Treat the end of the stream as the end, also while the engine computes.",
        run: Run::Protocol(orphan),
    },
];

fn progress(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.any()?;
    let items = loaded.items(20, &[usize::MAX; 32]);
    let mut requests = vec![(1, true)];
    for _ in 0..8 {
        let started = Instant::now();
        peer.compute(&loaded, &items)?;
        let (took, req_id) = (started.elapsed(), requests.len() as u64 + 1);
        if took > Duration::from_secs(5) && !peer.progress.iter().any(|seen| seen.req_id == req_id) {
            return fail(format!("a request of {} s reported no progress", took.as_secs()));
        }
        requests.push((req_id, false));
    }
    for (req_id, setup) in requests {
        let seen: Vec<_> = peer.progress.iter().filter(|seen| seen.req_id == req_id).collect();
        if let Some(wrong) = seen.iter().find(|seen| seen.setup != setup || seen.completed == 0) {
            return fail(format!(
                "PROGRESS {wrong:?} in an exchange of phase {}",
                if setup { "setup" } else { "inference" }
            ));
        }
        for pair in seen.windows(2) {
            if pair[1].completed <= pair[0].completed || pair[1].total != pair[0].total {
                return fail(format!(
                    "PROGRESS {} of {:?} after {} of {:?}",
                    pair[1].completed, pair[1].total, pair[0].completed, pair[0].total
                ));
            }
            // Half of the interval, since two may be read later than they came.
            if pair[1].at.duration_since(pair[0].at) < Duration::from_millis(50) {
                return fail("two PROGRESS within 50 ms, expected at most one every 100 ms");
            }
        }
        if let Some(over) = seen
            .iter()
            .find(|seen| seen.total.is_some_and(|total| seen.completed > total))
        {
            return fail(format!("PROGRESS {} of {:?}", over.completed, over.total));
        }
    }
    let last = peer.progress.iter().find(|seen| seen.req_id > 9 || seen.req_id == 0);
    last.map_or(Ok(()), |seen| {
        fail(format!("PROGRESS names request {}, which was not sent", seen.req_id))
    })
}

fn cancel(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.any()?;
    let items = loaded.items(21, &[9]);
    // Unknown, then finished.
    for req_id in [7777, 1] {
        peer.send(&HostMessage::Cancel { req_id }, &[]);
        peer.is_quiet()?;
        match peer.compute(&loaded, &items)?.message {
            WorkerMessage::Err { code, .. } => {
                return fail(format!(
                    "ERR {code} to a request after CANCEL of {req_id}, which did not run"
                ));
            }
            _ => peer.in_order()?,
        };
    }
    // Running: its reply or ERR cancelled, once.
    let id = peer.id();
    let bulk = loaded.items(22, &[usize::MAX; 32]);
    let (message, bytes) = loaded.request(id, &bulk);
    peer.send(&message, &bytes);
    peer.send(&HostMessage::Cancel { req_id: id }, &[]);
    let reply = peer.reply()?;
    match &reply.message {
        WorkerMessage::Err { code, .. } if code != "cancelled" => {
            return fail(format!(
                "ERR {code} to a cancelled request, expected its reply or cancelled"
            ));
        }
        message if message.req_id() != Some(id) => {
            return fail(format!(
                "{} names another request than the cancelled one",
                type_of(message)
            ));
        }
        _ => {}
    }
    peer.in_order()?;
    match peer.compute(&loaded, &items)?.message {
        WorkerMessage::Err { code, .. } => fail(format!("ERR {code} to the request after a cancelled one")),
        _ => Ok(()),
    }
}

fn deadline(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.any()?;
    let bulk = loaded.items(23, &[usize::MAX; 32]);
    for ms in [0, 1] {
        let id = peer.id();
        let (mut message, bytes) = loaded.request(id, &bulk);
        if let HostMessage::EmbedBatch { budget, .. }
        | HostMessage::Rerank { budget, .. }
        | HostMessage::Generate { budget, .. } = &mut message
        {
            budget.deadline_ms = Some(ms);
        }
        match peer.ask(id, &message, &bytes)?.message {
            WorkerMessage::Err { code, .. } if code != "deadline_exceeded" && code != "cancelled" => {
                return fail(format!("ERR {code} to a request with a deadline of {ms} ms"));
            }
            _ => {}
        }
        peer.in_order()?;
    }
    Ok(())
}

fn shutdown(desk: &Desk) -> Verdict {
    let (mut peer, loaded) = desk.any()?;
    let id = peer.id();
    let (message, bytes) = loaded.request(id, &loaded.items(24, &[9; 8]));
    peer.send(&message, &bytes);
    peer.send(&HostMessage::Shutdown {}, &[]);
    let reply = peer.reply()?;
    if reply.message.req_id() != Some(id) || matches!(reply.message, WorkerMessage::Err { .. }) {
        return fail(format!("{} to the request before SHUTDOWN", type_of(&reply.message)));
    }
    if peer.payload()?.is_some() {
        return fail("something was sent after SHUTDOWN and the last reply");
    }
    let finished = peer.wait()?;
    match finished.status.code() {
        Some(0) => Ok(()),
        _ => fail(format!(
            "the worker ended with {}, expected 0{}",
            finished.status,
            super::tail(Some(&finished))
        )),
    }
}

fn orphan(desk: &Desk) -> Verdict {
    let (idle, _) = desk.any()?;
    idle.close(PATIENCE)?;
    let (mut busy, loaded) = desk.any()?;
    let id = busy.id();
    let (message, bytes) = loaded.request(id, &loaded.items(25, &[usize::MAX; 32]));
    busy.send(&message, &bytes);
    busy.close(PATIENCE).map(|_| ())
}
