//! The root module: the one object that a library exports through abi_stable.
//!
//! Owns no state. The SDK's `export_plugin!` makes it; the loader reads it with [`open`]. A host never unloads the
//! library that it came from.

use std::{fmt, path::Path};

use abi_stable::{
    StableAbi,
    library::{LibraryError, RootModule, lib_header_from_path},
    package_version_strings,
    sabi_types::VersionStrings,
    std_types::{ROption, RResult, RStr},
};

use crate::{
    engine::{EmbedEngineObject, GenerateEngineObject, RerankEngineObject},
    error::EngineError,
    ext::ExtensionRef,
    host::HostServices,
    identity::Descriptor,
    layout,
};

/// The functions that a plugin exports. None unwinds.
///
/// `embed`, `rerank` and `generate` take the host's services and the settings of `[engine.config]` as one JSON object
/// of strings (UTF-8, at most 64 KiB). They give a new engine, or none when the plugin does not offer that kind, or
/// CONFIG_INVALID naming the key. A host calls each at most once per process and keeps the object.
#[repr(C)]
#[derive(Clone, Copy, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = SynapsePlugin_Ref, prefix_fields = SynapsePlugin_Prefix)))]
#[sabi(missing_field(panic))]
pub struct SynapsePlugin {
    /// `[any]` What the plugin is and serves; constant.
    pub describe: extern "C" fn() -> Descriptor,
    /// `[control]` A new embed engine.
    pub embed: extern "C" fn(HostServices, RStr<'_>) -> RResult<ROption<EmbedEngineObject>, EngineError>,
    /// `[control]` A new rerank engine.
    pub rerank: extern "C" fn(HostServices, RStr<'_>) -> RResult<ROption<RerankEngineObject>, EngineError>,
    /// `[control]` A new generate engine.
    pub generate: extern "C" fn(HostServices, RStr<'_>) -> RResult<ROption<GenerateEngineObject>, EngineError>,
    /// `[any]` An extension of the plugin by id, valid for the life of the process.
    pub extension: extern "C" fn(RStr<'_>) -> ROption<ExtensionRef<'static>>,
    /// `[control]` The process will end: no engine is called again, every call has returned. Stops the plugin's own
    /// threads. May be called more than once.
    #[sabi(last_prefix_field)]
    pub shutdown: extern "C" fn(),
}

impl RootModule for SynapsePlugin_Ref {
    abi_stable::declare_root_module_statics! {SynapsePlugin_Ref}
    const BASE_NAME: &'static str = "synapse_plugin";
    const NAME: &'static str = "synapse_plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// Why a library's root module was not opened. The text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The layout of a type differs: the line names type and field.
    Layout(String),
    /// abi_stable found no module, an incompatible version, or the plugin's constructor failed.
    Module(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Layout(line) | Self::Module(line)) = self;
        f.write_str(line)
    }
}

impl std::error::Error for OpenError {}

/// Opens a library and checks its root module's layout. Call it only after the magic was read and accepted.
///
/// The library is never closed. Every path gives its own module: abi_stable's `load_from_file` is not used, because
/// it keeps one module per type and would give the second plugin the first one's code.
///
/// # Errors
/// [`OpenError`], in one line.
pub fn open(library: &Path) -> Result<SynapsePlugin_Ref, OpenError> {
    let header = lib_header_from_path(library).map_err(|error| OpenError::Module(one_line(&error)))?;
    header
        .init_root_module::<SynapsePlugin_Ref>()
        .map_err(|error| match (&error, header.layout()) {
            (LibraryError::AbiInstability(_), Some(plugin)) => {
                let difference = layout::first_difference(
                    &layout::entries(<SynapsePlugin_Ref as StableAbi>::LAYOUT),
                    &layout::entries(plugin),
                );
                OpenError::Layout(difference.unwrap_or_else(|| one_line(&error)))
            }
            _ => OpenError::Module(one_line(&error)),
        })
}

/// abi_stable's report on one line, cut to a bearable length: what it is about stands on its first lines.
fn one_line(error: &LibraryError) -> String {
    let text = error.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return "abi_stable gave no reason".to_owned();
    }
    line.chars().take(400).collect()
}

/// Exports a root module from the final crate: `export_root_module!(constructor)` where `constructor` is
/// `fn() -> SynapsePlugin_Ref`. Used once per library, by the SDK's `export_plugin!`.
///
/// abi_stable's own attribute cannot be used by crates of the 2024 edition (it writes `#[no_mangle]` bare).
#[macro_export]
macro_rules! export_root_module {
    ($constructor:path) => {
        const _: () = {
            extern "C" fn construct() -> $crate::abi_stable::library::RootModuleResult {
                fn constructor() -> $crate::SynapsePlugin_Ref {
                    $constructor()
                }
                $crate::abi_stable::library::__call_root_module_loader(constructor)
            }

            // SAFETY: the name is abi_stable's for the library header, and no other item of a plugin has it.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            pub static SYNAPSE_ROOT_MODULE: $crate::abi_stable::library::LibHeader = {
                // SAFETY: `construct` gives the erased prefix of the same module type.
                unsafe {
                    $crate::abi_stable::library::LibHeader::from_constructor::<$crate::SynapsePlugin_Ref>(
                        construct,
                        $crate::abi_stable::library::CheckTypeLayout::Yes,
                    )
                }
            };
        };
    };
}

#[cfg(test)]
mod tests {
    use abi_stable::library::ROOT_MODULE_LOADER_NAME;

    #[test]
    fn export_name_is_the_one_that_abi_stable_looks_for() {
        assert_eq!(ROOT_MODULE_LOADER_NAME, "_1as_0lib_1header_0root_bmodule_bloader");
    }
}
