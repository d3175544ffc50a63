//! Test models: tiny BERT models with fixed random weights, and catalog files that lead to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use synapse_catalog::{Catalog, Record};

use super::{fixtures, repository};

/// The test model that most tests use: mean pooling, normalised, 48 dimensions, 128 tokens.
pub const MEAN: &str = "bert-embed";
/// Its sibling: CLS pooling, not normalised.
pub const CLS: &str = "bert-embed-cls";

/// A cross-encoder for onnxruntime: one logit a pair, 128 tokens.
pub const CROSS: &str = "bert-cross-encoder";

/// Where a test model's files lie.
pub fn folder(model: &str) -> PathBuf {
    if model == CROSS {
        return fixtures(CROSS);
    }
    repository().join("plugins/owned/tests/fixtures").join(model)
}

/// Writes an operator's catalog with the test models into `catalog`. They can be had from their folder and from a
/// hub, as `test/MODEL` at revision `main`.
pub fn write_catalog(catalog: &Path) {
    for part in ["models", "envelopes"] {
        fs::create_dir_all(catalog.join(part)).expect("a folder");
    }
    for model in [MEAN, CLS, CROSS] {
        let name = format!("models/{model}.toml");
        let record = fs::read_to_string(fixtures("catalog").join(&name)).expect("the record");
        let hub = format!("\n[[sources]]\nkind = \"hf\"\nrepo = \"test/{model}\"\nrevision = \"main\"\n");
        fs::write(catalog.join(&name), record + &hub).expect("writes");
    }
    for rows in ["envelopes/owned.toml", "envelopes/ort.toml"] {
        fs::copy(fixtures("catalog").join(rows), catalog.join(rows)).expect("copies");
    }
}

/// The record of a test model, as the daemon reads it.
pub fn record(catalog: &Path, model: &str) -> Record {
    let (catalog, refused) = Catalog::empty().with_dir(catalog);
    assert!(refused.is_empty(), "{refused:?}");
    catalog.record(model).expect("is in the catalog").clone()
}

/// The files of a record, by their path in a source.
pub fn files(record: &Record) -> BTreeMap<String, Vec<u8>> {
    let from = folder(&record.id);
    record
        .files_to_fetch(&record.formats[0])
        .into_iter()
        .map(|file| {
            let bytes = fs::read(from.join(&file.path)).unwrap_or_else(|error| panic!("{}: {error}", file.path));
            (file.path, bytes)
        })
        .collect()
}
