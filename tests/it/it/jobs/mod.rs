//! Jobs over large inputs, as clients meet them: accepted, killed, read while they run, repeated, bounded, cancelled.
//!
//! The reference engine runs in a worker. Its vectors are exact, so each vector of a job is compared bit by bit with the
//! one that the same text has alone, inline.

mod bounds;
mod cancel;
#[cfg(target_os = "linux")]
mod disk;
mod expire;
mod fair;
mod keys;
mod kill;
mod stop;
mod walk;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::HANG;
use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};
use crate::support::toys::{self, Kind};

/// The toy that embeds.
pub const MODEL: &str = "toy";
/// The texts of every job, in turn; of several lengths, so that a job packs them in another order than it was given.
pub const TEXTS: [&str; 5] = [
    "one",
    "two words and a few more of them",
    "a lock on the file is held by another process, which may have died",
    "seven",
    "nobody reads what the log says until the disk is full",
];

/// A place with the toy and with this configuration (JSON).
pub fn place(config: &str) -> Place {
    let place = Place::new().config(config);
    toys::write(&place, MODEL, Kind::Embed);
    place
}

/// A running daemon that serves the toy.
pub fn serving(place: &Place) -> (Daemon, Client) {
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, place, MODEL);
    (daemon, client)
}

/// The texts `from..to` of a job.
pub fn texts(from: usize, to: usize) -> Value {
    let item = |n: usize| json!({"id": n.to_string(), "text": TEXTS[n % TEXTS.len()]});
    (from..to).map(item).collect()
}

/// An `embed.batch` of so many texts with a key.
pub fn batch(key: &str, items: usize) -> Value {
    json!({"model": MODEL, "items": texts(0, items), "request_key": key})
}

/// A `job.create` of the same work as [`batch`].
pub fn creation(key: &str) -> Value {
    json!({"operation": "embed.batch", "model": MODEL, "request_key": key})
}

/// The name in an answer.
pub fn job_id(answer: &Value) -> String {
    answer["job_id"]
        .as_str()
        .unwrap_or_else(|| panic!("no job: {answer}"))
        .to_owned()
}

/// Starts a job of so many texts and gives its name.
pub fn start(client: &mut Client, key: &str, items: usize) -> String {
    job_id(&client.ok("embed.batch", &batch(key, items)))
}

/// Starts a job whose texts are appended in pieces: more than one line of the socket would carry.
pub fn start_large(client: &mut Client, key: &str, items: usize) -> String {
    const PIECE: usize = 5_000;
    let id = job_id(&client.ok("job.create", &creation(key)));
    for (seq, from) in (0..items).step_by(PIECE).enumerate() {
        let items = texts(from, items.min(from + PIECE));
        let kept = client.ok("job.append", &json!({"job_id": id, "seq": seq, "items": items}));
        assert_eq!(
            (&kept["kept"], &kept["next_seq"]),
            (&json!(true), &json!(seq + 1)),
            "{kept}"
        );
    }
    let sealed = client.ok("job.seal", &json!({"job_id": id}));
    assert_eq!(job_id(&sealed), id);
    id
}

/// The job as `job.status` shows it.
pub fn status(client: &mut Client, id: &str) -> Value {
    client.ok("job.status", &json!({"job_id": id}))
}

/// Waits for the end of a job of this name.
pub fn end(client: &mut Client, id: &str) -> Value {
    client.job(&json!({"job_id": id}))
}

/// The vector of each of [`TEXTS`], inline.
pub fn alone(client: &mut Client) -> Vec<String> {
    let vector = |text: &&str| {
        let params = json!({"model": MODEL, "items": [{"id": "x", "text": text}], "encoding": "base64"});
        let answer = client.ok("embed.batch", &params);
        answer["vectors"][0].as_str().expect("a vector").to_owned()
    };
    TEXTS.iter().map(vector).collect()
}

/// One answer of `job.result`.
pub fn result(client: &mut Client, id: &str, page: usize) -> Value {
    client.ok("job.result", &json!({"job_id": id, "page": page, "encoding": "base64"}))
}

/// The page in an answer of `job.result`: of vectors, or of scores; `None` where it is not there.
pub fn content(answer: &mut Value) -> Option<Value> {
    let name = ["content", "scores"]
        .into_iter()
        .find(|name| answer[name].is_object())?;
    Some(answer[name].take())
}

/// What a walk over a job's pages found.
pub struct Walk<'a> {
    expected: &'a [String],
    /// The texts whose vector came.
    pub seen: BTreeSet<usize>,
    space: Option<Value>,
}

impl<'a> Walk<'a> {
    /// Nothing was seen; these are the vectors or scores of [`TEXTS`].
    pub fn new(expected: &'a [String]) -> Self {
        Self {
            expected,
            seen: BTreeSet::new(),
            space: None,
        }
    }

    /// Takes one page: no text a second time, each with its own vector or score, all in one space.
    pub fn take(&mut self, content: &Value) {
        let items = content["items"].as_array().expect("items");
        let values = content["vectors"].as_array().or(content["scores"].as_array());
        let values = values.expect("vectors or scores");
        assert!(!items.is_empty() && items.len() == values.len(), "{content}");
        assert_eq!(
            self.space.get_or_insert_with(|| content["fingerprint"].clone()),
            &content["fingerprint"]
        );
        for (item, value) in items.iter().zip(values) {
            let n: usize = item["id"]
                .as_str()
                .and_then(|id| id.parse().ok())
                .expect("an id of the job");
            assert!(self.seen.insert(n), "{n} came twice");
            let found = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(found, self.expected[n % TEXTS.len()], "what {n} has: {item}");
        }
    }

    /// Whether exactly the texts of a job of so many were seen.
    pub fn is_whole(&self, items: usize) -> bool {
        self.seen.iter().copied().eq(0..items)
    }
}

/// Reads a job page by page until it has ended and shows no more, and gives the pages and how often it was found running
/// with its next page not there yet.
pub fn walk(client: &mut Client, id: &str, walk: &mut Walk<'_>) -> (Vec<Value>, usize) {
    let (mut pages, mut ahead) = (Vec::new(), 0);
    while let Some(page) = next_page(client, id, pages.len(), &mut ahead) {
        walk.take(&page);
        pages.push(page);
    }
    (pages, ahead)
}

/// The page of this number once it is there; `None` when the job has ended without it.
fn next_page(client: &mut Client, id: &str, page: usize, ahead: &mut usize) -> Option<Value> {
    let bound = Instant::now() + HANG;
    loop {
        let mut answer = result(client, id, page);
        if let Some(content) = content(&mut answer) {
            return Some(content);
        }
        assert_eq!(answer["pages"], page, "a page is missing: {answer}");
        if !["queued", "running"].contains(&answer["state"].as_str().expect("a state")) {
            return None;
        }
        *ahead += 1;
        // The socket has no push: a job is polled.
        std::thread::sleep(Duration::from_millis(2));
        assert!(Instant::now() < bound, "the job hangs: {answer}");
    }
}
