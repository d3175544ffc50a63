//! The fast mode's matrix product: 16-bit integers in pairs, exact 32-bit sums, scaled block by block.
//!
//! Owns no state. Activations are quantised row by row as they come ([`quantise`]), weights at load (`packed`); both have
//! one scale for each [`BLOCK`] of the sum, which is so short that 32 bits cannot overflow. Integer sums are exact and
//! blocks are added in ascending order, so a result depends on its row and column alone: the same bits in any batch, on
//! any thread and instruction set. Called by the layers through `kernel::isa`.

use super::gemm::{self, Epilogue, Target};
use super::lanes::{LANES, Lanes};

/// [`BLOCK`], as the assertion below needs it.
const TERMS: u8 = 192;
/// Terms of a sum that share a scale.
pub const BLOCK: usize = TERMS as usize;
/// The largest activation after quantising.
pub const LARGEST_ACTIVATION: i16 = 4_095;
/// The largest weight after quantising.
pub const LARGEST_WEIGHT: i16 = 2_047;

/// A whole block of the largest products fits into 32 bits: were it not so, this would not compile.
const _: i32 = TERMS as i32 * LARGEST_ACTIVATION as i32 * LARGEST_WEIGHT as i32;

/// Scales of a sum over `k` terms.
#[must_use]
pub const fn blocks(k: usize) -> usize {
    k.div_ceil(BLOCK)
}

/// Lanes that can also multiply pairs of 16-bit integers.
pub trait PairLanes: Lanes {
    /// Sixteen 32-bit sums.
    type Sums: Copy;

    /// Sixteen zeros.
    ///
    /// # Safety
    /// The instruction set is present.
    unsafe fn no_sums() -> Self::Sums;

    /// Adds to each sum the products of its pair of `weights` with the pair `activations` (the first in the low half).
    ///
    /// # Safety
    /// The instruction set is present and `weights` is valid for reading 16 pairs.
    unsafe fn add_products(sums: Self::Sums, weights: *const i16, activations: i32) -> Self::Sums;

    /// The sums, rounded to f32.
    ///
    /// # Safety
    /// The instruction set is present.
    unsafe fn to_floats(sums: Self::Sums) -> Self;

    /// Writes the values, rounded to the nearest integer (ties to even), as 16-bit integers; larger ones saturate.
    ///
    /// # Safety
    /// `target` is valid for writing 16 integers.
    unsafe fn store_rounded(self, target: *mut i16);
}

/// Rows to quantise.
#[derive(Clone, Copy)]
pub struct Rows {
    /// First row.
    pub input: *const f32,
    /// Values between rows.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
    /// Values per row, a multiple of 16.
    pub width: usize,
    /// `rows × width` integers.
    pub out: *mut i16,
    /// `rows × blocks(width)` scales.
    pub scales: *mut f32,
}

/// Quantises rows: value ≈ integer × scale of its block. A block with a value that is not finite gets the scale NaN.
///
/// # Safety
/// The instruction set of `L` is present; the input is readable and the outputs are writable over what [`Rows`] says.
#[inline(always)]
pub unsafe fn quantise<L: PairLanes>(call: &Rows) {
    let blocks = blocks(call.width);
    // SAFETY: all addresses lie in the ranges of the caller's promise.
    unsafe {
        for row in 0..call.rows {
            for block in 0..blocks {
                let first = block * BLOCK;
                let end = call.width.min(first + BLOCK);
                let input = call.input.add(row * call.stride);
                let (mut highest, mut zeros) = (L::splat(0.0), L::splat(0.0));
                for at in (first..end).step_by(LANES) {
                    let value = L::load(input.add(at));
                    highest = value.max(L::splat(0.0).sub(value)).max(highest);
                    zeros = value.fma(L::splat(0.0), zeros);
                }
                let highest = highest.tree_max();
                let limit = f32::from(LARGEST_ACTIVATION);
                let factor = if highest > 0.0 { limit / highest } else { 0.0 };
                // A row of tiny values has a factor that is not finite: its integers are zeros.
                let factor = L::splat(if factor.is_finite() { factor } else { 0.0 });
                let out = call.out.add(row * call.width);
                for at in (first..end).step_by(LANES) {
                    L::load(input.add(at)).mul(factor).store_rounded(out.add(at));
                }
                *call.scales.add(row * blocks + block) = highest / limit + zeros.tree_sum();
            }
        }
    }
}

/// One product: `out[rows × panels·16] = epilogue(bias + (a · panels) × scales)`.
#[derive(Clone, Copy)]
pub struct PairGemm {
    /// First row of quantised activations; rows are `k` apart.
    pub a: *const i16,
    /// `blocks(k)` scales a row.
    pub a_scales: *const f32,
    /// Rows.
    pub rows: usize,
    /// Length of the sums, even.
    pub k: usize,
    /// First panel: `[k / 2][16][2]`; consecutive panels are `k·16` integers apart.
    pub panels: *const i16,
    /// `[panel][block][16]` scales.
    pub panel_scales: *const f32,
    /// Panels.
    pub panel_count: usize,
    /// One start value per column.
    pub bias: *const f32,
    /// First element of the result.
    pub out: *mut f32,
    /// Values between rows of `out`.
    pub out_stride: usize,
    /// What follows the sums.
    pub epilogue: Epilogue,
}

/// Runs a product.
///
/// # Safety
/// The instruction set of `L` is present; for every row, panel and block of the call the activations, panels, scales and
/// biases are readable; `out` is writable and overlaps none of them; the epilogue's operands are readable and overlap
/// `out` nowhere.
#[inline(always)]
pub unsafe fn gemm<L: PairLanes>(call: &PairGemm) {
    let tiles = call.rows.div_ceil(L::TILE_ROWS);
    let target = Target {
        out: call.out,
        out_stride: call.out_stride,
        epilogue: call.epilogue,
    };
    let mut panel = 0;
    while panel < call.panel_count {
        let width = L::TILE_PANELS.min(call.panel_count - panel);
        let mut row = 0;
        for tile in 0..tiles {
            let height = call.rows / tiles + usize::from(tile < call.rows % tiles);
            // SAFETY: row + height ≤ rows and panel + width ≤ panel_count; the rest is the caller's promise.
            unsafe {
                tile_of_any_height::<L>(call, (row, height), (panel, width));
                gemm::finish::<L>(&target, row..row + height, panel..panel + width);
            }
            row += height;
        }
        panel += width;
    }
}

/// # Safety
/// As [`gemm`], for a tile inside the call, `height` ≤ `L::TILE_ROWS`, `width` ≤ `L::TILE_PANELS`.
#[inline(always)]
unsafe fn tile_of_any_height<L: PairLanes>(
    call: &PairGemm,
    (row, height): (usize, usize),
    (panel, width): (usize, usize),
) {
    macro_rules! by_height {
        ($width:literal: $($height:literal)*) => {
            match height {
                // SAFETY: passed on to the caller; the constants equal the tile's size.
                $($height if $height <= L::TILE_ROWS => unsafe { tile::<L, $height, $width>(call, row, panel) },)*
                _ => unreachable!("a tile has at most TILE_ROWS rows"),
            }
        };
    }
    if width == 2 && L::TILE_PANELS == 2 {
        by_height!(2: 1 2 3 4 5 6 7 8 9 10 11 12);
    } else {
        by_height!(1: 1 2 3 4 5 6 7 8 9 10 11 12);
    }
}

/// # Safety
/// As [`gemm`], for rows `row .. row + R` and panels `panel .. panel + P`.
#[inline(always)]
unsafe fn tile<L: PairLanes, const R: usize, const P: usize>(call: &PairGemm, row: usize, panel: usize) {
    let column = panel * LANES;
    let panel_stride = call.k * LANES;
    let blocks = blocks(call.k);
    // SAFETY: all addresses lie in the ranges of the caller's promise.
    unsafe {
        let a = call.a.add(row * call.k);
        let b = call.panels.add(panel * panel_stride);
        let out = call.out.add(row * call.out_stride + column);
        for block in 0..blocks {
            let first = block * BLOCK;
            let end = call.k.min(first + BLOCK);
            let mut sums = [[L::no_sums(); P]; R];
            for k in (first..end).step_by(2) {
                for (r, row) in sums.iter_mut().enumerate() {
                    let pair = a.add(r * call.k + k).cast::<i32>().read_unaligned();
                    for (p, sum) in row.iter_mut().enumerate() {
                        *sum = L::add_products(*sum, b.add(p * panel_stride + k * LANES), pair);
                    }
                }
            }
            for p in 0..P {
                let weights = L::load(call.panel_scales.add(((panel + p) * blocks + block) * LANES));
                let bias = L::load(call.bias.add(column + p * LANES));
                for (r, row_sums) in sums.iter().enumerate() {
                    let at = out.add(r * call.out_stride + p * LANES);
                    let before = if block == 0 { bias } else { L::load(at) };
                    let scale = weights.mul(L::splat(*call.a_scales.add((row + r) * blocks + block)));
                    L::to_floats(row_sums[p]).fma(scale, before).store(at);
                }
            }
        }
    }
}
