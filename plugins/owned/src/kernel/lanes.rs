//! Sixteen f32 lanes: the one vocabulary that every kernel is written in.
//!
//! Owns no state. A kernel is generic over [`Lanes`] and is instantiated once per instruction set by `kernel::isa`;
//! [`super::portable`] is the specification, [`super::avx2`] and [`super::avx512`] must give the same bits. That is
//! possible because every operation here is a correctly rounded IEEE operation (fma included) and because the order
//! of every reduction is fixed in this trait, not by the register width. Knows nothing of matrices or models.

/// The number of lanes; also the width of a weight panel.
pub const LANES: usize = 16;

/// Sixteen f32 values that are computed on together.
///
/// `load` and `splat` are the only ways to get a value and are unsafe: whoever calls them promises that the machine
/// has the type's instruction set. A value therefore proves the promise, and the other operations are safe.
pub trait Lanes: Copy {
    /// Rows of a full matrix tile (chosen so that the accumulators fit into the register file).
    const TILE_ROWS: usize;
    /// Panels of [`LANES`] columns of a full matrix tile, 1 or 2.
    const TILE_PANELS: usize;

    /// Reads 16 values.
    ///
    /// # Safety
    /// The instruction set is present and `source` is valid for reading 16 f32 (any alignment).
    unsafe fn load(source: *const f32) -> Self;

    /// Sixteen times the same value.
    ///
    /// # Safety
    /// The instruction set is present.
    unsafe fn splat(value: f32) -> Self;

    /// Writes 16 values.
    ///
    /// # Safety
    /// `target` is valid for writing 16 f32 (any alignment).
    unsafe fn store(self, target: *mut f32);

    /// Asks for a cache line that is soon needed to come closer. Any address; changes nothing.
    fn prefetch(address: *const f32);

    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self × other`.
    fn mul(self, other: Self) -> Self;
    /// `self ÷ other`.
    fn div(self, other: Self) -> Self;
    /// `self × factor + addend`, rounded once.
    fn fma(self, factor: Self, addend: Self) -> Self;
    /// Per lane: `self` where `self > other`, else `other` (so a NaN in either gives `other`).
    fn max(self, other: Self) -> Self;
    /// Per lane: `self` where `self < other`, else `other`.
    fn min(self, other: Self) -> Self;
    /// Adds the low bits of `power`'s representation to the exponent of `self`: × 2ⁿ where `power = n + 1.5·2²³`.
    fn scale_by_power(self, power: Self) -> Self;
    /// The sum, added as a tree: lanes i and i + 8, then i and i + 4, i + 2, i + 1.
    fn tree_sum(self) -> f32;
    /// The maximum over the lanes in the same order.
    fn tree_max(self) -> f32;
}
