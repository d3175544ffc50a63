//! Embedding and scoring at their limits: what is refused, what gives way, and that company changes nothing.

use synapse_llama_cpp::plugin;
use synapse_plugin_sdk::api::{ErrorCode, KeyValue, LogLevel, RuntimeConfig};
use synapse_plugin_sdk::testing::{FakeCall, FakeHost};

use crate::ground::{Ids, Ragged, config, embed, embedder, fixture, load, reranker, shared, try_embed};

/// Texts of pseudo-random ids, of these lengths.
pub fn texts(lengths: &[usize]) -> Vec<Ids> {
    let mut state = 1u32;
    let mut id = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        i32::try_from(10 + (state >> 16) % 200).unwrap()
    };
    lengths
        .iter()
        .map(|length| (0..*length).map(|_| id()).collect())
        .collect()
}

/// An item alone, in company, at another place and after a longer one gives the same bits.
#[test]
fn company_and_place_change_no_bit() {
    let engine = embedder();
    let loaded = load!(engine, &fixture("bert-embed"), config("mean", 128)).unwrap();
    let items = texts(&[3, 128, 1, 17, 64, 3, 90]);
    let together = embed(&engine, &loaded, &items, 2);
    let mut turned: Vec<Ids> = items.clone();
    turned.reverse();
    let mut back = embed(&engine, &loaded, &turned, 2);
    back.reverse();
    assert_eq!(together, back);
    for (item, expected) in items.iter().zip(&together) {
        assert_eq!(&embed(&engine, &loaded, std::slice::from_ref(item), 2)[0], expected);
    }
    assert!(together[0] != together[5], "two texts, two vectors");
}

/// A text of exactly the model's length is served, a longer one and one with foreign ids are refused, and the model
/// serves on.
#[test]
fn what_the_model_does_not_take_is_refused() {
    let engine = embedder();
    let loaded = load!(engine, &fixture("bert-embed"), config("mean", 64)).unwrap();
    assert_eq!((loaded.max_tokens, loaded.max_concurrency, loaded.dims), (64, 1, 48));
    let good = texts(&[64]);
    let vector = embed(&engine, &loaded, &good, 2);
    let code = |batch: &Ragged| {
        let refused = try_embed(&engine, &loaded, &FakeCall::new(2), batch);
        refused.expect_err("refused").code
    };
    assert_eq!(code(&Ragged::of(&texts(&[4, 65]))), ErrorCode::INPUT_TOO_LONG);
    for id in [-1, i32::MIN, i32::MAX, 100_000] {
        assert_eq!(
            code(&Ragged::of(&[vec![2, id, 3]])),
            ErrorCode::INVALID_ARGUMENT,
            "{id}"
        );
    }
    assert_eq!(code(&Ragged::of(&good).in_segment(1)), ErrorCode::UNSUPPORTED);
    assert_eq!(embed(&engine, &loaded, &good, 2), vector);
}

/// A causal model takes a text of exactly its length too, which llama.cpp refuses in a context of that size.
#[test]
fn a_causal_text_may_fill_the_model() {
    let Some(data) = shared() else { return };
    let engine = embedder();
    let file = data.join("zoo/qwen3-embed/model.gguf");
    let loaded = load!(engine, &file, config("last", 128)).unwrap();
    let vector = embed(&engine, &loaded, &texts(&[128]), 2);
    assert!(vector[0].iter().all(|value| value.is_finite()));
}

#[test]
fn a_cancelled_call_says_so_and_the_model_serves_on() {
    let engine = embedder();
    let loaded = load!(engine, &fixture("bert-embed"), config("mean", 128)).unwrap();
    let items = texts(&[9; 8]);
    let whole = embed(&engine, &loaded, &items, 1);
    let call = FakeCall::new(1).cancel_at(3);
    let error = try_embed(&engine, &loaded, &call, &Ragged::of(&items)).unwrap_err();
    assert_eq!((error.code, call.checkpoints()), (ErrorCode::CANCELLED, 3));
    assert_eq!(embed(&engine, &loaded, &items, 1), whole);
}

#[test]
fn a_cancelled_load_leaves_nothing() {
    let engine = embedder();
    let files = crate::ground::weights(&fixture("bert-embed"));
    let call = FakeCall::new(1).cancel_at(1);
    let error = engine
        .load(&call.context(), &files, &config("mean", 128))
        .into_result()
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::CANCELLED);
    assert_eq!(engine.memory().model_bytes, 0);
}

/// Settings that this engine does not have, and settings beyond the file.
#[test]
fn settings_are_checked_by_name() {
    let engine = embedder();
    let extra = RuntimeConfig {
        extra: vec![KeyValue::new("n_ctx", "64")].into(),
        ..config("mean", 128)
    };
    let cases = [
        (extra, ErrorCode::CONFIG_INVALID, "n_ctx"),
        (config("none", 128), ErrorCode::CONFIG_INVALID, "pooling `none`"),
        (config("rank", 128), ErrorCode::CONFIG_INVALID, "pooling `rank`"),
        (config("mean", 129), ErrorCode::CONFIG_INVALID, "bert.context_length"),
        (
            config("mean", u32::MAX),
            ErrorCode::CONFIG_INVALID,
            "bert.context_length",
        ),
        (
            RuntimeConfig {
                dtype: "f16".into(),
                ..config("mean", 128)
            },
            ErrorCode::UNSUPPORTED,
            "f16",
        ),
    ];
    for (settings, code, names) in cases {
        let error = load!(engine, &fixture("bert-embed"), settings).unwrap_err();
        assert_eq!(error.code, code, "{names}");
        assert!(error.message.contains(names), "{}", error.message);
    }
    assert_eq!(engine.memory().model_bytes, 0);
}

/// The switch that lets tests run into ggml's assertions is no part of a bundle that is handed out.
#[test]
fn the_fault_switch_exists_only_with_debug_assertions() {
    let fault = r#"{"fault_context_tokens":8}"#;
    let host = FakeHost::new().host();
    let opened = plugin().open_embed(host, fault);
    assert_eq!(opened.is_ok(), cfg!(debug_assertions));
    let error = plugin().open_embed(host, r#"{"n_ctx":8}"#).err().expect("unknown");
    assert_eq!(error.code, ErrorCode::CONFIG_INVALID);
}

/// Cross-encoders that llama.cpp scores wrongly are refused, with the engine that scores them rightly; a model without
/// a classifier is no reranker.
///
/// Proves TOK-06.
#[test]
fn unfaithful_rerankers_are_refused() {
    let engine = reranker();
    let bert = load!(engine, &fixture("bert-embed"), config("none", 128)).unwrap_err();
    assert_eq!(bert.code, ErrorCode::UNSUPPORTED);
    assert!(bert.message.contains("onnxruntime"), "{}", bert.message);
    let Some(data) = shared() else { return };
    for (name, code) in [
        ("bert-cross-encoder", ErrorCode::UNSUPPORTED),
        ("xlm-roberta-cross-encoder", ErrorCode::UNSUPPORTED),
        ("qwen3-reranker", ErrorCode::UNSUPPORTED),
        ("modernbert-embed", ErrorCode::ARTIFACT_INVALID),
    ] {
        let file = data.join("zoo").join(name).join("model.gguf");
        let error = load!(engine, &file, config("none", 128)).unwrap_err();
        assert_eq!(error.code, code, "{name}: {}", error.message);
        assert!(code != ErrorCode::UNSUPPORTED || error.message.contains("onnxruntime"));
    }
    assert_eq!(engine.memory().model_bytes, 0);
}

/// What is held is reported, and given back.
#[test]
fn memory_is_reported_until_the_model_is_unloaded() {
    let engine = embedder();
    let file = fixture("bert-embed");
    let loaded = load!(engine, &file, config("mean", 128)).unwrap();
    assert!(loaded.memory_bytes >= file.metadata().unwrap().len());
    assert_eq!(engine.memory().model_bytes, loaded.memory_bytes);
    engine.unload(loaded.model).into_result().unwrap();
    assert_eq!(engine.memory().model_bytes, 0);
}

/// llama.cpp's lines go to the first host of the process, whichever test that is: no line stays without a level, and
/// none is an error of the host's.
#[test]
fn lines_go_to_the_host() {
    let host = FakeHost::new();
    let engine = plugin().open_embed(host.host(), "{}").unwrap().unwrap();
    load!(engine, &fixture("bert-embed"), config("mean", 128)).unwrap();
    assert!(host.logs().iter().all(|(level, _)| *level != LogLevel::ERROR));
}
