//! From a blueprint and a file of weights to an encoder.
//!
//! Owns nothing after a load. Every tensor is checked to be there, with its shape and type, before anything of its size
//! is allocated; values are checked as they are read (`artifact::safetensors`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::blueprint::{Blueprint, DistanceBias, Join, Layer, Norm, Step};
use super::encoder::{EmbeddingWeights, Encoder, JoinWeights, LayerWeights, Shape, StepWeights};
use super::reader::{NormWeights, Progress, Reader, TensorPlan};
use crate::artifact::modules::Pooling;
use crate::artifact::safetensors::SafeTensors;
use crate::error::Result;
use crate::kernel::buffer::{Arena, Buffer, OutOfMemory};
use crate::kernel::lanes::LANES;
use crate::kernel::packed::{Arithmetic, PackedLinear};
use crate::kernel::rotary::Rotary;

/// What follows an encoder's last layer.
#[derive(Debug)]
pub struct Output {
    /// How token vectors become one.
    pub pooling: Pooling,
    /// Small layers after it, each in the model's own file or, with a path, in another.
    pub steps: Vec<(Option<PathBuf>, Step)>,
}

/// A loaded encoder and the file's tensors that it has no use for.
pub struct LoadedEncoder {
    /// The encoder.
    pub encoder: Encoder,
    /// Names of tensors that are neither needed nor known to be left over.
    pub unused: Vec<String>,
}

/// Loads an encoder for items of up to `max_tokens` tokens, whose layers are computed as said. What follows pooling is
/// computed in f32.
///
/// # Errors
/// [`crate::error::OwnedError`]: a tensor that is missing, mis-shaped, mistyped or not finite; read errors; out of
/// memory; cancelled.
pub fn load(
    blueprint: &Blueprint,
    output: &Output,
    weights: &Path,
    (max_tokens, arithmetic): (usize, Arithmetic),
    progress: Progress<'_>,
) -> Result<LoadedEncoder> {
    let tensors = SafeTensors::open(weights)?;
    let exists = |prefix: &&str| tensors.has(&format!("{prefix}{}.weight", blueprint.embedding.words));
    let prefix = blueprint.prefixes.iter().copied().find(exists).unwrap_or("");
    let mut plan = tensor_plan(blueprint, prefix);
    for (_, step) in output.steps.iter().filter(|(file, _)| file.is_none()) {
        add_step(&mut plan, step);
    }
    plan.check(&tensors)?;
    let mut total = plan.values();
    for (file, step) in &output.steps {
        if let Some(path) = file {
            let mut plan = TensorPlan::default();
            add_step(&mut plan, step);
            plan.check(&SafeTensors::open(path)?)?;
            total += plan.values();
        }
    }
    let unused = plan.unused(&tensors, prefix, blueprint.left_over);
    let mut arena = Arena::for_values(usize::try_from(total).unwrap_or(usize::MAX));
    let mut reader = Reader::new(tensors, prefix, &mut arena, (0, total), &mut *progress);
    let shape = shape(blueprint, output, arithmetic);
    let hidden = blueprint.hidden;

    let embedding = &blueprint.embedding;
    let words = reader.table(
        &named(&embedding.words),
        (blueprint.vocabulary, hidden),
        embedding.scale,
    )?;
    let positions = match &embedding.positions {
        None => None,
        Some(table) => Some((reader.table(&named(&table.name), (table.rows, hidden), 1.0)?, table.pad)),
    };
    let segments = match &embedding.segments {
        None => None,
        Some((name, rows)) => Some((reader.table(&named(name), (*rows, hidden), 1.0)?, *rows)),
    };
    let embedding = EmbeddingWeights {
        words,
        vocabulary: blueprint.vocabulary,
        segments,
        positions,
        norm: optional_norm(&mut reader, embedding.norm.as_ref(), hidden)?,
    };
    let distance_bias = match &blueprint.distance_bias {
        None => None,
        Some(bias) => Some(distances(&mut reader, bias, blueprint.heads, max_tokens)?),
    };
    let mut rotaries = Vec::new();
    let mut known_bases = HashMap::new();
    let mut layers = Vec::with_capacity(blueprint.layers.len());
    for layer in &blueprint.layers {
        let rotary = match layer.rotary_base {
            None => None,
            Some(base) => Some(match known_bases.get(&base.to_bits()) {
                Some(&index) => index,
                None => {
                    rotaries.push(Rotary::new(max_tokens, blueprint.head_width, base)?);
                    known_bases.insert(base.to_bits(), rotaries.len() - 1);
                    rotaries.len() - 1
                }
            }),
        };
        layers.push(read_layer(&mut reader, blueprint, &shape, layer, rotary)?);
    }
    let final_norm = optional_norm(&mut reader, blueprint.final_norm.as_ref(), hidden)?;
    reader.drop_prefix();
    let mut steps = Vec::with_capacity(output.steps.len());
    let mut done = 0;
    for (file, step) in &output.steps {
        if file.is_none() {
            steps.push(read_step(&mut reader, step)?);
            done = reader.done();
        }
    }
    done = done.max(reader.done());
    drop(reader);
    for (index, (file, step)) in output.steps.iter().enumerate() {
        if let Some(path) = file {
            let mut reader = Reader::new(SafeTensors::open(path)?, "", &mut arena, (done, total), &mut *progress);
            steps.insert(index, read_step(&mut reader, step)?);
            done = reader.done();
        }
    }
    let mut encoder = Encoder {
        dims: output.steps.last().map_or(hidden, |(_, step)| step.outputs),
        shape,
        embedding,
        rotaries,
        distance_bias,
        layers,
        final_norm,
        pooling: output.pooling,
        steps,
        bytes: 0,
    };
    encoder.bytes = bytes(&encoder);
    Ok(LoadedEncoder { encoder, unused })
}

/// A table's tensor.
fn named(table: &str) -> String {
    format!("{table}.weight")
}

fn shape(blueprint: &Blueprint, output: &Output, arithmetic: Arithmetic) -> Shape {
    let widest = output
        .steps
        .iter()
        .map(|(_, step)| step.inputs.max(step.outputs))
        .max()
        .unwrap_or(0);
    Shape {
        hidden: blueprint.hidden,
        hidden_stride: blueprint.hidden.next_multiple_of(LANES),
        heads: blueprint.heads,
        kv_heads: blueprint.kv_heads,
        head_width: blueprint.head_width,
        head_stride: blueprint.head_width.next_multiple_of(LANES),
        intermediate_stride: blueprint.intermediate.next_multiple_of(LANES),
        step_stride: widest.next_multiple_of(LANES),
        norms_inputs: blueprint.layers.iter().any(|layer| {
            layer.attention_in.is_some() || layer.feed_in.is_some() || matches!(layer.feed_join, Join::SumOfNorm(_))
        }),
        gated: blueprint.layers.iter().any(|layer| layer.gate.is_some()),
        integers: arithmetic == Arithmetic::S16,
    }
}

/// Every tensor of the encoder, in the order of reading.
fn tensor_plan(blueprint: &Blueprint, prefix: &str) -> TensorPlan {
    let mut plan = TensorPlan::default();
    let hidden = blueprint.hidden;
    let embedding = &blueprint.embedding;
    plan.add(
        format!("{prefix}{}.weight", embedding.words),
        vec![blueprint.vocabulary, hidden],
    );
    if let Some(table) = &embedding.positions {
        plan.add(format!("{prefix}{}.weight", table.name), vec![table.rows, hidden]);
    }
    if let Some((name, rows)) = &embedding.segments {
        plan.add(format!("{prefix}{name}.weight"), vec![*rows, hidden]);
    }
    for norm in embedding.norm.iter().chain(&blueprint.final_norm) {
        plan.add_norm(prefix, norm, hidden);
    }
    if let Some(bias) = &blueprint.distance_bias {
        plan.add(
            format!("{prefix}{}.weight", bias.name),
            vec![bias.buckets, blueprint.heads],
        );
    }
    for layer in &blueprint.layers {
        for linear in [&layer.query, &layer.key, &layer.value] {
            plan.add_linear(prefix, linear, hidden);
        }
        plan.add_linear(prefix, &layer.attention_out, blueprint.heads * blueprint.head_width);
        for linear in std::iter::once(&layer.up).chain(&layer.gate) {
            plan.add_linear(prefix, linear, hidden);
        }
        plan.add_linear(prefix, &layer.down, blueprint.intermediate);
        if let Some((query, key)) = &layer.head_norms {
            plan.add_norm(prefix, query, blueprint.head_width);
            plan.add_norm(prefix, key, blueprint.head_width);
        }
        let joins = [&layer.attention_join, &layer.feed_join]
            .into_iter()
            .filter_map(|join| match join {
                Join::Add => None,
                Join::NormOfSum(norm) | Join::SumOfNorm(norm) => Some(norm),
            });
        for norm in layer.attention_in.iter().chain(&layer.feed_in).chain(joins) {
            plan.add_norm(prefix, norm, hidden);
        }
    }
    plan
}

fn add_step(plan: &mut TensorPlan, step: &Step) {
    plan.add_linear("", &step.linear, step.inputs);
    if let Some(norm) = &step.norm {
        plan.add_norm("", norm, step.outputs);
    }
}

fn optional_norm(reader: &mut Reader<'_>, norm: Option<&Norm>, width: usize) -> Result<Option<NormWeights>> {
    norm.map(|norm| reader.norm(norm, width, 1.0)).transpose()
}

fn read_join(reader: &mut Reader<'_>, join: &Join, width: usize) -> Result<JoinWeights> {
    Ok(match join {
        Join::Add => JoinWeights::Add,
        Join::NormOfSum(norm) => JoinWeights::NormOfSum(reader.norm(norm, width, 1.0)?),
        Join::SumOfNorm(norm) => JoinWeights::SumOfNorm(reader.norm(norm, width, 1.0)?),
    })
}

fn read_layer(
    reader: &mut Reader<'_>,
    blueprint: &Blueprint,
    shape: &Shape,
    layer: &Layer,
    rotary: Option<usize>,
) -> Result<LayerWeights> {
    let (hidden, intermediate) = (blueprint.hidden, blueprint.intermediate);
    let arithmetic = if shape.integers {
        Arithmetic::S16
    } else {
        Arithmetic::F32
    };
    let (heads, kv_heads, width) = (blueprint.heads, blueprint.kv_heads, blueprint.head_width);
    // A head that is normalised after its projection gets the factor there.
    let normed_after = layer.head_norms.is_some();
    let query_factor = if normed_after { 1.0 } else { blueprint.query_factor };
    let mut qkv = reader.layer(shape.hidden_stride, shape.qkv_stride(), arithmetic)?;
    let parts = [
        (&layer.query, heads, 0, query_factor),
        (&layer.key, kv_heads, heads, 1.0),
        (&layer.value, kv_heads, heads + kv_heads, 1.0),
    ];
    for (linear, count, first_head, factor) in parts {
        let column = |output| first_head * shape.head_stride + shape.head_place(output);
        reader.linear(linear, (count * width, hidden), &mut qkv, factor, column, |input| input)?;
    }
    let head_norms = match &layer.head_norms {
        None => None,
        Some((query, key)) => Some((
            reader.norm(query, width, blueprint.query_factor)?,
            reader.norm(key, width, 1.0)?,
        )),
    };
    let mut attention_out = reader.layer(shape.heads_stride(), hidden, arithmetic)?;
    let sizes = (hidden, heads * width);
    let place = |input| shape.head_place(input);
    reader.linear(
        &layer.attention_out,
        sizes,
        &mut attention_out,
        1.0,
        |output| output,
        place,
    )?;
    let mut plain = |linear, (outputs, inputs): (usize, usize), stride| -> Result<PackedLinear> {
        let mut layer = reader.layer(stride, outputs, arithmetic)?;
        reader.linear(
            linear,
            (outputs, inputs),
            &mut layer,
            1.0,
            |output| output,
            |input| input,
        )?;
        Ok(layer)
    };
    let up = plain(&layer.up, (intermediate, hidden), shape.hidden_stride)?;
    let gate = match &layer.gate {
        None => None,
        Some(gate) => Some(plain(gate, (intermediate, hidden), shape.hidden_stride)?),
    };
    let down = plain(&layer.down, (hidden, intermediate), shape.intermediate_stride)?;
    Ok(LayerWeights {
        attention_in: optional_norm(reader, layer.attention_in.as_ref(), hidden)?,
        qkv,
        head_norms,
        rotary,
        span: layer.span,
        attention_out,
        attention_join: read_join(reader, &layer.attention_join, hidden)?,
        feed_in: optional_norm(reader, layer.feed_in.as_ref(), hidden)?,
        up,
        activation: layer.activation,
        gate,
        down,
        feed_join: read_join(reader, &layer.feed_join, hidden)?,
    })
}

fn read_step(reader: &mut Reader<'_>, step: &Step) -> Result<StepWeights> {
    let mut linear = reader.layer(step.inputs, step.outputs, Arithmetic::F32)?;
    let sizes = (step.outputs, step.inputs);
    reader.linear(&step.linear, sizes, &mut linear, 1.0, |output| output, |input| input)?;
    Ok(StepWeights {
        linear,
        activation: step.activation,
        norm: optional_norm(reader, step.norm.as_ref(), step.outputs)?,
    })
}

/// The bias of every distance that sequences of `max_tokens` have, for each head.
fn distances(reader: &mut Reader<'_>, bias: &DistanceBias, heads: usize, max_tokens: usize) -> Result<(Buffer, usize)> {
    let table = reader.table(&named(&bias.name), (bias.buckets, heads), 1.0)?;
    let stride = heads.next_multiple_of(LANES);
    // A panel of keys may reach past the last token.
    let reach = max_tokens.next_multiple_of(LANES) + LANES;
    let size = reach.checked_mul(2 * heads).ok_or(OutOfMemory { bytes: usize::MAX })?;
    let mut distances = Buffer::zeroed(size)?;
    for (head, row) in distances.values_mut().chunks_exact_mut(2 * reach).enumerate() {
        for (at, value) in row.iter_mut().enumerate() {
            let bucket = distance_bucket(at.cast_signed() - reach.cast_signed(), bias.buckets);
            *value = table.values()[bucket * stride + head];
        }
    }
    Ok((distances, reach))
}

/// The bucket of key position − query position (Raffel et al. 2020, bidirectional, farthest distance 128).
///
/// The logarithm is taken in f32, as the published implementations do: a boundary may depend on it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "distances and buckets are far below 2²⁴, and the logarithm of a number ≥ 1 is not negative"
)]
fn distance_bucket(distance: isize, buckets: usize) -> usize {
    const FARTHEST: f32 = 128.0;
    let half = buckets / 2;
    let exact = half / 2;
    let side = if distance > 0 { half } else { 0 };
    let distance = distance.unsigned_abs();
    if distance < exact {
        return side + distance;
    }
    let nearest = exact as f32;
    let scale = (FARTHEST / nearest).ln();
    let far = (distance as f32 / nearest).ln() / scale * (half - exact) as f32;
    side + (exact + far as usize).min(half - 1)
}

fn bytes(encoder: &Encoder) -> usize {
    let norm = |norm: &Option<NormWeights>| norm.as_ref().map_or(0, NormWeights::bytes);
    let join = |join: &JoinWeights| match join {
        JoinWeights::Add => 0,
        JoinWeights::NormOfSum(norm) | JoinWeights::SumOfNorm(norm) => norm.bytes(),
    };
    let layer = |layer: &LayerWeights| {
        let linears = [&layer.qkv, &layer.attention_out, &layer.up, &layer.down];
        linears
            .into_iter()
            .chain(&layer.gate)
            .map(PackedLinear::bytes)
            .sum::<usize>()
            + layer
                .head_norms
                .as_ref()
                .map_or(0, |(query, key)| query.bytes() + key.bytes())
            + norm(&layer.attention_in)
            + norm(&layer.feed_in)
            + join(&layer.attention_join)
            + join(&layer.feed_join)
    };
    let embedding = &encoder.embedding;
    embedding.words.bytes()
        + embedding.segments.as_ref().map_or(0, |(table, _)| table.bytes())
        + embedding.positions.as_ref().map_or(0, |(table, _)| table.bytes())
        + norm(&embedding.norm)
        + norm(&encoder.final_norm)
        + encoder.rotaries.iter().map(Rotary::bytes).sum::<usize>()
        + encoder.distance_bias.as_ref().map_or(0, |(table, _)| table.bytes())
        + encoder.layers.iter().map(layer).sum::<usize>()
        + encoder
            .steps
            .iter()
            .map(|step| step.linear.bytes() + norm(&step.norm))
            .sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of transformers' MPNet (`compute_position_bias`) for 32 buckets, by hand from its formula.
    #[test]
    fn near_distances_have_a_bucket_each_and_far_ones_share() {
        let buckets = [0, -1, 1, -7, 7, -8, 8, -16, 16, -127, 127, -1_000, 1_000].map(|d| distance_bucket(d, 32));
        assert_eq!(buckets, [0, 1, 17, 7, 23, 8, 24, 10, 26, 15, 31, 15, 31]);
    }
}
