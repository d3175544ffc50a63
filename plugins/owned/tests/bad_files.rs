//! Broken artifacts: each meets its manifest's verdict, with an error that names the defect.

mod zoo;

use std::path::Path;

use synapse_owned::artifact::modules::Pooling;
use synapse_owned::artifact::{ArtifactFiles, DenseFiles};
use synapse_owned::engine::Engine;
use synapse_owned::kernel::isa::Kernels;

/// Words that the error must hold, where the manifest's `must` asks for some.
const WORDS: [(&str, &[&str]); 37] = [
    ("st-truncated-data", &["cut short", "bytes"]),
    ("st-truncated-header", &["cut short"]),
    ("st-empty", &["0 bytes long"]),
    ("st-7-bytes", &["7 bytes long"]),
    ("st-header-len-2pow60", &["1152921504606846976"]),
    ("st-header-len-u64max", &["18446744073709551615"]),
    ("st-overlap", &["overlap"]),
    ("st-hole", &["hole"]),
    ("st-offset-past-end", &["tensor"]),
    ("st-offset-reversed", &["end before they begin"]),
    ("st-shape-overflow", &["overflows"]),
    ("st-shape-vs-bytes", &["takes", "hold"]),
    ("st-dtype-unknown", &["F12"]),
    ("st-html", &["looks like HTML"]),
    ("st-duplicate-key", &["twice"]),
    ("st-nan-weight", &["query.weight", "NaN"]),
    ("st-inf-row", &["word_embeddings", "inf"]),
    ("st-wrong-dtype", &["word_embeddings", "I64", "F32"]),
    ("st-missing-tensor", &["encoder.layer.0.output.dense.weight", "missing"]),
    ("st-wrong-shape", &["key.weight", "[8, 16]", "[16, 16]"]),
    ("st-transposed", &["intermediate.dense.weight", "[16, 32]", "[32, 16]"]),
    ("cfg-ctx-over-table", &["position_embeddings", "[16, 16]", "[4096, 16]"]),
    ("cfg-vocab-over-table", &["word_embeddings", "[40, 16]", "[5000, 16]"]),
    ("cfg-heads-not-dividing", &["num_attention_heads 3", "hidden_size 16"]),
    ("cfg-zero-heads", &["num_attention_heads is 0"]),
    ("cfg-layers-2pow31", &["num_hidden_layers is 2147483648"]),
    ("cfg-negative-hidden", &["hidden_size is -16"]),
    ("cfg-string-number", &["hidden_size is \"16\""]),
    ("cfg-not-json", &["looks like HTML"]),
    ("cfg-unknown-arch", &["mamba-banana"]),
    ("cfg-act-unknown", &["swish7"]),
    ("mod-path-traversal", &["leaves the model's folder"]),
    ("mod-path-absolute", &["leaves the model's folder"]),
    ("mod-unknown-type", &["my_pkg.Evil"]),
    ("mod-dense-wrong-shape", &["linear.weight", "[8, 15]", "[8, 16]"]),
    ("mod-dense-unknown-activation", &["os.system", "Identity"]),
    ("mod-dense-missing", &["1 Dense modules", "dense.N.weights"]),
];

/// The files that a record of such a folder would list, by role.
fn artifact(folder: &Path) -> ArtifactFiles {
    let present = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
    let dense = (2..4).filter_map(|number| {
        Some(DenseFiles {
            weights: present(&format!("{number}_Dense/model.safetensors"))?,
            config: present(&format!("{number}_Dense/config.json"))?,
        })
    });
    ArtifactFiles {
        modules: present("modules.json"),
        pooling: present("1_Pooling/config.json"),
        dense: dense.collect(),
        ..ArtifactFiles::new(folder.join("config.json"), folder.join("model.safetensors"))
    }
}

#[test]
fn every_bad_artifact_meets_its_verdict() {
    let engine = Engine::new(Kernels::preferred());
    let root = zoo::fixture("bad");
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(root.join("manifest.json")).unwrap()).unwrap();
    let entries = manifest["entries"].as_array().unwrap();
    assert!(entries.len() >= 45, "the manifest lost entries");
    for entry in entries {
        let name = entry["name"].as_str().unwrap();
        let verdict = entry["verdict"].as_str().unwrap();
        let folder = root.join(entry["file"].as_str().unwrap());
        // The good folder pools by mean and CLS alike in its config, which a record must not list.
        let mut files = artifact(&folder);
        if !name.starts_with("mod-") {
            files.modules = None;
            files.pooling = None;
        }
        let mut settings = zoo::settings(Pooling::Mean, 16);
        settings.max_batch = 4;
        let outcome = engine.load(&files, settings, &mut |_, _| true);
        let served = match (outcome, verdict) {
            (Ok(model), _) => {
                assert_eq!(model.dims(), 16, "{name}");
                if name == "st-extra-tensor" {
                    assert_eq!(model.unused_tensors().len(), 1, "{name}");
                }
                // Ids beyond the table must be refused, never read.
                let refused = zoo::try_embed(&engine, &model, &[&[2, 45, 3]], 1, &zoo::GoOn);
                assert!(refused.is_err(), "{name} served an id beyond its table");
                let vectors = zoo::embed(&engine, &model, &[&[2, 31, 32, 3]], 1);
                assert!(vectors[0].iter().all(|value| value.is_finite()), "{name}");
                true
            }
            (Err(error), _) => {
                let message = error.to_string();
                assert!(
                    message.contains(&folder.display().to_string()),
                    "{name} names no file: {message}"
                );
                if let Some((_, words)) = WORDS.iter().find(|(of, _)| *of == name) {
                    for word in *words {
                        assert!(message.contains(word), "{name}: no {word:?} in {message:?}");
                    }
                }
                false
            }
        };
        let allowed = match verdict {
            "accept" | "accept-with-warning" => served,
            "reject" if name == "cfg-tokenizer-vocab-larger" => served, // The typed error per request was checked.
            "reject" | "reject-preferred" | "reject-or-32-dims" => !served,
            "reject-or-ignore" => true,
            other => panic!("{name}: unknown verdict {other}"),
        };
        assert!(allowed, "{name}: verdict {verdict}, but served is {served}");
    }
    for (name, _) in WORDS {
        assert!(
            entries.iter().any(|entry| entry["name"] == name),
            "{name} is not in the manifest"
        );
    }
}

/// The layout of a sound sentence-transformers folder is accepted, and must agree with the record.
#[test]
fn module_files_are_compared_with_the_record() {
    let engine = Engine::new(Kernels::preferred());
    let files = artifact(&zoo::fixture("bert-embed"));
    assert!(files.modules.is_some() && files.pooling.is_some());
    assert!(
        engine
            .load(&files, zoo::settings(Pooling::Mean, 128), &mut |_, _| true)
            .is_ok()
    );
    let Err(error) = engine.load(&files, zoo::settings(Pooling::Cls, 128), &mut |_, _| true) else {
        panic!("a record of another pooling was accepted");
    };
    assert!(error.to_string().contains("mean_tokens"), "{error}");
}

#[test]
fn roles_are_closed_unique_and_complete() {
    let path = || "x".into();
    let message = |files: &[(&'static str, std::path::PathBuf)]| {
        ArtifactFiles::by_role(files.iter().cloned()).unwrap_err().to_string()
    };
    assert!(message(&[("config", path())]).contains("\"weights\" is missing"));
    assert!(message(&[("config", path()), ("config", path())]).contains("twice"));
    assert!(message(&[("config", path()), ("dense.0.turbo", path())]).contains("dense.0.turbo"));
    let dense = |role| message(&[("config", path()), ("weights", path()), (role, path())]);
    assert!(dense("dense.0.weights").contains("dense.N.config"));
    assert!(dense("dense.1.config").contains("number 0"));
    assert!(dense("dense.00.config").contains("unknown"));
}
