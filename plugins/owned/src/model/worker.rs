//! The shared blocks, as one rank runs them: linear layers, attention, normalisation, and the pauses between.
//!
//! A [`Worker`] owns one rank's count of work since its last checkpoint. Every block is cut into pieces of about a
//! millisecond; after each, rank 0 enters the host's checkpoint and the others look at the gate.

use std::ops::Range;

use super::blueprint::{Activation, NormKind};
use super::reader::NormWeights;
use super::workspace::{BLOCK_ROWS, Matrix, Views};
use crate::kernel::attention::{Head, SCORE_ROWS, Span};
use crate::kernel::gemm::{Epilogue, Gemm};
use crate::kernel::isa::Kernels;
use crate::kernel::lanes::LANES;
use crate::kernel::layer_norm::LayerNorm;
use crate::kernel::packed::{PackedLinear, Panels};
use crate::kernel::pairs::{PairGemm, Rows, blocks};
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

/// What follows a linear layer.
#[derive(Clone, Copy)]
pub enum After {
    /// An activation.
    Activate(Activation),
    /// Adds the same element of another matrix, whose row of that number belongs to row 0.
    Add(Matrix, usize),
    /// Multiplies with the same element of another matrix, likewise.
    Times(Matrix, usize),
}

/// The heads of one sequence that a rank attends to.
#[derive(Clone)]
pub struct Heads<'b> {
    /// Key and value heads.
    pub groups: Range<usize>,
    /// Query heads to a key and value head.
    pub per_group: usize,
    /// Query heads of the model.
    pub heads: usize,
    /// Key and value heads of the model.
    pub kv_heads: usize,
    /// Width of a head, and how far apart heads begin.
    pub widths: (usize, usize),
    /// Which keys a query sees.
    pub span: Span,
    /// For each query head `2 × reach` values, that of distance d at `reach + d`, and the reach; empty for none.
    pub distance_bias: (&'b [f32], usize),
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
    pub fn worked(&mut self, operations: usize) -> Result<(), Stopped> {
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
        if let After::Add(source, row) | After::Times(source, row) = after {
            assert!(row + rows <= source.rows && layer.columns() <= source.stride);
        }
        let per_panel = |rows: usize| 2 * rows * k * LANES;
        let budget = usize::try_from(self.crew.kernels.operations_per_millisecond()).unwrap_or(usize::MAX);
        for first in (0..rows).step_by(BLOCK_ROWS) {
            let block = BLOCK_ROWS.min(rows - first);
            let step = (budget / per_panel(block)).max(1).next_multiple_of(2);
            if let Panels::Pairs { .. } = layer.panels() {
                assert!(k <= self.views.integer_width);
                // SAFETY: the rows lie inside the input (asserted above); the scratch, this rank's alone, has room for a
                // block of rows of that width.
                unsafe {
                    self.crew.kernels.quantise(&Rows {
                        input: input.at(input_row + first, 0),
                        stride: input.stride,
                        rows: block,
                        width: k,
                        out: self.views.integers.cast(),
                        scales: self.views.integer_scales,
                    });
                }
            }
            for panel in panels.clone().step_by(step) {
                let count = step.min(panels.end - panel);
                let column = panel * LANES;
                let epilogue = match after {
                    After::Activate(activation) => epilogue_of(activation),
                    After::Add(source, row) => Epilogue::Residual {
                        source: source.at(row + first, column),
                        stride: source.stride,
                    },
                    After::Times(source, row) => Epilogue::Times {
                        source: source.at(row + first, column),
                        stride: source.stride,
                    },
                };
                let (bias, out_first) = (layer.bias()[column..].as_ptr(), out.at(out_row + first, column));
                // SAFETY: rows and columns lie inside the matrices (asserted above), the panels inside the layer;
                // quantised rows were written above into scratch that is this rank's; the caller promises the absence
                // of races.
                unsafe {
                    match layer.panels() {
                        Panels::Floats(panels) => self.crew.kernels.gemm(&Gemm {
                            a: input.at(input_row + first, 0),
                            a_stride: input.stride,
                            rows: block,
                            k,
                            panels: panels.values()[column * k..].as_ptr(),
                            panel_stride: k * LANES,
                            panel_count: count,
                            bias,
                            out: out_first,
                            out_stride: out.stride,
                            epilogue,
                        }),
                        Panels::Pairs { integers, scales } => self.crew.kernels.pair_gemm(&PairGemm {
                            a: self.views.integers.cast(),
                            a_scales: self.views.integer_scales,
                            rows: block,
                            k,
                            panels: integers.integers()[column * k..].as_ptr(),
                            panel_scales: scales.values()[column * blocks(k)..].as_ptr(),
                            panel_count: count,
                            bias,
                            out: out_first,
                            out_stride: out.stride,
                            epilogue,
                        }),
                    }
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
    /// These heads of `qkv` are complete for those rows; no other rank touches them now.
    pub unsafe fn attention(&mut self, call: &Heads<'_>, first: usize, tokens: usize) -> Result<(), Stopped> {
        let views = self.views;
        let (width, stride) = call.widths;
        let (bias, reach) = call.distance_bias;
        let columns = (call.heads + 2 * call.kv_heads) * stride;
        assert!(tokens <= views.longest && width <= stride && columns <= views.qkv.stride);
        assert!(call.groups.end <= call.kv_heads && call.kv_heads * call.per_group == call.heads);
        assert!(call.heads * stride <= views.context.stride);
        assert!(first + tokens <= views.qkv.rows && first + tokens <= views.context.rows);
        assert!(bias.is_empty() || (tokens + LANES <= reach && bias.len() == 2 * reach * call.heads));
        for group in call.groups.clone() {
            for number in group * call.per_group..(group + 1) * call.per_group {
                let head = Head {
                    q: views.qkv.at(first, number * stride),
                    k: views.qkv.at(first, (call.heads + group) * stride),
                    v: views.qkv.at(first, (call.heads + call.kv_heads + group) * stride),
                    stride: views.qkv.stride,
                    tokens,
                    width,
                    span: call.span,
                    distance_bias: if bias.is_empty() {
                        std::ptr::null()
                    } else {
                        bias[(2 * number + 1) * reach..].as_ptr()
                    },
                    key_panels: views.key_panels,
                    value_panels: views.value_panels,
                    scores: views.scores,
                    context: views.context.at(first, number * stride),
                    context_stride: views.context.stride,
                };
                if number == group * call.per_group {
                    // SAFETY: rows and columns lie inside the matrices (asserted above), the scratch has room for
                    // `tokens` and is private; the caller promises the absence of races.
                    unsafe { self.crew.kernels.prepare_head(&head) };
                }
                let tiles = tokens.div_ceil(SCORE_ROWS);
                let mut row = 0;
                for tile in 0..tiles {
                    let rows = tokens / tiles + usize::from(tile < tokens % tiles);
                    // SAFETY: as above, the group's keys and values were prepared, and the bias of this head reaches
                    // as far as the sequence is long.
                    unsafe { self.crew.kernels.head_rows(&head, row, rows) };
                    let (begin, end) = call.span.of_rows(row, rows, tokens);
                    row += rows;
                    self.worked(4 * rows * (end - begin) * width)?;
                }
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
    pub unsafe fn norm(&mut self, input: Matrix, out: Matrix, rows: usize, norm: &NormWeights) -> Result<(), Stopped> {
        assert!(rows <= input.rows && rows <= out.rows && norm.weight.values().len() <= out.stride);
        // SAFETY: as the caller promises.
        unsafe { self.norm_columns(input, out, 0, rows, norm) }
    }

    /// The same for some columns only: those from `column` on, as many as the normalisation has values.
    ///
    /// # Errors
    /// [`Stopped`].
    ///
    /// # Safety
    /// As [`Self::norm`].
    pub unsafe fn norm_columns(
        &mut self,
        input: Matrix,
        out: Matrix,
        column: usize,
        rows: usize,
        norm: &NormWeights,
    ) -> Result<(), Stopped> {
        let padded = norm.width.next_multiple_of(LANES);
        assert!(input.stride == out.stride && rows <= input.rows && rows <= out.rows);
        assert!(column + padded <= out.stride);
        assert!(norm.weight.values().len() == padded && norm.bias.values().len() == padded);
        for first in (0..rows).step_by(BLOCK_ROWS) {
            let block = BLOCK_ROWS.min(rows - first);
            let call = LayerNorm {
                input: input.at(first, column),
                out: out.at(first, column),
                stride: out.stride,
                rows: block,
                width: norm.width,
                weight: norm.weight.values().as_ptr(),
                bias: norm.bias.values().as_ptr(),
                eps: norm.eps,
            };
            // SAFETY: rows lie inside the matrices and the constants have their length (asserted above); the caller
            // promises the absence of races.
            unsafe {
                match norm.kind {
                    NormKind::Layer => self.crew.kernels.layer_norm(&call),
                    NormKind::Rms | NormKind::RmsFromOne => self.crew.kernels.rms_norm(&call),
                }
            }
            self.worked(10 * block * norm.width)?;
        }
        Ok(())
    }
}

const fn epilogue_of(activation: Activation) -> Epilogue {
    match activation {
        Activation::None => Epilogue::None,
        Activation::Gelu => Epilogue::Gelu,
        Activation::GeluTanh => Epilogue::GeluTanh,
        Activation::Silu => Epilogue::Silu,
        Activation::Tanh => Epilogue::Tanh,
        Activation::Relu => Epilogue::Relu,
    }
}
