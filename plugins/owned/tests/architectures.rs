//! Every architecture against its float64 oracle, on every instruction set, and bit for bit alone, in a batch, at any
//! position and on any number of threads.

mod zoo;

use std::io::Write;

use synapse_owned::artifact::DenseFiles;
use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Arithmetic, Engine, LoadSettings, Model, Task};
use synapse_owned::kernel::isa::{Isa, Kernels};
use zoo::{OracleItem, bits, embed_items, fixture, max_abs, oracle, widened};

const MODELS: [(&str, Task); 12] = [
    ("roberta-embed", Task::Embed(Pooling::Mean)),
    ("xlm-roberta-embed", Task::Embed(Pooling::Mean)),
    ("distilbert-embed", Task::Embed(Pooling::Mean)),
    ("mpnet-embed", Task::Embed(Pooling::Mean)),
    ("modernbert-embed", Task::Embed(Pooling::Cls)),
    ("qwen3-embed", Task::Embed(Pooling::Last)),
    ("embeddinggemma-embed", Task::Embed(Pooling::Mean)),
    ("nomic-bert-embed", Task::Embed(Pooling::Mean)),
    ("gte-embed", Task::Embed(Pooling::Cls)),
    ("bert-cross-encoder", Task::Score),
    ("xlm-roberta-cross-encoder", Task::Score),
    ("modernbert-reranker", Task::Score),
];

/// Of so many items, one is computed by the slow specification too.
const STEP: usize = 9;

fn load(engine: &Engine, folder: &str, config: &str, task: Task, arithmetic: Arithmetic) -> Model {
    let folder = fixture(folder);
    let present = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
    let mut files = zoo::files(folder.join(config), folder.join("model.safetensors"));
    files.modules = present("modules.json");
    files.pooling = present("1_Pooling/config.json");
    files.dense = (2..4)
        .filter_map(|number| {
            Some(DenseFiles {
                weights: present(&format!("{number}_Dense/model.safetensors"))?,
                config: present(&format!("{number}_Dense/config.json"))?,
            })
        })
        .collect();
    let settings = LoadSettings {
        task,
        arithmetic,
        ..zoo::settings(Pooling::Mean, 128)
    };
    engine
        .load(&files, settings, &mut |_, _| true)
        .expect("the fixture loads")
}

#[test]
fn every_architecture_meets_the_tolerance_of_its_oracle() {
    for (folder, task) in MODELS {
        let oracle = oracle(folder);
        assert!(oracle.items.len() >= 28, "{folder} lost items");
        for kernels in Kernels::available() {
            let step = if kernels.isa() == Isa::Portable { STEP } else { 1 };
            let items: Vec<&OracleItem> = oracle.items.iter().step_by(step).collect();
            let engine = Engine::new(kernels);
            let model = load(&engine, folder, "config.json", task, Arithmetic::F32);
            assert_eq!(model.unused_tensors(), &[] as &[String], "{folder}");
            let isa = kernels.isa().name();
            let mut worst = 0.0_f64;
            for (item, found) in items.iter().zip(embed_items(&engine, &model, &items, 2)) {
                worst = worst.max(max_abs(&widened(&found, oracle.normalized), &item.expected));
            }
            let _ = writeln!(
                std::io::stderr(),
                "{folder} on {isa}: max abs {worst:.2e} of {:.0e}",
                oracle.max_abs
            );
            assert!(
                worst <= oracle.max_abs,
                "{folder} on {isa}: {worst:e} > {:e}",
                oracle.max_abs
            );
        }
    }
}

/// Proves FPR-05.
#[test]
fn every_architecture_gives_the_same_bits_in_any_company() {
    for arithmetic in [Arithmetic::F32, Arithmetic::S16] {
        for (folder, task) in MODELS {
            same_bits_in_any_company(folder, task, arithmetic);
        }
    }
}

fn same_bits_in_any_company(folder: &str, task: Task, arithmetic: Arithmetic) {
    let oracle = oracle(folder);
    let mut specification = None;
    // The specification first, on a part: it is slow. The others must give its bits.
    for kernels in Kernels::available() {
        let step = if kernels.isa() == Isa::Portable { STEP } else { 1 };
        let items: Vec<&OracleItem> = oracle.items.iter().step_by(step).collect();
        let engine = Engine::new(kernels);
        let model = load(&engine, folder, "config.json", task, arithmetic);
        let alone: Vec<_> = items
            .iter()
            .map(|&item| embed_items(&engine, &model, &[item], 1).remove(0))
            .collect();
        let alone = bits(&alone);
        let part: Vec<_> = alone.iter().step_by(STEP / step).cloned().collect();
        let specification = specification.get_or_insert_with(|| part.clone());
        assert_eq!(&part, specification, "{folder} on {}", kernels.isa().name());
        for threads in [1, 2, 3] {
            let batched = bits(&embed_items(&engine, &model, &items, threads));
            assert_eq!(batched, alone, "{folder} on {threads} threads");
            let reversed: Vec<&OracleItem> = items.iter().rev().copied().collect();
            let mut found = bits(&embed_items(&engine, &model, &reversed, threads));
            found.reverse();
            assert_eq!(found, alone, "{folder} reversed on {threads} threads");
            for (&item, expected) in items.iter().zip(&alone).step_by(5) {
                let single = bits(&embed_items(&engine, &model, &[item], threads));
                assert_eq!(&single[0], expected, "{folder} alone on {threads} threads");
            }
        }
    }
}

/// The fast mode stays near the oracle: as near as its integers allow on models whose random weights are hard to round.
#[test]
fn the_fast_mode_stays_near_the_oracle() {
    for (folder, task) in MODELS {
        let oracle = oracle(folder);
        let items: Vec<&OracleItem> = oracle.items.iter().collect();
        let engine = Engine::new(Kernels::preferred());
        let model = load(&engine, folder, "config.json", task, Arithmetic::S16);
        let (mut least, mut farthest) = (1.0_f64, 0.0_f64);
        for (item, found) in items.iter().zip(embed_items(&engine, &model, &items, 2)) {
            let found = widened(&found, false);
            farthest = farthest.max(max_abs(&found, &item.expected));
            let length = |vector: &[f64]| vector.iter().map(|value| value * value).sum::<f64>().sqrt();
            let product: f64 = found.iter().zip(&item.expected).map(|(a, b)| a * b).sum();
            least = least.min(product / length(&found) / length(&item.expected));
        }
        let _ = writeln!(
            std::io::stderr(),
            "{folder}: 1 - cosine {:.1e}, max abs {farthest:.1e}",
            1.0 - least
        );
        match task {
            Task::Embed(_) => assert!(least >= 0.9999, "{folder}: cosine {least}"),
            Task::Score => assert!(farthest <= 2e-2, "{folder}: off by {farthest}"),
        }
        // The oracle is met by f32 in the last digits only: were the fast mode as near, it would not be running.
        assert!(least < 1.0 - 1e-11 || farthest > oracle.max_abs, "{folder} ran in f32");
    }
}

/// The config of the next transformers release describes the same model.
#[test]
fn both_dialects_of_every_config_give_the_same_bits() {
    let engine = Engine::new(Kernels::preferred());
    for (folder, task) in MODELS {
        if !fixture(folder).join("config.v5.json").exists() {
            continue;
        }
        let oracle = oracle(folder);
        let items: Vec<&OracleItem> = oracle.items.iter().step_by(9).collect();
        let found = ["config.json", "config.v5.json"].map(|config| {
            let model = load(&engine, folder, config, task, Arithmetic::F32);
            bits(&embed_items(&engine, &model, &items, 1))
        });
        assert_eq!(found[0], found[1], "{folder}");
    }
}

/// A config that says something which this engine would compute otherwise is refused by the name of the key.
#[test]
fn settings_that_would_be_computed_otherwise_are_refused() {
    let cases = [
        ("qwen3-embed", "use_sliding_window", serde_json::json!(true)),
        (
            "qwen3-embed",
            "rope_scaling",
            serde_json::json!({"rope_type": "yarn", "factor": 4.0}),
        ),
        ("qwen3-embed", "head_dim", serde_json::json!(15)),
        ("qwen3-embed", "num_key_value_heads", serde_json::json!(3)),
        (
            "embeddinggemma-embed",
            "use_bidirectional_attention",
            serde_json::json!(false),
        ),
        (
            "embeddinggemma-embed",
            "attn_logit_softcapping",
            serde_json::json!(50.0),
        ),
        ("embeddinggemma-embed", "sliding_window_pattern", serde_json::json!("6")),
        ("modernbert-embed", "layer_types", serde_json::json!(["full_attention"])),
        ("modernbert-embed", "hidden_activation", serde_json::json!("mish")),
        ("nomic-bert-embed", "rotary_emb_fraction", serde_json::json!(0.5)),
        ("nomic-bert-embed", "prenorm", serde_json::json!(true)),
        ("gte-embed", "position_embedding_type", serde_json::json!("absolute")),
        ("roberta-embed", "pad_token_id", serde_json::json!(129)),
        ("mpnet-embed", "relative_attention_num_buckets", serde_json::json!(6)),
        (
            "bert-cross-encoder",
            "id2label",
            serde_json::json!({"0": "no", "1": "yes"}),
        ),
    ];
    let engine = Engine::new(Kernels::preferred());
    for (folder, key, value) in cases {
        let mut config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(fixture(folder).join("config.json")).unwrap()).unwrap();
        config[key] = value;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), config.to_string()).unwrap();
        let (_, task) = *MODELS.iter().find(|(name, _)| *name == folder).unwrap();
        let files = zoo::files(file.path().to_owned(), fixture(folder).join("model.safetensors"));
        let settings = LoadSettings {
            task,
            ..zoo::settings(Pooling::Mean, 128)
        };
        let Err(error) = engine.load(&files, settings, &mut |_, _| true) else {
            panic!("{folder} with another {key} was accepted");
        };
        let known = match key {
            "id2label" => "labels",
            key => key,
        };
        assert!(error.to_string().contains(known), "{folder}, {key}: {error}");
    }
}

/// An architecture without a head for scores, and a model without the head's tensors.
#[test]
fn only_cross_encoders_score() {
    let engine = Engine::new(Kernels::preferred());
    for (folder, word) in [("qwen3-embed", "does not score"), ("bert-embed", "labels")] {
        let files = zoo::files(
            fixture(folder).join("config.json"),
            fixture(folder).join("model.safetensors"),
        );
        let settings = LoadSettings {
            task: Task::Score,
            ..zoo::settings(Pooling::Mean, 128)
        };
        let Err(error) = engine.load(&files, settings, &mut |_, _| true) else {
            panic!("{folder} scores");
        };
        assert!(error.to_string().contains(word), "{folder}: {error}");
    }
}
