//! Several stored forms of one model: each from the sources that have it, side by side, served by its own engine.
//!
//! The forms of MiniLM for onnxruntime and llama.cpp are in no registry; `make setup-derived` makes them, and the test
//! that needs them says when it is skipped. The oracle is that of `parity`: PyTorch in float64.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use synapse_core::digest::sha256;

use crate::support::client::Client;
use crate::support::daemon::Place;
use crate::support::vectors::{cosine, embed};
use crate::support::{fixtures, models, repository, skipped};

const MINILM: &str = "all-minilm-l6-v2";

fn pull(client: &mut Client, params: &Value) -> Value {
    let pull = client.ok("models.pull", params);
    client.job(&pull)
}

/// A form is asked for where it is, or the answer says where that is. Nothing is fetched.
///
/// Proves CACHE-12.
#[test]
fn a_form_is_only_where_its_record_says() {
    let place = Place::new();
    let daemon = place.start();
    let mut client = daemon.connect();
    let table = [
        (
            json!({"model": MINILM, "format": "onnx"}),
            "format",
            "`source`: \"local\"",
        ),
        (
            json!({"model": "all-minilm-l6-v2@llama-cpp"}),
            "format",
            "is in no registry",
        ),
        (
            json!({"model": MINILM, "format": "gguf/f16", "source": "hf"}),
            "source",
            "is in no registry",
        ),
        (
            json!({"model": MINILM, "format": "gguf/q8_0"}),
            "format",
            "onnx/f32, onnx/int8, onnx/int8-dynamic, gguf/f32, gguf/f16",
        ),
        (
            json!({"model": "smollm2-135m-instruct", "source": "hf"}),
            "source",
            "pypi, local",
        ),
    ];
    for (params, field, words) in table {
        let (code, error) = client.fails("models.pull", &params);
        assert_eq!(code, "invalid_request", "{params}: {error}");
        assert_eq!(error["data"]["detail"]["field"], field, "{params}: {error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(words), "{params}: {message}");
    }
    // A wheel that lies here has the safetensors alone.
    let wheel = place.path().join("a.whl");
    fs::write(&wheel, b"not read").expect("writes");
    let view = pull(
        &mut client,
        &json!({"model": MINILM, "format": "onnx", "source": "local", "path": wheel}),
    );
    assert_eq!(view["error"]["code"], "unsupported", "{view}");
    assert!(daemon.stop().success());
}

/// A refused form takes nothing with it: what it shares with an installed one stays, through a restart as well.
///
/// Proves CACHE-12.
#[test]
fn a_refused_form_leaves_the_installed_one_whole() {
    let place = Place::new();
    let folder = place.path().join("files");
    for part in ["", "1_Pooling"] {
        fs::create_dir_all(folder.join(part)).expect("a folder");
    }
    let from = models::folder(models::MEAN);
    for file in [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "modules.json",
        "1_Pooling/config.json",
    ] {
        fs::copy(from.join(file), folder.join(file)).expect("copies");
    }
    let garbage = b"GGUF, but nothing of it";
    fs::write(folder.join("model.gguf"), garbage).expect("writes");
    let config = fs::read(from.join("config.json")).expect("reads");
    let record = fs::read_to_string(fixtures("catalog/models/bert-embed.toml")).expect("reads");
    let (before, after) = record.split_once("[[sources]]").expect("sources");
    let record = format!(
        "{}[[layout]]\nrole = \"config\"\npath = \"config.json\"\nsha256 = \"{}\"\nsize = {}\n\n\
         [[formats]]\nformat = \"gguf\"\nquant = \"f32\"\n\n[[formats.files]]\nrole = \"weights\"\n\
         path = \"model.gguf\"\nsha256 = \"{}\"\nsize = {}\n\n[[sources]]{after}",
        before.replace("id = \"bert-embed\"", "id = \"two-forms\""),
        sha256(&config),
        config.len(),
        sha256(garbage),
        garbage.len(),
    );
    let rows = fs::read_to_string(fixtures("catalog/envelopes/owned.toml")).expect("reads");
    let (rows, _) = rows.rsplit_once("[[row]]").expect("two rows");
    let catalog = place.data().join("catalog");
    fs::write(catalog.join("models/two-forms.toml"), record).expect("writes");
    let rows = rows.replace("model = \"bert-embed\"", "model = \"two-forms\"");
    fs::write(catalog.join("envelopes/two-forms.toml"), rows).expect("writes");

    let daemon = place.start();
    let mut client = daemon.connect();
    let params = |format: &str| json!({"model": "two-forms", "format": format, "source": "local", "path": folder});
    let view = pull(&mut client, &params("safetensors"));
    assert_eq!(view["state"], "done", "{view}");
    client.load("two-forms");
    let (first, _) = embed(&mut client, "two-forms", &[("x".to_owned(), "a text")]);
    let view = pull(&mut client, &params("gguf"));
    assert_eq!(view["error"]["code"], "artifact_invalid", "{view}");
    client.ok("model.unload", &json!({"model": "two-forms"}));
    client.load("two-forms");
    assert!(daemon.stop().success());

    let daemon = place.start();
    let mut client = daemon.connect();
    client.load("two-forms");
    let (again, _) = embed(&mut client, "two-forms", &[("x".to_owned(), "a text")]);
    assert_eq!(first, again);
    assert!(daemon.stop().success());
}

/// Where `make setup-derived` keeps the forms of MiniLM that no registry has.
fn derived() -> Option<PathBuf> {
    let from_env = std::env::var_os("SYNAPSE_CACHE_DIR").map(PathBuf::from);
    [from_env, Some(repository().join(".synapse/cache"))]
        .into_iter()
        .flatten()
        .map(|cache| cache.join("derived").join(MINILM))
        .find(|folder| folder.join("model.onnx").is_file() && folder.join("model-f16.gguf").is_file())
}

/// All 201 texts on onnxruntime (f32) and llama.cpp (weights f16): cosine at least 0.9999 against float64, and a space
/// of its own for each.
///
/// Proves ENG-02, FPR-03.
#[test]
fn minilm_on_other_engines_is_near_its_oracle() {
    const TEST: &str = "minilm_on_other_engines_is_near_its_oracle";
    let Some(folder) = derived() else {
        return skipped(TEST, "the derived forms are not here; `make setup-derived` makes them");
    };
    let texts = fs::read_to_string(fixtures("minilm/corpus.jsonl")).expect("reads");
    let texts: Vec<Value> = texts
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let bytes = fs::read(fixtures("minilm/mean_norm.max256.f32le")).expect("reads");
    let four = |four: &[u8]| f64::from(f32::from_le_bytes(four.try_into().expect("four bytes")));
    let oracle: Vec<Vec<f64>> = bytes
        .chunks_exact(384 * 4)
        .map(|row| row.chunks_exact(4).map(four).collect())
        .collect();
    assert_eq!((texts.len(), oracle.len()), (201, 201));
    let place = Place::new();
    let daemon = place.start();
    let mut client = daemon.connect();
    let mut fingerprints = Vec::new();
    // f16 weights and a tabulated GELU cost llama.cpp two digits (shared/data: minimum 0.9999935).
    for (lane, least) in [
        ("all-minilm-l6-v2@ort", 0.999_999),
        ("all-minilm-l6-v2@llama-cpp", 0.999_9),
    ] {
        let view = pull(&mut client, &json!({"model": lane, "source": "local", "path": folder}));
        assert_eq!(view["state"], "done", "{view}");
        client.load(lane);
        for (n, some) in texts.chunks(16).enumerate() {
            let items = some.iter().enumerate();
            let items: Vec<_> = items
                .map(|(i, text)| (i.to_string(), text["text"].as_str().expect("a text")))
                .collect();
            let (vectors, answer) = embed(&mut client, lane, &items);
            for (i, vector) in vectors.iter().enumerate() {
                let cosine = cosine(vector, &oracle[n * 16 + i]);
                assert!(cosine >= least, "{lane} text {}: {cosine}", n * 16 + i);
            }
            if n == 0 {
                fingerprints.push(answer["fingerprint"].clone());
            }
        }
    }
    assert_ne!(fingerprints[0], fingerprints[1]);
    assert!(daemon.stop().success());
}
