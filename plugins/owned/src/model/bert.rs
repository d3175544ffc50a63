//! BERT encoders (Devlin et al. 2019): learned positions, post-norm layers, GELU by the error function.
//!
//! A [`Bert`] owns its weights, packed once at load, and never changes after. The forward pass works on groups of
//! whole items without padding; each output value depends on its own item only, by one fixed chain of operations, so
//! that batch, position and threads cannot change a bit of it.

use std::path::Path;

use super::plan::{Group, Plan};
use super::reader::{Norm, Reader, value_count};
use super::worker::{After, NormWeights, Worker};
use super::workspace::{BLOCK_ROWS, Matrix};
use crate::artifact::config::BertConfig;
use crate::artifact::modules::Pooling;
use crate::artifact::safetensors::SafeTensors;
use crate::error::{OwnedError, Result};
use crate::kernel::buffer::Buffer;
use crate::kernel::lanes::LANES;
use crate::kernel::packed::PackedLinear;
use crate::thread::Stopped;

/// The sizes of a model's matrices. Widths are rounded up to whole panels; the rest holds zeros.
#[derive(Clone, Debug)]
pub struct BertShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// The same, rounded up.
    pub hidden_stride: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// The same, rounded up: heads begin this far apart.
    pub head_stride: usize,
    /// Width of the feed-forward layer, rounded up.
    pub intermediate_stride: usize,
}

impl BertShape {
    fn new(config: &BertConfig) -> Self {
        Self {
            hidden: config.hidden,
            hidden_stride: config.hidden.next_multiple_of(LANES),
            heads: config.heads,
            head_width: config.head_width(),
            head_stride: config.head_width().next_multiple_of(LANES),
            intermediate_stride: config.intermediate.next_multiple_of(LANES),
        }
    }

    /// Width of all heads side by side.
    #[must_use]
    pub const fn heads_stride(&self) -> usize {
        self.heads * self.head_stride
    }

    /// Where value `index` of the residual stream's width stands among the heads.
    const fn head_place(&self, index: usize) -> usize {
        index / self.head_width * self.head_stride + index % self.head_width
    }
}

struct Layer {
    /// Queries (already divided by the root of the head's width), keys, values.
    qkv: PackedLinear,
    attention_out: PackedLinear,
    attention_norm: Norm,
    up: PackedLinear,
    down: PackedLinear,
    out_norm: Norm,
}

/// A loaded BERT encoder.
pub struct Bert {
    config: BertConfig,
    shape: BertShape,
    words: Buffer,
    positions: Buffer,
    segments: Buffer,
    embedding_norm: Norm,
    layers: Vec<Layer>,
}

impl Bert {
    /// Builds a model from sound weights. `progress` is told bytes read and bytes in all, and says `false` to stop.
    /// `unused` gets the names of tensors that this architecture does not know.
    ///
    /// # Errors
    /// [`OwnedError::Tensor`] for a missing, mis-shaped, mistyped or non-finite tensor, before anything of its size is
    /// allocated; read errors; [`OwnedError::OutOfMemory`]; [`OwnedError::Cancelled`].
    pub fn load(
        config: BertConfig,
        weights: &Path,
        progress: &mut dyn FnMut(u64, u64) -> bool,
        unused: &mut Vec<String>,
    ) -> Result<Self> {
        let tensors = SafeTensors::open(weights)?;
        let prefix = if tensors.has("bert.embeddings.word_embeddings.weight") {
            "bert."
        } else {
            ""
        };
        let plan = tensor_plan(&config);
        for (name, shape) in &plan {
            tensors.require(&format!("{prefix}{name}"), shape)?;
        }
        unused.extend(unused_names(&tensors, prefix, &plan));
        let total = plan.iter().map(|(_, shape)| value_count(shape)).sum();
        let shape = BertShape::new(&config);
        let mut reader = Reader::new(tensors, prefix, total, progress);
        let hidden = config.hidden;
        let words = reader.table("embeddings.word_embeddings.weight", config.vocabulary, hidden)?;
        let positions = reader.table("embeddings.position_embeddings.weight", config.positions, hidden)?;
        let segments = reader.table("embeddings.token_type_embeddings.weight", config.segments, hidden)?;
        let embedding_norm = reader.norm("embeddings.LayerNorm", hidden)?;
        let mut layers = Vec::with_capacity(config.layers);
        for number in 0..config.layers {
            let name = |part: &str| format!("encoder.layer.{number}.{part}");
            let mut qkv = PackedLinear::zeroed(shape.hidden_stride, 3 * shape.heads_stride())?;
            #[expect(clippy::cast_precision_loss, reason = "a head's width is at most 65,536")]
            let query_factor = 1.0 / (shape.head_width as f64).sqrt();
            for (part, (projection, factor)) in [("query", query_factor), ("key", 1.0), ("value", 1.0)]
                .into_iter()
                .enumerate()
            {
                let column = |output| part * shape.heads_stride() + shape.head_place(output);
                let from = name(&format!("attention.self.{projection}"));
                reader.linear(&from, (hidden, hidden), &mut qkv, factor, column, |input| input)?;
            }
            let mut attention_out = PackedLinear::zeroed(shape.heads_stride(), hidden)?;
            let from = name("attention.output.dense");
            reader.linear(
                &from,
                (hidden, hidden),
                &mut attention_out,
                1.0,
                |output| output,
                |input| shape.head_place(input),
            )?;
            let attention_norm = reader.norm(&name("attention.output.LayerNorm"), hidden)?;
            let mut up = PackedLinear::zeroed(shape.hidden_stride, config.intermediate)?;
            let from = name("intermediate.dense");
            reader.linear(
                &from,
                (config.intermediate, hidden),
                &mut up,
                1.0,
                |output| output,
                |input| input,
            )?;
            let mut down = PackedLinear::zeroed(shape.intermediate_stride, hidden)?;
            let from = name("output.dense");
            reader.linear(
                &from,
                (hidden, config.intermediate),
                &mut down,
                1.0,
                |output| output,
                |input| input,
            )?;
            let out_norm = reader.norm(&name("output.LayerNorm"), hidden)?;
            layers.push(Layer {
                qkv,
                attention_out,
                attention_norm,
                up,
                down,
                out_norm,
            });
        }
        Ok(Self {
            config,
            shape,
            words,
            positions,
            segments,
            embedding_norm,
            layers,
        })
    }

    /// The model's sizes.
    #[must_use]
    pub const fn config(&self) -> &BertConfig {
        &self.config
    }

    /// The sizes of its matrices.
    #[must_use]
    pub const fn shape(&self) -> &BertShape {
        &self.shape
    }

    /// Bytes of weights held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layer = |layer: &Layer| {
            [&layer.qkv, &layer.attention_out, &layer.up, &layer.down]
                .into_iter()
                .map(PackedLinear::bytes)
                .sum::<usize>()
                + layer.attention_norm.bytes()
                + layer.out_norm.bytes()
        };
        self.words.bytes()
            + self.positions.bytes()
            + self.segments.bytes()
            + self.embedding_norm.bytes()
            + self.layers.iter().map(layer).sum::<usize>()
    }

    /// Rows of a feed-forward block under a plan: ranks that work together take larger ones and meet less often.
    #[must_use]
    pub fn block_rows(plan: &Plan) -> usize {
        let largest = plan.groups().iter().map(|group| group.rows).max().unwrap_or(0);
        match plan {
            Plan::Together(_) => largest.min(4 * BLOCK_ROWS),
            Plan::Apart(_) => largest.min(BLOCK_ROWS),
        }
    }

    /// Floating-point operations of a plan, the measure of progress.
    #[must_use]
    pub fn operations(&self, plan: &Plan) -> u64 {
        let shape = &self.shape;
        let per_row =
            2 * shape.hidden_stride * (4 * shape.heads_stride() + 2 * shape.intermediate_stride) + 20 * shape.hidden;
        let mut total = 0;
        for item in plan.groups().iter().flat_map(|group| &group.items) {
            let tokens = item.tokens.len() as u64;
            total += tokens * per_row as u64 + 4 * tokens * tokens * (shape.heads * shape.head_width) as u64;
        }
        total * self.layers.len() as u64
    }

    /// Computes a group and writes the pooled vector of each item to its row of `out` (before any normalisation).
    ///
    /// # Errors
    /// [`Stopped`].
    ///
    /// # Safety
    /// `tokens` was checked by [`Self::check_ids`]; the worker's views have room for the group; ranks that share
    /// matrices all run this with the same group; `out` has a row of `hidden` values for each item, which nobody else
    /// touches.
    pub unsafe fn forward(
        &self,
        worker: &mut Worker<'_>,
        tokens: Tokens<'_>,
        group: &Group,
        pooling: Pooling,
        out: Matrix,
    ) -> std::result::Result<(), Stopped> {
        let views = worker.views();
        let shape = &self.shape;
        let rows = group.rows;
        let panels = |stride: usize| stride / LANES;
        // SAFETY: every rank writes the shares of `worker.share` and its private stream only, and meets the others
        // between writing shared rows and reading another's part of them; sizes are the caller's promise.
        unsafe {
            self.embed(tokens, group, views.stream);
            worker.layer_norm(views.stream, views.stream, rows, &self.norm(&self.embedding_norm))?;
            for layer in &self.layers {
                let heads = worker.share(shape.heads);
                for part in 0..3 {
                    let first = panels(part * shape.heads_stride());
                    let of_head = panels(shape.head_stride);
                    let range = first + heads.start * of_head..first + heads.end * of_head;
                    worker.linear(
                        (views.stream, 0),
                        &layer.qkv,
                        range,
                        (views.qkv, 0, rows),
                        After::Nothing,
                    )?;
                }
                let mut first = 0;
                for item in &group.items {
                    let widths = (shape.head_width, shape.head_stride);
                    worker.attention(heads.clone(), widths, first, item.tokens.len())?;
                    first += item.tokens.len();
                }
                worker.meet()?;
                let hidden_share = worker.share(panels(shape.hidden_stride));
                let residual = After::Add(views.stream, 0);
                worker.linear(
                    (views.context, 0),
                    &layer.attention_out,
                    hidden_share.clone(),
                    (views.sum, 0, rows),
                    residual,
                )?;
                worker.meet()?;
                worker.layer_norm(views.sum, views.stream, rows, &self.norm(&layer.attention_norm))?;
                let up_share = worker.share(panels(shape.intermediate_stride));
                for first in (0..rows).step_by(views.inner.rows.max(1)) {
                    let block = views.inner.rows.min(rows - first);
                    worker.linear(
                        (views.stream, first),
                        &layer.up,
                        up_share.clone(),
                        (views.inner, 0, block),
                        After::Gelu,
                    )?;
                    worker.meet()?;
                    let residual = After::Add(views.stream, first);
                    worker.linear(
                        (views.inner, 0),
                        &layer.down,
                        hidden_share.clone(),
                        (views.sum, first, block),
                        residual,
                    )?;
                    worker.meet()?;
                }
                worker.layer_norm(views.sum, views.stream, rows, &self.norm(&layer.out_norm))?;
            }
            if worker.leads() {
                self.pool(group, pooling, views.stream, out);
            }
        }
        Ok(())
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
        if let Some(at) = outside(tokens.ids, self.config.vocabulary) {
            return Err(OwnedError::InvalidArgument(format!(
                "token {at} of the batch has id {}, the model's vocabulary has {} entries",
                tokens.ids[at], self.config.vocabulary
            )));
        }
        if let Some(at) = outside(tokens.type_ids, self.config.segments) {
            return Err(OwnedError::InvalidArgument(format!(
                "token {at} of the batch has segment {}, the model has {} segments",
                tokens.type_ids[at], self.config.segments
            )));
        }
        Ok(())
    }

    fn norm<'w>(&'w self, norm: &'w Norm) -> NormWeights<'w> {
        NormWeights {
            weight: norm.weight.values(),
            bias: norm.bias.values(),
            eps: self.config.layer_norm_eps,
            width: self.shape.hidden,
        }
    }

    /// Word + segment + position, in the order of the reference implementation.
    ///
    /// # Safety
    /// As [`Self::forward`].
    unsafe fn embed(&self, tokens: Tokens<'_>, group: &Group, stream: Matrix) {
        let stride = self.shape.hidden_stride;
        let row_of = |table: &'_ Buffer, row: usize| -> std::ops::Range<usize> {
            debug_assert!((row + 1) * stride <= table.values().len());
            row * stride..(row + 1) * stride
        };
        let index = |ids: &[i32], at: usize| ids.get(at).map_or(0, |&id| usize::try_from(id).unwrap_or(0));
        let mut row = 0;
        for item in &group.items {
            for (position, at) in item.tokens.clone().enumerate() {
                let word = &self.words.values()[row_of(&self.words, index(tokens.ids, at))];
                let segment = &self.segments.values()[row_of(&self.segments, index(tokens.type_ids, at))];
                let place = &self.positions.values()[row_of(&self.positions, position)];
                // SAFETY: the stream is private to this rank and has `stride` values from column 0 of the row.
                let out = unsafe { std::slice::from_raw_parts_mut(stream.at(row, 0), stride) };
                for (((out, word), segment), place) in out.iter_mut().zip(word).zip(segment).zip(place) {
                    *out = word + segment + place;
                }
                row += 1;
            }
        }
    }

    /// One vector per item. The mean is summed in f64, token after token.
    ///
    /// # Safety
    /// As [`Self::forward`].
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the mean is rounded to f32; counts are small"
    )]
    unsafe fn pool(&self, group: &Group, pooling: Pooling, stream: Matrix, out: Matrix) {
        let hidden = self.shape.hidden;
        let mut first = 0;
        let mut sums = vec![0.0_f64; hidden];
        for item in &group.items {
            // SAFETY: the item's row is ours alone and has `hidden` values.
            let target = unsafe { std::slice::from_raw_parts_mut(out.at(item.index, 0), hidden) };
            // SAFETY: the stream is private to this rank and complete.
            let row = |row: usize| unsafe { std::slice::from_raw_parts(stream.at(row, 0).cast_const(), hidden) };
            match pooling {
                Pooling::Cls => target.copy_from_slice(row(first)),
                Pooling::Mean => {
                    sums.fill(0.0);
                    for token in 0..item.tokens.len() {
                        for (sum, &value) in sums.iter_mut().zip(row(first + token)) {
                            *sum += f64::from(value);
                        }
                    }
                    let count = item.tokens.len() as f64;
                    for (target, sum) in target.iter_mut().zip(&sums) {
                        *target = (sum / count) as f32;
                    }
                }
            }
            first += item.tokens.len();
        }
    }
}

/// The batch's ids, back to back.
#[derive(Clone, Copy)]
pub struct Tokens<'t> {
    /// Token ids.
    pub ids: &'t [i32],
    /// Segment ids, or none when all are 0.
    pub type_ids: &'t [i32],
}

/// Every tensor that the encoder needs, with its shape, in the order of reading.
fn tensor_plan(config: &BertConfig) -> Vec<(String, Vec<usize>)> {
    let hidden = config.hidden;
    let mut plan = vec![
        (
            "embeddings.word_embeddings.weight".to_owned(),
            vec![config.vocabulary, hidden],
        ),
        (
            "embeddings.position_embeddings.weight".to_owned(),
            vec![config.positions, hidden],
        ),
        (
            "embeddings.token_type_embeddings.weight".to_owned(),
            vec![config.segments, hidden],
        ),
        ("embeddings.LayerNorm.weight".to_owned(), vec![hidden]),
        ("embeddings.LayerNorm.bias".to_owned(), vec![hidden]),
    ];
    for number in 0..config.layers {
        let linears = [
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", config.intermediate, hidden),
            ("output.dense", hidden, config.intermediate),
        ];
        for (name, outputs, inputs) in linears {
            plan.push((format!("encoder.layer.{number}.{name}.weight"), vec![outputs, inputs]));
            plan.push((format!("encoder.layer.{number}.{name}.bias"), vec![outputs]));
        }
        for name in ["attention.output.LayerNorm", "output.LayerNorm"] {
            plan.push((format!("encoder.layer.{number}.{name}.weight"), vec![hidden]));
            plan.push((format!("encoder.layer.{number}.{name}.bias"), vec![hidden]));
        }
    }
    plan
}

/// The tensors that are neither needed nor known to be left over from training.
fn unused_names(tensors: &SafeTensors, prefix: &str, plan: &[(String, Vec<usize>)]) -> Vec<String> {
    let needed: std::collections::HashSet<String> = plan.iter().map(|(name, _)| format!("{prefix}{name}")).collect();
    let left_over = ["embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"];
    tensors
        .names()
        .into_iter()
        .filter(|&name| !needed.contains(name) && !left_over.contains(&name.strip_prefix(prefix).unwrap_or(name)))
        .map(str::to_owned)
        .collect()
}
