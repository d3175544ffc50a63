//! GGUF files that nobody may trust. The host refuses most of them by their header; behind it the engine must hold
//! too, or end in a typed error.

use std::path::Path;

use synapse_plugin_sdk::api::ErrorCode;
use synapse_plugin_sdk::testing::FakeCall;

use crate::ground::{
    config, embedder, fixture, generate, generation, generator, json, load, options, reranker, shared, weights,
};

/// Every GGUF file of the zoo's bad folder meets its manifest's verdict, though no host stands before the engine here:
/// llama.cpp refuses what it can see, and names tensor, architecture or key; what it loads is served or ends in a
/// typed error.
///
/// Proves CACHE-08.
#[test]
fn bad_files_meet_their_verdict() {
    let Some(data) = shared() else { return };
    let folder = data.join("zoo/bad");
    let manifest = json(&folder.join("manifest.json"));
    let engine = generator();
    let mut seen = 0;
    for entry in manifest["entries"].as_array().unwrap() {
        let Some(file) = entry["file"].as_str().filter(|file| file.ends_with(".gguf")) else {
            continue;
        };
        let (name, verdict) = (entry["name"].as_str().unwrap(), entry["verdict"].as_str().unwrap());
        seen += 1;
        let loaded = load!(engine, &folder.join(file), generation(16));
        match (verdict, loaded) {
            ("reject" | "reject-preferred", Err(error)) => {
                assert_eq!(error.code, ErrorCode::ARTIFACT_INVALID, "{name}: {}", error.message);
                for (which, word) in [
                    ("gguf-missing-tensor", "blk.0.ffn_down.weight"),
                    ("gguf-shape-mismatch", "expected"),
                    ("gguf-unknown-arch", "banana"),
                ] {
                    assert!(
                        name != which || error.message.contains(word),
                        "{name}: {}",
                        error.message
                    );
                }
            }
            ("reject" | "reject-preferred", Ok(_)) => panic!("{name} was loaded"),
            ("reject-by-self-check", loaded) => {
                let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {}", error.message));
                let Err(error) = generate(&engine, &loaded, &[1, 2, 3], &options(4)) else {
                    panic!("{name} generates");
                };
                assert_eq!(error.code, ErrorCode::NON_FINITE, "{name}");
            }
            (_, Err(error)) => {
                // Stricter than the manifest asks, but never a crash.
                assert!(!verdict.starts_with("accept"), "{name}: {}", error.message);
                assert_eq!(error.code, ErrorCode::ARTIFACT_INVALID, "{name}: {}", error.message);
            }
            (_, Ok(loaded)) => {
                generate(&engine, &loaded, &[1, 2, 3], &options(4))
                    .unwrap_or_else(|error| panic!("{name}: {}", error.message));
                engine.unload(loaded.model).into_result().unwrap();
            }
        }
    }
    assert!(seen >= 36, "{seen} files");
}

/// A file that is none is an error of all three engines, and so is one that is not there.
#[test]
fn a_file_that_is_no_gguf_is_refused_by_every_engine() {
    let folder = std::env::temp_dir().join(format!("synapse-llama-cpp-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut broken = std::fs::read(fixture("bert-embed")).unwrap();
    broken.truncate(broken.len() / 2);
    for (name, bytes) in [("text", b"not a model".as_slice()), ("half", &broken), ("empty", b"")] {
        let file = folder.join(name);
        std::fs::write(&file, bytes).unwrap();
        let check = |file: &Path| {
            let errors = [
                load!(embedder(), file, config("mean", 128)).unwrap_err(),
                load!(reranker(), file, config("none", 128)).unwrap_err(),
                load!(generator(), file, generation(128)).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.code, ErrorCode::ARTIFACT_INVALID, "{name}");
                assert!(!error.message.contains("gives no reason"), "{name}: {}", error.message);
            }
        };
        check(&file);
        // And one that has gone since the host looked at it, though its size is still known.
        let files = weights(&file);
        std::fs::remove_file(&file).unwrap();
        let call = FakeCall::new(1);
        let gone = generator().load(&call.context(), &files, &generation(128));
        assert_eq!(gone.into_result().unwrap_err().code, ErrorCode::ARTIFACT_INVALID);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
