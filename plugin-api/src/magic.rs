//! The magic: what a host reads before it opens a library, as an exported symbol and as a note in the file.
//!
//! Owns no state. [`crate::emit_magic`] puts it into the final crate; the loader reads the note's bytes from the
//! file with [`PluginMagic::parse`] and asks [`PluginMagic::check`]. The layout is plain `repr(C)` without pointers,
//! so that it can be read on any machine; the two fields that say how to read integers come first.
//!
//! # The note
//! ELF: a section [`NOTE_SECTION`] of type `SHT_NOTE` with one note: name [`NOTE_NAME`] with its NUL, type
//! [`NOTE_TYPE`], descriptor = the magic's bytes, all padded to four bytes. Mach-O: section `__TEXT,__synapse`,
//! PE: section `.synapse`, both with the same note bytes.

use std::fmt;

use crate::{ABI_MAJOR, ABI_MINOR, VENDOR_TAG};

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"SYNAPSE\0";
/// The exported symbol's name.
pub const MAGIC_SYMBOL: &str = "synapse_plugin_magic";
/// The ELF section that holds the note.
pub const NOTE_SECTION: &str = ".note.synapse";
/// The note's name, with its NUL: eight bytes, so that no padding follows.
pub const NOTE_NAME: [u8; 8] = *b"Synapse\0";
/// The note's type.
pub const NOTE_TYPE: u32 = 1;
/// The length of [`PluginMagic`] in bytes.
pub const MAGIC_LEN: usize = size_of::<PluginMagic>();

/// `panic_strategy`: panics unwind, so that the SDK can contain them.
pub const PANIC_UNWIND: u8 = 1;
/// `panic_strategy`: panics end the process; such a plugin only runs in a worker.
pub const PANIC_ABORT: u8 = 2;
/// `endian`: little.
pub const ENDIAN_LITTLE: u8 = 1;
/// `endian`: big.
pub const ENDIAN_BIG: u8 = 2;

/// The magic block. Texts are UTF-8, cut to their field and padded with NUL.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PluginMagic {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Bits of a pointer: 32 or 64.
    pub pointer_width: u8,
    /// [`ENDIAN_LITTLE`] or [`ENDIAN_BIG`]: how the integers below are to be read.
    pub endian: u8,
    /// [`PANIC_UNWIND`] or [`PANIC_ABORT`].
    pub panic_strategy: u8,
    /// 0.
    pub reserved: u8,
    /// [`MAGIC_LEN`] of the plugin's version of this crate.
    pub struct_len: u32,
    /// [`ABI_MAJOR`] of the plugin's version of this crate.
    pub abi_major: u32,
    /// [`ABI_MINOR`] of the plugin's version of this crate.
    pub abi_minor: u32,
    /// [`VENDOR_TAG`] of the plugin's version of this crate.
    pub vendor: [u8; 32],
    /// The plugin's id, `[a-z0-9-]`.
    pub id: [u8; 64],
    /// The plugin's package version (semver).
    pub version: [u8; 32],
    /// `rustc --version` of the compiler, or `unknown`. For people.
    pub rustc: [u8; 64],
    /// The target triple, or `unknown`.
    pub target: [u8; 64],
}

const _: () = {
    use std::mem::{align_of, offset_of};
    assert!(size_of::<PluginMagic>() == 280 && align_of::<PluginMagic>() == 4);
    assert!(offset_of!(PluginMagic, magic) == 0);
    assert!(offset_of!(PluginMagic, pointer_width) == 8);
    assert!(offset_of!(PluginMagic, endian) == 9);
    assert!(offset_of!(PluginMagic, panic_strategy) == 10);
    assert!(offset_of!(PluginMagic, reserved) == 11);
    assert!(offset_of!(PluginMagic, struct_len) == 12);
    assert!(offset_of!(PluginMagic, abi_major) == 16);
    assert!(offset_of!(PluginMagic, abi_minor) == 20);
    assert!(offset_of!(PluginMagic, vendor) == 24);
    assert!(offset_of!(PluginMagic, id) == 56);
    assert!(offset_of!(PluginMagic, version) == 120);
    assert!(offset_of!(PluginMagic, rustc) == 152);
    assert!(offset_of!(PluginMagic, target) == 216);
};

/// The magic with its note header, as it stands in the file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MagicNote {
    name_len: u32,
    descriptor_len: u32,
    note_type: u32,
    name: [u8; 8],
    descriptor: PluginMagic,
}

const _: () = {
    use std::mem::{align_of, offset_of};
    assert!(size_of::<MagicNote>() == 300 && align_of::<MagicNote>() == 4);
    assert!(offset_of!(MagicNote, name) == 12 && offset_of!(MagicNote, descriptor) == 20);
};

/// Why a magic was refused. The text names the field, the plugin's value and what the host supports, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MagicError {
    /// The bytes are not one well-formed note of ours, or not a magic.
    Malformed {
        /// What was wrong.
        what: &'static str,
    },
    /// A field does not fit this host.
    Mismatch {
        /// The field's name.
        field: &'static str,
        /// The plugin's value.
        plugin: String,
        /// What this host supports.
        host: String,
    },
}

impl fmt::Display for MagicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { what } => write!(f, "plugin magic: {what}"),
            Self::Mismatch { field, plugin, host } => write!(f, "{field}: plugin {plugin}, host supports {host}"),
        }
    }
}

impl std::error::Error for MagicError {}

impl PluginMagic {
    /// The magic of a plugin that is built against this crate.
    ///
    /// # Panics
    /// At compile time, when id or version do not fit their fields.
    #[must_use]
    pub const fn new(id: &str, version: &str, panic_abort: bool) -> Self {
        assert!(!id.is_empty() && id.len() <= 64, "a plugin id has 1 to 64 bytes");
        assert!(
            !version.is_empty() && version.len() <= 32,
            "a package version has 1 to 32 bytes"
        );
        Self {
            magic: MAGIC,
            pointer_width: HOST_POINTER_WIDTH,
            endian: HOST_ENDIAN,
            panic_strategy: if panic_abort { PANIC_ABORT } else { PANIC_UNWIND },
            reserved: 0,
            struct_len: 280,
            abi_major: ABI_MAJOR,
            abi_minor: ABI_MINOR,
            vendor: padded(VENDOR_TAG),
            id: padded(id),
            version: padded(version),
            rustc: padded(env!("SYNAPSE_PLUGIN_RUSTC")),
            target: padded(env!("SYNAPSE_PLUGIN_TARGET")),
        }
    }

    /// The magic's bytes with a proper note header.
    #[must_use]
    pub const fn note(self) -> MagicNote {
        MagicNote {
            name_len: 8,
            descriptor_len: 280,
            note_type: NOTE_TYPE,
            name: NOTE_NAME,
            descriptor: self,
        }
    }

    /// Reads the magic out of a note section's bytes.
    ///
    /// # Errors
    /// [`MagicError::Malformed`], or [`MagicError::Mismatch`] when the note was written for another pointer width,
    /// byte order or struct length, in which case its other fields cannot be read.
    pub fn parse_note(section: &[u8]) -> Result<Self, MagicError> {
        const SHORT: MagicError = MagicError::Malformed {
            what: "the note is shorter than its header",
        };
        let header = section.get(..20).ok_or(SHORT)?;
        if header.get(12..20) != Some(NOTE_NAME.as_slice()) {
            return Err(MagicError::Malformed {
                what: "the note's name is not `Synapse`",
            });
        }
        let descriptor = section.get(20..).ok_or(SHORT)?;
        let magic = Self::parse(descriptor)?;
        if word(header, 0) != Some(8) || word(header, 8) != Some(NOTE_TYPE) {
            return Err(MagicError::Malformed {
                what: "the note's header is not that of version 1",
            });
        }
        if word(header, 4).and_then(|len| usize::try_from(len).ok()) != Some(MAGIC_LEN) {
            return Err(MagicError::Malformed {
                what: "the note's descriptor length is not the magic's",
            });
        }
        Ok(magic)
    }

    /// Reads a magic from the bytes of the exported symbol or of the note's descriptor. Longer input is cut.
    ///
    /// # Errors
    /// As [`PluginMagic::parse_note`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MagicError> {
        if bytes.get(..8) != Some(MAGIC.as_slice()) {
            return Err(MagicError::Malformed {
                what: "the first bytes are not `SYNAPSE`",
            });
        }
        let (Some(&pointer_width), Some(&endian), Some(&panic_strategy), Some(&reserved)) =
            (bytes.get(8), bytes.get(9), bytes.get(10), bytes.get(11))
        else {
            return Err(MagicError::Malformed {
                what: "it ends inside its first fields",
            });
        };
        if pointer_width != HOST_POINTER_WIDTH {
            return Err(mismatch("pointer_width", pointer_width, HOST_POINTER_WIDTH));
        }
        if endian != HOST_ENDIAN {
            return Err(mismatch("endian", endian_name(endian), endian_name(HOST_ENDIAN)));
        }
        let cut = MagicError::Malformed {
            what: "it ends inside its integers",
        };
        let struct_len = word(bytes, 12).ok_or_else(|| cut.clone())?;
        let abi_major = word(bytes, 16).ok_or_else(|| cut.clone())?;
        let abi_minor = word(bytes, 20).ok_or(cut)?;
        if usize::try_from(struct_len) != Ok(MAGIC_LEN) {
            return Err(mismatch("struct_len", struct_len, MAGIC_LEN));
        }
        let cut = || MagicError::Malformed {
            what: "it is shorter than its struct_len",
        };
        Ok(Self {
            magic: MAGIC,
            pointer_width,
            endian,
            panic_strategy,
            reserved,
            struct_len,
            abi_major,
            abi_minor,
            vendor: array(bytes, 24).ok_or_else(cut)?,
            id: array(bytes, 56).ok_or_else(cut)?,
            version: array(bytes, 120).ok_or_else(cut)?,
            rustc: array(bytes, 152).ok_or_else(cut)?,
            target: array(bytes, 216).ok_or_else(cut)?,
        })
    }

    /// Whether this host can open the plugin: vendor tag, ABI major, panic strategy, texts. Every minor is accepted.
    ///
    /// # Errors
    /// [`MagicError`] names the first field that does not fit.
    pub fn check(&self) -> Result<(), MagicError> {
        if self.abi_major != ABI_MAJOR {
            return Err(mismatch("abi_major", self.abi_major, ABI_MAJOR));
        }
        if self.vendor != padded(VENDOR_TAG) {
            return Err(mismatch("vendor", text(&self.vendor).unwrap_or("?"), VENDOR_TAG));
        }
        if self.panic_strategy != PANIC_UNWIND && self.panic_strategy != PANIC_ABORT {
            return Err(mismatch(
                "panic_strategy",
                self.panic_strategy,
                "1 (unwind) or 2 (abort)",
            ));
        }
        match self.id() {
            Some(id) if is_id(id) => {}
            other => {
                return Err(mismatch(
                    "id",
                    other.unwrap_or("?").escape_debug(),
                    "1 to 64 of [a-z0-9-]",
                ));
            }
        }
        if self.version().is_none_or(str::is_empty) {
            return Err(MagicError::Malformed {
                what: "version is not UTF-8 text",
            });
        }
        Ok(())
    }

    /// The plugin's id, or none when the field is not UTF-8.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        text(&self.id)
    }

    /// The package version, or none when the field is not UTF-8.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        text(&self.version)
    }

    /// The vendor tag, or none when the field is not UTF-8.
    #[must_use]
    pub fn vendor(&self) -> Option<&str> {
        text(&self.vendor)
    }

    /// The compiler, or none when the field is not UTF-8.
    #[must_use]
    pub fn rustc(&self) -> Option<&str> {
        text(&self.rustc)
    }

    /// The target triple, or none when the field is not UTF-8.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        text(&self.target)
    }

    /// Whether a panic in this plugin ends the process.
    #[must_use]
    pub const fn aborts_on_panic(&self) -> bool {
        self.panic_strategy != PANIC_UNWIND
    }
}

impl fmt::Debug for PluginMagic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginMagic")
            .field("abi_major", &self.abi_major)
            .field("abi_minor", &self.abi_minor)
            .field("vendor", &self.vendor())
            .field("id", &self.id())
            .field("version", &self.version())
            .field("panic_strategy", &self.panic_strategy)
            .field("rustc", &self.rustc())
            .field("target", &self.target())
            .finish_non_exhaustive()
    }
}

/// Whether a text is a plugin id: 1 to 64 of `[a-z0-9-]`, first and last not `-`.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}

const HOST_POINTER_WIDTH: u8 = if cfg!(target_pointer_width = "32") { 32 } else { 64 };
const HOST_ENDIAN: u8 = if cfg!(target_endian = "big") {
    ENDIAN_BIG
} else {
    ENDIAN_LITTLE
};

fn endian_name(endian: u8) -> &'static str {
    match endian {
        ENDIAN_LITTLE => "little",
        ENDIAN_BIG => "big",
        _ => "unknown",
    }
}

fn mismatch(field: &'static str, plugin: impl fmt::Display, host: impl fmt::Display) -> MagicError {
    MagicError::Mismatch {
        field,
        plugin: plugin.to_string(),
        host: host.to_string(),
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok()
}

const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    let mut out = [0; N];
    let mut i = 0;
    while i < N && i < bytes.len() {
        out[i] = bytes[i];
        i += 1;
    }
    out
}

/// Emits the magic into the final crate: the symbol `synapse_plugin_magic` and the note section. Takes the plugin's
/// id and version as constant `&str`. Used once per library, by the SDK's `export_plugin!`.
#[macro_export]
macro_rules! emit_magic {
    ($id:expr, $version:expr) => {
        const _: () = {
            const MAGIC: $crate::magic::PluginMagic =
                $crate::magic::PluginMagic::new($id, $version, ::core::cfg!(panic = "abort"));

            // SAFETY: no other item of a plugin has this name.
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, reason = "the contract's symbol name")]
            pub static synapse_plugin_magic: $crate::magic::PluginMagic = MAGIC;

            // SAFETY: the section holds this one note and nothing else.
            #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__TEXT,__synapse"))]
            // SAFETY: as above.
            #[cfg_attr(windows, unsafe(link_section = ".synapse"))]
            // SAFETY: as above.
            #[cfg_attr(
                not(any(target_vendor = "apple", windows)),
                unsafe(link_section = ".note.synapse")
            )]
            #[used]
            static SYNAPSE_PLUGIN_NOTE: $crate::magic::MagicNote = MAGIC.note();
        };
    };
}

#[cfg(test)]
mod tests;
