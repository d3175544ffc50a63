//! Matrix product of row-major activations and packed panels.
//!
//! Owns no state. Panels hold [`LANES`] columns: `[column / 16][k][16]`, so one step of k reads one cache line per
//! panel. Each output is one chain of fused multiply-adds over ascending k that starts at the bias (or at zero):
//! the same bits whatever the tile, the row's neighbours, the thread or the instruction set. Called by the layers
//! through `kernel::isa`; knows nothing of models.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::math;

/// What happens to a tile after its sums, while it is still in the first-level cache.
#[derive(Clone, Copy)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// GELU by the error function.
    Gelu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
    /// x·σ(x).
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// max(x, 0).
    Relu,
    /// Adds the same element of another matrix.
    Residual {
        /// First element: same row and column as `out`.
        source: *const f32,
        /// Values between its rows.
        stride: usize,
    },
    /// Multiplies with the same element of another matrix.
    Times {
        /// First element: same row and column as `out`.
        source: *const f32,
        /// Values between its rows.
        stride: usize,
    },
    /// Multiplies row r by `factors[r]`.
    RowScale {
        /// One factor per row.
        factors: *const f32,
    },
}

/// One product: `out[rows × panels·16] = epilogue(bias + a[rows × k] · panels)`.
#[derive(Clone, Copy)]
pub struct Gemm {
    /// First row of activations.
    pub a: *const f32,
    /// Values between rows of `a`.
    pub a_stride: usize,
    /// Rows.
    pub rows: usize,
    /// Length of the sums.
    pub k: usize,
    /// First panel.
    pub panels: *const f32,
    /// Values between the starts of consecutive panels, at least `k·16`.
    pub panel_stride: usize,
    /// Panels.
    pub panel_count: usize,
    /// One start value per column, or null for zeros.
    pub bias: *const f32,
    /// First element of the result.
    pub out: *mut f32,
    /// Values between rows of `out`.
    pub out_stride: usize,
    /// What follows the sums.
    pub epilogue: Epilogue,
}

/// Where a product's results lie, and what follows the sums.
pub(super) struct Target {
    pub out: *mut f32,
    pub out_stride: usize,
    pub epilogue: Epilogue,
}

impl Gemm {
    const fn target(&self) -> Target {
        Target {
            out: self.out,
            out_stride: self.out_stride,
            epilogue: self.epilogue,
        }
    }
}

/// What a tile prefetches: one address for each step of k.
#[derive(Clone, Copy)]
struct Ahead {
    first: *const f32,
    /// Bytes from one address to the next, less than a cache line where several tiles share the work.
    step: usize,
}

/// Bytes of one step of k in a panel.
const LINE_BYTES: usize = LANES * size_of::<f32>();

/// Runs a product.
///
/// # Safety
/// The instruction set of `L` is present. For every row r and column c of the call, `a[r·a_stride .. + k]` and the
/// panels are readable, `bias[c]` too unless null, `out[r·out_stride + c]` is writable and overlaps none of them,
/// and the epilogue's operands are readable and overlap `out` nowhere.
#[inline(always)]
pub unsafe fn gemm<L: Lanes>(call: &Gemm) {
    let tiles = call.rows.div_ceil(L::TILE_ROWS);
    let mut panel = 0;
    while panel < call.panel_count {
        let width = L::TILE_PANELS.min(call.panel_count - panel);
        let next = call.panels.wrapping_add((panel + width) * call.panel_stride);
        let mut row = 0;
        for tile in 0..tiles {
            // Rows spread evenly: 13 rows are 5 + 4 + 4, never 12 + 1.
            let height = call.rows / tiles + usize::from(tile < call.rows % tiles);
            // Each tile brings its part of the next panels closer while it computes.
            let ahead = Ahead {
                first: next.wrapping_byte_add(tile * call.k * width * LINE_BYTES / tiles),
                step: width * LINE_BYTES / tiles,
            };
            // SAFETY: row + height ≤ rows and panel + width ≤ panel_count; the rest is the caller's promise.
            unsafe {
                tile_of_any_height::<L>(call, ahead, (row, height), (panel, width));
                finish::<L>(&call.target(), row..row + height, panel..panel + width);
            }
            row += height;
        }
        panel += width;
    }
}

/// # Safety
/// As [`gemm`], for a tile inside the call, `height` ≤ `L::TILE_ROWS`, `width` ≤ `L::TILE_PANELS`.
#[inline(always)]
unsafe fn tile_of_any_height<L: Lanes>(
    call: &Gemm,
    ahead: Ahead,
    (row, height): (usize, usize),
    (panel, width): (usize, usize),
) {
    macro_rules! by_height {
        ($width:literal: $($height:literal)*) => {
            match height {
                // SAFETY: passed on to the caller; the constants equal the tile's size.
                $($height if $height <= L::TILE_ROWS => unsafe { tile::<L, $height, $width>(call, ahead, row, panel) },)*
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
unsafe fn tile<L: Lanes, const R: usize, const P: usize>(call: &Gemm, ahead: Ahead, row: usize, panel: usize) {
    let column = panel * LANES;
    let panel_stride = call.panel_stride;
    // SAFETY: all addresses lie in the ranges of the caller's promise.
    unsafe {
        let mut sums = [[L::splat(0.0); P]; R];
        if !call.bias.is_null() {
            for p in 0..P {
                let start = L::load(call.bias.add(column + p * LANES));
                for sum in &mut sums {
                    sum[p] = start;
                }
            }
        }
        let a = call.a.add(row * call.a_stride);
        let b = call.panels.add(panel * panel_stride);
        for k in 0..call.k {
            let mut columns = [L::splat(0.0); P];
            for (p, column) in columns.iter_mut().enumerate() {
                *column = L::load(b.add(p * panel_stride + k * LANES));
            }
            let line = ahead.first.wrapping_byte_add(k * ahead.step);
            L::prefetch(line);
            if ahead.step > LINE_BYTES {
                L::prefetch(line.wrapping_byte_add(LINE_BYTES));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let value = L::splat(*a.add(r * call.a_stride + k));
                for (sum, &column) in row.iter_mut().zip(&columns) {
                    *sum = value.fma(column, *sum);
                }
            }
        }
        let out = call.out.add(row * call.out_stride + column);
        for (r, row) in sums.iter().enumerate() {
            for (p, sum) in row.iter().enumerate() {
                sum.store(out.add(r * call.out_stride + p * LANES));
            }
        }
    }
}

/// Runs the epilogue over a tile whose sums were written.
///
/// # Safety
/// As [`gemm`], for a tile inside the target.
#[inline(always)]
pub(super) unsafe fn finish<L: Lanes>(target: &Target, rows: Range<usize>, panels: Range<usize>) {
    // A macro and no closure: a closure that is not inlined would be compiled without the instruction set.
    macro_rules! each {
        (|$sum:ident, $row:ident, $column:ident| $result:expr) => {
            for $row in rows {
                for panel in panels.clone() {
                    let $column = panel * LANES;
                    let at = target.out.add($row * target.out_stride + $column);
                    let $sum = L::load(at);
                    $result.store(at);
                }
            }
        };
    }
    // SAFETY: all addresses lie in the ranges of the caller's promise.
    unsafe {
        match target.epilogue {
            Epilogue::None => {}
            Epilogue::Gelu => each!(|sum, row, column| math::gelu(sum)),
            Epilogue::GeluTanh => each!(|sum, row, column| math::gelu_tanh(sum)),
            Epilogue::Silu => each!(|sum, row, column| math::silu(sum)),
            Epilogue::Tanh => each!(|sum, row, column| math::tanh(sum)),
            Epilogue::Relu => each!(|sum, row, column| L::splat(0.0).max(sum)),
            Epilogue::Residual { source, stride } => {
                each!(|sum, row, column| sum.add(L::load(source.add(row * stride + column))));
            }
            Epilogue::Times { source, stride } => {
                each!(|sum, row, column| sum.mul(L::load(source.add(row * stride + column))));
            }
            Epilogue::RowScale { factors } => each!(|sum, row, column| sum.mul(L::splat(*factors.add(row)))),
        }
    }
}
