//! Loads one library into this process and finds its root module. Nothing is ever unloaded.
//!
//! State: the process's loaded libraries. Callers: [`crate::Loader::open`] and the describe child. The file was
//! checked before: its magic fits. Not known here: who trusts it.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use synapse_plugin_api::SynapsePlugin_Ref;
use synapse_plugin_api::magic::{MAGIC_LEN, MAGIC_SYMBOL, PluginMagic};
use synapse_plugin_api::module;

use crate::bundle::{Refusal, RefusalReason};

/// Keeps a library in the process when its last handle is closed. The value is the system's.
#[cfg(target_os = "linux")]
const RTLD_NODELETE: i32 = libc::RTLD_NODELETE;
/// Where the system has no such flag, the handle is leaked, which has the same effect.
#[cfg(not(target_os = "linux"))]
const RTLD_NODELETE: i32 = 0;

/// Loads the library at `path`, whose note holds `magic`, and gives its root module.
///
/// # Errors
/// [`RefusalReason::LinkFailed`], `MagicInvalid`, `AbiLayout`.
pub(crate) fn open(path: &Path, magic: &PluginMagic) -> Result<SynapsePlugin_Ref, Refusal> {
    // abi_stable opens lazily, and then a symbol that is missing from a private library ends the process at its first
    // call. Resolving everything now turns that into an error here.
    // SAFETY: runs the library's constructors. In the daemon they are those of a digest that the operator trusts and
    // that a child process loaded before; in the describe child a crash is contained by that process.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
    let library = library.map_err(|error| {
        // The system's own words are the error's source.
        let words = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let message = format!("the system cannot load the library: {}", one_line(&words));
        Refusal::new(RefusalReason::LinkFailed, message)
    })?;
    let exported = exported_magic(&library);
    // Never unloaded: thread-local destructors and the engines' threads may point into it until the process ends.
    std::mem::forget(library);
    if exported.as_ref() != Some(magic) {
        let message = format!("the symbol {MAGIC_SYMBOL} is missing or differs from the note in the file");
        return Err(Refusal::new(RefusalReason::MagicInvalid, message));
    }
    module::open(path).map_err(|error| {
        let message = one_line(&error.to_string());
        Refusal::new(RefusalReason::AbiLayout, message)
    })
}

fn exported_magic(library: &Library) -> Option<PluginMagic> {
    // SAFETY: the symbol is used as an address only; what lies there is read as bytes below.
    let symbol = unsafe { library.get::<*const u8>(MAGIC_SYMBOL.as_bytes()) }.ok()?;
    let address: *const u8 = symbol.as_raw_ptr().cast();
    if address.is_null() {
        return None;
    }
    // SAFETY: the contract says that a static of this length lies there; it lives as long as the library, which is
    // never unloaded, and every byte pattern is a valid `u8`.
    let bytes = unsafe { std::slice::from_raw_parts(address, MAGIC_LEN) };
    PluginMagic::parse(bytes).ok()
}

/// Foreign text as one line of bounded length.
pub(crate) fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(600).collect()
}
