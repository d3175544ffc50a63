//! Items of 8,192 tokens: the float64 oracle's vector, and memory that grows with the length, not with its square.

mod zoo;

use std::io::Write;

use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Engine, Model};
use synapse_owned::kernel::isa::Kernels;
use zoo::{bits, embed, fixture, max_abs, widened};

const TOKENS: usize = 8_192;

/// The ids of the oracle: a linear congruential generator from seed 7.
fn ids(vocabulary: u32) -> Vec<i32> {
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        i32::try_from((state >> 8) % vocabulary).unwrap()
    };
    (0..TOKENS).map(|_| next()).collect()
}

/// The fixture with its limit raised; rotary positions need no table.
fn load(engine: &Engine, folder: &str) -> Model {
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture(folder).join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = TOKENS.into();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    let files = zoo::files(file.path().to_owned(), fixture(folder).join("model.safetensors"));
    engine
        .load(&files, zoo::settings(Pooling::Cls, TOKENS), &mut |_, _| true)
        .expect("the fixture loads")
}

#[test]
fn eight_thousand_tokens_meet_the_oracle_on_any_threads() {
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("long-oracle.json")).unwrap()).unwrap();
    for (folder, vocabulary, tolerance) in [("gte-embed", 900, 1e-5), ("modernbert-embed", 872, 1e-5)] {
        let expected: Vec<f64> = serde_json::from_value(expected[folder].clone()).unwrap();
        let engine = Engine::new(Kernels::preferred());
        let model = load(&engine, folder);
        let ids = ids(vocabulary);
        let alone = embed(&engine, &model, &[&ids], 1);
        let difference = max_abs(&widened(&alone[0], true), &expected);
        let _ = writeln!(
            std::io::stderr(),
            "{folder} at {TOKENS} tokens: max abs {difference:.2e}"
        );
        assert!(difference <= tolerance, "{folder}: {difference:e}");
        let beside = embed(&engine, &model, &[&ids[..40], &ids, &ids[..900]], 2);
        assert_eq!(bits(&beside[1..2]), bits(&alone), "{folder}");
    }
}

#[test]
fn memory_grows_with_the_length() {
    let scratch = [TOKENS / 4, TOKENS].map(|tokens| {
        let engine = Engine::new(Kernels::preferred());
        let model = load(&engine, "gte-embed");
        embed(&engine, &model, &[&ids(900)[..tokens]], 1);
        engine.scratch_bytes()
    });
    assert!(scratch[1] <= 4 * scratch[0] + (64 << 10), "{scratch:?} bytes");
}
