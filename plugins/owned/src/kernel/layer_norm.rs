//! Layer normalisation of rows, and root-mean-square normalisation.
//!
//! Owns no state. Mean and variance are taken in two passes (Ba et al. 2016; biased variance, as PyTorch), with one
//! partial sum per lane and a tree at the end, in the same order on every instruction set.

use super::lanes::{LANES, Lanes};

/// `out = (input − mean) ÷ √(variance + eps) × weight + bias`, row by row.
#[derive(Clone, Copy)]
pub struct LayerNorm {
    /// First input row.
    pub input: *const f32,
    /// First output row; may be the input.
    pub out: *mut f32,
    /// Values between rows of both.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
    /// Values per row that count.
    pub width: usize,
    /// `width` weights, zeros up to the next multiple of 16.
    pub weight: *const f32,
    /// `width` biases, zeros up to the next multiple of 16.
    pub bias: *const f32,
    /// Added to the variance.
    pub eps: f32,
}

/// Normalises rows.
///
/// # Safety
/// The instruction set of `L` is present; rows are readable and writable, and weight and bias readable, over `width`
/// rounded up to 16; input lanes past `width` are finite.
#[inline(always)]
pub unsafe fn layer_norm<L: Lanes>(call: &LayerNorm) {
    // SAFETY: passed on to the caller.
    unsafe { normalise::<L, true>(call) }
}

/// `out = input ÷ √(mean of squares + eps) × weight`, row by row (Zhang and Sennrich 2019); `bias` is not read.
///
/// # Safety
/// As [`layer_norm`], the bias excepted.
#[inline(always)]
pub unsafe fn rms_norm<L: Lanes>(call: &LayerNorm) {
    // SAFETY: passed on to the caller.
    unsafe { normalise::<L, false>(call) }
}

/// Both: `CENTRED` on the mean and with a bias, or not.
///
/// # Safety
/// As [`layer_norm`], or as [`rms_norm`].
#[inline(always)]
#[expect(
    clippy::cast_precision_loss,
    reason = "a width is far below 2²⁴, so it is exact in f32"
)]
unsafe fn normalise<L: Lanes, const CENTRED: bool>(call: &LayerNorm) {
    let padded = call.width.next_multiple_of(LANES);
    let count = call.width as f32;
    let mut tail_mask = [0.0; LANES];
    tail_mask[..call.width - (padded - LANES)].fill(1.0);
    // SAFETY: all addresses lie in the ranges of the caller's promise.
    unsafe {
        let mask = L::load(tail_mask.as_ptr());
        let last = padded - LANES;
        for row in 0..call.rows {
            let input = call.input.add(row * call.stride);
            let out = call.out.add(row * call.stride);
            let mut mean = L::splat(0.0);
            if CENTRED {
                let mut sum = L::splat(0.0);
                for at in (0..last).step_by(LANES) {
                    sum = sum.add(L::load(input.add(at)));
                }
                sum = L::load(input.add(last)).fma(mask, sum);
                mean = L::splat(sum.tree_sum() / count);
            }
            let mut squares = L::splat(0.0);
            for at in (0..last).step_by(LANES) {
                let distance = from_mean::<L, CENTRED>(L::load(input.add(at)), mean);
                squares = distance.fma(distance, squares);
            }
            let distance = from_mean::<L, CENTRED>(L::load(input.add(last)), mean).mul(mask);
            squares = distance.fma(distance, squares);
            let scale = L::splat(1.0 / (squares.tree_sum() / count + call.eps).sqrt());
            for at in (0..padded).step_by(LANES) {
                let scaled = from_mean::<L, CENTRED>(L::load(input.add(at)), mean).mul(scale);
                let weight = L::load(call.weight.add(at));
                // A product with zero added would turn a −0 into a +0.
                let value = if CENTRED {
                    scaled.fma(weight, L::load(call.bias.add(at)))
                } else {
                    scaled.mul(weight)
                };
                value.store(out.add(at));
            }
        }
    }
}

/// How far values are from the mean, where it counts.
#[inline(always)]
fn from_mean<L: Lanes, const CENTRED: bool>(values: L, mean: L) -> L {
    if CENTRED { values.sub(mean) } else { values }
}
