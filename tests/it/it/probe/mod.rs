//! Probes through the socket: what opens a lane, what closes it, and what both look like from outside.
//!
//! The toys run on the reference engine, in a worker; real models are in `minilm.rs`. A place of these tests keeps lanes
//! closed until they are probed, as a user's daemon does.

mod life;
mod load;
mod minilm;
mod quarantine;
mod setup;
mod triggers;
mod wrong;

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use synapse_certify::Corpus;
use synapse_core::digest::sha256;
use synapse_daemon::text::{Limits, Tokenizer, sanitise};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};
use crate::support::{models, toys};

/// The weights of a toy: any bytes are a model to the reference engine.
const WEIGHTS: &str = "weights of toy";
/// The longest text of a toy, in tokens.
const MAX_TOKENS: u32 = 64;

/// The configuration of a place whose lanes are closed until they are probed: members of `probe`, and further members.
fn config(probe: &str, rest: &str) -> String {
    format!(
        r#"{{"probe": {{"allow_uncertified": false{probe}}}, "worker": {{"backoff_first_ms": 10,
            "backoff_second_ms": 10, "backoff_ms": 10}}, "inline": {{"max_tokens": 100000}}{rest}}}"#
    )
}

/// As [`config`], but lanes that were never probed serve too.
fn open_config() -> String {
    config("", "").replace("\"allow_uncertified\": false", "\"allow_uncertified\": true")
}

/// A place with a toy, whose reference engine has these settings.
fn place(settings: &[(&str, &str)], rest: &str) -> Place {
    let place = Place::new().config(&config("", rest));
    write_toy(&place, "toy", WEIGHTS);
    place.reference(settings)
}

/// As [`place`], and the toy has references: its vectors over the corpus by the tests' own arithmetic, in f64. As the
/// record says, they are not normalised: what is wrong with a length is seen too.
fn place_of_referenced_toy(settings: &[(&str, &str)]) -> Place {
    let place = Place::new().config(&config("", ""));
    let file = references();
    let folder = place.data().join("catalog/references");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("toy.refs"), &file).expect("writes");
    let table = format!(
        "[references]\npath = \"toy.refs\"\nsha256 = \"{}\"\nsize = {}\n\n",
        sha256(&file),
        file.len()
    );
    write_record(&place, "toy", WEIGHTS, &table);
    place.reference(settings)
}

/// The file of a toy's references.
fn references() -> Vec<u8> {
    let corpus = Corpus::builtin();
    let published = fs::read(models::folder(models::MEAN).join("tokenizer.json")).expect("a tokenizer");
    let sanitised = sanitise::sanitise(&published, None).expect("a sound tokenizer");
    let tokenizer = Tokenizer::from_sanitised(&sanitised.bytes).expect("loads");
    let limits = Limits {
        max_tokens: MAX_TOKENS,
        truncate: true,
        max_bytes: 1 << 20,
    };
    let texts: Vec<&str> = corpus.texts.iter().chain(&corpus.queries).map(AsRef::as_ref).collect();
    let mut file = format!(
        "synapse-references 1\ncorpus {}\nkind embed\nmade_by tests/it, in f64\nitems {}\ndims 32\n\
         max_tokens {MAX_TOKENS}\nnormalized no\n\n",
        corpus.digest,
        texts.len()
    )
    .into_bytes();
    for text in texts {
        let encoded = tokenizer.encode(text, None, limits).expect("encodes");
        let ids: Vec<u32> = encoded
            .ids
            .iter()
            .map(|id| u32::try_from(*id).expect("an id"))
            .collect();
        for value in toys::vector(WEIGHTS, &ids) {
            #[expect(clippy::cast_possible_truncation, reason = "the file holds binary32")]
            file.extend((value as f32).to_le_bytes());
        }
    }
    file
}

/// Writes a toy's files, and the catalog files that lead to them.
fn write_toy(place: &Place, model: &str, weights: &str) {
    write_record(place, model, weights, "");
}

/// As [`write_toy`], with further tables of the record.
fn write_record(place: &Place, model: &str, weights: &str, tables: &str) {
    let folder = place.path().join(model);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("weights.bin"), weights).expect("writes");
    let tokenizer = fs::read(models::folder(models::MEAN).join("tokenizer.json")).expect("a tokenizer");
    fs::write(folder.join("tokenizer.json"), &tokenizer).expect("writes");
    let record = format!(
        "schema = 1\nid = \"{model}\"\ntitle = \"toy\"\nfamily = \"bert\"\nkind = \"embed\"\nlicence = \"CC0-1.0\"\n\
         dims = 32\ncontext = {MAX_TOKENS}\nmax_tokens = {MAX_TOKENS}\npooling = \"mean\"\nnormalize = false\n\n{tables}\
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
         variant = \"f32\"\nformat = \"bytes\"\nquant = \"f32\"\ndtype = \"f32\"\nmax_tokens = {MAX_TOKENS}\n\
         max_batch = 16\nmax_batch_tokens = 1024\nmax_sequences = 8\n"
    );
    fs::write(catalog.join(format!("envelopes/{model}.toml")), row).expect("writes");
}

/// Pulls a toy.
fn pull(client: &mut Client, place: &Place, model: &str) {
    let path = place.path().join(model);
    let pulled = client.ok("models.pull", &json!({"model": model, "source": "local", "path": path}));
    let view = client.job(&pulled);
    assert_eq!(view["state"], "done", "{view}");
}

fn query(model: &str, text: &str) -> Value {
    json!({"model": model, "text": text})
}

/// The daemon's workers.
fn worker_pids(daemon: &Daemon) -> Vec<u32> {
    let children = format!("/proc/{0}/task", daemon.pid());
    let tasks = fs::read_dir(children).expect("the daemon lives").flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> = lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect();
    let serves = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("--socket")
    };
    pids.into_iter().filter(serves).collect()
}

/// How many workers the daemon has.
fn workers(daemon: &Daemon) -> usize {
    worker_pids(daemon).len()
}

/// `kill -9`; the process may be gone.
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    let _ = kill_process(pid, Signal::KILL);
}

/// Probes lanes and gives the job's last view; the probe has to get to its end.
fn probe(client: &mut Client, lanes: &[&str]) -> Value {
    let started = client.ok("probe.start", &json!({"models": lanes}));
    let view = client.job(&started);
    assert_eq!(view["state"], "done", "{view}");
    view
}

/// The report of one lane.
fn lane(client: &mut Client, lane: &str) -> Value {
    let report = client.ok("probe.report", &json!({"models": [lane]}));
    let lanes = report["lanes"].as_array().expect("lanes");
    assert_eq!(lanes.len(), 1, "{report}");
    lanes[0].clone()
}

/// A gate of a lane's report.
fn gate<'r>(lane: &'r Value, name: &str) -> &'r Value {
    let gates = lane["findings"]["gates"].as_array().expect("gates");
    let found = gates.iter().find(|gate| gate["gate"] == name);
    found.unwrap_or_else(|| panic!("no gate {name}: {lane}"))
}

/// A figure of a gate.
fn figure(gate: &Value, name: &str) -> f64 {
    let figures = gate["figures"].as_array().expect("figures");
    let found = figures.iter().find(|figure| figure["name"] == name);
    let measured = found.and_then(|figure| figure["measured"].as_f64());
    measured.unwrap_or_else(|| panic!("no figure {name}: {gate}"))
}

/// The names of the gates that failed.
fn failed(lane: &Value) -> Vec<&str> {
    let gates = lane["findings"]["gates"].as_array().expect("gates");
    let failed = gates.iter().filter(|gate| gate["outcome"] == "failed");
    failed.filter_map(|gate| gate["gate"].as_str()).collect()
}

/// Asserts that a query is refused with this code before any engine heard of it: the lane's worker has no call more than
/// before, because there is none.
fn closed(client: &mut Client, model: &str, code: &str) -> Value {
    let (found, error) = client.fails("embed.query", &json!({"model": model, "text": "a text"}));
    assert_eq!(found, code, "{error}");
    error
}
