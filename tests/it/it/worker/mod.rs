//! Engines in worker processes, seen through the socket: what dies, what is drained, what is refused at the start.
//!
//! The reference engine runs in real workers, because its bundle is not in the trust file. Its settings name a way to
//! misbehave; with `fault_tokens` only calls that hold an item of so many tokens do. Test models take 16 tokens at most,
//! so [`LONG`] always has 16 and is the text that strikes.

mod asserts;
mod deaths;
mod drain;
mod ends;
mod kinds;
mod lies;
mod placement;
mod refresh;
mod skeleton;
mod start;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use synapse_core::digest::sha256;

use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};
use crate::support::{HANG, models};

/// A text of 16 tokens after truncation.
const LONG: &str = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen";
/// A text of fewer tokens.
const SHORT: &str = "one";

/// Waits between deaths that make no test slow; everything else as by default.
const QUICK: &str = r#""backoff_first_ms": 10, "backoff_second_ms": 10, "backoff_ms": 10"#;

/// A place whose reference engine has these settings and whose workers have these bounds (JSON members).
fn place(settings: &[(&str, &str)], bounds: &str) -> Place {
    let place = Place::new().config(&format!(
        r#"{{"worker": {{{QUICK}{bounds}}}, "inline": {{"max_items": 1000}}, "shutdown": {{"grace_ms": 200, "cancel_ms": 2000}}}}"#
    ));
    for model in ["toy-a", "toy-b"] {
        write_model(&place, model);
    }
    place.reference(settings)
}

/// Writes the files of a model for the reference engine, and the catalog that leads to them.
fn write_model(place: &Place, model: &str) {
    let folder = place.path().join(model);
    fs::create_dir_all(&folder).expect("a folder");
    let weights = format!("weights of {model}");
    fs::write(folder.join("weights.bin"), &weights).expect("writes");
    let tokenizer = fs::read(models::folder(models::MEAN).join("tokenizer.json")).expect("a tokenizer");
    fs::write(folder.join("tokenizer.json"), &tokenizer).expect("writes");
    let record = format!(
        "schema = 1\nid = \"{model}\"\ntitle = \"toy\"\nfamily = \"bert\"\nkind = \"embed\"\nlicence = \"CC0-1.0\"\n\
         dims = 32\ncontext = 16\nmax_tokens = 16\npooling = \"mean\"\nnormalize = false\n\n\
         [tokenizer]\npath = \"tokenizer.json\"\nsha256 = \"{}\"\nsize = {}\n\n\
         [[formats]]\nformat = \"bytes\"\nquant = \"f32\"\n\n\
         [[formats.files]]\nrole = \"weights\"\npath = \"weights.bin\"\nsha256 = \"{}\"\nsize = {}\n\n\
         [[sources]]\nkind = \"local\"\n",
        sha256(&tokenizer),
        tokenizer.len(),
        sha256(weights.as_bytes()),
        weights.len(),
    );
    let catalog = place.data().join("catalog");
    fs::write(catalog.join(format!("models/{model}.toml")), record).expect("writes");
    let row = format!(
        "schema = 1\n\n[[row]]\nmodel = \"{model}\"\nengine = \"reference\"\nengine_version = \">=0.1, <2\"\n\
         variant = \"f32\"\nformat = \"bytes\"\nquant = \"f32\"\ndtype = \"f32\"\nmax_tokens = 16\nmax_batch = 1000\n\
         max_batch_tokens = 16000\nmax_sequences = 1000\n"
    );
    fs::write(catalog.join(format!("envelopes/{model}.toml")), row).expect("writes");
}

/// Pulls a test model of the reference engine.
fn pull(client: &mut Client, place: &Place, model: &str) {
    let path = place.path().join(model);
    let pulled = client.ok("models.pull", &json!({"model": model, "source": "local", "path": path}));
    let view = client.job(&pulled);
    assert_eq!(view["state"], "done", "{view}");
}

/// A running daemon with `toy-a` in a worker.
fn serving(place: &Place) -> (Daemon, Client) {
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, place, "toy-a");
    client.load("toy-a");
    (daemon, client)
}

fn query(model: &str, text: &str) -> Value {
    json!({"model": model, "text": text, "encoding": "base64"})
}

/// The vector of a query that has to succeed.
fn vector(client: &mut Client, model: &str, text: &str) -> String {
    let mut patient = query(model, text);
    // What runs before it may take its time on a loaded machine: the answer is what is compared.
    patient["deadline_ms"] = json!(120_000);
    patient["max_queue_ms"] = json!(120_000);
    let reply = client.ok("embed.query", &patient);
    assert_eq!(reply["provenance"]["placement"], "worker", "{reply}");
    reply["vectors"][0].as_str().expect("a vector").to_owned()
}

/// A bulk request of so many short texts, in one engine call.
fn bulk(texts: usize) -> Value {
    let items: Value = (0..texts)
        .map(|n| json!({"id": n.to_string(), "text": SHORT}))
        .collect();
    json!({"model": "toy-a", "items": items})
}

/// The live children of the daemon, which are its workers; a zombie fails the test.
fn workers(daemon: &Daemon) -> Vec<u32> {
    children(daemon.pid())
}

pub(crate) fn children(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end while it is looked at.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let mut fields = stat.rsplit(") ").next().expect("fields").split(' ');
        let (state, of) = (fields.next(), fields.next());
        if of.and_then(|of| of.parse().ok()) == Some(parent) && state != Some("Z") {
            found.push(pid);
        }
    }
    found
}

/// Whether the daemon has a child that ended and was not waited for.
fn has_zombie(daemon: &Daemon) -> bool {
    let folder = Path::new("/proc").join(daemon.pid().to_string());
    assert!(folder.exists(), "the daemon lives");
    fs::read_dir("/proc").expect("/proc").flatten().any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        rest.starts_with(&format!("Z {} ", daemon.pid()))
    })
}

/// How many deaths of workers the daemon has counted: each is one line of the supervisor. What a request or a job is told
/// of it may be logged again elsewhere.
fn deaths_counted(daemon: &Daemon) -> usize {
    let log = daemon.log();
    let lines = log.lines();
    lines
        .filter(|line| line.contains("worker of reference lost") && line.contains("generation="))
        .count()
}

/// The one worker.
fn worker(daemon: &Daemon) -> u32 {
    let all = workers(daemon);
    assert_eq!(all.len(), 1, "{all:?}\n{}", daemon.log());
    all[0]
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    // It may be gone already.
    let _ = kill_process(pid, signal);
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let bound = Instant::now() + HANG;
    while !holds() {
        assert!(Instant::now() < bound, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a call of `toy-a` runs in its engine.
fn until_running(client: &mut Client) {
    until("a running call", || {
        let health = client.ok("health", &json!({}));
        let lanes = health["lanes"].as_array().expect("lanes").clone();
        lanes.iter().any(|lane| lane["in_flight"] == 1)
    });
}
