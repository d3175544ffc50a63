//! The output's bits, frozen: they change exactly when `NUMERIC_VERSION` does.
//!
//! The specification fixes every rounding, so that all instruction sets share one value; each has its row, and one
//! without a row is reported as not held.

mod zoo;

use std::io::Write;

use synapse_owned::NUMERIC_VERSION;
use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Arithmetic, Engine, LoadSettings};
use synapse_owned::kernel::isa::Kernels;

/// (instruction set, numeric version, FNV-1a over the bits of every fixture vector in f32, and in the fast mode).
const GOLDEN: [(&str, &str, [u64; 2]); 3] = [
    ("portable", "1", [0x84f5_de99_b1e0_147b, 0x0b0f_0b29_7994_9b2c]),
    ("avx2", "1", [0x84f5_de99_b1e0_147b, 0x0b0f_0b29_7994_9b2c]),
    ("avx512", "1", [0x84f5_de99_b1e0_147b, 0x0b0f_0b29_7994_9b2c]),
];

/// FNV-1a over the bits of every fixture vector.
fn hash(engine: &Engine, arithmetic: Arithmetic) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (folder, pooling) in [("bert-embed", Pooling::Mean), ("bert-embed-cls", Pooling::Cls)] {
        let files = zoo::files(
            zoo::fixture(folder).join("config.json"),
            zoo::fixture(folder).join("model.safetensors"),
        );
        let settings = LoadSettings {
            arithmetic,
            ..zoo::settings(pooling, 128)
        };
        let model = engine.load(&files, settings, &mut |_, _| true).unwrap();
        let oracle = zoo::oracle(folder);
        let items: Vec<&[i32]> = oracle.items.iter().map(|item| item.ids.as_slice()).collect();
        for value in zoo::embed(engine, &model, &items, 2).concat() {
            for byte in value.to_bits().to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    hash
}

/// Proves FPR-03.
#[test]
fn bits_change_only_with_the_numeric_version() {
    for kernels in Kernels::available() {
        let isa = kernels.isa().name();
        let engine = Engine::new(kernels);
        let found = [Arithmetic::F32, Arithmetic::S16].map(|arithmetic| hash(&engine, arithmetic));
        let Some((_, version, golden)) = GOLDEN.iter().find(|(name, _, _)| *name == isa) else {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: no golden bits for instruction set {isa}; found {found:#018x?}"
            );
            continue;
        };
        assert_eq!(
            *version, NUMERIC_VERSION,
            "the row of {isa} belongs to another numeric version"
        );
        assert_eq!(
            found, *golden,
            "bits of {isa} changed: found {found:#018x?}; bump NUMERIC_VERSION and this table"
        );
    }
}
