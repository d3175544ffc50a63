//! Real assertions of ggml in real workers.
//!
//! llama.cpp's bundle has a setting for tests, in builds with debug assertions, that makes every context smaller than
//! the model was loaded for. A longer text then passes every check before the engine and runs into `GGML_ASSERT`.

use std::fs;

use serde_json::{Value, json};
use synapse_core::digest::sha256;

use super::{QUICK, has_zombie, pull, query, vector, worker, workers};
use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place, build};
use crate::support::{models, repository};

const EMBEDDER: &str = "gguf-bert";
const GENERATOR: &str = "gguf-llama";

/// A place with the llama.cpp bundle under these lines of settings, and the two tiny models of its own tests.
fn place(settings: &str) -> Place {
    let place = Place::new().config(&format!(
        r#"{{"worker": {{{QUICK}}}, "shutdown": {{"grace_ms": 200, "cancel_ms": 2000}}}}"#
    ));
    let bundle = place.path().join("plugins/llama-cpp");
    fs::create_dir_all(&bundle).expect("a folder");
    for file in fs::read_dir(build().join("bundles/llama-cpp"))
        .expect("the bundle")
        .flatten()
    {
        fs::copy(file.path(), bundle.join(file.file_name())).expect("copies");
    }
    let manifest = bundle.join("plugin.toml");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    fs::write(&manifest, format!("{text}\n[engine.config]\n{settings}\n")).expect("writes");
    let tokenizer = fs::read(models::folder(models::MEAN).join("tokenizer.json")).expect("a tokenizer");
    let of_bert = format!(
        "kind = \"embed\"\ndims = 48\npooling = \"mean\"\nnormalize = true\n\n\
         [tokenizer]\npath = \"tokenizer.json\"\nsha256 = \"{}\"\nsize = {}\n",
        sha256(&tokenizer),
        tokenizer.len()
    );
    for (model, family, fixture, kind) in [
        (EMBEDDER, "bert", "bert-embed", of_bert.as_str()),
        (GENERATOR, "llama", "llama-generate", "kind = \"generate\"\n"),
    ] {
        let weights = repository().join("plugins/llama-cpp/tests/fixtures").join(fixture);
        let weights = fs::read(weights.join("model.gguf")).expect("the fixture");
        let folder = place.path().join(model);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("model.gguf"), &weights).expect("writes");
        fs::write(folder.join("tokenizer.json"), &tokenizer).expect("writes");
        let record = format!(
            "schema = 1\nid = \"{model}\"\ntitle = \"tiny\"\nfamily = \"{family}\"\nlicence = \"CC0-1.0\"\n\
             context = 128\nmax_tokens = 128\n{kind}\n\
             [[formats]]\nformat = \"gguf\"\nquant = \"f32\"\n\n\
             [[formats.files]]\nrole = \"weights\"\npath = \"model.gguf\"\nsha256 = \"{}\"\nsize = {}\n\n\
             [[sources]]\nkind = \"local\"\n",
            sha256(&weights),
            weights.len()
        );
        let catalog = place.data().join("catalog");
        fs::write(catalog.join(format!("models/{model}.toml")), record).expect("writes");
        let row = format!(
            "schema = 1\n\n[[row]]\nmodel = \"{model}\"\nengine = \"llama-cpp\"\nengine_version = \">=0.1, <2\"\n\
             variant = \"f32\"\nformat = \"gguf\"\nquant = \"f32\"\ndtype = \"f32\"\nmax_tokens = 128\nmax_batch = 16\n\
             max_batch_tokens = 2048\nmax_sequences = 1\n"
        );
        fs::write(catalog.join(format!("envelopes/{model}.toml")), row).expect("writes");
    }
    let folder = place.path().join("plugins");
    place.plugin_dir(folder)
}

fn serving(place: &Place, model: &str) -> (Daemon, Client) {
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, place, model);
    client.load(model);
    (daemon, client)
}

fn words(count: usize) -> String {
    vec!["one"; count].join(" ")
}

fn oneshot(prompt: &str) -> Value {
    json!({"model": GENERATOR, "prompt": prompt, "chat": false, "max_tokens": 4, "temperature": 0.0})
}

/// The error of a request that met an assertion: transient, the process gone, and ggml's own words at hand.
fn asserted(client: &mut Client, op: &str, params: &Value) {
    let (code, error) = client.fails(op, params);
    assert_eq!(code, "engine_crashed", "{error}");
    let data = &error["data"];
    assert_eq!(
        (&data["class"], &data["detail"]["stage"]),
        (&json!("transient"), &json!("exit")),
        "{error}"
    );
    let tail = data["detail"]["tail"].as_str().expect("last words");
    assert!(
        tail.contains("llama.cpp aborts:") && tail.contains("GGML_ASSERT"),
        "{tail}"
    );
}

/// The assertion of an encoder, more tokens than a micro-batch holds: that request alone fails, and a new process
/// gives the next one the same bits.
///
/// Proves ENG-06, ERR-07, ERR-08.
#[test]
fn an_encoders_assertion_ends_one_request() {
    let place = place("fault_context_tokens = 8");
    let (daemon, mut client) = serving(&place, EMBEDDER);
    let expected = vector(&mut client, EMBEDDER, "one");
    let before = worker(&daemon);
    asserted(&mut client, "embed.query", &query(EMBEDDER, &words(100)));
    assert_eq!(vector(&mut client, EMBEDDER, "one"), expected);
    assert_ne!(worker(&daemon), before);
    assert!(!has_zombie(&daemon));
    assert!(daemon.stop().success());
}

/// The assertion of a decoder, more tokens than a batch holds.
///
/// Proves ENG-06, ERR-07.
#[test]
fn a_decoders_assertion_ends_one_request() {
    let place = place("fault_context_tokens = 8");
    let (daemon, mut client) = serving(&place, GENERATOR);
    let expected = client.ok("microllm.oneshot", &oneshot("a"))["text"].clone();
    let before = worker(&daemon);
    asserted(&mut client, "microllm.oneshot", &oneshot(&words(60)));
    assert_eq!(client.ok("microllm.oneshot", &oneshot("a"))["text"], expected);
    assert_ne!(worker(&daemon), before);
    assert!(!has_zombie(&daemon));
    assert!(daemon.stop().success());
}

/// Without the switch the same texts are served, and longer ones than the envelope holds never reach an engine: they
/// are refused at admission, and no process dies.
#[test]
fn without_the_switch_no_text_reaches_an_assertion() {
    let place = place("");
    let (daemon, mut client) = serving(&place, EMBEDDER);
    pull(&mut client, &place, GENERATOR);
    client.load(GENERATOR);
    let before = workers(&daemon);
    vector(&mut client, EMBEDDER, &words(100));
    client.ok("microllm.oneshot", &oneshot(&words(60)));
    let mut long = query(EMBEDDER, &words(200));
    long["truncate"] = json!(false);
    for (op, params) in [("embed.query", &long), ("microllm.oneshot", &oneshot(&words(200)))] {
        let (code, error) = client.fails(op, params);
        assert_eq!(code, "input_too_long", "{error}");
    }
    assert_eq!(workers(&daemon), before);
    assert!(daemon.stop().success());
}
