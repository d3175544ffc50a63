//! The engine behind the plugin's shims, as a host calls it across the ABI.

mod zoo;

use std::path::PathBuf;

use synapse_owned::plugin::{OwnedEngine, plugin};
use synapse_plugin_sdk::Host;
use synapse_plugin_sdk::api::abi_stable::std_types::{RResult, RSlice};
use synapse_plugin_sdk::api::{
    EmbedEngineObject, EngineError, ErrorCode, KeyValue, LoadedModel, LogLevel, PairBatch, RuntimeConfig, ScoresOut,
    TokenBatch, VectorsOut,
};
use synapse_plugin_sdk::testing::{FakeCall, FakeHost, artifact, runtime_config};

fn open(host: FakeHost, config: &str) -> EmbedEngineObject {
    let host: Host = host.host();
    plugin()
        .open_embed(host, config)
        .expect("settings are good")
        .expect("embedding is offered")
}

fn config(max_tokens: u32) -> RuntimeConfig {
    RuntimeConfig {
        max_tokens,
        ..runtime_config("safetensors", "f32")
    }
}

fn result<T>(result: RResult<T, EngineError>) -> Result<T, EngineError> {
    result.into_result()
}

fn load(engine: &EmbedEngineObject, folder: &str, config: &RuntimeConfig) -> Result<LoadedModel, EngineError> {
    let path = |name: &str| -> PathBuf { zoo::fixture(folder).join(name) };
    let files = artifact(&[
        ("config", &path("config.json")),
        ("weights", &path("model.safetensors")),
    ])
    .unwrap();
    result(engine.load(&FakeCall::new(1).context(), &files, config))
}

/// Proves ENG-02.
#[test]
fn the_whole_life_of_a_model_across_the_abi() {
    let host = FakeHost::new();
    let engine = open(host, "");
    let identity = engine.identity();
    assert_eq!(identity.engine, "owned");
    assert_eq!(identity.version, synapse_owned::NUMERIC_VERSION);
    let loaded = load(&engine, "bert-embed", &config(128)).unwrap();
    assert_eq!((loaded.dims, loaded.max_tokens), (48, 128));
    assert!(
        loaded.max_concurrency >= 2,
        "a checkpoint engine serves a query while a bulk call is held"
    );
    assert!(loaded.memory_bytes > 400_000);
    assert_eq!(engine.memory().model_bytes, loaded.memory_bytes);

    let oracle = zoo::oracle("bert-embed");
    let ids: Vec<i32> = oracle.items.iter().flat_map(|item| item.ids.clone()).collect();
    let mut offsets = vec![0_u32];
    for item in &oracle.items {
        offsets.push(offsets[offsets.len() - 1] + u32::try_from(item.ids.len()).unwrap());
    }
    let call = FakeCall::new(2);
    let mut out = vec![f32::NAN; oracle.items.len() * 48];
    let batch = TokenBatch::new(&ids, &offsets, &[]);
    result(engine.embed_batch(&call.context(), loaded.model, &batch, VectorsOut::new(&mut out, 48))).unwrap();
    assert_eq!(call.violations(), Vec::<String>::new());
    for (item, vector) in oracle.items.iter().zip(out.chunks_exact(48)) {
        let difference = zoo::max_abs(&zoo::widened(vector, true), &item.expected);
        assert!(difference <= oracle.max_abs, "{difference:e}");
        let mut alone = vec![f32::NAN; 48];
        let one = RSlice::from_slice(&item.ids);
        result(engine.embed_one(&call.context(), loaded.model, one, VectorsOut::new(&mut alone, 48))).unwrap();
        assert_eq!(
            zoo::bits(&[alone]),
            zoo::bits(&[vector.to_vec()]),
            "a query is not its batch"
        );
    }

    result(engine.unload(loaded.model)).unwrap();
    assert_eq!(engine.memory().model_bytes, 0);
    let gone = engine.embed_batch(&call.context(), loaded.model, &batch, VectorsOut::new(&mut out, 48));
    assert_eq!(result(gone).unwrap_err().code, ErrorCode::INVALID_ARGUMENT);
}

/// Pairs across the ABI, against the oracle's scores.
#[test]
fn a_cross_encoder_scores_pairs_across_the_abi() {
    let host: Host = FakeHost::new().host();
    let engine = plugin()
        .open_rerank(host, "")
        .expect("settings are good")
        .expect("reranking is offered");
    let path = |name: &str| zoo::fixture("bert-cross-encoder").join(name);
    let files = artifact(&[
        ("config", &path("config.json")),
        ("weights", &path("model.safetensors")),
    ])
    .unwrap();
    let loaded = result(engine.load(&FakeCall::new(1).context(), &files, &config(128))).unwrap();
    let call = FakeCall::new(2);
    assert_eq!(loaded.dims, 0);
    let oracle = zoo::oracle("bert-cross-encoder");
    let ids: Vec<i32> = oracle.items.iter().flat_map(|item| item.ids.clone()).collect();
    let type_ids: Vec<i32> = oracle.items.iter().flat_map(|item| item.type_ids.clone()).collect();
    let mut offsets = vec![0_u32];
    for item in &oracle.items {
        offsets.push(offsets[offsets.len() - 1] + u32::try_from(item.ids.len()).unwrap());
    }
    // This engine finds the document by its segments.
    let doc_starts = vec![0_u32; oracle.items.len()];
    let batch = PairBatch::new(TokenBatch::new(&ids, &offsets, &type_ids), &doc_starts);
    let mut out = vec![f32::NAN; oracle.items.len()];
    result(engine.score_batch(&call.context(), loaded.model, &batch, ScoresOut::new(&mut out))).unwrap();
    assert_eq!(call.violations(), Vec::<String>::new());
    for (item, score) in oracle.items.iter().zip(&out) {
        let difference = zoo::max_abs(&[f64::from(*score)], &item.expected);
        assert!(difference <= oracle.max_abs, "{difference:e}");
    }
}

#[test]
fn refusals_have_the_codes_of_the_contract() {
    let host = FakeHost::new();
    let engine = open(host, "");
    let code = |folder: &str, config: RuntimeConfig| load(&engine, folder, &config).unwrap_err().code;
    assert_eq!(code("bad/st-nan-weight", config(16)), ErrorCode::ARTIFACT_INVALID);
    assert_eq!(code("bad/cfg-unknown-arch", config(16)), ErrorCode::UNSUPPORTED);
    assert_eq!(code("bert-embed", config(129)), ErrorCode::CONFIG_INVALID);
    let mut last = config(16);
    last.pooling = "max".into();
    assert_eq!(code("bert-embed", last), ErrorCode::CONFIG_INVALID);
    let mut extra = config(16);
    extra.extra.push(KeyValue::new("turbo", "yes"));
    assert_eq!(code("bert-embed", extra), ErrorCode::CONFIG_INVALID);
    assert_eq!(engine.memory().model_bytes, 0, "a failed load leaves nothing behind");

    let loaded = load(&engine, "bert-embed", &config(16)).unwrap();
    let run = |ids: &[i32], offsets: &[u32]| {
        let mut out = vec![0.0; 48 * (offsets.len() - 1)];
        let batch = TokenBatch::new(ids, offsets, &[]);
        let call = FakeCall::new(1);
        let outcome = engine.embed_batch(&call.context(), loaded.model, &batch, VectorsOut::new(&mut out, 48));
        result(outcome).map_err(|error| error.code)
    };
    assert_eq!(run(&[900], &[0, 1]), Err(ErrorCode::INVALID_ARGUMENT));
    assert_eq!(run(&[1; 17], &[0, 17]), Err(ErrorCode::INPUT_TOO_LONG));
    assert_eq!(run(&[1], &[0, 1]), Ok(()));
}

#[test]
fn an_unknown_tensor_is_reported_and_a_load_can_be_cancelled() {
    let host = FakeHost::new();
    let engine = open(host, "");
    load(&engine, "bad/st-extra-tensor", &config(16)).unwrap();
    let logs = host.logs();
    assert!(
        logs.iter()
            .any(|(level, line)| *level == LogLevel::WARN && line.contains("ignored")),
        "{logs:?}"
    );

    let path = |name: &str| zoo::fixture("bert-embed").join(name);
    let files = artifact(&[
        ("config", &path("config.json")),
        ("weights", &path("model.safetensors")),
    ])
    .unwrap();
    let call = FakeCall::new(1).cancel_at(3);
    let outcome = engine.load(&call.context(), &files, &config(128));
    assert_eq!(result(outcome).unwrap_err().code, ErrorCode::CANCELLED);
    assert_eq!(call.violations(), Vec::<String>::new());
}

#[test]
fn the_instruction_set_is_a_setting() {
    let host = FakeHost::new();
    let here = plugin().open_embed(host.host(), r#"{"isa":"portable"}"#);
    assert!(here.unwrap().is_some());
    let Err(unknown) = plugin().open_embed(host.host(), r#"{"isa":"mmx"}"#) else {
        panic!("an unknown instruction set was accepted");
    };
    assert_eq!(unknown.code, ErrorCode::CONFIG_INVALID);
    assert!(
        unknown.message.contains("mmx") && unknown.message.contains("portable"),
        "{unknown}"
    );
    assert!(
        OwnedEngine::new(Some("mmx"), Some("portable".to_owned())).is_ok(),
        "the environment wins"
    );
}
