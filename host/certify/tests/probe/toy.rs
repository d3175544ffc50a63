//! The reference engine in this process, sound and with each fault of numbers, against references that its Python script
//! made. Texts become ids by the rule of the toy's tokenizer: a token a byte, between two of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use synapse_catalog::Catalog;
use synapse_certify::{Gate, Level, Outcome, References, Step, StepOutput, Subject, Verdict, Work};
use synapse_plugin_sdk::api::{KeyValue, RuntimeConfig};
use synapse_plugin_sdk::testing::{Embedding, FakeCall, FakeHost, Reranking, runtime_config};

use crate::hand::{FULL, closed, drive};

const BEGIN: i32 = 256;
const END: i32 = 257;

fn bundle() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/reference")
}

fn subject(model: &str) -> Subject {
    let mut catalog = Catalog::empty();
    let files = ["toy-embed.toml", "toy-rerank.toml", "envelopes.toml"].map(|file| bundle().join("catalog").join(file));
    let refused = catalog.add_bundle("reference", &files);
    assert!(refused.is_empty(), "{refused:?}");
    let record = catalog.record(model).expect("in the bundle").clone();
    let bytes = catalog
        .references(model)
        .expect("readable")
        .expect("named by the record");
    Subject {
        row: catalog.lanes(model)[0].clone(),
        record,
        f32_exact: true,
        thread_invariant: true,
        reports_placement: false,
        one_at_a_time: None,
        references: Some(References::parse(&bytes).expect("sound")),
    }
}

fn config(fault: &str) -> RuntimeConfig {
    let mut config = runtime_config("bytes", "f32");
    config.pooling = "mean".into();
    config.extra = vec![KeyValue::new("fault", fault)].into();
    config
}

fn bytes(text: &str, room: usize) -> impl Iterator<Item = i32> + '_ {
    text.bytes().take(room).map(i32::from)
}

fn ids(text: &str, cut: u32) -> Vec<i32> {
    let room = usize::try_from(cut).expect("is small") - 2;
    [BEGIN].into_iter().chain(bytes(text, room)).chain([END]).collect()
}

fn lengths(items: &[Vec<i32>]) -> Vec<u32> {
    items
        .iter()
        .map(|ids| u32::try_from(ids.len()).expect("is small"))
        .collect()
}

/// What a host makes of a call: rows, or the engine's error.
fn embedded(engine: &Embedding, step: &Step) -> StepOutput {
    let Work::Embed(texts) = &step.work else {
        panic!("an embedding model is asked for {:?}", step.work)
    };
    let items: Vec<Vec<i32>> = texts.iter().map(|item| ids(&item.text, item.max_tokens)).collect();
    let refs: Vec<&[i32]> = items.iter().map(Vec::as_slice).collect();
    let call = FakeCall::new(step.threads);
    let begin = Instant::now();
    let rows = if step.as_query {
        engine.embed_one(&call, refs[0]).map(|row| vec![row])
    } else {
        engine.embed(&call, &refs)
    };
    match rows {
        Ok(rows) => StepOutput::Rows {
            rows,
            tokens: lengths(&items),
            elapsed: begin.elapsed(),
        },
        Err(error) => StepOutput::Failed {
            message: error.to_string(),
        },
    }
}

fn embed(fault: &str) -> Verdict {
    let weights = bundle().join("model/weights.bin");
    let roles = [("weights", weights.as_path())];
    let plugin = synapse_reference::plugin();
    let engine = Embedding::load(&plugin, FakeHost::new(), &roles, &config(fault)).expect("loads");
    drive(subject("reference/toy-embed"), FULL, |step| embedded(&engine, step))
}

fn rerank(fault: &str) -> Verdict {
    let weights = bundle().join("model/weights.bin");
    let roles = [("weights", weights.as_path())];
    let plugin = synapse_reference::plugin();
    let engine = Reranking::load(&plugin, FakeHost::new(), &roles, &config(fault)).expect("loads");
    drive(subject("reference/toy-rerank"), FULL, |step| scored(&engine, step))
}

fn scored(engine: &Reranking, step: &Step) -> StepOutput {
    let Work::Rerank(pairs) = &step.work else {
        panic!("a reranking model is asked for {:?}", step.work)
    };
    let items: Vec<(Vec<i32>, Vec<i32>)> = pairs
        .iter()
        .map(|pair| {
            let query = ids(&pair.query, 10_000);
            let room = usize::try_from(pair.max_tokens).expect("is small") - 1 - query.len();
            (query, bytes(&pair.document, room).chain([END]).collect())
        })
        .collect();
    let refs: Vec<(&[i32], &[i32])> = items.iter().map(|(query, document)| (&**query, &**document)).collect();
    let whole: Vec<Vec<i32>> = items
        .iter()
        .map(|(query, document)| [&**query, &**document].concat())
        .collect();
    match engine.score(&FakeCall::new(step.threads), &refs) {
        Ok(scores) => StepOutput::Scores {
            scores,
            tokens: lengths(&whole),
            elapsed: Duration::from_micros(1),
        },
        Err(error) => StepOutput::Failed {
            message: error.to_string(),
        },
    }
}

/// Proves CERT-11.
#[test]
fn the_sound_engine_is_certified_against_its_references() {
    let verdict = embed("none");
    assert_eq!(closed(&verdict), [""; 0], "{:?}", verdict.gates);
    assert!(verdict.is_certified() && verdict.hot_path() && verdict.level == Level::Reference);
    let far = &verdict.gate(Gate::Quality).expect("has one").figures;
    assert!(
        far.iter().any(|figure| figure.name == "max_abs" && figure.value < 1e-6),
        "{far:?}"
    );
}

/// Each fault of numbers fails the gate that is there for it; beside that gate, only its relatives.
///
/// Proves CERT-02, CERT-03.
#[test]
fn every_fault_of_numbers_fails_the_right_gate() {
    let relatives_of_shape = ["query_batch", "quality"];
    for (fault, right, relatives) in [
        ("mask_ignored", "shape_invariance", &relatives_of_shape[..1]),
        ("padding_leaked", "shape_invariance", &relatives_of_shape[..1]),
        ("order_dependent", "shape_invariance", &relatives_of_shape[..1]),
        ("cls_for_mean", "quality", &[]),
        ("last_off_by_one", "quality", &[]),
        ("drift", "quality", &[]),
        ("nan_shape", "finite", &[]),
        // One thread more moves every number, so no call is like the references.
        ("thread_dependent", "thread_invariance", &["quality"]),
    ] {
        let verdict = embed(fault);
        let closed = closed(&verdict);
        assert!(closed.contains(&right), "{fault}: {closed:?}");
        assert!(
            closed.iter().all(|gate| *gate == right || relatives.contains(gate)),
            "{fault}: {closed:?}"
        );
        assert!(!verdict.is_certified() && !verdict.hot_path(), "{fault}");
    }
}

/// Nothing finite, or rows that were never written: the finite check, and no other gate has anything to say.
#[test]
fn rows_without_numbers_certify_nothing() {
    for fault in ["nan", "infinite", "half_written"] {
        let verdict = embed(fault);
        let finite = verdict.gate(Gate::Finite).expect("has one");
        assert_eq!(finite.outcome, Outcome::Failed, "{fault}");
        assert!(!verdict.is_certified(), "{fault}");
    }
}

/// Errors and a panic: the envelope's gate, after a few calls.
#[test]
fn an_engine_that_fails_every_call_certifies_nothing() {
    for fault in ["error", "error_model_bad", "panic"] {
        let verdict = embed(fault);
        let envelope = verdict.gate(Gate::Envelope).expect("has one");
        assert_eq!(
            (envelope.outcome, envelope.figures[1].value),
            (Outcome::Failed, 8.0),
            "{fault}"
        );
        assert!(!verdict.is_certified(), "{fault}");
    }
}

#[test]
fn a_reranker_with_the_wrong_sign_fails_the_order() {
    let sound = rerank("none");
    assert_eq!(closed(&sound), [""; 0], "{:?}", sound.gates);
    assert!(sound.is_certified() && sound.level == Level::Reference);
    for (fault, right, relative) in [
        ("score_sign", "rerank_order", "quality"),
        ("drift", "quality", ""),
        ("order_dependent", "shape_invariance", ""),
        ("nan", "finite", ""),
    ] {
        let verdict = rerank(fault);
        let closed = closed(&verdict);
        assert!(
            closed.contains(&right) && !verdict.is_certified(),
            "{fault}: {closed:?}"
        );
        if fault != "nan" {
            assert!(
                closed.iter().all(|gate| *gate == right || *gate == relative),
                "{fault}: {closed:?}"
            );
        }
    }
}
