//! What a library file says without being loaded: its format and target, its magic note, its SONAME.
//!
//! State: none. Callers: discovery and the describe child, on the staged copy. Not known here: the manifest.

use std::fs::File;
use std::path::Path;

use object::read::{ReadCache, ReadRef};
use object::{Architecture, BinaryFormat, Object, ObjectKind, ObjectSection};
use synapse_plugin_api::MagicError;
use synapse_plugin_api::magic::PluginMagic;

use crate::bundle::{Refusal, RefusalReason};

/// The section that holds the magic note, by object format.
const fn section_name(format: BinaryFormat) -> &'static str {
    match format {
        BinaryFormat::MachO => "__synapse",
        BinaryFormat::Pe => ".synapse",
        _ => synapse_plugin_api::magic::NOTE_SECTION,
    }
}

/// The most bytes of a note section: one note, with room for padding.
const MAX_NOTE: u64 = 4096;

/// The object format that this system loads.
const FORMAT: BinaryFormat = if cfg!(target_vendor = "apple") {
    BinaryFormat::MachO
} else if cfg!(windows) {
    BinaryFormat::Pe
} else {
    BinaryFormat::Elf
};

/// The processor that this host runs on, where it is one that the check knows.
const ARCHITECTURE: Option<Architecture> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    Some(Architecture::X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(Architecture::Aarch64)
} else if cfg!(target_arch = "riscv64") {
    Some(Architecture::Riscv64)
} else {
    None
};

/// Reads and checks the magic of a library file.
///
/// # Errors
/// [`RefusalReason::NotALibrary`], `TargetMismatch`, `MagicMissing`, `MagicInvalid`, `AbiMajor`, `AbiVendor`.
pub(crate) fn read(library: &Path) -> Result<PluginMagic, Refusal> {
    let file = File::open(library).map_err(|error| not_a_library(&error))?;
    let data = ReadCache::new(file);
    let object = parse(&data)?;
    let name = section_name(object.format());
    let section = object.section_by_name(name).ok_or_else(|| {
        let message = format!("the library has no section {name}: build it with synapse-plugin-sdk's export_plugin!");
        Refusal::new(RefusalReason::MagicMissing, message)
    })?;
    if section.size() > MAX_NOTE {
        let message = format!(
            "section {name}: expected at most {MAX_NOTE} bytes, found {}",
            section.size()
        );
        return Err(Refusal::new(RefusalReason::MagicInvalid, message));
    }
    let bytes = section.data().map_err(|error| not_a_library(&error))?;
    let magic = PluginMagic::parse_note(bytes).map_err(refusal)?;
    magic.check().map_err(refusal)?;
    Ok(magic)
}

/// Checks that a private library is one that this system loads.
///
/// # Errors
/// [`RefusalReason::NotALibrary`], `TargetMismatch`.
pub(crate) fn check_private(library: &Path) -> Result<(), Refusal> {
    let file = File::open(library).map_err(|error| not_a_library(&error))?;
    parse(&ReadCache::new(file)).map(drop)
}

/// Checks that a file is an executable of this system and processor.
///
/// # Errors
/// [`RefusalReason::NotAProgram`], `TargetMismatch`.
pub(crate) fn check_program(program: &Path) -> Result<(), Refusal> {
    let not_one = |what: String| {
        let message =
            format!("the program is neither a script that begins with #! nor an executable of this system: {what}");
        Refusal::new(RefusalReason::NotAProgram, message)
    };
    let data = ReadCache::new(File::open(program).map_err(|error| not_one(error.to_string()))?);
    let object = object::File::parse(&data).map_err(|error| not_one(error.to_string()))?;
    check_target(&object, "program")?;
    match object.kind() {
        ObjectKind::Executable | ObjectKind::Dynamic => Ok(()),
        other => Err(not_one(format!("it is of kind {other:?}"))),
    }
}

/// Parses a whole dynamic library of this system and processor.
fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<object::File<'data, R>, Refusal> {
    let object = object::File::parse(data).map_err(|error| not_a_library(&error))?;
    check_target(&object, "library")?;
    if object.kind() != ObjectKind::Dynamic {
        let message = format!("the file is of kind {:?}, expected a dynamic library", object.kind());
        return Err(Refusal::new(RefusalReason::NotALibrary, message));
    }
    Ok(object)
}

/// Whether a file is for this system and processor.
fn check_target<'data, R: ReadRef<'data>>(object: &object::File<'data, R>, what: &str) -> Result<(), Refusal> {
    let found = (object.format(), object.architecture());
    if object.format() != FORMAT || ARCHITECTURE.is_some_and(|expected| object.architecture() != expected) {
        let message = format!(
            "the {what} is {:?} for {:?}, expected {FORMAT:?} for {}",
            found.0,
            found.1,
            std::env::consts::ARCH
        );
        return Err(Refusal::new(RefusalReason::TargetMismatch, message));
    }
    Ok(())
}

/// The SONAME of an ELF library; none for other files and formats. Only called for what may load into this process.
pub(crate) fn soname(library: &Path) -> Option<String> {
    use object::read::elf::{Dyn as _, FileHeader as _};
    let data = ReadCache::new(File::open(library).ok()?);
    let data = &data;
    let header = object::elf::FileHeader64::<object::Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (entries, link) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, link).ok()?;
    let entry = entries
        .iter()
        .find(|entry| entry.tag32(endian) == Some(object::elf::DT_SONAME))?;
    let name = strings.get(entry.val32(endian)?).ok()?;
    std::str::from_utf8(name).ok().map(str::to_owned)
}

fn not_a_library(error: &dyn std::fmt::Display) -> Refusal {
    let message = format!("the library file is not a whole dynamic library: {error}");
    Refusal::new(RefusalReason::NotALibrary, message)
}

/// The reason that belongs to a refused magic.
pub(crate) fn refusal(error: MagicError) -> Refusal {
    let reason = match &error {
        MagicError::Malformed { .. } => RefusalReason::MagicInvalid,
        MagicError::Mismatch { field, .. } => match *field {
            "pointer_width" | "endian" => RefusalReason::TargetMismatch,
            "abi_major" | "struct_len" => RefusalReason::AbiMajor,
            "vendor" => RefusalReason::AbiVendor,
            _ => RefusalReason::MagicInvalid,
        },
    };
    Refusal::new(reason, error.to_string())
}
