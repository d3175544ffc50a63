//! Scaled dot-product attention of one head over one sequence, without padding.
//!
//! Owns no state. K is transposed into panels and V copied into panels, so that scores and context are the product
//! of `kernel::gemm`; the score rows of a few queries stay in the caches between the two. A query sees the keys of its
//! [`Span`]; keys that no query of the tile sees are not computed. The factor 1/√d is already in the queries. Memory is
//! linear in the sequence's length. Called by the layers through `kernel::isa`.

use super::gemm::{self, Epilogue, Gemm};
use super::lanes::{LANES, Lanes};
use super::math;

/// Query rows whose scores are held at once.
pub const SCORE_ROWS: usize = 12;

/// The keys that a query sees, counted from its own place, which it always sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Tokens before its own.
    pub before: usize,
    /// Tokens after its own.
    pub after: usize,
}

impl Span {
    /// Every token of the sequence.
    pub const ALL: Self = Self {
        before: usize::MAX,
        after: usize::MAX,
    };

    /// What the queries `rows` of a sequence of `tokens` see together.
    #[must_use]
    pub const fn of_rows(self, first: usize, rows: usize, tokens: usize) -> (usize, usize) {
        let end = (first + rows).saturating_add(self.after);
        (
            first.saturating_sub(self.before),
            if end < tokens { end } else { tokens },
        )
    }
}

/// One head of one sequence.
#[derive(Clone, Copy)]
pub struct Head {
    /// First query row of the sequence, at the head's first column.
    pub q: *const f32,
    /// The same for keys.
    pub k: *const f32,
    /// The same for values.
    pub v: *const f32,
    /// Values between rows of q, k and v.
    pub stride: usize,
    /// Tokens.
    pub tokens: usize,
    /// Width of the head.
    pub width: usize,
    /// Which keys a query sees.
    pub span: Span,
    /// Added to the score of query i and key j: the value at `j − i`. Null for nothing. Readable from `1 − tokens` to
    /// `tokens` + 14.
    pub distance_bias: *const f32,
    /// Scratch: [`key_panel_len`] values.
    pub key_panels: *mut f32,
    /// Scratch: [`value_panel_len`] values.
    pub value_panels: *mut f32,
    /// Scratch: [`score_len`] values.
    pub scores: *mut f32,
    /// First context row of the sequence, at the head's first column.
    pub context: *mut f32,
    /// Values between rows of the context.
    pub context_stride: usize,
}

/// Scratch values for the transposed keys.
#[must_use]
pub const fn key_panel_len(tokens: usize, width: usize) -> usize {
    tokens.next_multiple_of(LANES) * width
}

/// Scratch values for the copied values.
#[must_use]
pub const fn value_panel_len(tokens: usize, width: usize) -> usize {
    tokens * width.next_multiple_of(LANES)
}

/// Scratch values for the scores and their row factors.
#[must_use]
pub const fn score_len(tokens: usize) -> usize {
    SCORE_ROWS * tokens.next_multiple_of(LANES) + LANES
}

/// Lays keys and values out as panels.
///
/// # Safety
/// The instruction set of `L` is present; rows `0 .. tokens` of `k` are readable over `width` values and of `v` over
/// `width` rounded up to 16; the scratch buffers have their lengths and nothing else uses them.
#[inline(always)]
pub unsafe fn prepare<L: Lanes>(head: &Head) {
    // SAFETY: all addresses lie in the ranges of the caller's promise.
    unsafe {
        for panel in 0..head.tokens.div_ceil(LANES) {
            let target = head.key_panels.add(panel * head.width * LANES);
            let tokens = LANES.min(head.tokens - panel * LANES);
            for token in 0..tokens {
                let source = head.k.add((panel * LANES + token) * head.stride);
                for d in 0..head.width {
                    *target.add(d * LANES + token) = *source.add(d);
                }
            }
            for token in tokens..LANES {
                for d in 0..head.width {
                    *target.add(d * LANES + token) = 0.0;
                }
            }
        }
        for panel in 0..head.width.div_ceil(LANES) {
            let target = head.value_panels.add(panel * head.tokens * LANES);
            let source = head.v.add(panel * LANES);
            for token in 0..head.tokens {
                L::load(source.add(token * head.stride)).store(target.add(token * LANES));
            }
        }
    }
}

/// Computes context rows `first .. first + rows`, with 1 ≤ rows ≤ [`SCORE_ROWS`].
///
/// # Safety
/// As [`prepare`], which ran before on the same head; the query rows are readable over `width` values; the context
/// rows are writable over `width` rounded up to 16 and overlap nothing that is read.
#[inline(always)]
pub unsafe fn rows<L: Lanes>(head: &Head, first: usize, rows: usize) {
    let padded = head.tokens.next_multiple_of(LANES);
    let (begin, end) = head.span.of_rows(first, rows, head.tokens);
    // Scores begin at a whole panel.
    let begin = begin / LANES * LANES;
    let keys = end - begin;
    // SAFETY: the scratch has room for SCORE_ROWS rows and one line of factors; the rest is the caller's promise.
    unsafe {
        let factors = head.scores.add(SCORE_ROWS * padded);
        gemm::gemm::<L>(&Gemm {
            a: head.q.add(first * head.stride),
            a_stride: head.stride,
            rows,
            k: head.width,
            panels: head.key_panels.add(begin * head.width),
            panel_stride: head.width * LANES,
            panel_count: keys.div_ceil(LANES),
            bias: std::ptr::null(),
            out: head.scores,
            out_stride: padded,
            epilogue: Epilogue::None,
        });
        for row in 0..rows {
            let scores = head.scores.add(row * padded);
            let query = first + row;
            if !head.distance_bias.is_null() {
                let bias = head.distance_bias.offset(begin.cast_signed() - query.cast_signed());
                for at in (0..keys).step_by(LANES) {
                    L::load(scores.add(at)).add(L::load(bias.add(at))).store(scores.add(at));
                }
            }
            let (seen, unseen) = head.span.of_rows(query, 1, head.tokens);
            let (seen, unseen) = (seen - begin, unseen - begin);
            for key in (0..seen).chain(unseen..keys) {
                *scores.add(key) = f32::NEG_INFINITY;
            }
            *factors.add(row) = softmax_numerators::<L>(scores, keys);
            for key in (0..seen).chain(unseen..keys) {
                *scores.add(key) = 0.0;
            }
        }
        gemm::gemm::<L>(&Gemm {
            a: head.scores,
            a_stride: padded,
            rows,
            k: keys,
            panels: head.value_panels.add(begin * LANES),
            panel_stride: head.tokens * LANES,
            panel_count: head.width.div_ceil(LANES),
            bias: std::ptr::null(),
            out: head.context.add(first * head.context_stride),
            out_stride: head.context_stride,
            epilogue: Epilogue::RowScale { factors },
        });
    }
}

/// Turns a row of scores into exp(score − maximum) and returns one over their sum.
///
/// # Safety
/// The instruction set of `L` is present; `row` is readable and writable over `tokens` ≥ 1 rounded up to 16.
#[inline(always)]
pub unsafe fn softmax_numerators<L: Lanes>(row: *mut f32, tokens: usize) -> f32 {
    let padded = tokens.next_multiple_of(LANES);
    // SAFETY: all addresses lie in the row.
    unsafe {
        for lane in tokens..padded {
            *row.add(lane) = f32::NEG_INFINITY;
        }
        let mut highest = L::load(row);
        for at in (LANES..padded).step_by(LANES) {
            highest = L::load(row.add(at)).max(highest);
        }
        let highest = L::splat(highest.tree_max());
        let mut sum = L::splat(0.0);
        for at in (0..padded).step_by(LANES) {
            // The lanes after the last token become 1e-38: nothing beside the 1 that the maximum contributes.
            let numerator = math::exp(L::load(row.add(at)).sub(highest));
            numerator.store(row.add(at));
            sum = sum.add(numerator);
        }
        1.0 / sum.tree_sum()
    }
}
