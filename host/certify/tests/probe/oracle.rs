//! The shipped references of MiniLM against the oracle of shared data: transformers in float64, which is not ours.

use std::fs;
use std::path::{Path, PathBuf};

use synapse_catalog::Catalog;
use synapse_certify::{Corpus, ReferenceValues, References};

fn shared() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = here.ancestors().map(|folder| folder.join("shared/data/oracle"));
    let found = folders.into_iter().find(|folder| folder.join("corpus.jsonl").is_file());
    if found.is_none() {
        #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
        {
            eprintln!("SKIPPED the references against the oracle: shared/data/oracle is not here");
        }
    }
    found
}

/// The doubles of a `.npy` file of two dimensions in C order, row by row.
fn npy(path: &Path, dims: usize) -> Vec<Vec<f64>> {
    let bytes = fs::read(path).expect("reads");
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let values: Vec<f64> = bytes[10 + header..]
        .as_chunks::<8>()
        .0
        .iter()
        .map(|eight| f64::from_le_bytes(*eight))
        .collect();
    values.chunks_exact(dims).map(<[f64]>::to_vec).collect()
}

/// The built-in references parse, are of this corpus, and belong to the record.
#[test]
fn every_shipped_reference_is_sound() {
    let catalog = Catalog::builtin();
    let mut found = 0;
    for record in catalog.records() {
        let Some(bytes) = catalog.references(&record.id).expect("the file that the record names") else {
            continue;
        };
        let references = References::parse(&bytes).unwrap_or_else(|error| panic!("{}: {error}", record.id));
        assert_eq!(
            Some(references.digest),
            record.references.as_ref().map(|file| file.sha256)
        );
        found += 1;
    }
    assert!(found >= 1);
}

/// Two implementations of MiniLM in float64, ours in numpy and theirs in PyTorch, agree to the rounding of f32.
#[test]
fn minilm_references_equal_the_oracle() {
    let Some(oracle) = shared() else {
        return;
    };
    let bytes = Catalog::builtin()
        .references("all-minilm-l6-v2")
        .expect("readable")
        .expect("named");
    let references = References::parse(&bytes).expect("sound");
    let ReferenceValues::Vectors {
        dims,
        normalized: true,
        values,
    } = references.values
    else {
        panic!("unit vectors")
    };
    assert_eq!((dims, references.max_tokens), (384, 512));
    let theirs = npy(&oracle.join("minilm.mean_norm.max512.f64.npy"), dims);
    let corpus = fs::read_to_string(oracle.join("corpus.jsonl")).expect("reads");
    let (mut compared, mut largest) = (0, 0.0_f64);
    for (line, expected) in corpus.lines().zip(&theirs) {
        let entry: serde_json::Value = serde_json::from_str(line).expect("JSON");
        // These spell control tokens, which the oracle reads as such and we read as text.
        if (23..=25).contains(&entry["id"].as_u64().expect("an id")) {
            continue;
        }
        let text = entry["text"].as_str().expect("a text");
        let Some(item) = Corpus::builtin().texts.iter().position(|ours| **ours == *text) else {
            continue;
        };
        let ours = &values[item * dims..][..dims];
        let far = ours
            .iter()
            .zip(expected)
            .map(|(a, b)| (f64::from(*a) - b).abs())
            .fold(0.0, f64::max);
        largest = largest.max(far);
        compared += 1;
    }
    assert!(compared >= 185, "{compared} texts");
    // Half a unit in the last place of an f32 below 0.5 is 1.5e-8.
    assert!(largest <= 1.6e-8, "{largest:e} over {compared} texts");
}
