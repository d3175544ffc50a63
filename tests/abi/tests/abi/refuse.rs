//! Every mismatch of the ABI is refused in one line that names the field, before any code of the plugin runs in the
//! daemon.

use std::path::Path;

use synapse_abi::{bundle::Host, fixture::Variant};
use synapse_loader::{BundleStatus, RefusalReason};

/// The line with which a library is refused, and its reason.
fn refusal(id: &str, library: &[u8]) -> (RefusalReason, String) {
    let host = Host::new(Path::new(env!("CARGO_BIN_EXE_abi-worker")));
    host.add(id, library);
    let bundles = host.discover();
    assert_eq!(bundles.len(), 1);
    match &bundles[0].status {
        BundleStatus::Refused { reason, message } => (*reason, message.clone()),
        other => panic!("expected a refusal, found {other:?}"),
    }
}

fn library(variant: Variant) -> Vec<u8> {
    std::fs::read(variant.library(Path::new(env!("CARGO_TARGET_TMPDIR")))).expect("built")
}

/// Where the magic stands: once in the note, once behind the exported symbol.
fn places(library: &[u8]) -> Vec<usize> {
    (0..library.len())
        .filter(|&at| library[at..].starts_with(b"SYNAPSE\0\x40\x01"))
        .collect()
}

/// Each field of the magic that does not fit this host refuses the bundle by its name.
///
/// Proves ENG-14.
#[test]
fn a_magic_that_does_not_fit_is_refused_by_field() {
    let good = library(Variant::Frozen);
    assert_eq!(places(&good).len(), 2);
    let cases: &[(usize, &[u8], RefusalReason, &str)] = &[
        (
            16,
            &[2, 0, 0, 0],
            RefusalReason::AbiMajor,
            "abi_major: plugin 2, host supports 1",
        ),
        (
            12,
            &[28, 1, 0, 0],
            RefusalReason::AbiMajor,
            "struct_len: plugin 284, host supports 280",
        ),
        (
            8,
            &[32],
            RefusalReason::TargetMismatch,
            "pointer_width: plugin 32, host supports 64",
        ),
        (
            9,
            &[2],
            RefusalReason::TargetMismatch,
            "endian: plugin big, host supports little",
        ),
        (
            24,
            b"stabby-72.1.0\0\0\0\0",
            RefusalReason::AbiVendor,
            "vendor: plugin stabby-72.1.0",
        ),
        (10, &[9], RefusalReason::MagicInvalid, "panic_strategy: plugin 9"),
        (56, b"A", RefusalReason::MagicInvalid, "id: plugin Abi-frozen"),
    ];
    for (offset, patch, reason, line) in cases {
        let mut bad = good.clone();
        for place in places(&good) {
            bad[place + offset..place + offset + patch.len()].copy_from_slice(patch);
        }
        let (found, message) = refusal("abi-frozen", &bad);
        assert_eq!(found, *reason, "{message}");
        assert!(message.contains(line) && !message.contains('\n'), "{message}");
    }
}

/// A note that says something else than the exported symbol is refused: what was checked is what is opened.
#[test]
fn note_and_symbol_must_agree() {
    let good = library(Variant::Frozen);
    let mut bad = good.clone();
    bad[places(&good)[1] + 20] = 9;
    let (reason, message) = refusal("abi-frozen", &bad);
    assert_eq!(reason, RefusalReason::MagicInvalid, "{message}");
    assert!(
        message.contains("synapse_plugin_magic") && !message.contains('\n'),
        "{message}"
    );
}

/// A plugin whose copy of a frozen type has one more field is refused with the type and the field.
///
/// Proves ENG-14.
#[test]
fn a_changed_struct_is_refused_by_type_and_field() {
    let (reason, message) = refusal("abi-changed", &library(Variant::Changed));
    assert_eq!(reason, RefusalReason::AbiLayout);
    assert!(
        message.contains("MemoryReport.novel: plugin u64, host supports no such field"),
        "{message}"
    );
    assert!(!message.contains('\n') && message.len() < 300, "{message}");
}
