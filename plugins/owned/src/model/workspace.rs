//! The activations of one rank, kept between calls.
//!
//! A [`Workspace`] owns its buffers and grows to the largest group it has seen. [`Views`] are the matrices of one
//! rank for one call: private ones, and ones that several ranks share when they work together.

use super::encoder::Shape;
use crate::kernel::attention;
use crate::kernel::buffer::{Buffer, OutOfMemory};
use crate::kernel::pairs;

/// Rows of a feed-forward block: its inner activations stay in the second-level cache.
pub const BLOCK_ROWS: usize = 96;

/// A row-major matrix somewhere in a workspace: `rows` rows that are `stride` values apart.
///
/// It is a pointer with bounds, so that ranks can write disjoint columns of the same rows. Who makes one promises that
/// the memory outlives it; who uses one promises that no element is written while another rank reads or writes it.
#[derive(Clone, Copy)]
pub struct Matrix {
    /// First element.
    pub first: *mut f32,
    /// Values between rows.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
}

// SAFETY: a Matrix is only an address with bounds; every access is an unsafe operation of the user, who promises the
// absence of races.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    fn of(buffer: &mut Buffer, stride: usize) -> Self {
        let rows = buffer.values().len() / stride;
        Self {
            first: buffer.values_mut().as_mut_ptr(),
            stride,
            rows,
        }
    }

    /// The address of an element.
    ///
    /// # Panics
    /// When it lies outside the matrix.
    #[must_use]
    pub fn at(&self, row: usize, column: usize) -> *mut f32 {
        assert!(
            row < self.rows && column < self.stride,
            "element ({row}, {column}) of a matrix of {} × {}",
            self.rows,
            self.stride
        );
        // SAFETY: inside the allocation, by the assertion and the promise of whoever made the matrix.
        unsafe { self.first.add(row * self.stride + column) }
    }
}

/// What one rank computes on.
#[derive(Clone, Copy)]
pub struct Views {
    /// Residual stream, private: `[rows][hidden]`.
    pub stream: Matrix,
    /// A normalised copy of it, private; of no rows where the model needs none.
    pub normed: Matrix,
    /// One vector an item, twice, private: `[items][widest step]`; of no rows where nothing follows pooling.
    pub vectors: [Matrix; 2],
    /// Transposed keys of a head, private.
    pub key_panels: *mut f32,
    /// Values of a head, private.
    pub value_panels: *mut f32,
    /// Scores of a few rows, private.
    pub scores: *mut f32,
    /// Quantised rows of a block, private; of no room where nothing is quantised.
    pub integers: *mut f32,
    /// Their scales, private.
    pub integer_scales: *mut f32,
    /// How wide such a row may be.
    pub integer_width: usize,
    /// Tokens that keys, values and scores have room for.
    pub longest: usize,
    /// Queries, keys and values side by side, shared: `[rows][(heads + 2 × kv heads) × width]`.
    pub qkv: Matrix,
    /// Attention's output, shared: `[rows][heads × width]`.
    pub context: Matrix,
    /// Sums before a normalisation, shared: `[rows][hidden]`.
    pub sum: Matrix,
    /// Feed-forward activations of a block, shared: `[block rows][intermediate]`.
    pub inner: Matrix,
    /// The same before the gate, shared; of no rows where there is none.
    pub ungated: Matrix,
}

// SAFETY: addresses only; see `Matrix`.
unsafe impl Send for Views {}
// SAFETY: as above.
unsafe impl Sync for Views {}

/// The largest sizes that a plan asks for.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Rows of a group.
    pub rows: usize,
    /// Tokens of an item.
    pub longest: usize,
    /// Items of a group.
    pub items: usize,
    /// Rows of a feed-forward block.
    pub block_rows: usize,
}

/// Buffers for groups of some size.
#[derive(Default)]
pub struct Workspace {
    stream: Buffer,
    normed: Buffer,
    vectors: [Buffer; 2],
    key_panels: Buffer,
    value_panels: Buffer,
    scores: Buffer,
    integers: Buffer,
    integer_scales: Buffer,
    qkv: Buffer,
    context: Buffer,
    sum: Buffer,
    inner: Buffer,
    ungated: Buffer,
    longest: usize,
}

fn grow(buffer: &mut Buffer, len: usize) -> Result<(), OutOfMemory> {
    if buffer.values().len() < len {
        *buffer = Buffer::default();
        *buffer = Buffer::zeroed(len)?;
    }
    Ok(())
}

impl Workspace {
    /// Makes room for what every rank needs.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn fit_private(&mut self, shape: &Shape, need: Need) -> Result<(), OutOfMemory> {
        let Need {
            rows, longest, items, ..
        } = need;
        grow(&mut self.stream, rows * shape.hidden_stride)?;
        if shape.norms_inputs {
            grow(&mut self.normed, rows * shape.hidden_stride)?;
        }
        for vectors in &mut self.vectors {
            grow(vectors, items * shape.step_stride)?;
        }
        grow(
            &mut self.key_panels,
            attention::key_panel_len(longest, shape.head_stride),
        )?;
        grow(
            &mut self.value_panels,
            attention::value_panel_len(longest, shape.head_stride),
        )?;
        grow(&mut self.scores, attention::score_len(longest))?;
        self.longest = self.longest.max(longest);
        if shape.integers {
            let width = shape.widest_input();
            grow(&mut self.integers, BLOCK_ROWS * width / 2)?;
            grow(&mut self.integer_scales, BLOCK_ROWS * pairs::blocks(width))?;
        }
        Ok(())
    }

    /// Makes room for what ranks that work together share.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn fit_shared(&mut self, shape: &Shape, need: Need) -> Result<(), OutOfMemory> {
        let Need { rows, block_rows, .. } = need;
        grow(&mut self.qkv, rows * shape.qkv_stride())?;
        grow(&mut self.context, rows * shape.heads_stride())?;
        grow(&mut self.sum, rows * shape.hidden_stride)?;
        if shape.gated {
            grow(&mut self.ungated, block_rows * shape.intermediate_stride)?;
        }
        grow(&mut self.inner, block_rows * shape.intermediate_stride)
    }

    /// The matrices of a rank that shares nothing.
    #[must_use]
    pub fn views(&mut self, shape: &Shape) -> Views {
        Views {
            stream: Matrix::of(&mut self.stream, shape.hidden_stride),
            normed: Matrix::of(&mut self.normed, shape.hidden_stride),
            vectors: self
                .vectors
                .each_mut()
                .map(|vectors| Matrix::of(vectors, shape.step_stride.max(1))),
            key_panels: self.key_panels.values_mut().as_mut_ptr(),
            value_panels: self.value_panels.values_mut().as_mut_ptr(),
            scores: self.scores.values_mut().as_mut_ptr(),
            integers: self.integers.values_mut().as_mut_ptr(),
            integer_scales: self.integer_scales.values_mut().as_mut_ptr(),
            integer_width: if shape.integers { shape.widest_input() } else { 0 },
            longest: self.longest,
            qkv: Matrix::of(&mut self.qkv, shape.qkv_stride()),
            context: Matrix::of(&mut self.context, shape.heads_stride()),
            sum: Matrix::of(&mut self.sum, shape.hidden_stride),
            inner: Matrix::of(&mut self.inner, shape.intermediate_stride),
            ungated: Matrix::of(&mut self.ungated, shape.intermediate_stride),
        }
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        [
            &self.stream,
            &self.normed,
            &self.vectors[0],
            &self.vectors[1],
            &self.key_panels,
            &self.value_panels,
            &self.scores,
            &self.integers,
            &self.integer_scales,
            &self.qkv,
            &self.context,
            &self.sum,
            &self.inner,
            &self.ungated,
        ]
        .into_iter()
        .map(Buffer::bytes)
        .sum()
    }
}

impl Views {
    /// These views with the shared matrices of another rank.
    #[must_use]
    pub const fn sharing_with(self, leader: &Self) -> Self {
        Self {
            qkv: leader.qkv,
            context: leader.context,
            sum: leader.sum,
            inner: leader.inner,
            ungated: leader.ungated,
            ..self
        }
    }
}
