//! The engines through the SDK's shims against float64 oracles that are not ours (numpy, one item at a time), and
//! files that no engine may trust.
//!
//! They need `libonnxruntime` from the wheel that `make test` fetches and the shared data beside the repository, and
//! say so when they skip.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use synapse_ort::plugin;
use synapse_plugin_sdk::api::abi_stable::std_types::RSlice;
use synapse_plugin_sdk::api::{
    EmbedEngineObject, ErrorCode, LoadedModel, PairBatch, RerankEngineObject, RuntimeConfig, ScoresOut, TokenBatch,
    VectorsOut,
};
use synapse_plugin_sdk::testing::{FakeCall, FakeHost, artifact, runtime_config};

/// Where the runtime's library and the shared data lie, or a loud skip.
fn ground() -> Option<(FakeHost, PathBuf)> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bundle = manifest.join("../../.synapse/cache/native/onnxruntime-1.32.0");
    let data = manifest
        .ancestors()
        .map(|dir| dir.join("shared/data"))
        .find(|dir| dir.is_dir());
    match data.filter(|_| bundle.is_dir()) {
        Some(data) => Some((FakeHost::in_dir(&bundle), data)),
        None => {
            let _ = writeln!(std::io::stderr(), "SKIPPED: needs shared/data and {}", bundle.display());
            None
        }
    }
}

fn embedder(host: FakeHost) -> EmbedEngineObject {
    plugin()
        .open_embed(host.host(), "{}")
        .unwrap()
        .expect("the plugin embeds")
}

fn reranker(host: FakeHost) -> RerankEngineObject {
    plugin()
        .open_rerank(host.host(), "{}")
        .unwrap()
        .expect("the plugin reranks")
}

fn config(pooling: &str) -> RuntimeConfig {
    RuntimeConfig {
        pooling: pooling.into(),
        ..runtime_config("onnx", "f32")
    }
}

/// A ragged batch that owns its parts.
#[derive(Default)]
struct Ragged {
    ids: Vec<i32>,
    types: Vec<i32>,
    offsets: Vec<u32>,
}

impl Ragged {
    fn of(items: &[Item]) -> Self {
        let mut ragged = Self {
            offsets: vec![0],
            ..Self::default()
        };
        for (ids, types) in items {
            ragged.ids.extend(ids);
            ragged.types.extend(types);
            ragged.offsets.push(u32::try_from(ragged.ids.len()).unwrap());
        }
        ragged
    }

    fn batch(&self) -> TokenBatch<'_> {
        TokenBatch {
            ids: RSlice::from_slice(&self.ids),
            offsets: RSlice::from_slice(&self.offsets),
            type_ids: RSlice::from_slice(&self.types),
        }
    }
}

fn embed(engine: &EmbedEngineObject, loaded: &LoadedModel, items: &[Item]) -> Vec<Vec<f32>> {
    let ragged = Ragged::of(items);
    let dims = loaded.dims as usize;
    let mut out = vec![f32::NAN; items.len() * dims];
    let call = FakeCall::new(2);
    engine
        .embed_batch(
            &call.context(),
            loaded.model,
            &ragged.batch(),
            VectorsOut::new(&mut out, loaded.dims),
        )
        .into_result()
        .expect("the batch is served");
    assert_eq!(call.violations(), Vec::<String>::new());
    out.chunks_exact(dims).map(<[f32]>::to_vec).collect()
}

fn oracle(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("oracle.json")).unwrap()).unwrap()
}

fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

/// One item's token ids and segment ids.
type Item = (Vec<i32>, Vec<i32>);

/// Every item of an oracle that has something to run, with what is expected of it.
fn items(oracle: &Value, expected: &str) -> Vec<(Item, Value)> {
    let items = oracle["items"].as_array().unwrap().iter();
    let runs = items.filter(|item| item.get("error_expected").is_none() && !item[expected].is_null());
    runs.map(|item| {
        let ids: Vec<i32> = numbers(&item["input_ids"]);
        let mut types: Vec<i32> = numbers(&item["type_ids"]);
        types.resize(ids.len(), 0);
        ((ids, types), item[expected].clone())
    })
    .collect()
}

fn widened(vector: &[f32], normalized: bool) -> Vec<f64> {
    let vector: Vec<f64> = vector.iter().map(|value| f64::from(*value)).collect();
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    vector
        .iter()
        .map(|value| value / if normalized { norm } else { 1.0 })
        .collect()
}

fn largest_difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    // `f64::max` would drop NaN, which must not pass.
    let differences = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs());
    differences.fold(
        0.0,
        |worst, difference| if difference <= worst { worst } else { difference },
    )
}

/// Every encoder of the zoo, in one ragged batch of all its items, within the zoo's tolerance.
///
/// Proves ENG-02, ENG-13.
#[test]
fn the_zoo_embedders_meet_their_tolerance() {
    let Some((host, data)) = ground() else { return };
    let engine = embedder(host);
    for name in [
        "bert-embed",
        "bert-embed-cls",
        "xlm-roberta-embed",
        "roberta-embed",
        "distilbert-embed",
        "mpnet-embed",
        "modernbert-embed",
        "nomic-bert-embed",
        "gte-embed",
        "qwen3-embed",
    ] {
        let folder = data.join("zoo").join(name);
        let oracle = oracle(&folder);
        let files = artifact(&[("weights", &folder.join("model.onnx"))]).unwrap();
        let call = FakeCall::new(2);
        let loaded = engine.load(&call.context(), &files, &config(oracle["pooling"].as_str().unwrap()));
        let loaded = loaded
            .into_result()
            .unwrap_or_else(|error| panic!("{name}: {}", error.message));
        let (inputs, expected): (Vec<_>, Vec<_>) = items(&oracle, "out_f64").into_iter().unzip();
        let tolerance = oracle["tolerance"]["max_abs"].as_f64().unwrap();
        let normalized = oracle["normalized"].as_bool().unwrap();
        for (vector, expected) in embed(&engine, &loaded, &inputs).iter().zip(expected) {
            let difference = largest_difference(&widened(vector, normalized), &numbers::<f64>(&expected));
            assert!(difference <= tolerance, "{name}: {difference:e} > {tolerance:e}");
        }
        engine.unload(loaded.model).into_result().unwrap();
    }
}

/// Proves ENG-03.
#[test]
fn the_zoo_cross_encoders_meet_their_tolerance() {
    let Some((host, data)) = ground() else { return };
    let engine = reranker(host);
    for name in ["bert-cross-encoder", "xlm-roberta-cross-encoder", "modernbert-reranker"] {
        let folder = data.join("zoo").join(name);
        let oracle = oracle(&folder);
        let files = artifact(&[("weights", &folder.join("model.onnx"))]).unwrap();
        let call = FakeCall::new(2);
        let loaded = engine
            .load(&call.context(), &files, &config("none"))
            .into_result()
            .unwrap();
        let (inputs, expected): (Vec<_>, Vec<_>) = items(&oracle, "logit_f64").into_iter().unzip();
        let ragged = Ragged::of(&inputs);
        let starts = vec![1; inputs.len()];
        let pairs = PairBatch {
            tokens: ragged.batch(),
            doc_starts: RSlice::from_slice(&starts),
        };
        let mut out = vec![f32::NAN; inputs.len()];
        engine
            .score_batch(&call.context(), loaded.model, &pairs, ScoresOut::new(&mut out))
            .into_result()
            .unwrap();
        let tolerance = oracle["tolerance"]["max_abs"].as_f64().unwrap();
        for (found, expected) in out.iter().zip(expected) {
            let difference = (f64::from(*found) - expected.as_f64().unwrap()).abs();
            assert!(difference <= tolerance, "{name}: {difference:e} > {tolerance:e}");
        }
    }
}

/// MiniLM over the 201 texts: cosine at least 0.9999 against float64.
#[test]
fn minilm_agrees_with_float64() {
    let Some((host, data)) = ground() else { return };
    let engine = embedder(host);
    let files = artifact(&[("weights", &data.join("minilm/model.onnx"))]).unwrap();
    let call = FakeCall::new(2);
    let loaded = engine
        .load(&call.context(), &files, &config("mean"))
        .into_result()
        .unwrap();
    let lines = std::fs::read_to_string(data.join("oracle/minilm.tokens.jsonl")).unwrap();
    let inputs: Vec<_> = lines
        .lines()
        .map(|line| {
            let ids: Vec<i32> = numbers(&serde_json::from_str::<Value>(line).unwrap()["ids_256"]);
            let types = vec![0; ids.len()];
            (ids, types)
        })
        .collect();
    let expected = npy(&data.join("oracle/minilm.mean_norm.max256.f64.npy"));
    assert_eq!((inputs.len(), expected.len()), (201, 201));
    let mut worst = 1.0f64;
    for (inputs, expected) in inputs.chunks(50).zip(expected.chunks(50)) {
        for (vector, expected) in embed(&engine, &loaded, inputs).iter().zip(expected) {
            let cosine: f64 = widened(vector, true).iter().zip(expected).map(|(a, b)| a * b).sum();
            worst = worst.min(cosine);
        }
    }
    assert!(worst >= 0.999_999, "{worst}");
}

/// Rows of a two-dimensional little-endian float64 `.npy` file of 384 columns.
fn npy(path: &Path) -> Vec<Vec<f64>> {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]])) + 10;
    assert!(String::from_utf8_lossy(&bytes[..header]).contains("'<f8'"));
    let values: Vec<f64> = bytes[header..]
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f64::from_le_bytes(*bytes))
        .collect();
    values.chunks_exact(384).map(<[f64]>::to_vec).collect()
}

/// Two calls on one session at once give the bits of one call alone.
#[test]
fn calls_share_a_session() {
    let Some((host, data)) = ground() else { return };
    let engine = embedder(host);
    let folder = data.join("zoo/bert-embed");
    let files = artifact(&[("weights", &folder.join("model.onnx"))]).unwrap();
    let call = FakeCall::new(1);
    let loaded = engine
        .load(&call.context(), &files, &config("mean"))
        .into_result()
        .unwrap();
    assert_eq!(loaded.max_concurrency, 2);
    let (inputs, _): (Vec<_>, Vec<_>) = items(&oracle(&folder), "out_f64").into_iter().unzip();
    let alone = embed(&engine, &loaded, &inputs);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(embed(&engine, &loaded, &inputs), alone);
                }
            });
        }
    });
}

/// A cancelled call ends with CANCELLED at its next rectangle.
#[test]
fn a_cancelled_call_says_so() {
    let Some((host, data)) = ground() else { return };
    let engine = embedder(host);
    let files = artifact(&[("weights", &data.join("zoo/bert-embed/model.onnx"))]).unwrap();
    let call = FakeCall::new(1);
    let loaded = engine
        .load(&call.context(), &files, &config("mean"))
        .into_result()
        .unwrap();
    let ragged = Ragged::of(&vec![(vec![2, 31, 3], vec![0; 3]); 64]);
    let mut out = vec![0.0; 64 * loaded.dims as usize];
    let call = FakeCall::new(1).cancel_at(2);
    let out = VectorsOut::new(&mut out, loaded.dims);
    let error = engine
        .embed_batch(&call.context(), loaded.model, &ragged.batch(), out)
        .into_result()
        .unwrap_err();
    assert_eq!((error.code, call.checkpoints()), (ErrorCode::CANCELLED, 2));
}

/// A dense module beside the graph is refused: hidden states without it are vectors of another space.
#[test]
fn modules_outside_of_the_graph_are_refused() {
    let Some((host, data)) = ground() else { return };
    let engine = embedder(host);
    let folder = data.join("zoo/embeddinggemma-embed");
    let graph = folder.join("model.onnx");
    let call = FakeCall::new(1);
    let load = |files: &[(&str, &Path)]| {
        let files = artifact(files).unwrap();
        let loaded = engine.load(&call.context(), &files, &config("mean")).into_result();
        loaded.map(drop).map_err(|error| error.code)
    };
    assert_eq!(
        load(&[("weights", &graph), ("config", &folder.join("config.json"))]),
        Ok(())
    );
    let dense = folder.join("2_Dense/model.safetensors");
    assert_eq!(
        load(&[("weights", &graph), ("dense.0.weights", &dense)]),
        Err(ErrorCode::UNSUPPORTED)
    );
}

/// Every ONNX file of the zoo's bad folder meets its manifest's verdict.
///
/// Proves CACHE-08.
#[test]
fn bad_graphs_meet_their_verdict() {
    let Some((host, data)) = ground() else { return };
    let engine = embedder(host);
    let folder = data.join("zoo/bad");
    let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    let entries = manifest["entries"].as_array().unwrap().iter();
    let mut seen = 0;
    for entry in entries.filter(|entry| entry["file"].as_str().is_some_and(|file| file.ends_with(".onnx"))) {
        let (name, verdict) = (entry["name"].as_str().unwrap(), entry["verdict"].as_str().unwrap());
        let files = artifact(&[("weights", &folder.join(entry["file"].as_str().unwrap()))]).unwrap();
        let call = FakeCall::new(1);
        let loaded = engine.load(&call.context(), &files, &config("mean")).into_result();
        seen += 1;
        let loaded = match (verdict, loaded) {
            ("reject", Err(error)) => {
                assert!(
                    matches!(error.code, ErrorCode::ARTIFACT_INVALID | ErrorCode::UNSUPPORTED),
                    "{name}"
                );
                continue;
            }
            ("reject", Ok(_)) => panic!("{name} was loaded"),
            (_, loaded) => loaded.unwrap_or_else(|error| panic!("{name}: {}", error.message)),
        };
        let long: Vec<i32> = vec![2; 12];
        let mut out = vec![0.0; loaded.dims as usize];
        let mut run = |ids: &[i32]| {
            let ragged = Ragged::of(&[(ids.to_vec(), vec![0; ids.len()])]);
            let (call, out) = (FakeCall::new(1), VectorsOut::new(&mut out, loaded.dims));
            engine
                .embed_batch(&call.context(), loaded.model, &ragged.batch(), out)
                .into_result()
                .map_err(|e| e.code)
        };
        match verdict {
            "accept" => assert_eq!(run(&[2, 31, 3]), Ok(()), "{name}"),
            "accept-static-envelope" => {
                assert_eq!((loaded.max_tokens, run(&[2, 3])), (8, Ok(())), "{name}");
                assert_eq!(run(&long), Err(ErrorCode::INPUT_TOO_LONG), "{name}");
            }
            "request-error" if name == "onnx-nan-output" => {
                assert_eq!(run(&[2, 31, 3]), Ok(()), "{name}");
                assert!(
                    out.iter().any(|value| !value.is_finite()),
                    "{name}: the host's finite check refuses these"
                );
            }
            "request-error" => assert_eq!(run(&[31]), Err(ErrorCode::INVALID_ARGUMENT), "{name}"),
            other => panic!("{name}: no rule for the verdict {other}"),
        }
    }
    assert!(seen >= 15, "{seen} files");
}
