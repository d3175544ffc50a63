//! One engine library that misbehaves as it is told: the stand-in for every bad library there may be.
//!
//! State: the mode, which is a text inside the library's file. Callers: the host under test, by the plugin ABI. The
//! tests write another mode and another id into a copy of the file (`synapse_faults::Bundle`), so one build gives any
//! number of different libraries. It is written against the ABI and not the SDK, because the SDK would contain most
//! of what it does.
//!
//! | mode | what it does |
//! |---|---|
//! | `load-…` | misbehaves while the system loads it, before the host can ask anything |
//! | `describe-…` | misbehaves in `describe`, or describes what the contract forbids |
//! | `make-…` | misbehaves when an engine is made |
//! | `kit`, `kit-…` | is a whole plugin of three kinds that breaks one rule of the contract (`kit/`) |
//! | anything else | is a well-behaved library whose engine misbehaves (`engine.rs`) |

mod engine;
mod kit;

use std::time::Duration;

use synapse_plugin_api::abi_stable::prefix_type::PrefixTypeTrait as _;
use synapse_plugin_api::abi_stable::std_types::{ROption, RResult, RStr, RString, RVec};
use synapse_plugin_api::{
    Descriptor, EmbedEngine_TO, EmbedEngineObject, EngineError, EngineIdentity, EngineKind, EngineState, EngineSupport,
    ErrorCode, ExtensionRef, GenerateEngineObject, HostServices, PluginMagic, Preempt, RerankEngineObject,
    SynapsePlugin, SynapsePlugin_Ref,
};

/// The id that the tests replace: as long as an id can be, so that any id fits.
const ID: &str = "stress-stress-stress-stress-stress-stress-stress-stress-stress-s";
const VERSION: &str = "0.1.0";

synapse_plugin_api::emit_magic!(ID, VERSION);
synapse_plugin_api::export_root_module!(root_module);

/// The mode, after a prefix by which the tests find it in the file.
#[used]
static MODE: [u8; 52] = *b"SYNAPSE-STRESS-MODE:good\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

unsafe extern "C" {
    /// The exported magic, whose id the tests replace.
    safe static synapse_plugin_magic: PluginMagic;
}

/// The mode that the file holds.
pub(crate) fn mode() -> &'static str {
    // SAFETY: reads a static; volatile, so that the compiler does not put the text that it knows in its place.
    let bytes: &'static [u8; 52] = unsafe { std::ptr::read_volatile(&raw const FIELD) };
    let text = &bytes[20..];
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    std::str::from_utf8(&text[..end]).unwrap_or("bad mode")
}

static FIELD: &[u8; 52] = &MODE;

/// The id that the file holds.
pub(crate) fn id() -> &'static str {
    // SAFETY: as in `mode`.
    let magic: &'static PluginMagic = unsafe { std::ptr::read_volatile(&raw const MAGIC_FIELD) };
    magic.id().unwrap_or("bad id")
}

static MAGIC_FIELD: &PluginMagic = &synapse_plugin_magic;

/// Runs while the system loads the library.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        match mode() {
            "load-abort" => std::process::abort(),
            "load-segfault" => segfault(),
            "load-exit-0" => std::process::exit(0),
            "load-hang" => hang(),
            "load-noise" => noise(),
            _ => {}
        }
    }
    at_load
};

fn segfault() {
    // SAFETY: none: this is the fault, in a process that is made for it.
    unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(1) }
}

pub(crate) fn hang() {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Writes what looks like an answer to standard output, and more than a pipe holds to both streams.
fn noise() {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(b"{\"form\":1}\n");
    let line = vec![b'#'; 1 << 20];
    let _ = std::io::stdout().write_all(&line);
    let _ = std::io::stderr().write_all(&line);
}

extern "C" fn describe() -> Descriptor {
    if kit::is_on() {
        return kit::describe(id(), VERSION);
    }
    let mut descriptor = good();
    match mode() {
        "describe-abort" => std::process::abort(),
        "describe-segfault" => segfault(),
        "describe-exit-0" => std::process::exit(0),
        "describe-exit-3" => std::process::exit(3),
        "describe-hang" => hang(),
        "describe-panic" => panic!("told to panic"),
        "describe-wrong-id" => descriptor.id = "another".into(),
        "describe-wrong-version" => descriptor.package_version = "9.9.9".into(),
        "describe-no-semver" => descriptor.package_version = "new".into(),
        "describe-nothing" => descriptor.supports.clear(),
        "describe-twice" => descriptor.supports.push(good().supports[0].clone()),
        "describe-huge-text" => descriptor.identity.engine = "e".repeat(64 << 20).into(),
        "describe-huge-list" => descriptor.identity.build_flags = vec![RString::from("f"); 1 << 20].into(),
        "describe-unsorted" => descriptor.identity.build_flags = vec!["b".into(), "a".into()].into(),
        "describe-escape" => descriptor.identity.version = "\x1b[2J".into(),
        _ => {}
    }
    descriptor
}

fn good() -> Descriptor {
    Descriptor {
        id: id().into(),
        package_version: VERSION.into(),
        identity: identity(),
        supports: vec![EngineSupport {
            kind: EngineKind::EMBED,
            preempt: Preempt::CHECKPOINT,
            format: "bin".into(),
            dtype: "f32".into(),
            thread_invariant: true,
            f32_exact: true,
        }]
        .into(),
        extra: RVec::new(),
    }
}

fn identity() -> EngineIdentity {
    EngineIdentity {
        engine: "stress".into(),
        version: "1".into(),
        build_flags: RVec::new(),
    }
}

extern "C" fn embed(host: HostServices, config: RStr<'_>) -> RResult<ROption<EmbedEngineObject>, EngineError> {
    if kit::is_on() {
        return kit::embed(host, config.as_str());
    }
    let engine = engine::Stress::new(host, config.as_str());
    match mode() {
        "make-none" => RResult::ROk(ROption::RNone),
        "make-config" => RResult::RErr(EngineError::new(ErrorCode::CONFIG_INVALID, "the key wings is unknown")),
        "make-panic" => {
            engine.count();
            let error = EngineError::new(ErrorCode::PANIC, "told to panic");
            RResult::RErr(error.with_state(EngineState::ENGINE_BAD))
        }
        _ => RResult::ROk(ROption::RSome(EmbedEngine_TO::from_value(
            engine,
            synapse_plugin_api::abi_stable::sabi_trait::TD_Opaque,
        ))),
    }
}

extern "C" fn rerank(host: HostServices, config: RStr<'_>) -> RResult<ROption<RerankEngineObject>, EngineError> {
    if kit::is_on() {
        return kit::rerank(host, config.as_str());
    }
    RResult::ROk(ROption::RNone)
}

extern "C" fn generate(host: HostServices, config: RStr<'_>) -> RResult<ROption<GenerateEngineObject>, EngineError> {
    if kit::is_on() {
        return kit::generate(host, config.as_str());
    }
    RResult::ROk(ROption::RNone)
}

extern "C" fn extension(id: RStr<'_>) -> ROption<ExtensionRef<'static>> {
    if kit::is_on() {
        return kit::extension(id.as_str());
    }
    ROption::RNone
}

extern "C" fn shutdown() {}

fn root_module() -> SynapsePlugin_Ref {
    SynapsePlugin {
        describe,
        embed,
        rerank,
        generate,
        extension,
        shutdown,
    }
    .leak_into_prefix()
}
