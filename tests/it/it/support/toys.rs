//! Models of the reference engine, one of each kind, and its arithmetic.
//!
//! No state. Any bytes are a model to that engine. The arithmetic follows `plugins/reference/reference.py`, not the
//! engine's own code: what the tests compare with is a second implementation.

use std::fs;

use serde_json::{Value, json};
use synapse_core::digest::sha256;

use super::client::Client;
use super::daemon::Place;
use super::models;

/// What a toy is for, with the lines that its record needs for it.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `kind = "embed"`.
    Embed,
    /// `kind = "rerank"`.
    Rerank,
    /// `kind = "generate"`.
    Generate,
}

impl Kind {
    const fn lines(self) -> &'static str {
        match self {
            Self::Embed => "kind = \"embed\"\ndims = 32\npooling = \"mean\"\nnormalize = false\n",
            Self::Rerank => "kind = \"rerank\"\nscore_kind = \"log_odds\"\n",
            Self::Generate => "kind = \"generate\"\n",
        }
    }
}

/// The longest pair of a toy that reranks, in tokens.
pub const MAX_TOKENS: u32 = 64;
/// The longest text of any other toy, in tokens; for one that generates, prompt and text together.
pub const CONTEXT: u32 = 1024;

/// The bytes of a toy's weights.
fn weights(model: &str) -> String {
    format!("weights of {model}")
}

/// Writes a toy's files into a folder of the place, and the catalog files that lead to them. Its tokenizer is the one
/// of the BERT test models.
pub fn write(place: &Place, model: &str, kind: Kind) {
    let folder = place.path().join(model);
    fs::create_dir_all(&folder).expect("a folder");
    let weights = weights(model);
    fs::write(folder.join("weights.bin"), &weights).expect("writes");
    let tokenizer = fs::read(models::folder(models::MEAN).join("tokenizer.json")).expect("a tokenizer");
    fs::write(folder.join("tokenizer.json"), &tokenizer).expect("writes");
    let longest = match kind {
        Kind::Embed | Kind::Generate => CONTEXT,
        Kind::Rerank => MAX_TOKENS,
    };
    let record = format!(
        "schema = 1\nid = \"{model}\"\ntitle = \"toy\"\nfamily = \"bert\"\nlicence = \"CC0-1.0\"\n{}\
         context = {longest}\nmax_tokens = {longest}\n\n\
         [tokenizer]\npath = \"tokenizer.json\"\nsha256 = \"{}\"\nsize = {}\n\n\
         [[formats]]\nformat = \"bytes\"\nquant = \"f32\"\n\n\
         [[formats.files]]\nrole = \"weights\"\npath = \"weights.bin\"\nsha256 = \"{}\"\nsize = {}\n\n\
         [[sources]]\nkind = \"local\"\n",
        kind.lines(),
        sha256(&tokenizer),
        tokenizer.len(),
        sha256(weights.as_bytes()),
        weights.len(),
    );
    let catalog = place.data().join("catalog");
    fs::write(catalog.join(format!("models/{model}.toml")), record).expect("writes");
    let row = format!(
        "schema = 1\n\n[[row]]\nmodel = \"{model}\"\nengine = \"reference\"\nengine_version = \">=0.1, <2\"\n\
         variant = \"f32\"\nformat = \"bytes\"\nquant = \"f32\"\ndtype = \"f32\"\nmax_tokens = {longest}\n\
         max_batch = 64\nmax_batch_tokens = 8192\nmax_sequences = 64\n"
    );
    fs::write(catalog.join(format!("envelopes/{model}.toml")), row).expect("writes");
}

/// Pulls a toy, without loading it.
pub fn pull(client: &mut Client, place: &Place, model: &str) {
    let path = place.path().join(model);
    let pulled = client.ok("models.pull", &json!({"model": model, "source": "local", "path": path}));
    let view = client.job(&pulled);
    assert_eq!(view["state"], "done", "{view}");
}

/// Pulls and loads a toy.
pub fn install(client: &mut Client, place: &Place, model: &str) {
    pull(client, place, model);
    client.load(model);
}

/// Step 1 of the definition: FNV-1a over the weights.
fn seed(weights: &str) -> u64 {
    weights.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Step 2: splitmix64's output.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Steps 3 and 4: the mean of the tokens' values. All tokens are of one segment.
fn mean(seed: u64, ids: &[u32], segment: u64) -> [f64; 32] {
    let mut mean = [0.0; 32];
    for &id in ids {
        let key = mix(seed ^ (segment << 32 | u64::from(id)));
        for (j, value) in (0..).zip(&mut mean) {
            let bits = u32::try_from(mix(key.wrapping_add(j)) >> 40).expect("24 bits");
            *value += f64::from(bits) / f64::from(1 << 23) - 1.0;
        }
    }
    let tokens = f64::from(u32::try_from(ids.len().max(1)).expect("a short text"));
    mean.map(|sum| sum / tokens)
}

/// Step 6: the score of a pair whose query is segment 0 and whose document is segment 1.
#[expect(clippy::cast_possible_truncation, reason = "the definition rounds once to binary32")]
fn seeded_score(seed: u64, query: &[u32], document: &[u32]) -> f32 {
    let (query, document) = (mean(seed, query, 0), mean(seed, document, 1));
    query.iter().zip(&document).fold(0.0, |sum, (q, d)| sum + q * d) as f32
}

/// Step 7: the letters that follow a prompt, and whether the end came by itself.
fn seeded_text(seed: u64, prompt: &[u32], max_tokens: usize, sampler: Option<u64>) -> (String, bool) {
    let mut h = sampler.map_or(seed, |sampler| mix(seed ^ sampler));
    for &id in prompt {
        h = mix(h ^ u64::from(id));
    }
    let mut letters = String::new();
    while letters.len() < max_tokens {
        h = mix(h);
        let draw = h >> 32;
        if draw.is_multiple_of(64) {
            return (letters, true);
        }
        let letter = 97 + u32::try_from(draw % 26).expect("a letter");
        h = mix(h ^ u64::from(letter));
        letters.push(char::from_u32(letter).expect("a letter"));
    }
    (letters, false)
}

/// The vector of these ids by a model of these weights: the mean of the tokens' values, before rounding.
pub fn vector(weights: &str, ids: &[u32]) -> [f64; 32] {
    mean(seed(weights), ids, 0)
}

/// The score that a toy gives to a pair.
pub fn score(model: &str, query: &[u32], document: &[u32]) -> f32 {
    seeded_score(seed(&weights(model)), query, document)
}

/// What a toy generates after a prompt, and whether it ended by itself.
pub fn text(model: &str, prompt: &[u32], max_tokens: usize, sampler: Option<u64>) -> (String, bool) {
    seeded_text(seed(&weights(model)), prompt, max_tokens, sampler)
}

/// The ids of a text as the toys' tokenizer makes them, special tokens included; `model` is a toy that embeds.
pub fn ids(client: &mut Client, model: &str, text: &str) -> Vec<u32> {
    let params = json!({"model": model, "text": text, "role": "none", "truncate": false});
    let answer = client.ok("text.tokenize", &params);
    let ids = answer["ids"].as_array().expect("ids").iter().map(Value::as_u64);
    ids.map(|id| u32::try_from(id.expect("a number")).expect("an id"))
        .collect()
}

/// The engine's own tests hold it to the same file.
#[test]
fn the_arithmetic_is_that_of_reference_py() {
    let file = super::repository().join("plugins/reference/tests/golden/values.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(file).expect("reads")).expect("JSON");
    let ids = |value: &Value| -> Vec<u32> {
        let ids = value.as_array().expect("ids").iter().map(Value::as_u64);
        ids.map(|id| u32::try_from(id.expect("a number")).expect("an id"))
            .collect()
    };
    let seed = seed(golden["model"].as_str().expect("a model"));
    let pair = &golden["pairs"][0];
    let start = usize::try_from(pair["doc_start"].as_u64().expect("a start")).expect("is small");
    let all = ids(&pair["ids"]);
    let score = seeded_score(seed, &all[..start], &all[start..]);
    assert_eq!(
        format!("{:08x}", score.to_bits()),
        pair["score"].as_str().expect("bits")
    );
    for prompt in &golden["prompts"].as_array().expect("prompts")[..3] {
        let limit = usize::try_from(prompt["max_tokens"].as_u64().expect("a limit")).expect("is small");
        let (text, ended) = seeded_text(seed, &ids(&prompt["ids"]), limit, prompt["seed"].as_u64());
        assert_eq!(
            (json!(text), json!(ended)),
            (prompt["text"].clone(), prompt["ended"].clone())
        );
    }
}
