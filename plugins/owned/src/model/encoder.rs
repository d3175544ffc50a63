//! An encoder at work: the forward pass over groups of whole items, without padding.
//!
//! An [`Encoder`] owns its weights, packed once at load (`load`), and never changes after. What the layers do is the
//! architecture's [`super::blueprint::Blueprint`]; this file knows every block but no architecture. Each output value
//! depends on its own item only, by one fixed chain of operations, so that batch, position and threads cannot change a
//! bit of it.

use std::ops::Range;

use super::blueprint::Activation;
use super::plan::{Group, Plan};
use super::reader::NormWeights;
use super::worker::{After, Heads, Worker};
use super::workspace::{BLOCK_ROWS, Matrix, Need};
use crate::artifact::modules::Pooling;
use crate::error::{OwnedError, Result};
use crate::kernel::attention::Span;
use crate::kernel::buffer::{Buffer, Table};
use crate::kernel::lanes::LANES;
use crate::kernel::packed::PackedLinear;
use crate::kernel::rotary::Rotary;
use crate::thread::Stopped;

/// The sizes of a model's matrices. Widths are rounded up to whole panels; the rest holds zeros.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// The same, rounded up.
    pub hidden_stride: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// The same, rounded up: heads begin this far apart.
    pub head_stride: usize,
    /// Width of the feed-forward layer, rounded up.
    pub intermediate_stride: usize,
    /// Width of the widest step after pooling, rounded up; 0 where nothing follows.
    pub step_stride: usize,
    /// Whether layers normalise their input apart from the stream.
    pub norms_inputs: bool,
    /// Whether the feed-forward block is gated.
    pub gated: bool,
    /// Whether layers multiply integers.
    pub integers: bool,
}

impl Shape {
    /// Width of all query heads side by side.
    #[must_use]
    pub const fn heads_stride(&self) -> usize {
        self.heads * self.head_stride
    }

    /// Width of queries, keys and values side by side.
    #[must_use]
    pub const fn qkv_stride(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_stride
    }

    /// The widest input of a layer.
    #[must_use]
    pub fn widest_input(&self) -> usize {
        self.hidden_stride
            .max(self.heads_stride())
            .max(self.intermediate_stride)
    }

    /// Where value `index` of the heads' outputs stands when heads begin `head_stride` apart.
    #[must_use]
    pub const fn head_place(&self, index: usize) -> usize {
        index / self.head_width * self.head_stride + index % self.head_width
    }
}

/// The first layer's input.
pub(super) struct EmbeddingWeights {
    pub words: Table,
    pub vocabulary: usize,
    pub segments: Option<(Table, usize)>,
    /// The table, and the id that the family's positions do not count.
    pub positions: Option<(Table, Option<usize>)>,
    pub norm: Option<NormWeights>,
}

/// How a block's output joins the stream.
pub(super) enum JoinWeights {
    Add,
    NormOfSum(NormWeights),
    SumOfNorm(NormWeights),
}

/// One layer's weights.
pub(super) struct LayerWeights {
    pub attention_in: Option<NormWeights>,
    /// Queries (already multiplied with the factor, unless they are normalised after), keys, values.
    pub qkv: PackedLinear,
    /// Of queries (multiplied with the factor) and keys.
    pub head_norms: Option<(NormWeights, NormWeights)>,
    /// Index among the encoder's rotaries.
    pub rotary: Option<usize>,
    pub span: Span,
    pub attention_out: PackedLinear,
    pub attention_join: JoinWeights,
    pub feed_in: Option<NormWeights>,
    pub up: PackedLinear,
    pub activation: Activation,
    pub gate: Option<PackedLinear>,
    pub down: PackedLinear,
    pub feed_join: JoinWeights,
}

/// One small layer after pooling.
pub(super) struct StepWeights {
    pub linear: PackedLinear,
    pub activation: Activation,
    pub norm: Option<NormWeights>,
}

/// A loaded encoder with its pooling and what follows.
pub struct Encoder {
    pub(super) shape: Shape,
    pub(super) embedding: EmbeddingWeights,
    pub(super) rotaries: Vec<Rotary>,
    /// For each head `2 × reach` values, and the reach.
    pub(super) distance_bias: Option<(Buffer, usize)>,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) final_norm: Option<NormWeights>,
    pub(super) pooling: Pooling,
    pub(super) steps: Vec<StepWeights>,
    /// Values that an item gives.
    pub(super) dims: usize,
    /// Bytes of all weights.
    pub(super) bytes: usize,
}

/// The batch's ids, back to back.
#[derive(Clone, Copy)]
pub struct Tokens<'t> {
    /// Token ids.
    pub ids: &'t [i32],
    /// Segment ids, or none when all are 0.
    pub type_ids: &'t [i32],
}

impl Encoder {
    /// Values that an item gives: the vector's, or 1 for a score.
    #[must_use]
    pub const fn dims(&self) -> usize {
        self.dims
    }

    /// The sizes of its matrices.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of weights held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The largest sizes that a plan asks for. Ranks that work together take larger feed-forward blocks and meet less
    /// often.
    #[must_use]
    pub fn need(plan: &Plan) -> Need {
        let largest = |size: fn(&Group) -> usize| plan.groups().iter().map(size).max().unwrap_or(0);
        let rows = largest(|group| group.rows);
        Need {
            rows,
            longest: largest(|group| group.longest),
            items: largest(|group| group.items.len()),
            block_rows: match plan {
                Plan::Together(_) => rows.min(4 * BLOCK_ROWS),
                Plan::Apart(_) => rows.min(BLOCK_ROWS),
            },
        }
    }

    /// Floating-point operations of a plan, the measure of progress.
    #[must_use]
    pub fn operations(&self, plan: &Plan) -> u64 {
        let shape = &self.shape;
        let feeds = if shape.gated { 3 } else { 2 };
        let per_row =
            2 * shape.hidden_stride * (shape.qkv_stride() + shape.heads_stride() + feeds * shape.intermediate_stride)
                + 20 * shape.hidden;
        let mut total = 0;
        for item in plan.groups().iter().flat_map(|group| &group.items) {
            let tokens = item.tokens.len() as u64;
            total += tokens * per_row as u64 * self.layers.len() as u64;
            for layer in &self.layers {
                let reach = layer.span.before.saturating_add(layer.span.after).saturating_add(1) as u64;
                total += 4 * tokens * tokens.min(reach) * (shape.heads * shape.head_width) as u64;
            }
        }
        total
    }

    /// Computes a group and writes what each item gives to its row of `out` (before any normalisation).
    ///
    /// # Errors
    /// [`Stopped`].
    ///
    /// # Safety
    /// `tokens` was checked by [`Self::check_ids`] and no item is longer than the load allowed; the worker's views have
    /// room for the group; ranks that share matrices all run this with the same group; `out` has a row of `dims` values
    /// for each item, which nobody else touches.
    pub unsafe fn forward(
        &self,
        worker: &mut Worker<'_>,
        tokens: Tokens<'_>,
        group: &Group,
        out: Matrix,
    ) -> std::result::Result<(), Stopped> {
        let stream = worker.views().stream;
        let rows = group.rows;
        // SAFETY: every rank writes the shares of `worker.share` and its private matrices only, and meets the others
        // between writing shared rows and reading another's part of them; sizes are the caller's promise.
        unsafe {
            self.embed(tokens, group, stream);
            if let Some(norm) = &self.embedding.norm {
                worker.norm(stream, stream, rows, norm)?;
            }
            for layer in &self.layers {
                self.attend(worker, group, layer)?;
                self.feed(worker, rows, layer)?;
            }
            if worker.leads() {
                if let Some(norm) = &self.final_norm {
                    worker.norm(stream, stream, rows, norm)?;
                }
                self.finish(worker, group, out)?;
            }
        }
        Ok(())
    }

    /// A layer's attention, from stream to stream.
    ///
    /// # Safety
    /// As [`Self::forward`].
    unsafe fn attend(
        &self,
        worker: &mut Worker<'_>,
        group: &Group,
        layer: &LayerWeights,
    ) -> std::result::Result<(), Stopped> {
        let (views, shape, rows) = (worker.views(), &self.shape, group.rows);
        let groups = worker.share(shape.kv_heads);
        let per_group = shape.heads / shape.kv_heads;
        let heads = groups.start * per_group..groups.end * per_group;
        let keys = shape.heads + groups.start..shape.heads + groups.end;
        let values = keys.start + shape.kv_heads..keys.end + shape.kv_heads;
        let panels = |heads: &Range<usize>| {
            let of_head = shape.head_stride / LANES;
            heads.start * of_head..heads.end * of_head
        };
        // SAFETY: the heads of `share` are this rank's alone until the ranks meet; the rest is the caller's promise.
        unsafe {
            let input = match &layer.attention_in {
                Some(norm) => {
                    worker.norm(views.stream, views.normed, rows, norm)?;
                    views.normed
                }
                None => views.stream,
            };
            let mine = [panels(&heads), panels(&keys), panels(&values)];
            // A rank that has all heads computes them at once: queries, keys and values are neighbours.
            let all = mine[0].start..mine[2].end;
            let whole = [all.clone()];
            let at_once = all.len() == shape.qkv_stride() / LANES;
            for part in if at_once { &whole[..] } else { &mine[..] } {
                let none = After::Activate(Activation::None);
                worker.linear((input, 0), &layer.qkv, part.clone(), (views.qkv, 0, rows), none)?;
            }
            if let Some((query_norm, key_norm)) = &layer.head_norms {
                for (part, norm) in [(&heads, query_norm), (&keys, key_norm)] {
                    for head in part.clone() {
                        worker.norm_columns(views.qkv, views.qkv, head * shape.head_stride, rows, norm)?;
                    }
                }
            }
            if let Some(rotary) = layer.rotary {
                self.turn(&self.rotaries[rotary], group, views.qkv, [&heads, &keys]);
            }
            let call = Heads {
                groups,
                per_group,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                widths: (shape.head_width, shape.head_stride),
                span: layer.span,
                distance_bias: match &self.distance_bias {
                    Some((bias, reach)) => (bias.values(), *reach),
                    None => (&[], 0),
                },
            };
            let mut first = 0;
            for item in &group.items {
                worker.attention(&call, first, item.tokens.len())?;
                first += item.tokens.len();
            }
            worker.meet()?;
            let share = worker.share(shape.hidden_stride / LANES);
            let after = before_join(&layer.attention_join, views.stream, 0);
            worker.linear(
                (views.context, 0),
                &layer.attention_out,
                share,
                (views.sum, 0, rows),
                after,
            )?;
            worker.meet()?;
            self.join(worker, rows, &layer.attention_join)
        }
    }

    /// A layer's feed-forward block, from stream to stream.
    ///
    /// # Safety
    /// As [`Self::forward`].
    unsafe fn feed(
        &self,
        worker: &mut Worker<'_>,
        rows: usize,
        layer: &LayerWeights,
    ) -> std::result::Result<(), Stopped> {
        let (views, shape) = (worker.views(), &self.shape);
        let inner_share = worker.share(shape.intermediate_stride / LANES);
        let hidden_share = worker.share(shape.hidden_stride / LANES);
        // SAFETY: the columns of `share` are this rank's alone until the ranks meet; the rest is the caller's promise.
        unsafe {
            let input = match &layer.feed_in {
                Some(norm) => {
                    worker.norm(views.stream, views.normed, rows, norm)?;
                    views.normed
                }
                None => views.stream,
            };
            for first in (0..rows).step_by(views.inner.rows.max(1)) {
                let block = views.inner.rows.min(rows - first);
                let activate = After::Activate(layer.activation);
                let input = (input, first);
                match &layer.gate {
                    None => {
                        worker.linear(input, &layer.up, inner_share.clone(), (views.inner, 0, block), activate)?;
                    }
                    Some(gate) => {
                        worker.linear(
                            input,
                            &layer.up,
                            inner_share.clone(),
                            (views.ungated, 0, block),
                            activate,
                        )?;
                        let times = After::Times(views.ungated, 0);
                        worker.linear(input, gate, inner_share.clone(), (views.inner, 0, block), times)?;
                    }
                }
                worker.meet()?;
                let after = before_join(&layer.feed_join, views.stream, first);
                worker.linear(
                    (views.inner, 0),
                    &layer.down,
                    hidden_share.clone(),
                    (views.sum, first, block),
                    after,
                )?;
                worker.meet()?;
            }
            self.join(worker, rows, &layer.feed_join)
        }
    }

    /// Brings a block's output, complete in `sum`, into this rank's stream.
    ///
    /// # Safety
    /// As [`Self::forward`].
    unsafe fn join(
        &self,
        worker: &mut Worker<'_>,
        rows: usize,
        join: &JoinWeights,
    ) -> std::result::Result<(), Stopped> {
        let views = worker.views();
        let stride = self.shape.hidden_stride;
        // SAFETY: the stream and the normed copy are this rank's alone, the sum is complete and nobody writes it now.
        unsafe {
            let rows_of = |matrix: Matrix| std::slice::from_raw_parts(matrix.first.cast_const(), rows * stride);
            let stream = || std::slice::from_raw_parts_mut(views.stream.first, rows * stride);
            assert!(rows <= views.stream.rows && rows <= views.sum.rows);
            match join {
                JoinWeights::NormOfSum(norm) => return worker.norm(views.sum, views.stream, rows, norm),
                JoinWeights::Add => stream().copy_from_slice(rows_of(views.sum)),
                JoinWeights::SumOfNorm(norm) => {
                    worker.norm(views.sum, views.normed, rows, norm)?;
                    for (stream, normed) in stream().iter_mut().zip(rows_of(views.normed)) {
                        *stream += normed;
                    }
                }
            }
        }
        worker.worked(2 * rows * stride)
    }

    /// Turns this rank's queries and keys to their positions.
    ///
    /// # Safety
    /// As [`Self::forward`]; the heads are this rank's and complete.
    unsafe fn turn(&self, rotary: &Rotary, group: &Group, qkv: Matrix, parts: [&Range<usize>; 2]) {
        let shape = &self.shape;
        let mut row = 0;
        for item in &group.items {
            for position in 0..item.tokens.len() {
                for head in parts.into_iter().flat_map(Clone::clone) {
                    let first = qkv.at(row, head * shape.head_stride);
                    // SAFETY: a head is `head_width` values from its first, inside its row, and this rank's alone.
                    let head = unsafe { std::slice::from_raw_parts_mut(first, shape.head_width) };
                    rotary.turn(position, head);
                }
                row += 1;
            }
        }
    }

    /// Checks that every id has a row in its table.
    ///
    /// # Errors
    /// [`OwnedError::InvalidArgument`] naming the position.
    pub fn check_ids(&self, tokens: Tokens<'_>) -> Result<()> {
        let outside = |ids: &[i32], rows: usize| {
            ids.iter()
                .position(|&id| usize::try_from(id).map_or(true, |id| id >= rows))
        };
        if let Some(at) = outside(tokens.ids, self.embedding.vocabulary) {
            return Err(OwnedError::InvalidArgument(format!(
                "token {at} of the batch has id {}, the model's vocabulary has {} entries",
                tokens.ids[at], self.embedding.vocabulary
            )));
        }
        // A model without a segment table takes no segments; what the tokenizer says of them is of no use to it.
        if let Some((_, segments)) = self.embedding.segments
            && let Some(at) = outside(tokens.type_ids, segments)
        {
            return Err(OwnedError::InvalidArgument(format!(
                "token {at} of the batch has segment {}, the model has {segments} segments",
                tokens.type_ids[at]
            )));
        }
        Ok(())
    }

    /// Word + segment + position, in the order of the reference implementation.
    ///
    /// # Safety
    /// As [`Self::forward`].
    unsafe fn embed(&self, tokens: Tokens<'_>, group: &Group, stream: Matrix) {
        let stride = self.shape.hidden_stride;
        let row_of = |table: &'_ Table, row: usize| -> Range<usize> {
            debug_assert!((row + 1) * stride <= table.values().len());
            row * stride..(row + 1) * stride
        };
        let index = |ids: &[i32], at: usize| ids.get(at).map_or(0, |&id| usize::try_from(id).unwrap_or(0));
        let embedding = &self.embedding;
        let mut row = 0;
        for item in &group.items {
            let mut counted = 0;
            for (place, at) in item.tokens.clone().enumerate() {
                let id = index(tokens.ids, at);
                // SAFETY: the stream is private to this rank and has `stride` values from column 0 of the row.
                let out = unsafe { std::slice::from_raw_parts_mut(stream.at(row, 0), stride) };
                out.copy_from_slice(&embedding.words.values()[row_of(&embedding.words, id)]);
                if let Some((segments, _)) = &embedding.segments {
                    add(out, &segments.values()[row_of(segments, index(tokens.type_ids, at))]);
                }
                if let Some((positions, pad)) = &embedding.positions {
                    let position = match *pad {
                        None => place,
                        Some(pad) if pad == id => pad,
                        Some(pad) => {
                            counted += 1;
                            pad + counted
                        }
                    };
                    add(out, &positions.values()[row_of(positions, position)]);
                }
                row += 1;
            }
        }
    }

    /// Pools each item and runs what follows. The mean is summed in f64, token after token.
    ///
    /// # Safety
    /// As [`Self::forward`]; on the leading rank only.
    unsafe fn finish(&self, worker: &mut Worker<'_>, group: &Group, out: Matrix) -> std::result::Result<(), Stopped> {
        let views = worker.views();
        let mut sums = vec![0.0_f64; self.shape.hidden];
        let mut first = 0;
        for (index, item) in group.items.iter().enumerate() {
            let target = if self.steps.is_empty() {
                out.at(item.index, 0)
            } else {
                views.vectors[0].at(index, 0)
            };
            // SAFETY: the row is ours alone and has `hidden` values.
            let target = unsafe { std::slice::from_raw_parts_mut(target, self.shape.hidden) };
            // SAFETY: the stream is private to this rank and complete.
            unsafe { self.pool(views.stream, first..first + item.tokens.len(), &mut sums, target) };
            first += item.tokens.len();
        }
        let [mut from, mut to] = views.vectors;
        let count = group.items.len();
        for step in &self.steps {
            let panels = 0..step.linear.columns() / LANES;
            let activate = After::Activate(step.activation);
            // SAFETY: both matrices are this rank's alone.
            unsafe {
                worker.linear((from, 0), &step.linear, panels, (to, 0, count), activate)?;
                if let Some(norm) = &step.norm {
                    worker.norm(to, to, count, norm)?;
                }
            }
            std::mem::swap(&mut from, &mut to);
        }
        if !self.steps.is_empty() {
            for (index, item) in group.items.iter().enumerate() {
                // SAFETY: `from` has `dims` values a row, and the item's row of `out` is ours alone.
                unsafe { std::ptr::copy_nonoverlapping(from.at(index, 0), out.at(item.index, 0), self.dims) };
            }
        }
        Ok(())
    }

    /// # Safety
    /// The rows of the stream are complete and no rank writes them.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the mean is rounded to f32; counts are small"
    )]
    unsafe fn pool(&self, stream: Matrix, rows: Range<usize>, sums: &mut [f64], target: &mut [f32]) {
        let hidden = self.shape.hidden;
        // SAFETY: the caller's promise.
        let row = |row: usize| unsafe { std::slice::from_raw_parts(stream.at(row, 0).cast_const(), hidden) };
        match self.pooling {
            Pooling::Cls => target.copy_from_slice(row(rows.start)),
            Pooling::Last => target.copy_from_slice(row(rows.end - 1)),
            Pooling::Mean => {
                sums.fill(0.0);
                let count = rows.len() as f64;
                for token in rows {
                    for (sum, &value) in sums.iter_mut().zip(row(token)) {
                        *sum += f64::from(value);
                    }
                }
                for (target, sum) in target.iter_mut().zip(sums) {
                    *target = (*sum / count) as f32;
                }
            }
        }
    }
}

/// What the linear layer before a join adds to its sums.
const fn before_join(join: &JoinWeights, stream: Matrix, row: usize) -> After {
    match join {
        JoinWeights::Add | JoinWeights::NormOfSum(_) => After::Add(stream, row),
        JoinWeights::SumOfNorm(_) => After::Activate(Activation::None),
    }
}

fn add(out: &mut [f32], row: &[f32]) {
    for (out, value) in out.iter_mut().zip(row) {
        *out += value;
    }
}
