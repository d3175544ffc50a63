//! `synapse.grammar/1`: what an engine says about a grammar before a generation is queued.
//!
//! An extension of a generate engine. Generation itself takes the grammar in its options; this table lets the host
//! refuse a bad one at admission.

use abi_stable::std_types::{RResult, RStr};

use super::{ExtensionHeader, ExtensionTable};
use crate::EngineError;

/// Checks a grammar.
pub type ValidateFn = for<'a> unsafe extern "C" fn(*const (), RStr<'a>) -> RResult<(), EngineError>;

/// The table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GrammarTable {
    /// Length and revision.
    pub header: ExtensionHeader,
    /// First argument of the functions; valid as long as the engine.
    pub state: *const (),
    /// The longest grammar in bytes that `validate` and generation take.
    pub max_bytes: u64,
    /// `[any]` Checks a GBNF grammar with its root rule `root`. Errors: GRAMMAR_INVALID, GRAMMAR_UNAVAILABLE.
    pub validate: ValidateFn,
}

// SAFETY: repr(C), header first; whoever makes one promises that state and functions may be used from any thread.
unsafe impl ExtensionTable for GrammarTable {
    const ID: &'static str = "synapse.grammar/1";
    const REV: u32 = 1;
}
// SAFETY: as above.
unsafe impl Send for GrammarTable {}
// SAFETY: as above.
unsafe impl Sync for GrammarTable {}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<GrammarTable>() == 32);
    assert!(offset_of!(GrammarTable, header) == 0 && offset_of!(GrammarTable, state) == 8);
    assert!(offset_of!(GrammarTable, max_bytes) == 16 && offset_of!(GrammarTable, validate) == 24);
};
