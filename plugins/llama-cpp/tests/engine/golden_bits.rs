//! The output's bits, frozen: they change exactly when `NUMERIC_VERSION` does.
//!
//! ggml is built for one set of instructions, so what a CPU has beyond them changes nothing, and one value stands for
//! every x86-64 CPU that may run the engine at all. Another architecture has no row yet and says so.

use std::io::Write;

use synapse_llama_cpp::NUMERIC_VERSION;

use crate::encoding::texts;
use crate::ground::{config, embed, embedder, fixture, generate, generation, generator, load, options};

/// (architecture, numeric version, FNV-1a over the bits of every value).
const GOLDEN: [(&str, &str, u64); 1] = [("x86_64", "0.1.161-1", 0x9bc9_2879_a8f9_3438)];

fn hash(values: impl Iterator<Item = u32>) -> u64 {
    let bytes = values.flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Proves FPR-03.
#[test]
fn bits_change_only_with_the_numeric_version() {
    let engine = embedder();
    let loaded = load!(engine, &fixture("bert-embed"), config("mean", 128)).unwrap();
    let vectors = embed(&engine, &loaded, &texts(&[1, 2, 7, 33, 64, 128]), 2).concat();
    let engine = generator();
    let loaded = load!(engine, &fixture("llama-generate"), generation(128)).unwrap();
    let mut tokens = Vec::new();
    for prompt in texts(&[1, 9, 70]) {
        tokens.extend(generate(&engine, &loaded, &prompt, &options(24)).unwrap().ids);
    }
    assert!(vectors.iter().all(|value| value.is_finite()) && tokens.len() > 24);
    let bits = vectors.iter().map(|value| value.to_bits());
    let found = hash(bits.chain(tokens.iter().map(|id| id.cast_unsigned())));
    let row = GOLDEN
        .iter()
        .find(|(architecture, _, _)| *architecture == std::env::consts::ARCH);
    let Some((_, version, golden)) = row else {
        let architecture = std::env::consts::ARCH;
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no golden bits for {architecture}; found {found:#018x}"
        );
        return;
    };
    assert_eq!(*version, NUMERIC_VERSION, "the row belongs to another numeric version");
    assert_eq!(
        found, *golden,
        "bits changed: found {found:#018x}; bump NUMERIC_VERSION and this table"
    );
}
