//! Every tiny model of shared data that onnxruntime or llama.cpp can serve, through a real daemon: text in, vectors,
//! scores and texts out, against oracles in float64 that are not ours (numpy, one item at a time).
//!
//! The zoo is not part of the repository; without it each test says that it was skipped.

mod bad;
mod generators;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};
use crate::support::vectors::{decoded, embed, encoded, floats, largest_difference};
use crate::support::zoo::{CROSS_ENCODERS, GGUF_ENCODERS, ONNX_ENCODERS, Recipe, Zoo};

/// llama.cpp's GELU is a table of the tanh approximation: normalised vectors of erf models lie this far from float64,
/// and those that are not normalised ten times as far (measured in the zoo's README with the same engine).
const GGUF_TOLERANCE: f64 = 5e-4;

/// Writes the recipes into the place's catalog, and starts its daemon.
fn start(place: &Place, recipes: &[Recipe]) -> (Daemon, Client) {
    for recipe in recipes {
        recipe.write(&place.data().join("catalog"));
    }
    let daemon = place.start();
    let client = daemon.connect();
    (daemon, client)
}

/// Pulls a model from its folder, and loads it.
fn install(client: &mut Client, recipe: &Recipe) {
    let pull = client.ok(
        "models.pull",
        &json!({"model": recipe.id, "source": "local", "path": recipe.folder}),
    );
    let view = client.job(&pull);
    assert_eq!(view["state"], "done", "{}: {view}", recipe.id);
    client.load(&recipe.id);
}

/// One item of an oracle that has something to run.
struct Item<'o> {
    /// As the oracle has it.
    of: &'o Value,
    /// Ids and results. A text that spells control tokens is read as text here, so its results of that kind count.
    expected: &'o Value,
    /// Whether the oracle's ids are those of a text. A Unigram vocabulary holds its control tokens as pieces, so the
    /// oracle's reading of such a text still has their ids, which this host never gives.
    comparable: bool,
}

impl Item<'_> {
    fn ids(&self) -> usize {
        self.expected["input_ids"].as_array().expect("ids").len()
    }
}

fn items<'o>(zoo: &Zoo, model: &str, oracle: &'o Value) -> Vec<Item<'o>> {
    let controls = zoo.control_ids(model);
    let count = |ids: &Value| {
        let ids = ids.as_array().expect("ids").iter();
        ids.filter(|id| controls.contains(&id.as_i64())).count()
    };
    let all = oracle["items"].as_array().expect("items");
    let frame = count(&all[0]["input_ids"]);
    let runs = all.iter().filter(|item| item.get("error_expected").is_none());
    runs.map(|of| match of.get("plain") {
        Some(expected) => Item {
            of,
            expected,
            comparable: count(&expected["input_ids"]) == frame,
        },
        None => Item {
            of,
            expected: of,
            comparable: true,
        },
    })
    .collect()
}

/// All items of an encoder as they travel, sixteen a request; checks how many tokens each has, and that no text becomes
/// a control token.
fn vectors(client: &mut Client, model: &str, items: &[Item<'_>], placement: &str) -> Vec<String> {
    let mut vectors = Vec::new();
    for some in items.chunks(16) {
        let texts = some.iter().enumerate();
        let texts: Vec<_> = texts
            .map(|(n, item)| (n.to_string(), item.of["text"].as_str().expect("a text")))
            .collect();
        let (some_vectors, answer) = encoded(client, model, &texts);
        assert_eq!(answer["provenance"]["placement"], placement, "{model}");
        for (n, item) in some.iter().enumerate().filter(|(_, item)| item.comparable) {
            assert_eq!(
                answer["real_token_counts"][n],
                json!(item.ids()),
                "{model} item {}",
                item.of["id"]
            );
        }
        vectors.extend(some_vectors);
    }
    vectors
}

/// Fails where a vector lies farther from its oracle than `tolerance`.
fn compare(model: &str, items: &[Item<'_>], vectors: &[String], tolerance: f64) {
    assert_eq!(items.len(), vectors.len());
    let mut compared = 0;
    for (item, vector) in items.iter().zip(vectors).filter(|(item, _)| item.comparable) {
        let difference = largest_difference(&decoded(vector), &floats(&item.expected["out_f64"]));
        assert!(
            difference <= tolerance,
            "{model} item {}: {difference:e} > {tolerance:e}",
            item.of["id"]
        );
        compared += 1;
    }
    assert!(compared >= 50, "{model}: {compared} items");
}

/// Every encoder on onnxruntime, in a worker and in the daemon: within its tolerance of float64, and the same bits in
/// both places.
///
/// Proves ENG-06, ENG-02, TOK-04.
#[test]
fn encoders_on_onnxruntime_equal_their_oracles_in_both_places() {
    let Some(zoo) = Zoo::find("encoders_on_onnxruntime_equal_their_oracles_in_both_places") else {
        return;
    };
    let mut seen = Vec::new();
    for placement in ["worker", "in_process"] {
        let mut place = Place::new();
        if placement == "worker" {
            // Nothing is promoted, so every bundle runs in a worker.
            let nothing = place.path().join("trust.toml");
            place = place.trust_file(nothing);
        }
        let recipes = ONNX_ENCODERS.map(|model| zoo.encoder(model, "onnx"));
        let (daemon, mut client) = start(&place, &recipes);
        let mut found = Vec::new();
        for (model, recipe) in ONNX_ENCODERS.iter().zip(&recipes) {
            install(&mut client, recipe);
            let oracle = zoo.oracle(model);
            let items = items(&zoo, model, &oracle);
            let tolerance = oracle["tolerance"]["max_abs"].as_f64().expect("a tolerance");
            let vectors = vectors(&mut client, &recipe.id, &items, placement);
            compare(model, &items, &vectors, tolerance);
            // A query alone is the same vector as the text in a batch, within what a batch may move it.
            let text = items[5].of["text"].as_str().expect("a text");
            let (alone, _) = embed(&mut client, &recipe.id, &[("x".to_owned(), text)]);
            let difference = largest_difference(&alone[0], &decoded(&vectors[5]));
            assert!(difference <= tolerance, "{model}: {difference:e} alone");
            found.push(vectors);
        }
        assert!(daemon.stop().success());
        seen.push(found);
    }
    assert_eq!(seen[0], seen[1], "a worker's bits are the daemon's");
}

/// The encoders that llama.cpp knows, within what its arithmetic allows.
///
/// Proves ENG-02.
#[test]
fn encoders_on_llama_cpp_are_near_their_oracles() {
    let Some(zoo) = Zoo::find("encoders_on_llama_cpp_are_near_their_oracles") else {
        return;
    };
    let place = Place::new();
    let recipes = GGUF_ENCODERS.map(|model| zoo.encoder(model, "gguf"));
    let (daemon, mut client) = start(&place, &recipes);
    for (model, recipe) in GGUF_ENCODERS.iter().zip(&recipes) {
        install(&mut client, recipe);
        let oracle = zoo.oracle(model);
        let items = items(&zoo, model, &oracle);
        let tolerance = match oracle["normalized"].as_bool() {
            Some(true) => GGUF_TOLERANCE,
            _ => GGUF_TOLERANCE * 10.0,
        };
        let vectors = vectors(&mut client, &recipe.id, &items, "worker");
        compare(model, &items, &vectors, tolerance);
    }
    assert!(daemon.stop().success());
}

/// What a logit of ModernBERT on llama.cpp may differ: ten times what the tanh form of GELU, which it computes from a
/// table, moves it by in the zoo's table of mutations.
const GGUF_LOGIT_TOLERANCE: f64 = 3.2e-3;

/// Scores every pair of an oracle. Only a document is ever cut, so a pair that was cut in another way is not compared.
fn compare_scores(client: &mut Client, zoo: &Zoo, model: &str, recipe: &Recipe, tolerance: f64) {
    let oracle = zoo.oracle(model);
    let mut compared = 0;
    for item in items(zoo, model, &oracle) {
        let params = json!({
            "model": recipe.id,
            "query": item.of["query"],
            "candidates": [{"id": "d", "text": item.of["document"]}],
        });
        let reply = client.ok("rerank.score", &params);
        let about = format!("{model} item {}: {reply}", item.of["id"]);
        assert_eq!(reply["score_kind"], "logit", "{about}");
        let over = item.of.get("over_max").is_some();
        assert_eq!(reply["items"][0]["truncated"], over, "{about}");
        if over || !item.comparable {
            continue;
        }
        assert_eq!(reply["real_token_counts"][0], json!(item.ids()), "{about}");
        let score = reply["scores"][0].as_f64().expect("a score");
        let difference = (score - item.expected["logit_f64"].as_f64().expect("a logit")).abs();
        assert!(difference <= tolerance, "{difference:e} > {tolerance:e}: {about}");
        compared += 1;
    }
    assert!(compared >= 20, "{model}: {compared} pairs");
}

/// Cross-encoders on onnxruntime, raw logits.
///
/// Proves ENG-03, API-15.
#[test]
fn cross_encoders_equal_their_oracles() {
    let Some(zoo) = Zoo::find("cross_encoders_equal_their_oracles") else {
        return;
    };
    let place = Place::new();
    let recipes = CROSS_ENCODERS.map(|model| zoo.cross_encoder(model, "onnx"));
    let (daemon, mut client) = start(&place, &recipes);
    for (model, recipe) in CROSS_ENCODERS.iter().zip(&recipes) {
        install(&mut client, recipe);
        let tolerance = zoo.oracle(model)["tolerance"]["max_abs"].as_f64();
        compare_scores(&mut client, &zoo, model, recipe, tolerance.expect("a tolerance"));
    }
    assert!(daemon.stop().success());
}

/// ModernBERT's head is in its GGUF, so llama.cpp scores it; BERT's is not, and the load is refused there.
///
/// Proves ENG-03.
#[test]
fn llama_cpp_reranks_only_what_it_is_faithful_to() {
    let Some(zoo) = Zoo::find("llama_cpp_reranks_only_what_it_is_faithful_to") else {
        return;
    };
    let place = Place::new();
    let recipes = CROSS_ENCODERS.map(|model| zoo.cross_encoder(model, "gguf"));
    let (daemon, mut client) = start(&place, &recipes);
    for (model, recipe) in CROSS_ENCODERS.iter().zip(&recipes) {
        if *model == "modernbert-reranker" {
            install(&mut client, recipe);
            compare_scores(&mut client, &zoo, model, recipe, GGUF_LOGIT_TOLERANCE);
            continue;
        }
        let pull = client.ok(
            "models.pull",
            &json!({"model": recipe.id, "source": "local", "path": recipe.folder}),
        );
        assert_eq!(client.job(&pull)["state"], "done", "{model}");
        let load = client.ok("model.load", &json!({"model": recipe.id}));
        let view = client.job(&load);
        assert_eq!(view["error"]["code"], "unsupported", "{model}: {view}");
    }
    assert!(daemon.stop().success());
}
