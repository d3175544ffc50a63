//! The Python example in a whole daemon: its vectors are those of a second computation, and whatever the program does
//! wrong is a typed error of the request that met it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::{ID, MODEL, drop_in, edit, embed, entry, install, place, prepare, query, until};
use crate::support::client::{Client, code};
use crate::support::daemon::{Daemon, Place};
use crate::support::{repository, skipped};
use crate::worker::children;

/// The model's table, made anew: SplitMix64 (`make_model.py`), one signed byte a value.
struct Table(Vec<i8>);

const ROWS: usize = 2048;
const DIMS: usize = 64;

impl Table {
    fn new() -> Self {
        let mut state: u64 = 20_261_130;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        Self(
            (0..ROWS * DIMS)
                .map(|_| i8::from_le_bytes([next().to_le_bytes()[0]]))
                .collect(),
        )
    }

    /// The vector of an item, of length 1: every run of 1 to 3 ids names a row and a sign by its FNV-1a hash.
    fn vector(&self, ids: &[i32]) -> Vec<f64> {
        let mut sums = [0i32; DIMS];
        for run in (1..=3).flat_map(|length| ids.windows(length)) {
            let octets = run.iter().flat_map(|id| id.to_le_bytes());
            let hash = octets.fold(2_166_136_261_u32, |hash, octet| {
                (hash ^ u32::from(octet)).wrapping_mul(16_777_619)
            });
            let row = hash as usize % ROWS * DIMS;
            let sign = if hash >> 31 == 1 { -1 } else { 1 };
            for (sum, value) in sums.iter_mut().zip(&self.0[row..row + DIMS]) {
                *sum += sign * i32::from(*value);
            }
        }
        let length = sums.iter().map(|sum| f64::from(*sum).powi(2)).sum::<f64>().sqrt();
        sums.iter().map(|sum| f64::from(*sum) / length).collect()
    }
}

fn ids(client: &mut Client, text: &str) -> Vec<i32> {
    let reply = client.ok("text.tokenize", &json!({"model": MODEL, "text": text, "role": "none"}));
    let ids = reply["ids"].as_array().expect("ids").clone();
    ids.iter()
        .map(|id| i32::try_from(id.as_i64().expect("a number")).expect("an id"))
        .collect()
}

fn assert_served(client: &mut Client, table: &Table, text: &str) {
    let reply = embed(client, text);
    assert_eq!(reply["provenance"]["placement"], "worker", "{reply}");
    let expected = table.vector(&ids(client, text));
    let found: Vec<f64> = serde_json::from_value(reply["vectors"][0].clone()).expect("a vector");
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-6, "{text}: {found} is not {expected}");
    }
}

const TEXTS: [&str; 4] = [
    "hello",
    "A cat sat on the mat; it was 12 o'clock.",
    "x",
    "one two three four five six seven eight nine ten",
];

/// A daemon with the example, whose manifest ends with these lines.
fn with_example(manifest: &str, bounds: &str, worsen: impl FnOnce(&Path)) -> (Place, Daemon, Client) {
    let (place, plugins) = place(bounds);
    // What a program prints is a line of the log at DEBUG (WP-04).
    let place = place.env("SYNAPSE_LOG", "info,synapse.worker=debug");
    let bundle = prepare(&plugins, ID);
    let file = bundle.join("plugin.toml");
    let text = fs::read_to_string(&file).expect("a manifest") + manifest;
    fs::write(file, text).expect("writes");
    worsen(&bundle);
    drop_in(&plugins, ID);
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    (place, daemon, client)
}

/// Rule WP-34, with a computation of our own: alone and in a batch, without numpy and with it.
#[test]
fn served_vectors_are_those_of_a_second_computation() {
    let table = Table::new();
    let check = |manifest: &str| {
        let (_place, daemon, mut client) = with_example(manifest, "", |_| {});
        install(&mut client);
        for text in TEXTS {
            assert_served(&mut client, &table, text);
        }
        let items: Value = TEXTS
            .iter()
            .enumerate()
            .map(|(n, text)| json!({"id": n.to_string(), "text": text}))
            .collect();
        let batch = json!({"model": MODEL, "items": items, "role": "none", "deadline_ms": 120_000});
        let batch = client.ok("embed.batch", &batch);
        for (text, vector) in TEXTS.iter().zip(batch["vectors"].as_array().expect("vectors")) {
            assert_eq!(
                *vector,
                embed(&mut client, text)["vectors"][0],
                "{text}: alone and in a batch"
            );
        }
        // What the program prints is the daemon's log, and says what computes.
        until("the program's line is in the log", || {
            daemon.log().contains("computing with")
        });
        let with_numpy = daemon.log().contains("computing with numpy");
        client.ok("model.unload", &json!({"model": MODEL}));
        until("the worker ends", || children(daemon.pid()).is_empty());
        assert!(daemon.stop().success());
        with_numpy
    };
    check("");
    let numpy = repository().join(".synapse/cache/python/numpy-2.1.3");
    let used = numpy.is_dir() && check(&format!("\n[engine.config]\nsite_packages = \"{}\"\n", numpy.display()));
    if !used {
        skipped(
            "served_vectors_are_those_of_a_second_computation (numpy)",
            "python3 cannot use the numpy of `scripts/setup.py numpy`",
        );
    }
}

/// A setting that the program does not know, and a table that is none: typed, and the program goes on.
#[test]
fn what_the_program_refuses_has_its_reason() {
    let (_place, _daemon, mut client) = with_example("\n[engine.config]\ncolour = \"red\"\n", "", |_| {});
    let pulled = client.ok("models.pull", &json!({"model": MODEL}));
    assert_eq!(client.job(&pulled)["state"], "done");
    let load = client.ok("model.load", &json!({"model": MODEL}));
    let view = client.job(&load);
    assert_eq!(view["state"], "failed_permanent", "{view}");
    assert!(view.to_string().contains("unknown setting 'colour'"), "{view}");
}

/// A text of 16 tokens: its call is the one that goes wrong.
const STRIKES: &str = "abcdefghijklmn";

/// Makes the example's program do `fault` (a Python statement) with items of 16 tokens.
fn strike(bundle: &Path, fault: &str) {
    let program = format!(
        "#!/usr/bin/env python3\nimport os, sys, time\nsys.dont_write_bytecode = True\nimport engine, worker\n\
         honest = engine.Table.embed\n\
         def embed(self, ids, checkpoint):\n    if len(ids) == 16:\n        {fault}\n    return honest(self, ids, checkpoint)\n\
         engine.Table.embed = embed\nsys.exit(worker.main())\n"
    );
    let file = bundle.join("faulty.py");
    fs::write(&file, program).expect("writes");
    fs::set_permissions(file, PermissionsExt::from_mode(0o755)).expect("a mode");
    edit(
        bundle,
        "plugin.toml",
        "program = \"worker.py\"",
        "program = \"faulty.py\"",
    );
}

/// Proves WSUP-03, WSUP-12, WPROTO-27 for a program that is not ours: crash, hang and lies are typed errors of their own
/// request, and the next one is served.
#[test]
fn whatever_the_program_does_wrong_is_a_typed_error() {
    let rows = [
        ("os.abort()", "engine_crashed", json!("exit")),
        ("os._exit(0)", "engine_crashed", json!("exit")),
        ("time.sleep(600)", "engine_crashed", json!("timeout")),
        ("raise ValueError('a defect')", "engine_crashed", json!("panic")),
        ("return b''", "engine_crashed", json!("protocol")),
        ("return b'\\xff' * 4 * self.dims", "non_finite_output", Value::Null),
        (
            "import protocol; raise protocol.Refused('input_too_long', 'too long')",
            "input_too_long",
            json!("call"),
        ),
    ];
    for (fault, expected, stage) in rows {
        let silence = r#", "inference_silence_ms": 1500"#;
        let (_place, daemon, mut client) = with_example("", silence, |bundle| strike(bundle, fault));
        install(&mut client);
        let before = embed(&mut client, "fine")["vectors"].clone();
        let (found, error) = client.fails("embed.query", &query(STRIKES));
        assert_eq!(
            (found.as_str(), &error["data"]["detail"]["stage"]),
            (expected, &stage),
            "{fault}: {error}"
        );
        assert_eq!(
            embed(&mut client, "fine")["vectors"],
            before,
            "{fault}: the next one is served"
        );
        assert!(children(daemon.pid()).len() <= 1, "{fault}");
    }
}

/// Rule WP-43: a cancelled call ends at once, and its process serves on. Proves WSUP-09.
#[test]
fn a_cancelled_call_ends_and_its_process_stays() {
    let slow = "[(time.sleep(0.01), checkpoint(0)) for _ in range(6000)]";
    let (_place, daemon, mut client) = with_example("", "", |bundle| strike(bundle, slow));
    install(&mut client);
    embed(&mut client, "fine");
    let before = children(daemon.pid());
    let id = client.request("embed.query", &query(STRIKES));
    let mut watcher = daemon.connect();
    until("the call runs", || {
        let health = watcher.ok("health", &json!({}));
        let lanes = health["lanes"].as_array().expect("lanes").clone();
        lanes.iter().any(|lane| lane["in_flight"] == 1)
    });
    let cancel = client.request("request.cancel", &json!({"id": id}));
    let answers = [client.line().expect("an answer"), client.line().expect("an answer")];
    let of = |wanted: u64| answers.iter().find(|answer| answer["id"] == wanted).expect("answered");
    assert_eq!(code(&of(id)["error"]), "cancelled");
    assert!(of(cancel)["error"].is_null());
    embed(&mut client, "fine");
    assert_eq!(children(daemon.pid()), before, "the same process");
}

/// A program that is killed while it waits is replaced, and nobody hears of it.
#[test]
fn a_program_that_ended_between_requests_is_replaced() {
    let (_place, daemon, mut client) = with_example("", "", |_| {});
    install(&mut client);
    let before = embed(&mut client, "fine")["vectors"].clone();
    let old = children(daemon.pid());
    assert_eq!(old.len(), 1);
    crate::worker::signal(old[0], rustix::process::Signal::KILL);
    until("it is gone", || !children(daemon.pid()).contains(&old[0]));
    assert_eq!(embed(&mut client, "fine")["vectors"], before);
    assert_eq!(entry(&mut client, ID)["status"], "ready");
}
