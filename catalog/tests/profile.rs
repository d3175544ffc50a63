//! From catalog text to the hashed profile: which edits of a record, a row or a config move the space.
//!
//! This is the catalog's half of the flip table; `host/core/tests/fingerprint.rs` has the other.

use std::collections::{BTreeMap, BTreeSet};

use synapse_catalog::profile::{ArtifactDigestError, LaneFacts, artifact_digest, numeric_profile};
use synapse_catalog::{EnvelopeRow, Record, check, check_envelopes};
use synapse_core::digest::{Sha256Digest, sha256};
use synapse_core::engine::EngineIdentity;
use synapse_core::fingerprint::{ThreadPolicy, numeric_profile_id};

const MINILM: &str = include_str!("../models/all-minilm-l6-v2.toml");
const OWNED: &str = include_str!("../envelopes/owned.toml");

fn config() -> String {
    let folders: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_str(include_str!("../testdata/layouts.json")).expect("the test data is JSON");
    folders["minilm"]["config.json"].clone()
}

fn profile_id(record: &Record, row: &EnvelopeRow, config: &str) -> Sha256Digest {
    let format = record.format(&row.format, &row.quant).unwrap_or(&record.formats[0]);
    let facts = LaneFacts {
        model_digest: artifact_digest(format, |role| (role == "config").then(|| config.as_bytes().to_vec()))
            .expect("a digest"),
        tokenizer_digest: Some(sha256(b"sanitised tokenizer")),
        engine: EngineIdentity {
            engine: "owned".to_owned(),
            version: "1".to_owned(),
            build_flags: Vec::new(),
        },
        thread_policy: ThreadPolicy::Invariant,
    };
    numeric_profile_id(&numeric_profile(record, row, facts))
}

/// The id after one replacement in the record, the row or the config.
fn flipped(from: &str, to: &str) -> Sha256Digest {
    let (mut record, mut row, mut config) = (MINILM.to_owned(), OWNED.to_owned(), config());
    let place = [&mut record, &mut row, &mut config]
        .into_iter()
        .find(|text| text.contains(from));
    let place = place.unwrap_or_else(|| panic!("{from:?} is nowhere"));
    *place = place.replacen(from, to, 1);
    let record = check(&record).unwrap_or_else(|problems| panic!("{to}: {problems:?}"));
    let row = check_envelopes(&row)
        .unwrap_or_else(|problems| panic!("{to}: {problems:?}"))
        .remove(0);
    profile_id(&record, &row, &config)
}

/// Proves FPR-07. What the lane runs with is what is hashed: an edit of either moves the id.
#[test]
fn what_moves_the_space() {
    let base = flipped("schema = 1", "schema = 1");
    let mut seen = BTreeMap::from([(base, "nothing")]);
    let table = [
        ("pooling = \"mean\"", "pooling = \"cls\""),
        ("normalize = true", "normalize = false"),
        ("truncate_default = true", "templates = { query = \"query: {text}\" }"),
        (
            "truncate_default = true",
            "templates = { document = \"query: {text}\" }",
        ),
        ("sha256 = \"53aa", "sha256 = \"53ab"),
        ("max_tokens = 512", "max_tokens = 256"),
        ("max_batch = 64", "max_batch = 128"),
        ("max_batch_tokens = 16384", "max_batch_tokens = 8192"),
        ("max_sequences = 64", "max_sequences = 1"),
        ("dtype = \"f32\"", "dtype = \"bf16\""),
        ("max_sequences = 64", "max_sequences = 64\nflash_attention = true"),
        ("\"hidden_act\": \"gelu\"", "\"hidden_act\": \"relu\""),
        ("\"layer_norm_eps\": 1e-12", "\"layer_norm_eps\": 1e-5"),
        ("\"use_cache\": true", "\"use_cache\": true, \"rope_theta\": 10000.0"),
    ];
    for (from, to) in table {
        // The row's own max_tokens and the record's stand in two texts; the table means the row's 512.
        let id = flipped(from, to);
        let before = seen.insert(id, to);
        assert_eq!(before, None, "{to} gives the id of {before:?}");
    }
}

/// A generator's chat template moves the space where the record states it; a reranker's `score_kind` says how to read
/// the bits and moves nothing.
///
/// Proves FPR-07.
#[test]
fn chat_templates_are_hashed_and_score_kinds_are_not() {
    let of = |kind: &str, line: &str| {
        let record = MINILM
            .replace("kind = \"embed\"", &format!("kind = \"{kind}\""))
            .replace("dims = 384\n", "")
            .replace("pooling = \"mean\"\n", "")
            .replace("normalize = true\n", &format!("{line}\n"));
        let record = check(&record).unwrap_or_else(|problems| panic!("{line}: {problems:?}"));
        profile_id(&record, &check_envelopes(OWNED).expect("sound")[0], &config())
    };
    let chats = ["", "chat_template = \"a\"", "chat_template = \"b\""].map(|line| of("generate", line));
    assert_eq!(BTreeSet::from(chats).len(), 3, "each is a space of its own");
    assert_eq!(
        of("rerank", "score_kind = \"logit\""),
        of("rerank", "score_kind = \"probability\"")
    );
}

/// What names, places and defaults of a request say moves nothing.
#[test]
fn what_does_not_move_the_space() {
    let base = flipped("schema = 1", "schema = 1");
    let table = [
        ("id = \"all-minilm-l6-v2\"", "id = \"another-name\""),
        ("title = \"all", "title = \"All"),
        ("licence = \"Apache-2.0\"", "licence = \"MIT\""),
        ("homepage = \"https://", "homepage = \"https://www."),
        ("path = \"model.safetensors\"", "path = \"weights/model.safetensors\""),
        ("revision = \"c9745", "revision = \"d9745"),
        ("truncate_default = true", "truncate_default = false"),
        ("path = \"all-minilm-l6-v2.refs\"", "path = \"other.refs\""),
        ("max_tokens = 256", "max_tokens = 128"),
        ("engine_version = \">=0.1, <2\"", "engine_version = \"*\""),
        ("variant = \"f32\"", "variant = \"plain\""),
        // The config counts by its canonical form.
        ("{\n  \"_name_or_path\"", "{\n\n\t\"_name_or_path\""),
        ("\"_name_or_path\": \"nreimers", "\"_name_or_path\": \"somebody"),
        (
            "\"transformers_version\": \"4.8.2\"",
            "\"transformers_version\": \"5.0.0\"",
        ),
        ("\"layer_norm_eps\": 1e-12", "\"layer_norm_eps\": 0.000000000001"),
        ("\"hidden_size\": 384", "\"hidden_size\": 384.0"),
        ("\"hidden_act\": \"gelu\"", "\"hidden_act\": \"g\\u0065lu\""),
    ];
    for (from, to) in table {
        assert_eq!(flipped(from, to), base, "{to}");
    }
}

/// Expected digest: `config_digest` of host/core/testdata/fingerprint.json, from its Python script.
#[test]
fn the_published_files_have_the_golden_model_digest() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../host/core/testdata/fingerprint.json")).expect("JSON");
    let record = check(MINILM).expect("sound");
    let found = artifact_digest(&record.formats[0], |_| Some(config())).expect("a digest");
    assert_eq!(
        found.to_string(),
        golden["model_digest"]["digest"].as_str().expect("a string")
    );
}

#[test]
fn a_config_is_needed_and_must_be_json() {
    let record = check(MINILM).expect("sound");
    let of = |content: Option<&str>| artifact_digest(&record.formats[0], |_| content.map(str::to_owned));
    assert_eq!(of(None), Err(ArtifactDigestError::ConfigMissing("config".to_owned())));
    for bad in [
        "",
        "{",
        "{\"a\":1,\"a\":1}",
        "{\"a\":NaN}",
        "{\"a\":9007199254740992}",
        "{} {}",
    ] {
        assert!(
            matches!(of(Some(bad)), Err(ArtifactDigestError::ConfigJson { .. })),
            "{bad}"
        );
    }
    let deep = "[".repeat(200) + &"]".repeat(200);
    assert!(
        matches!(of(Some(&deep)), Err(ArtifactDigestError::ConfigJson { .. })),
        "deeply nested"
    );
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    assert!(
        matches!(of(Some(&long)), Err(ArtifactDigestError::ConfigJson { .. })),
        "over the size"
    );
}
