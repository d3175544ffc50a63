//! `synapse.compiled-shapes/1`: residency of compiled shapes, for engines that compile one program per shape.
//!
//! An extension of an embed or rerank engine. The host owns the decisions (which rung to admit, what to evict); the
//! engine compiles, holds and drops.

use abi_stable::std_types::{RResult, RVec};

use super::{ExtensionHeader, ExtensionTable};
use crate::{CallContext, EngineError, ModelRef};

/// A compiled shape: a rung of the ladder.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Items of one call; at least 1.
    pub batch: u32,
    /// Tokens of each item after the engine's own padding; at least 1.
    pub tokens: u32,
}

/// One resident shape.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The shape.
    pub shape: Shape,
    /// Bytes that it holds.
    pub bytes: u64,
}

/// The shapes that a model can be compiled for, ascending.
pub type LadderFn = unsafe extern "C" fn(*const (), ModelRef) -> RResult<RVec<Shape>, EngineError>;
/// Makes a shape resident.
pub type AdmitFn =
    for<'a> unsafe extern "C" fn(*const (), &'a CallContext<'a>, ModelRef, Shape) -> RResult<Resident, EngineError>;
/// Drops a shape.
pub type EvictFn = unsafe extern "C" fn(*const (), ModelRef, Shape) -> RResult<(), EngineError>;
/// What is resident now.
pub type InventoryFn = unsafe extern "C" fn(*const (), ModelRef) -> RResult<RVec<Resident>, EngineError>;

/// The table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CompiledShapesTable {
    /// Length and revision.
    pub header: ExtensionHeader,
    /// First argument of the functions; valid as long as the engine.
    pub state: *const (),
    /// `[any]` The shapes that a model can be compiled for, ascending by tokens, then batch; constant per model.
    pub ladder: LadderFn,
    /// `[control]` Makes a shape of the ladder resident; a second call for it is a no-op with the same answer.
    /// Checkpoints count compile steps. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY, DEVICE, CANCELLED.
    pub admit: AdmitFn,
    /// `[control]` Drops a shape on which no call runs. Errors: INVALID_ARGUMENT when it is not resident.
    pub evict: EvictFn,
    /// `[any]` What is resident now, ascending by shape.
    pub inventory: InventoryFn,
}

// SAFETY: repr(C), header first; whoever makes one promises that state and functions may be used from any thread.
unsafe impl ExtensionTable for CompiledShapesTable {
    const ID: &'static str = "synapse.compiled-shapes/1";
    const REV: u32 = 1;
}
// SAFETY: as above.
unsafe impl Send for CompiledShapesTable {}
// SAFETY: as above.
unsafe impl Sync for CompiledShapesTable {}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Shape>() == 8 && size_of::<Resident>() == 16 && offset_of!(Resident, bytes) == 8);
    assert!(size_of::<CompiledShapesTable>() == 48);
    assert!(offset_of!(CompiledShapesTable, header) == 0 && offset_of!(CompiledShapesTable, state) == 8);
    assert!(offset_of!(CompiledShapesTable, ladder) == 16 && offset_of!(CompiledShapesTable, admit) == 24);
    assert!(offset_of!(CompiledShapesTable, evict) == 32 && offset_of!(CompiledShapesTable, inventory) == 40);
};
