//! Every GGUF file of the shared zoo against its manifest, and the header's rules on a small file made here.

use std::fs::File;
use std::io::{Cursor, Write};
use std::path::Path;

use super::{GgufError, check, inspect};

/// What the engine refuses at load although the header is in order, and what needs a cap rather than a refusal.
const NOT_THE_HEADERS: [&str; 3] = ["gguf-missing-tensor", "gguf-shape-mismatch", "gguf-ctx-u32max"];

/// Proves CACHE-08.
#[test]
fn every_bad_file_of_the_zoo_is_refused() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(folder) = manifest
        .ancestors()
        .map(|dir| dir.join("shared/data/zoo/bad"))
        .find(|dir| dir.is_dir())
    else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: needs shared/data beside the repository");
        return;
    };
    let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut seen = 0;
    for entry in json["entries"].as_array().unwrap() {
        let (name, verdict) = (entry["name"].as_str().unwrap(), entry["verdict"].as_str().unwrap());
        let Some(path) = entry["file"].as_str().filter(|file| file.ends_with(".gguf")) else {
            continue;
        };
        let mut file = File::open(folder.join(path)).unwrap();
        let length = file.metadata().unwrap().len();
        let result = inspect(&mut file, length);
        seen += 1;
        if verdict == "accept" || NOT_THE_HEADERS.contains(&name) {
            result.unwrap_or_else(|error| panic!("{name}: {error}"));
        } else {
            let error = result.expect_err(name);
            assert!(error.to_string().len() < 400, "{name}: {error}");
        }
    }
    assert!(seen >= 35, "{seen} files");
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// A file with one f32 tensor of four values and the given alignment.
fn small(alignment: u32, offset: u64, value: f32) -> Vec<u8> {
    let number =
        |key: &str, value: u32| [string(key), 4u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat();
    let keys = [
        [
            string("general.architecture"),
            8u32.to_le_bytes().to_vec(),
            string("llama"),
        ]
        .concat(),
        number("general.alignment", alignment),
        number("llama.embedding_length", 4),
        number("llama.attention.head_count", 2),
        number("llama.block_count", 1),
        number("llama.context_length", 16),
    ];
    let mut bytes = [
        b"GGUF".as_slice(),
        &3u32.to_le_bytes(),
        &1u64.to_le_bytes(),
        &6u64.to_le_bytes(),
    ]
    .concat();
    bytes.extend(keys.concat());
    bytes.extend(
        [
            string("norm.weight"),
            1u32.to_le_bytes().to_vec(),
            4u64.to_le_bytes().to_vec(),
        ]
        .concat(),
    );
    bytes.extend([0u32.to_le_bytes().as_slice(), &offset.to_le_bytes()].concat());
    bytes.resize(bytes.len().next_multiple_of(alignment.max(1) as usize), 0);
    bytes.extend([1.0, 2.0, value, 4.0].map(f32::to_le_bytes).concat());
    bytes
}

fn verdict(bytes: &[u8]) -> Result<(), GgufError> {
    inspect(&mut Cursor::new(bytes), bytes.len() as u64).map(drop)
}

/// A lane's context comes from the record, so the record promises no more than the file has.
#[test]
fn a_record_has_no_more_context_than_its_file() {
    let bytes = small(32, 0, 3.0);
    let gguf = inspect(&mut Cursor::new(&bytes), bytes.len() as u64).unwrap();
    assert!(check::check_context(&gguf, 16).is_ok());
    let error = check::check_context(&gguf, 17).unwrap_err().to_string();
    assert!(
        error.contains("context_length is 16") && error.contains("is 17"),
        "{error}"
    );
}

#[test]
fn a_small_file_is_read_and_its_variations_are_refused() {
    assert!(verdict(&small(32, 0, 3.0)).is_ok());
    assert!(verdict(&small(8, 0, 3.0)).is_ok());
    for (bytes, words) in [
        (small(32, 0, f32::NAN), "not finite"),
        (small(32, 0, f32::INFINITY), "not finite"),
        (small(32, 16, 3.0), "begins at 16"),
        (small(4, 0, 3.0), "power of two"),
        (small(24, 0, 3.0), "power of two"),
    ] {
        let error = verdict(&bytes).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    let whole = small(32, 0, 3.0);
    for cut in 0..whole.len() {
        assert!(
            verdict(&whole[..cut]).is_err(),
            "a file cut at {cut} bytes was accepted"
        );
    }
}
