//! The JSON Schemas of catalog files: equal to the published ones, and of one mind with the checks.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde_json::Value as Json;
use synapse_catalog::file::{EnvelopesFile, RecordFile};

const MINILM: &str = include_str!("../models/all-minilm-l6-v2.toml");
const OWNED: &str = include_str!("../envelopes/owned.toml");

fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas").join(name)
}

fn compare<T: JsonSchema>(name: &str) -> Json {
    let schema = serde_json::to_value(schemars::schema_for!(T)).expect("a schema is JSON");
    let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
    let path = published(name);
    if std::env::var_os("SYNAPSE_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the schema can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "{} is not what the types say; run again with SYNAPSE_BLESS=1",
        path.display()
    );
    schema
}

fn json(toml_text: &str) -> Json {
    let table: toml::Table = toml::from_str(toml_text).expect("TOML");
    serde_json::to_value(table).expect("plain values")
}

/// The built-in files satisfy the published schemas, and what only a schema's reader sees is refused there too.
#[test]
fn schemas_are_published_and_hold() {
    let record = jsonschema::validator_for(&compare::<RecordFile>("model.schema.json")).expect("a schema");
    let rows = jsonschema::validator_for(&compare::<EnvelopesFile>("envelope.schema.json")).expect("a schema");
    assert!(record.is_valid(&json(MINILM)));
    assert!(rows.is_valid(&json(OWNED)));
    for (from, to) in [
        ("schema = 1", "schema = 2"),
        ("dims = 384", "dims = 384\ncolour = 1"),
        ("size = 349", "size = 349\nurl = \"x\""),
        ("size = 349", "size = 0"),
        ("kind = \"local\"", "kind = \"local\"\npath = \"x\""),
        ("sha256 = \"84e4", "sha256 = \"84E4"),
        ("family = \"bert\"\n", ""),
    ] {
        assert!(MINILM.contains(from), "{from}");
        assert!(!record.is_valid(&json(&MINILM.replacen(from, to, 1))), "{to}");
    }
    for (from, to) in [
        ("dtype = \"f32\"", "dtype = \"f32\"\nthreads = 2"),
        ("max_batch = 64", "max_batch = 0"),
    ] {
        assert!(OWNED.contains(from), "{from}");
        assert!(!rows.is_valid(&json(&OWNED.replacen(from, to, 1))), "{to}");
    }
}
