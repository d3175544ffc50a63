//! More connections and requests than the daemon can serve, deadlines that no engine meets, and clients that cancel or
//! leave: each request ends once, the memory is bounded, and the daemon serves on as if nothing had been.
//!
//! `make bench` prints the same for two thousand connections of eight processes, with the time that `health` takes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::support::HANG;
use crate::support::client::{Client, code};
use crate::support::daemon::{Daemon, Place};
use crate::support::toys::{self, Kind};

const MODEL: &str = "flooded-toy";
/// Threads of the test's clients.
const THREADS: usize = 16;
/// Requests of one connection, one after the other.
const ROUNDS: usize = 4;
/// What the daemon may take beyond what it has when the model is loaded, in KiB.
const ALLOWANCE: u64 = 60 << 10;
/// `health` is asked beside the flood. Its 99th percentile is bounded ten times above what is required of it.
const HEALTH: Duration = Duration::from_millis(500);

/// What a client does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Manner {
    /// Waits for the vector.
    Query,
    /// Waits for the vectors of a bulk call.
    Batch,
    /// Gives it 1 ms.
    Hurry,
    /// Cancels it in the same breath.
    Cancel,
    /// Closes the connection.
    Leave,
}

const MANNERS: [Manner; 5] = [
    Manner::Query,
    Manner::Batch,
    Manner::Hurry,
    Manner::Cancel,
    Manner::Leave,
];

/// How many requests of each manner ended in which way.
type Table = BTreeMap<(Manner, String), usize>;

/// One connection that takes one descriptor.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("every connection is accepted");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        stream.set_write_timeout(Some(HANG)).expect("a timeout");
        Self(BufReader::new(stream))
    }

    /// Sends a request, and says whether the daemon still reads.
    fn send(&mut self, manner: Manner, id: usize) -> bool {
        let params = match manner {
            Manner::Batch => {
                let items: Value = (0..16).map(|n| json!({"id": n.to_string(), "text": "one"})).collect();
                json!({"model": MODEL, "items": items, "deadline_ms": 5_000})
            }
            Manner::Hurry => json!({"model": MODEL, "text": "one", "deadline_ms": 1}),
            _ => json!({"model": MODEL, "text": "one"}),
        };
        let method = if manner == Manner::Batch {
            "embed.batch"
        } else {
            "embed.query"
        };
        let mut lines = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string() + "\n";
        if manner == Manner::Cancel {
            let cancel = json!({"jsonrpc": "2.0", "id": "c", "method": "request.cancel", "params": {"id": id}});
            lines += &format!("{cancel}\n");
        }
        self.0.get_mut().write_all(lines.as_bytes()).is_ok()
    }

    /// The next line; `None` when the connection was closed.
    fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).expect("JSON")),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// What became of a request: a result, the code of an error, or the end of the connection. The answer to a
    /// cancellation comes beside it, before or after.
    fn outcome(&mut self, manner: Manner, id: usize) -> String {
        let (mut lines, mut outcome) = (1 + usize::from(manner == Manner::Cancel), None);
        while lines > 0 {
            let Some(answer) = self.line() else {
                return outcome.unwrap_or_else(|| "closed".to_owned());
            };
            lines -= 1;
            if answer["id"] == "c" {
                assert!(
                    answer["result"].is_object(),
                    "a cancellation is always answered: {answer}"
                );
                continue;
            }
            assert_eq!(answer["id"], id, "{answer}");
            let what = answer.get("error").map_or_else(|| "result".to_owned(), code);
            assert_eq!(outcome.replace(what), None, "two answers: {answer}");
        }
        outcome.expect("an answer")
    }
}

/// Lets this process open as many files as the system allows, and gives for how many connections that is enough: each
/// takes one here and up to two in the daemon, which does the same.
fn allowed(wanted: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a soft limit may be raised");
    let files = limit
        .maximum
        .map_or(usize::MAX, |files| usize::try_from(files).expect("fits"));
    // The rest of this process needs some, too.
    let enough = files.saturating_sub(500) / 2;
    if enough < wanted {
        let stderr = std::io::stderr();
        let _ = writeln!(
            stderr.lock(),
            "flood: {files} open files are allowed: {enough} connections, not {wanted}"
        );
    }
    wanted.min(enough)
}

/// A daemon whose engine takes 20 ms an item: far less than what comes.
fn serving(config: &str) -> (Place, Daemon, Client) {
    let place = Place::new().config(config).reference(&[("fault", "slow")]);
    toys::write(&place, MODEL, Kind::Embed);
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    (place, daemon, client)
}

fn vector(client: &mut Client) -> Value {
    client.ok(
        "embed.query",
        &json!({"model": MODEL, "text": "one", "encoding": "base64"}),
    )["vectors"]
        .take()
}

/// Asks for `health` until the flood is over; how long each answer took, in order.
fn health(daemon: &Daemon, over: &AtomicBool) -> Vec<Duration> {
    let (mut client, mut took) = (daemon.connect(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        client.ok("health", &json!({}));
        took.push(begin.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    took.sort();
    took
}

/// One thread's connections: a request on each, then what became of each, round by round.
fn clients(socket: &Path, thread: usize, connections: usize, start: &Barrier) -> Table {
    let mut open: Vec<Connection> = (0..connections).map(|_| Connection::open(socket)).collect();
    let mut table = Table::new();
    start.wait();
    for round in 0..ROUNDS {
        let manner = |n: usize| MANNERS[(n + thread + round) % MANNERS.len()];
        let sent: Vec<bool> = (0..connections).map(|n| open[n].send(manner(n), round)).collect();
        for (n, sent) in sent.into_iter().enumerate() {
            let manner = manner(n);
            let outcome = if !sent || manner == Manner::Leave {
                "closed".to_owned()
            } else {
                open[n].outcome(manner, round)
            };
            if outcome == "closed" {
                open[n] = Connection::open(socket);
            }
            *table.entry((manner, outcome)).or_default() += 1;
        }
    }
    for connection in &mut open {
        connection
            .0
            .get_ref()
            .shutdown(std::net::Shutdown::Write)
            .expect("is open");
        assert_eq!(connection.line(), None, "nothing is answered twice");
    }
    table
}

/// Proves API-03, API-29, HEALTH-01, SCHED-03, SCHED-12, SCHED-13. `SYNAPSE_TEST_LONG` makes it two thousand connections.
#[test]
fn each_request_of_a_flood_ends_once_and_the_daemon_serves_on() {
    let wanted = match std::env::var_os("SYNAPSE_TEST_LONG") {
        Some(_) => 2_000,
        None => 640,
    };
    let connections = allowed(wanted) / THREADS;
    let config = r#"{"connection": {"max_connections": 4096, "max_in_flight_per_process": 4096}}"#;
    let (place, mut daemon, mut client) = serving(config);
    let expected = vector(&mut client);
    let loaded = daemon.memory("VmRSS");

    let (start, over, socket) = (Barrier::new(THREADS), AtomicBool::new(false), place.socket());
    let (table, health) = std::thread::scope(|scope| {
        let health = scope.spawn(|| health(&daemon, &over));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let (socket, start) = (&socket, &start);
                    move || clients(socket, thread, connections, start)
                })
            })
            .collect();
        let mut table = Table::new();
        for thread in threads {
            let part = thread.join();
            over.store(part.is_err(), Ordering::Relaxed);
            for (key, count) in part.expect("every request ends") {
                *table.entry(key).or_default() += count;
            }
        }
        over.store(true, Ordering::Relaxed);
        (table, health.join().expect("health is always answered"))
    });
    let most = daemon.memory("VmHWM");
    let p99 = health[(health.len() - 1) * 99 / 100];
    let stderr = std::io::stderr();
    let _ = writeln!(
        stderr.lock(),
        "flood of {} connections: {table:#?}\nhealth p99 {p99:?} of {}; {loaded} KiB before, {most} at most",
        connections * THREADS,
        health.len()
    );

    assert_eq!(table.values().sum::<usize>(), connections * THREADS * ROUNDS);
    let ended = |outcome: &str| {
        table
            .iter()
            .filter(|((_, how), _)| how == outcome)
            .map(|(_, count)| count)
            .sum::<usize>()
    };
    for outcome in ["result", "queue_full", "deadline_exceeded", "cancelled"] {
        assert!(ended(outcome) > 0, "no request ended as {outcome}");
    }
    for (manner, outcome) in table.keys() {
        let fits = match outcome.as_str() {
            "result" | "queue_full" | "deadline_exceeded" => *manner != Manner::Leave,
            "cancelled" => *manner == Manner::Cancel,
            "closed" => *manner == Manner::Leave,
            _ => false,
        };
        assert!(fits, "{manner:?} ended as {outcome}");
    }
    assert!(p99 < HEALTH, "health took {p99:?}");
    assert!(most <= loaded + ALLOWANCE, "{most} KiB, loaded {loaded}");

    // All of it is over: nothing waits, nothing runs, and the same text has the same vector.
    let bound = Instant::now() + HANG;
    loop {
        let health = client.ok("health", &json!({}));
        let lanes = health["lanes"].as_array().expect("lanes");
        let counts = ["queued_interactive", "queued_bulk", "in_flight"];
        if lanes.iter().all(|lane| counts.iter().all(|count| lane[count] == 0)) {
            break;
        }
        assert!(Instant::now() < bound, "work is left behind: {health}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(vector(&mut client), expected);
    assert!(daemon.is_running());
    assert!(daemon.stop().success());
}

/// Proves API-29. Every request in flight is cancelled, some twice and some by strangers; each ends once, and whoever did
/// not ask for it is not disturbed.
#[test]
fn a_storm_of_cancellations_disturbs_nobody_else() {
    const IN_FLIGHT: usize = 30;
    let (_place, daemon, mut client) = serving(r#"{"connection": {"max_in_flight_per_process": 4096}}"#);
    let expected = vector(&mut client);
    let mut patient: Vec<Client> = (0..4).map(|_| daemon.connect()).collect();
    let params =
        json!({"model": MODEL, "text": "one", "encoding": "base64", "max_queue_ms": 100_000, "deadline_ms": 100_000});
    for other in &mut patient {
        other.request("embed.query", &params);
    }
    let mut storm: Vec<Client> = (0..20).map(|_| daemon.connect()).collect();
    for client in &mut storm {
        for _ in 0..IN_FLIGHT {
            client.request("embed.query", &params);
        }
        for id in (1..=IN_FLIGHT).rev().chain([7, 7, 1_000]) {
            client.request("request.cancel", &json!({"id": id}));
        }
    }
    let mut ended: BTreeMap<String, usize> = BTreeMap::new();
    for client in &mut storm {
        client.half_close();
        let mut seen = vec![0; 2 * IN_FLIGHT + 4];
        while let Some(answer) = client.line() {
            let id = usize::try_from(answer["id"].as_u64().expect("an id")).expect("is small");
            seen[id] += 1;
            if id <= IN_FLIGHT {
                let how = answer.get("error").map_or_else(|| "result".to_owned(), code);
                *ended.entry(how).or_default() += 1;
            }
        }
        assert!(
            seen[1..].iter().all(|answers| *answers == 1),
            "one answer each: {seen:?}"
        );
    }
    let known = ["cancelled", "queue_full", "result"];
    assert!(ended.keys().all(|how| known.contains(&how.as_str())), "{ended:?}");
    assert!(ended.get("cancelled").is_some_and(|count| *count > 0), "{ended:?}");
    for other in &mut patient {
        let answer = other.line().expect("an answer");
        assert_eq!(answer["result"]["vectors"], expected, "{answer}");
    }
    assert!(daemon.stop().success());
}

/// One connection too many is told so and closed; the place of one that ended is free again.
#[test]
fn connections_beyond_the_bound_are_refused_in_words() {
    const PLACES: usize = 8;
    let place = Place::new().config(&json!({"connection": {"max_connections": PLACES}}).to_string());
    let daemon = place.start();
    let mut open: Vec<Client> = (0..PLACES).map(|_| daemon.connect()).collect();
    for client in &mut open {
        client.ok("health", &json!({}));
    }
    for _ in 0..3 {
        let mut refused = daemon.connect();
        let answer = refused.line().expect("a refusal");
        let error = &answer["error"];
        assert_eq!(
            (&answer["id"], code(error).as_str()),
            (&Value::Null, "queue_full"),
            "{answer}"
        );
        assert_eq!(
            error["data"]["detail"]["limit"], "connection.max_connections",
            "{answer}"
        );
        assert!(error["data"]["retry_after_ms"].is_u64(), "{answer}");
        assert_eq!(refused.line(), None);
    }
    open.pop();
    let bound = Instant::now() + HANG;
    // The daemon may not have seen yet that the other has gone, and may refuse before it is asked.
    let asked = || {
        let mut client = daemon.connect();
        let _ = client.send(b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"health\"}\n");
        client.line().expect("an answer")
    };
    while asked()["result"].is_null() {
        assert!(Instant::now() < bound, "the place stays taken");
    }
    for client in &mut open {
        client.ok("health", &json!({}));
    }
    assert!(daemon.stop().success());
}
