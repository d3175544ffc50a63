//! The modes `kit` and `kit-…`: a whole plugin of three kinds that keeps the contract, and breaks one rule on demand.
//!
//! State: flags of what happened so far. Callers: `lib.rs` in these modes. It is written against the ABI, so that each rule
//! is kept by a line that a mode can leave out; `tests/faults/src/kit.rs` says which check each mode fails.

mod arithmetic;
mod engine;
mod generate;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use synapse_plugin_api::abi_stable::sabi_trait::TD_Opaque;
use synapse_plugin_api::abi_stable::std_types::{ROption, RResult, RVec};
use synapse_plugin_api::ext::environment::{Device, EnvironmentReport, EnvironmentTable};
use synapse_plugin_api::{
    Descriptor, EmbedEngine_TO, EmbedEngineObject, EngineError, EngineIdentity, EngineKind, EngineSupport, ErrorCode,
    ExtensionHeader, ExtensionRef, ExtensionTable, GenerateEngine_TO, GenerateEngineObject, HostServices, Preempt,
    RerankEngine_TO, RerankEngineObject,
};

use engine::Engine;

/// An engine was made, so what a mode does at the end may happen.
static MADE: AtomicBool = AtomicBool::new(false);
static DESCRIBED: AtomicU64 = AtomicU64::new(0);

/// Whether this library is one of this kind.
pub(crate) fn is_on() -> bool {
    crate::mode() == "kit" || crate::mode().starts_with("kit-")
}

/// Whether the mode is `kit-NAME`.
pub(crate) fn fault(name: &str) -> bool {
    crate::mode().strip_prefix("kit-") == Some(name)
}

/// An error that leaves everything usable.
pub(crate) fn error<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, EngineError> {
    Err(EngineError::new(code, message.into()))
}

pub(crate) fn identity() -> EngineIdentity {
    EngineIdentity {
        // As the bundle, so that a folder of many has no engine twice.
        engine: crate::id().into(),
        version: "1".into(),
        build_flags: RVec::new(),
    }
}

pub(crate) fn describe(id: &str, version: &str) -> Descriptor {
    let mut described = identity();
    if DESCRIBED.fetch_add(1, Ordering::SeqCst) >= 2 && fault("describe-wanders") {
        described.build_flags.push("later".into());
    }
    let row = |kind| EngineSupport {
        kind,
        preempt: Preempt::CHECKPOINT,
        format: "bin".into(),
        dtype: "f32".into(),
        thread_invariant: true,
        f32_exact: true,
    };
    let mut supports = vec![
        row(EngineKind::EMBED),
        row(EngineKind::RERANK),
        row(EngineKind::GENERATE),
    ];
    if fault("extra-kind") {
        supports.pop();
    }
    Descriptor {
        id: id.into(),
        package_version: version.into(),
        identity: described,
        supports: supports.into(),
        extra: RVec::new(),
    }
}

/// Makes the engine of a kind, after its settings were looked at: it has none.
fn make(host: HostServices, settings: &str, kind: EngineKind) -> Result<Engine, EngineError> {
    let text = settings.trim();
    let whole = text.is_empty() || text.starts_with('{') && text.ends_with('}');
    if !whole {
        assert!(!fault("settings-panic"), "told to panic");
        let code = if fault("odd-code") {
            ErrorCode(99)
        } else {
            ErrorCode::CONFIG_INVALID
        };
        return error(code, "the settings are no JSON object; pass {}");
    }
    if let Some(key) = text.split('"').nth(1)
        && !fault("any-setting")
    {
        let key: String = key.chars().take(100).collect();
        return error(
            ErrorCode::CONFIG_INVALID,
            format!("the key {key} is unknown; there are no settings"),
        );
    }
    MADE.store(true, Ordering::SeqCst);
    if fault("thread-stays") {
        std::thread::spawn(crate::hang);
    }
    if fault("odd-metric") {
        host.metric(synapse_plugin_api::MetricKind::COUNTER, "Engines made!", 1.0);
    }
    Ok(Engine::new(host, kind))
}

pub(crate) fn embed(host: HostServices, settings: &str) -> RResult<ROption<EmbedEngineObject>, EngineError> {
    let object = |engine| ROption::RSome(EmbedEngine_TO::from_value(engine, TD_Opaque));
    make(host, settings, EngineKind::EMBED).map(object).into()
}

pub(crate) fn rerank(host: HostServices, settings: &str) -> RResult<ROption<RerankEngineObject>, EngineError> {
    let object = |engine| ROption::RSome(RerankEngine_TO::from_value(engine, TD_Opaque));
    make(host, settings, EngineKind::RERANK).map(object).into()
}

pub(crate) fn generate(host: HostServices, settings: &str) -> RResult<ROption<GenerateEngineObject>, EngineError> {
    let object = |engine| ROption::RSome(GenerateEngine_TO::from_value(engine, TD_Opaque));
    make(host, settings, EngineKind::GENERATE).map(object).into()
}

static TABLE: EnvironmentTable = EnvironmentTable {
    header: ExtensionHeader::of::<EnvironmentTable>(),
    state: std::ptr::null(),
    report,
};

static SHORT: EnvironmentTable = EnvironmentTable {
    header: ExtensionHeader { len: 8, rev: 1 },
    state: std::ptr::null(),
    report,
};

unsafe extern "C" fn report(_: *const ()) -> RResult<EnvironmentReport, EngineError> {
    let device = Device {
        id: "cpu:0".into(),
        name: "any processor".into(),
        kind: "cpu".into(),
        memory_bytes: 0,
    };
    let devices = if fault("device-twice") {
        vec![device.clone(), device]
    } else {
        vec![device]
    };
    RResult::ROk(EnvironmentReport {
        drivers: RVec::new(),
        devices: devices.into(),
        floor: RVec::new(),
    })
}

pub(crate) fn extension(id: &str) -> ROption<ExtensionRef<'static>> {
    let known = ["synapse.chat/1", "synapse.grammar/1", "synapse.compiled-shapes/1"];
    match id {
        EnvironmentTable::ID if fault("short-table") => ROption::RSome(ExtensionRef::new(&SHORT)),
        EnvironmentTable::ID => ROption::RSome(ExtensionRef::new(&TABLE)),
        id if fault("any-extension") && !known.contains(&id) => ROption::RSome(ExtensionRef::new(&TABLE)),
        _ => ROption::RNone,
    }
}

/// Runs when the process ends.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".fini_array"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_term_func"))]
static AT_END: extern "C" fn() = {
    extern "C" fn at_end() {
        if fault("exit-abort") && MADE.load(Ordering::SeqCst) {
            std::process::abort();
        }
    }
    at_end
};
