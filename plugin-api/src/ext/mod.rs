//! Extensions: the only way in which version 1 of the ABI grows.
//!
//! Owns no state. An extension is a table `#[repr(C)] { header: { len, rev }, state, functions… }` found by an id,
//! `synapse.NAME/REV` or, for third parties, `org.example.NAME/REV`. abi_stable does not check these tables: whoever
//! opens one compares `len` and `rev` ([`ExtensionRef::open`]), and offsets are asserted where a table is defined.
//! A new revision is a new id and a new type; a table never changes.

use std::{marker::PhantomData, ptr::NonNull};

use abi_stable::StableAbi;

pub mod chat;
pub mod compiled_shapes;
pub mod environment;
pub mod grammar;

/// The first field of every extension table.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, StableAbi)]
pub struct ExtensionHeader {
    /// The table's length in bytes, this header included.
    pub len: u32,
    /// The revision that stands in the id.
    pub rev: u32,
}

impl ExtensionHeader {
    /// The header of a table type.
    ///
    /// # Panics
    /// At compile time, when the table is absurdly long.
    #[must_use]
    pub const fn of<T: ExtensionTable>() -> Self {
        assert!(size_of::<T>() <= 65_536, "an extension table has at most 64 KiB");
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let len = size_of::<T>() as u32;
        Self { len, rev: T::REV }
    }
}

/// A type that is an extension table.
///
/// # Safety
/// The type is `#[repr(C)]`, its first field is an [`ExtensionHeader`], and all that it holds may be used from any
/// thread.
pub unsafe trait ExtensionTable: Sized {
    /// The id, `NAME/REV`.
    const ID: &'static str;
    /// The revision, the number after the slash.
    const REV: u32;
}

/// A table of a type that is not known yet, borrowed from its owner.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct ExtensionRef<'a> {
    header: NonNull<ExtensionHeader>,
    owner: PhantomData<&'a ()>,
}

// SAFETY: a reference to a table whose type promises use from any thread (`ExtensionTable`).
unsafe impl Send for ExtensionRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for ExtensionRef<'_> {}

/// Why a table was not opened. One line that names the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionMismatch {
    /// The extension's id as the opener knows it.
    pub id: &'static str,
    /// `len` or `rev`.
    pub field: &'static str,
    /// The value found.
    pub found: u32,
    /// The value expected.
    pub expected: u32,
}

impl std::fmt::Display for ExtensionMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            id,
            field,
            found,
            expected,
        } = self;
        write!(f, "extension {id}: {field}: plugin {found}, host supports {expected}")
    }
}

impl std::error::Error for ExtensionMismatch {}

impl<'a> ExtensionRef<'a> {
    /// Hands out a table.
    #[must_use]
    pub const fn new<T: ExtensionTable>(table: &'a T) -> Self {
        Self {
            header: NonNull::from_ref(table).cast(),
            owner: PhantomData,
        }
    }

    /// The header, to list a table whose type is unknown.
    #[must_use]
    pub const fn header(self) -> ExtensionHeader {
        // SAFETY: `new` took a table, whose first field is a header.
        unsafe { *self.header.as_ptr() }
    }

    /// Opens the table as `T`, after its id was asked for by `T::ID`.
    ///
    /// # Errors
    /// [`ExtensionMismatch`] when length or revision differ.
    pub fn open<T: ExtensionTable>(self) -> Result<&'a T, ExtensionMismatch> {
        let expected = ExtensionHeader::of::<T>();
        let found = self.header();
        for (field, found, expected) in [("rev", found.rev, expected.rev), ("len", found.len, expected.len)] {
            if found != expected {
                return Err(ExtensionMismatch {
                    id: T::ID,
                    field,
                    found,
                    expected,
                });
            }
        }
        // SAFETY: the owner gave this table for the id of `T` and its length and revision are those of `T`; the
        // pointer was made from the whole table and lives for `'a`.
        Ok(unsafe { &*self.header.as_ptr().cast::<T>() })
    }
}

#[cfg(test)]
mod tests {
    use super::{ExtensionHeader, ExtensionMismatch, ExtensionRef, ExtensionTable};

    #[repr(C)]
    struct Table {
        header: ExtensionHeader,
        value: u64,
    }

    // SAFETY: repr(C), header first, plain data.
    unsafe impl ExtensionTable for Table {
        const ID: &'static str = "org.example.table/3";
        const REV: u32 = 3;
    }

    #[test]
    fn a_table_opens_only_with_its_own_length_and_revision() {
        let good = Table {
            header: ExtensionHeader::of::<Table>(),
            value: 7,
        };
        assert_eq!(ExtensionRef::new(&good).header(), ExtensionHeader { len: 16, rev: 3 });
        assert_eq!(ExtensionRef::new(&good).open::<Table>().map(|table| table.value), Ok(7));
        for (header, field, message) in [
            (
                ExtensionHeader { len: 24, rev: 3 },
                "len",
                "len: plugin 24, host supports 16",
            ),
            (
                ExtensionHeader { len: 16, rev: 4 },
                "rev",
                "rev: plugin 4, host supports 3",
            ),
        ] {
            let bad = Table { header, value: 0 };
            let error: ExtensionMismatch = ExtensionRef::new(&bad).open::<Table>().map(|_| ()).unwrap_err();
            assert_eq!(error.field, field);
            assert_eq!(error.to_string(), format!("extension org.example.table/3: {message}"));
        }
    }
}
