//! What closes a certified lane: a change of anything that its certificate is bound to. The old certificate comes back
//! only with everything that it was bound to.

use std::fs;

use serde_json::{Value, json};
use synapse_core::digest::sha256;

use super::{closed, lane, place, probe, pull, query};
use crate::plugins::{ID, drop_in, edit, prepare};
use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};

const TOY: &str = "toy@reference:f32";

/// A place whose toy is installed and certified, without a daemon.
fn certified() -> Place {
    certify(place(&[], ""), TOY)
}

/// Installs the toy and probes this lane of it.
fn certify(place: Place, lane: &str) -> Place {
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    pull(&mut client, &place, "toy");
    let view = probe(&mut client, &[lane]);
    assert_eq!(view["result"]["probed"][0]["state"], "certified", "{view}");
    assert!(daemon.stop().success());
    place
}

fn start(place: &Place) -> (Daemon, Client) {
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    (daemon, client)
}

/// The lane is closed, shown as stale, and no engine was started for the refused requests.
fn assert_stale(place: &Place, name: &str, changed: &str) {
    let (daemon, mut client) = start(place);
    for method in ["embed.query", "embed.batch"] {
        let params = match method {
            "embed.query" => query("toy", "a text"),
            _ => json!({"model": "toy", "items": [{"id": "a", "text": "a text"}]}),
        };
        let (code, error) = client.fails(method, &params);
        assert_eq!(code, "probe_required", "{changed}: {error}");
        assert_eq!(error["data"]["class"], "permanent", "{changed}: {error}");
    }
    let report = lane(&mut client, name);
    assert_eq!(report["verdict"], "stale", "{changed}: {report}");
    for flag in ["certification_stale", "performance_stale"] {
        assert_eq!(report[flag], true, "{changed}: {flag}");
    }
    assert_eq!(report["blocking_reason"], "probe_required", "{changed}");
    let words = report["reason"].as_str().expect("words");
    assert!(words.contains(changed), "{changed}: {words}");
    assert_eq!(
        super::workers(&daemon),
        0,
        "{changed}: zero engine calls need no engine"
    );
    assert!(daemon.stop().success());
}

/// The lane serves without another probe.
fn assert_serves(place: &Place, name: &str) {
    let (daemon, mut client) = start(place);
    client.load(name);
    let reply = client.ok("embed.query", &query("toy", "a text"));
    assert!(!reply["provenance"]["certification"].is_null(), "{reply}");
    assert_eq!(lane(&mut client, name)["verdict"], "certified");
    assert!(daemon.stop().success());
}

/// Writes `to` for `from` in the reference bundle's manifest.
fn edit_manifest(place: &Place, from: &str, to: &str) {
    let manifest = place.path().join("plugins/reference/plugin.toml");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    assert!(text.contains(from), "{text}");
    fs::write(&manifest, text.replace(from, to)).expect("writes");
}

/// Proves CERT-08, CERT-09, CERT-10, CERT-12, TEST-41. Trigger: the machine profile.
#[test]
fn another_machine() {
    let place = certified();
    let place = place.rewrite_config(&super::config(r#", "drivers": ["cuda=13.1"]"#, ""));
    assert_stale(&place, TOY, "the machine");
    let place = place.rewrite_config(&super::config("", ""));
    assert_serves(&place, TOY);
}

/// Proves CERT-12, CERT-18. Trigger: the bundle's digest, the version being the same.
#[test]
fn another_bundle_of_the_same_version() {
    let place = certified();
    let extra = place.path().join("plugins/reference/NOTES");
    fs::write(&extra, "built on another day").expect("writes");
    assert_stale(&place, TOY, "the bundle");
    fs::remove_file(&extra).expect("is there");
    assert_serves(&place, TOY);
}

/// A place with a copy of the Python example, whose program says its version itself, and a model for it.
fn example() -> Place {
    let place = Place::new().config(&super::config("", ""));
    let plugins = place.path().join("plugins");
    fs::create_dir(&plugins).expect("a folder");
    let bundle = prepare(&plugins, ID);
    let folder = place.path().join("toy");
    fs::create_dir(&folder).expect("a folder");
    let files = ["tokenizer.json", "table.bin"].map(|name| {
        let bytes = fs::read(bundle.join("model").join(name)).expect("a file of the model");
        fs::write(folder.join(name), &bytes).expect("writes");
        format!(
            "path = \"{name}\"\nsha256 = \"{}\"\nsize = {}\n",
            sha256(&bytes),
            bytes.len()
        )
    });
    let record = format!(
        "schema = 1\nid = \"toy\"\ntitle = \"toy\"\nfamily = \"hashed\"\nkind = \"embed\"\nlicence = \"CC0-1.0\"\n\
         dims = 64\ncontext = 64\nmax_tokens = 64\npooling = \"none\"\nnormalize = true\n\n\
         [tokenizer]\n{}\n[[formats]]\nformat = \"hashed\"\nquant = \"i8\"\n\n\
         [[formats.files]]\nrole = \"weights\"\n{}\n[[sources]]\nkind = \"local\"\n",
        files[0], files[1]
    );
    let row = "schema = 1\n\n[[row]]\nmodel = \"toy\"\nengine = \"python-example\"\nengine_version = \">=0.1, <2\"\n\
               variant = \"f32\"\nformat = \"hashed\"\nquant = \"i8\"\ndtype = \"f32\"\nmax_tokens = 64\n\
               max_batch = 8\nmax_batch_tokens = 512\nmax_sequences = 8\n";
    let catalog = place.data().join("catalog");
    fs::write(catalog.join("models/toy.toml"), record).expect("writes");
    fs::write(catalog.join("envelopes/toy.toml"), row).expect("writes");
    drop_in(&plugins, ID);
    place.plugin_dir(plugins)
}

/// Proves CERT-12. Trigger: the engine's version. The example states it in its manifest and in its program: a bundle whose
/// two versions differ is refused as a whole.
#[test]
fn another_version_of_the_engine() {
    const EXAMPLE: &str = "toy@python-example:f32";
    let place = certify(example(), EXAMPLE);
    let bundle = place.path().join("plugins").join(ID);
    let becomes = |from: &str, to: &str| {
        edit(
            &bundle,
            "plugin.toml",
            &format!("version = \"{from}\""),
            &format!("version = \"{to}\""),
        );
        edit(&bundle, "worker.py", &format!("\"{from}\""), &format!("\"{to}\""));
    };
    becomes("0.1.0", "0.1.1");
    assert_stale(&place, EXAMPLE, "the engine's version");
    becomes("0.1.1", "0.1.0");
    assert_serves(&place, EXAMPLE);
}

/// Proves CERT-12. Trigger: the settings that the engine runs with.
#[test]
fn other_settings_of_the_engine() {
    let place = certified();
    let rows = place.data().join("catalog/envelopes/toy.toml");
    let edit = |from: &str, to: &str| {
        let text = fs::read_to_string(&rows).expect("rows");
        fs::write(&rows, text.replace(from, to)).expect("writes");
    };
    edit("max_batch = 16", "max_batch = 8");
    assert_stale(&place, TOY, "the engine's settings");
    edit("max_batch = 8", "max_batch = 16");
    assert_serves(&place, TOY);
}

/// Proves CERT-12. Trigger: the hash of the model's files.
#[test]
fn other_files_of_the_model() {
    let place = certified();
    super::write_toy(&place, "toy", "other weights");
    let (daemon, mut client) = start(&place);
    client.ok("models.remove", &json!({"model": "toy"}));
    pull(&mut client, &place, "toy");
    assert!(daemon.stop().success());
    assert_stale(&place, TOY, "the model");

    super::write_toy(&place, "toy", super::WEIGHTS);
    let (daemon, mut client) = start(&place);
    client.ok("models.remove", &json!({"model": "toy"}));
    pull(&mut client, &place, "toy");
    assert!(daemon.stop().success());
    assert_serves(&place, TOY);
}

/// Proves CERT-11: only a probe that passes opens what is stale; one that fails keeps it closed, over a restart too.
#[test]
fn a_failed_probe_keeps_it_closed_and_a_passed_one_opens_it() {
    let place = certified();
    edit_manifest(&place, "[engine.config]", "[engine.config]\nfault = \"nan\"");
    let (daemon, mut client) = start(&place);
    closed(&mut client, "toy", "probe_required");
    let view = probe(&mut client, &[TOY]);
    assert_eq!(view["result"]["probed"][0]["state"], "failed", "{view}");
    for again in 1..=2 {
        let report = lane(&mut client, TOY);
        assert_eq!(report["verdict"], "failed", "{again}: {report}");
        closed(&mut client, "toy", "probe_required");
    }
    assert!(daemon.stop().success());
    let (daemon, mut client) = start(&place);
    assert_eq!(lane(&mut client, TOY)["verdict"], "failed");
    closed(&mut client, "toy", "probe_required");
    assert!(daemon.stop().success());

    edit_manifest(&place, "fault = \"nan\"", "fault = \"none\"");
    let (daemon, mut client) = start(&place);
    closed(&mut client, "toy", "probe_required");
    let view = probe(&mut client, &[TOY]);
    assert_eq!(view["result"]["probed"][0]["state"], "certified", "{view}");
    client.load(TOY);
    let reply: Value = client.ok("embed.query", &query("toy", "a text"));
    assert!(!reply["provenance"]["certification"].is_null(), "{reply}");
    assert!(daemon.stop().success());
}
