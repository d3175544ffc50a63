//! The layout that version 1 froze, as golden text, and the vendored copy of its source.

use std::mem::offset_of;

use synapse_abi::{fixture, golden};
use synapse_plugin_api::{
    ABI_MAJOR, ABI_MINOR, EngineKind, EngineState, ErrorCode, ExtensionTable, FinishReason, Flow, LogLevel, MetricKind,
    PluginMagic, Preempt, PromptKind, SynapsePlugin_Ref, VENDOR_TAG,
    abi_stable::StableAbi,
    ext::{
        chat::{ChatMessage, ChatTable},
        compiled_shapes::{CompiledShapesTable, Resident, Shape},
        environment::{Device, EnvironmentReport, EnvironmentTable, FloorItem},
        grammar::GrammarTable,
    },
    layout,
    magic::{MAGIC_SYMBOL, MagicNote, NOTE_SECTION, NOTE_TYPE},
};

/// Every type that crosses has the frozen fields, sizes and alignments, trait methods included.
///
/// Proves ENG-02, ENG-03.
#[test]
fn frozen_types_have_the_golden_layout() {
    let entries = layout::entries(<SynapsePlugin_Ref as StableAbi>::LAYOUT);
    let text: String = entries.iter().map(layout::TypeEntry::lines).collect();
    for method in [
        "identity",
        "load",
        "embed_batch",
        "embed_one",
        "unload",
        "score_batch",
        "generate",
    ] {
        assert!(
            text.contains(&format!("\n    {method}: ")),
            "the walk does not reach the method {method}"
        );
    }
    assert!(!text.contains("0x"), "an address in the text");
    golden::check("layout.txt", &text).unwrap();
}

/// abi_stable does not check the extension tables and the magic: their offsets are golden too.
#[test]
fn tables_and_magic_have_the_golden_offsets() {
    let mut text = String::new();
    macro_rules! table {
        ($type:ty: $($field:ident),* $(,)?) => {
            text += &format!("{} size {} align {}\n", stringify!($type), size_of::<$type>(), align_of::<$type>());
            $(text += &format!("    {} at {}\n", stringify!($field), offset_of!($type, $field));)*
        };
    }
    macro_rules! ids {
        ($($type:ty),*) => { $(text += &format!("{} is {}, revision {}\n", stringify!($type), <$type>::ID, <$type>::REV);)* };
    }
    table!(PluginMagic: magic, pointer_width, endian, panic_strategy, reserved, struct_len, abi_major, abi_minor, vendor, id, version, rustc, target);
    table!(MagicNote:);
    table!(ChatMessage<'static>: role, content);
    table!(ChatTable: header, state, chat);
    table!(GrammarTable: header, state, max_bytes, validate);
    table!(Shape: batch, tokens);
    table!(Resident: shape, bytes);
    table!(CompiledShapesTable: header, state, ladder, admit, evict, inventory);
    table!(Device: id, name, kind, memory_bytes);
    table!(FloorItem: name, needed, found, met);
    table!(EnvironmentReport: drivers, devices, floor);
    table!(EnvironmentTable: header, state, report);
    ids!(ChatTable, GrammarTable, CompiledShapesTable, EnvironmentTable);
    golden::check("tables.txt", &text).unwrap();
}

/// Numbers that stand in for enums keep their meaning.
#[test]
fn open_integers_have_the_golden_values() {
    let mut text = format!("major {ABI_MAJOR}, minor {ABI_MINOR}, vendor {VENDOR_TAG}\n");
    text += &format!("symbol {MAGIC_SYMBOL}, section {NOTE_SECTION}, note type {NOTE_TYPE}\n");
    macro_rules! values {
        ($type:ident: $($name:ident),* $(,)?) => { $(text += &format!("{}::{} = {}\n", stringify!($type), stringify!($name), $type::$name.0);)* };
    }
    values!(ErrorCode: INVALID_ARGUMENT, CONFIG_INVALID, ARTIFACT_INVALID, UNSUPPORTED, OUT_OF_MEMORY, INPUT_TOO_LONG, NON_FINITE, CANCELLED, DEADLINE_EXCEEDED, DEVICE, GRAMMAR_INVALID, GRAMMAR_UNAVAILABLE, PANIC, INTERNAL);
    values!(EngineState: USABLE, MODEL_BAD, ENGINE_BAD);
    values!(Preempt: QUANTUM, CHECKPOINT, SHARE);
    values!(Flow: CONTINUE, CANCEL);
    values!(PromptKind: IDS, TEXT);
    values!(FinishReason: STOP, LENGTH);
    values!(LogLevel: ERROR, WARN, INFO, DEBUG, TRACE);
    values!(MetricKind: COUNTER, GAUGE, HISTOGRAM);
    values!(EngineKind: EMBED, RERANK, GENERATE);
    for code in 0..=15 {
        text += &format!("code {code} is named {}\n", ErrorCode(code).name());
    }
    golden::check("values.txt", &text).unwrap();
}

/// The vendored copy is the source of its version: as long as no extension was added since (minor 0) the two are the
/// same, byte for byte. `SYNAPSE_BLESS=1` copies the source anew, which only an issue that changes 1.0 may do.
#[test]
fn the_vendored_copy_is_the_frozen_source() {
    let (vendored, current) = (
        golden::source(fixture::FROZEN).join("src"),
        golden::source("../../plugin-api/src"),
    );
    if golden::blessing() {
        fixture::make(&fixture::tree(&current).unwrap(), &vendored).unwrap();
    }
    let (vendored, current) = (fixture::tree(&vendored).unwrap(), fixture::tree(&current).unwrap());
    let frozen_minor = vendored.iter().any(|(path, content)| {
        path.ends_with("lib.rs") && String::from_utf8_lossy(content).contains("pub const ABI_MINOR: u32 = 0;")
    });
    assert!(frozen_minor, "the vendored copy is minor 0 for ever");
    if ABI_MINOR == 0 {
        for ((path, content), (current_path, current_content)) in vendored.iter().zip(&current) {
            assert_eq!(path, current_path);
            assert!(
                content == current_content,
                "{} differs from the vendored copy",
                path.display()
            );
        }
        assert_eq!(vendored.len(), current.len());
    }
}
