//! An ONNX model that keeps its weights in a file beside it: that file is part of the artifact, by the name that the
//! graph calls it.
//!
//! The graph is written here, field by field: a lookup in a table of its own numbers. Mean pooling is the engine's, so
//! a text's vector is the mean of its tokens' rows, which the test computes from the ids.

use std::fs;

use serde_json::json;
use synapse_core::digest::sha256;

use crate::support::client::Client;
use crate::support::daemon::Place;
use crate::support::models;
use crate::support::vectors::{embed, largest_difference};

const ROWS: u32 = 900;
const DIMS: u32 = 4;
const NAME: &str = "table-1.onnx_data";

/// The number at a place of the table.
fn value(row: u32, column: u32) -> f32 {
    let small = |number: u32| f32::from(u16::try_from(number).expect("is small"));
    small(row).sin() + small(column)
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let seven = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            bytes.push(seven);
            return bytes;
        }
        bytes.push(seven | 0x80);
    }
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn part(field: u64, content: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// An ONNX file (onnx.proto, IR version 8, opset 17) whose one weight lies in [`NAME`].
fn graph() -> Vec<u8> {
    // Numbers of TensorProto.DataType.
    let (float, int64) = (1, 7);
    let dim = |size: Option<u64>, name: &str| match size {
        Some(size) => part(1, &number(1, size)),
        None => part(1, &part(2, name.as_bytes())),
    };
    let port = |name: &str, kind: u64, shape: Vec<u8>| {
        let tensor = [number(1, kind), part(2, &shape)].concat();
        [part(1, name.as_bytes()), part(2, &part(1, &tensor))].concat()
    };
    let ids = [dim(None, "batch"), dim(None, "sequence")].concat();
    let states = [ids.clone(), dim(Some(DIMS.into()), "")].concat();
    let location = [part(1, b"location"), part(2, NAME.as_bytes())].concat();
    let table = [
        number(1, ROWS.into()),
        number(1, DIMS.into()),
        number(2, float),
        part(8, b"table"),
        part(13, &location),
        number(14, 1),
    ]
    .concat();
    let node = [
        part(1, b"table"),
        part(1, b"input_ids"),
        part(2, b"last_hidden_state"),
        part(4, b"Gather"),
    ]
    .concat();
    let graph = [
        part(1, &node),
        part(2, b"lookup"),
        part(5, &table),
        part(11, &port("input_ids", int64, ids)),
        part(12, &port("last_hidden_state", float, states)),
    ]
    .concat();
    let opset = [part(1, b""), number(2, 17)].concat();
    [number(1, 8), part(7, &graph), part(8, &opset)].concat()
}

/// Writes the files of a model, and a record that names the table by `role`.
fn write(place: &Place, model: &str, role: &str) {
    let folder = place.path().join(model);
    fs::create_dir_all(folder.join("data")).expect("a folder");
    let table: Vec<u8> = (0..ROWS)
        .flat_map(|row| (0..DIMS).flat_map(move |column| value(row, column).to_le_bytes()))
        .collect();
    let tokenizer = fs::read(models::folder(models::MEAN).join("tokenizer.json")).expect("reads");
    let mut record = format!(
        "schema = 1\nid = \"{model}\"\ntitle = \"a lookup\"\nfamily = \"bert\"\nkind = \"embed\"\n\
         licence = \"CC0-1.0\"\ndims = {DIMS}\ncontext = 64\nmax_tokens = 64\npooling = \"mean\"\nnormalize = false\n"
    );
    let mut add = |heading: &str, path: &str, bytes: &[u8]| {
        fs::write(folder.join(path), bytes).expect("writes");
        record += &format!(
            "{heading}\npath = \"{path}\"\nsha256 = \"{}\"\nsize = {}\n",
            sha256(bytes),
            bytes.len()
        );
    };
    add("[tokenizer]", "tokenizer.json", &tokenizer);
    add(
        "[[formats]]\nformat = \"onnx\"\nquant = \"f32\"\n[[formats.files]]\nrole = \"weights\"",
        "model.onnx",
        &graph(),
    );
    add(
        &format!("[[formats.files]]\nrole = \"{role}\""),
        "data/table.bin",
        &table,
    );
    record += "[[sources]]\nkind = \"local\"\n";
    let row = format!(
        "schema = 1\n[[row]]\nmodel = \"{model}\"\nengine = \"ort\"\nengine_version = \">=0.1, <2\"\nvariant = \"f32\"\n\
         format = \"onnx\"\nquant = \"f32\"\ndtype = \"f32\"\nmax_tokens = 64\nmax_batch = 8\nmax_batch_tokens = 512\n\
         max_sequences = 8\n"
    );
    let catalog = place.data().join("catalog");
    fs::write(catalog.join(format!("models/{model}.toml")), record).expect("writes");
    fs::write(catalog.join(format!("envelopes/{model}.toml")), row).expect("writes");
}

fn pull(client: &mut Client, place: &Place, model: &str) {
    let path = place.path().join(model);
    let pull = client.ok("models.pull", &json!({"model": model, "source": "local", "path": path}));
    let view = client.job(&pull);
    assert_eq!(view["state"], "done", "{view}");
}

/// Proves CACHE-08, ENG-04.
#[test]
fn weights_beside_a_graph_are_part_of_the_artifact() {
    let place = Place::new();
    write(&place, "outside", &format!("external:{NAME}"));
    write(&place, "misnamed", "external:another.onnx_data");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "outside");
    client.load("outside");
    let text = "a few words";
    let tokens = client.ok(
        "text.tokenize",
        &json!({"model": "outside", "text": text, "role": "none"}),
    );
    let ids = tokens["ids"].as_array().expect("ids").iter();
    let ids: Vec<u32> = ids
        .map(|id| u32::try_from(id.as_u64().expect("an id")).expect("is small"))
        .collect();
    assert!(ids.len() > 3, "{tokens}");
    let mean = |column: u32| {
        let sum: f64 = ids.iter().map(|id| f64::from(value(*id, column))).sum();
        sum / f64::from(u32::try_from(ids.len()).expect("is small"))
    };
    let expected: Vec<f64> = (0..DIMS).map(mean).collect();
    let (vectors, _) = embed(&mut client, "outside", &[("x".to_owned(), text)]);
    let difference = largest_difference(&vectors[0], &expected);
    assert!(difference <= 1e-6, "{difference:e}");

    // Digests decide what a file is, so it is found by the graph's name for it and by no other.
    pull(&mut client, &place, "misnamed");
    let load = client.ok("model.load", &json!({"model": "misnamed"}));
    let view = client.job(&load);
    assert_eq!(view["error"]["code"], "artifact_invalid", "{view}");
    let message = view["error"]["message"].as_str().expect("a message");
    assert!(message.contains(&format!("external:{NAME}")), "{message}");
    assert!(daemon.stop().success());
}
