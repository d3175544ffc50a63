//! What a built library shows to the world.
//!
//! State: none. Caller: `bundle.rs`. A plugin exports two symbols; everything else stays inside, so that two plugins in
//! one process never meet each other's functions.

use std::path::Path;

use object::read::elf::{FileHeader as _, Sym as _};

use crate::error::Error;

/// What the exports of a plugin's library are called: its magic, and abi_stable's root module.
pub const EXPORTS: [&str; 2] = [
    synapse_plugin_api::magic::MAGIC_SYMBOL,
    "_1as_0lib_1header_0root_bmodule_bloader",
];

/// Checks that a library exports the two symbols and nothing else. Only ELF files are read; the loader checks others.
///
/// # Errors
/// [`Error::Project`] naming the symbols, or [`Error::Io`].
pub fn check_exports(library: &Path) -> Result<(), Error> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    let bytes = std::fs::read(library).map_err(Error::io("cannot read", library))?;
    let damaged = |error: object::Error| Error::Project(format!("{}: {error}", library.display()));
    let exports = exports(&bytes).map_err(damaged)?;
    if let Some(missing) = EXPORTS
        .iter()
        .find(|name| !exports.iter().any(|export| export == *name))
    {
        return Err(Error::Project(format!(
            "{}: does not export {missing}; call export_plugin! once in the library",
            library.display()
        )));
    }
    let more: Vec<&str> = exports
        .iter()
        .map(String::as_str)
        .filter(|name| !EXPORTS.contains(name))
        .collect();
    if more.is_empty() {
        return Ok(());
    }
    Err(Error::Project(format!(
        "{}: exports {} besides its two symbols; two plugins in one process would meet in them: remove #[no_mangle] there, \
         or rename the crate's symbol",
        library.display(),
        more.join(", ")
    )))
}

/// The names that an ELF library defines for others, sorted.
fn exports(bytes: &[u8]) -> object::Result<Vec<String>> {
    let header = object::elf::FileHeader64::<object::Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, object::elf::SHT_DYNSYM)?;
    let mut names = Vec::new();
    for symbol in symbols.iter() {
        let visible = matches!(symbol.st_bind(), object::elf::STB_GLOBAL | object::elf::STB_WEAK);
        if visible && !symbol.is_undefined(endian) {
            names.push(String::from_utf8_lossy(symbols.symbol_name(endian, symbol)?).into_owned());
        }
    }
    names.sort();
    Ok(names)
}
