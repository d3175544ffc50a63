//! The shared blocks, as one rank runs them: linear layers, attention, normalisation, and the pauses between.
//!
//! A [`Worker`] owns one rank's count of work since its last checkpoint. Every block is cut into pieces of about a
//! millisecond; after each, rank 0 enters the host's checkpoint and the others look at the gate.

use std::ops::Range;

use super::workspace::{BLOCK_ROWS, Matrix, Views};
use crate::kernel::attention::{Head, SCORE_ROWS};
use crate::kernel::gemm::{Epilogue, Gemm};
use crate::kernel::isa::Kernels;
use crate::kernel::lanes::LANES;
use crate::kernel::layer_norm::LayerNorm;
use crate::kernel::packed::PackedLinear;
use crate::thread::Stopped;
use crate::thread::barrier::Barrier;
use crate::thread::gate::Gate;

/// The host's side of a call, as rank 0 sees it.
pub trait CallControl: Sync {
    /// Reports completed work out of a fixed total and may hold the call. `false` asks the call to end.
    fn checkpoint(&self, done: u64, total: u64) -> bool;
}

/// What all ranks of a call share.
pub struct Crew<'c> {
    /// The kernels.
    pub kernels: &'static Kernels,
    /// Where ranks that work together meet.
    pub barrier: Barrier,
    /// Where ranks pause.
    pub gate: Gate,
    /// The host's side.
    pub control: &'c dyn CallControl,
    /// Work of the whole call, in floating-point operations.
    pub total: u64,
}

impl Crew<'_> {
    /// Ends the call on every rank.
    pub fn stop(&self) {
        self.gate.stop();
        self.barrier.stop();
    }

    /// Enters the host's checkpoint. Calling thread only.
    ///
    /// # Errors
    /// [`Stopped`] when the call is to end.
    pub fn checkpoint(&self) -> Result<(), Stopped> {
        let outcome = self
            .gate
            .while_closed(|| self.control.checkpoint(self.gate.done().min(self.total), self.total));
        if outcome.is_err() {
            self.stop();
        }
        outcome
    }
}

/// A layer normalisation's constants.
pub struct NormWeights<'w> {
    /// Weights, zeros up to the next multiple of 16.
    pub weight: &'w [f32],
    /// Biases, likewise.
    pub bias: &'w [f32],
    /// Added to the variance.
    pub eps: f32,
    /// Values per row that count.
    pub width: usize,
}

/// What follows a linear layer.
#[derive(Clone, Copy)]
pub enum After {
    /// Nothing.
    Nothing,
    /// GELU by the error function.
    Gelu,
    /// Adds the same element of another matrix, whose row `first_row` belongs to row 0.
    Add(Matrix, usize),
}

/// One rank at work.
pub struct Worker<'c> {
    crew: &'c Crew<'c>,
    rank: usize,
    ranks: usize,
    views: Views,
    since_pause: u64,
}

impl<'c> Worker<'c> {
    /// A rank of a crew. `ranks` is how many work on the same group: 1 when they work apart.
    #[must_use]
    pub const fn new(crew: &'c Crew<'c>, rank: usize, ranks: usize, views: Views) -> Self {
        Self {
            crew,
            rank,
            ranks,
            views,
            since_pause: 0,
        }
    }

    /// This rank's matrices.
    #[must_use]
    pub const fn views(&self) -> Views {
        self.views
    }

    /// Whether this rank does what is done once per group.
    #[must_use]
    pub const fn leads(&self) -> bool {
        self.rank == 0 || self.ranks == 1
    }

    /// This rank's part of `count` equal pieces.
    #[must_use]
    pub const fn share(&self, count: usize) -> Range<usize> {
        if self.ranks == 1 {
            0..count
        } else {
            count * self.rank / self.ranks..count * (self.rank + 1) / self.ranks
        }
    }

    /// Waits for the ranks that work on the same group.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn meet(&self) -> Result<(), Stopped> {
        if self.ranks == 1 {
            return Ok(());
        }
        self.crew.barrier.wait()
    }

    /// Counts work, and pauses when a millisecond's worth was done.
    ///
    /// # Errors
    /// [`Stopped`] when the call is to end.
    fn worked(&mut self, operations: usize) -> Result<(), Stopped> {
        self.since_pause += operations as u64;
        if self.since_pause < self.crew.kernels.operations_per_millisecond() {
            return Ok(());
        }
        self.crew.gate.add_done(self.since_pause);
        self.since_pause = 0;
        if self.rank == 0 {
            self.crew.checkpoint()
        } else {
            self.crew.gate.pass()
        }
    }

    /// `out[rows] = after(bias + input[rows] · layer)` for some of the layer's panels; input and output rows count
    /// from their `first` rows.
    ///
    /// # Errors
    /// [`Stopped`].
    ///
    /// # Safety
    /// `input` holds the layer's inputs in its columns and no rank writes them now; no other rank touches the
    /// columns of `panels` in the rows of `out` now; `out` is not `input`.
    pub unsafe fn linear(
        &mut self,
        (input, input_row): (Matrix, usize),
        layer: &PackedLinear,
        panels: Range<usize>,
        (out, out_row, rows): (Matrix, usize, usize),
        after: After,
    ) -> Result<(), Stopped> {
        let k = layer.inputs();
        assert!(panels.end * LANES <= layer.columns() && layer.columns() <= out.stride && k <= input.stride);
        assert!(input_row + rows <= input.rows && out_row + rows <= out.rows);
        if let After::Add(source, row) = after {
            assert!(row + rows <= source.rows && layer.columns() <= source.stride);
        }
        let per_panel = |rows: usize| 2 * rows * k * LANES;
        let budget = usize::try_from(self.crew.kernels.operations_per_millisecond()).unwrap_or(usize::MAX);
        for first in (0..rows).step_by(BLOCK_ROWS) {
            let block = BLOCK_ROWS.min(rows - first);
            let step = (budget / per_panel(block)).max(1).next_multiple_of(2);
            for panel in panels.clone().step_by(step) {
                let count = step.min(panels.end - panel);
                let column = panel * LANES;
                let epilogue = match after {
                    After::Nothing => Epilogue::None,
                    After::Gelu => Epilogue::Gelu,
                    After::Add(source, row) => Epilogue::Residual {
                        source: source.at(row + first, column),
                        stride: source.stride,
                    },
                };
                // SAFETY: rows and columns lie inside the matrices (asserted above), the panels inside the layer;
                // the caller promises the absence of races.
                unsafe {
                    self.crew.kernels.gemm(&Gemm {
                        a: input.at(input_row + first, 0),
                        a_stride: input.stride,
                        rows: block,
                        k,
                        panels: layer.panels()[column * k..].as_ptr(),
                        panel_count: count,
                        bias: layer.bias()[column..].as_ptr(),
                        out: out.at(out_row + first, column),
                        out_stride: out.stride,
                        epilogue,
                    });
                }
                self.worked(per_panel(block) * count)?;
            }
        }
        Ok(())
    }

    /// Attention of some heads over the rows `first .. first + tokens`, from `qkv` into `context`.
    ///
    /// # Errors
    /// [`Stopped`].
    ///
    /// # Safety
    /// This rank's heads of `qkv` are complete for those rows; no other rank touches these heads now.
    pub unsafe fn attention(
        &mut self,
        heads: Range<usize>,
        (head_width, head_stride): (usize, usize),
        first: usize,
        tokens: usize,
    ) -> Result<(), Stopped> {
        let views = self.views;
        let part = views.qkv.stride / 3;
        assert!(tokens <= views.longest && heads.end * head_stride <= part && part <= views.context.stride);
        assert!(first + tokens <= views.qkv.rows && first + tokens <= views.context.rows);
        for number in heads {
            let column = number * head_stride;
            let head = Head {
                q: views.qkv.at(first, column),
                k: views.qkv.at(first, part + column),
                v: views.qkv.at(first, 2 * part + column),
                stride: views.qkv.stride,
                tokens,
                width: head_width,
                key_panels: views.key_panels,
                value_panels: views.value_panels,
                scores: views.scores,
                context: views.context.at(first, column),
                context_stride: views.context.stride,
            };
            // SAFETY: rows and columns lie inside the matrices (asserted above), the scratch has room for `tokens`
            // and is private; the caller promises the absence of races.
            unsafe { self.crew.kernels.prepare_head(&head) };
            let tiles = tokens.div_ceil(SCORE_ROWS);
            let mut row = 0;
            for tile in 0..tiles {
                let rows = tokens / tiles + usize::from(tile < tokens % tiles);
                // SAFETY: as above, and the head was prepared.
                unsafe { self.crew.kernels.head_rows(&head, row, rows) };
                row += rows;
                self.worked(4 * rows * tokens * head_width)?;
            }
        }
        Ok(())
    }

    /// Normalises rows of one matrix into another of the same stride.
    ///
    /// # Errors
    /// [`Stopped`].
    ///
    /// # Safety
    /// No rank writes the input now; nobody else touches the output now.
    pub unsafe fn layer_norm(
        &mut self,
        input: Matrix,
        out: Matrix,
        rows: usize,
        norm: &NormWeights,
    ) -> Result<(), Stopped> {
        assert!(input.stride == out.stride && rows <= input.rows && rows <= out.rows);
        assert!(norm.weight.len() == out.stride && norm.bias.len() == out.stride && norm.width <= out.stride);
        for first in (0..rows).step_by(BLOCK_ROWS) {
            let block = BLOCK_ROWS.min(rows - first);
            // SAFETY: rows lie inside the matrices and the constants have their length (asserted above); the caller
            // promises the absence of races.
            unsafe {
                self.crew.kernels.layer_norm(&LayerNorm {
                    input: input.at(first, 0),
                    out: out.at(first, 0),
                    stride: out.stride,
                    rows: block,
                    width: norm.width,
                    weight: norm.weight.as_ptr(),
                    bias: norm.bias.as_ptr(),
                    eps: norm.eps,
                });
            }
            self.worked(10 * block * norm.width)?;
        }
        Ok(())
    }
}
