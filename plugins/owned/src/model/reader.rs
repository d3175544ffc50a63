//! Reading tensors into their packed places, for any architecture.
//!
//! A [`Reader`] owns the open file and the count of what was read; it tells the host after each tensor, so that a load
//! can be cancelled. Which tensors there are is the blueprint's business.

use super::blueprint::{Linear, Norm, NormKind};
use crate::artifact::safetensors::SafeTensors;
use crate::error::{OwnedError, Result};
use crate::kernel::buffer::{Arena, Buffer, OutOfMemory, Table};
use crate::kernel::lanes::LANES;
use crate::kernel::packed::{Arithmetic, PackedLinear};

/// The constants of one normalisation, zeros up to the next multiple of 16.
pub struct NormWeights {
    /// Weights.
    pub weight: Buffer,
    /// Biases; zeros where there are none.
    pub bias: Buffer,
    /// Which normalisation.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Values per row that count.
    pub width: usize,
}

impl NormWeights {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.weight.bytes() + self.bias.bytes()
    }
}

/// How many values a shape has.
#[must_use]
pub fn value_count(shape: &[usize]) -> u64 {
    shape.iter().map(|&dimension| dimension as u64).product()
}

/// Values read and values in all; says `false` to stop.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64) -> bool;

/// Reads tensors into their packed places.
pub struct Reader<'r> {
    tensors: SafeTensors,
    prefix: &'static str,
    arena: &'r mut Arena,
    done: u64,
    total: u64,
    progress: Progress<'r>,
}

impl<'r> Reader<'r> {
    /// A reader of an open file into an arena. `prefix` stands before every name; of the `total` values of the load,
    /// `done` were read before.
    #[must_use]
    pub fn new(
        tensors: SafeTensors,
        prefix: &'static str,
        arena: &'r mut Arena,
        (done, total): (u64, u64),
        progress: Progress<'r>,
    ) -> Self {
        Self {
            tensors,
            prefix,
            arena,
            done,
            total,
            progress,
        }
    }

    /// The same file with complete names, without prefix.
    pub const fn drop_prefix(&mut self) {
        self.prefix = "";
    }

    /// Values read so far, those before this reader included.
    #[must_use]
    pub const fn done(&self) -> u64 {
        self.done
    }

    fn count(&mut self, values: u64) -> Result<()> {
        self.done += values;
        if (self.progress)(self.done, self.total) {
            Ok(())
        } else {
            Err(OwnedError::Cancelled)
        }
    }

    /// A layer of zeros.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn layer(
        &mut self,
        inputs: usize,
        outputs: usize,
        arithmetic: Arithmetic,
    ) -> std::result::Result<PackedLinear, OutOfMemory> {
        PackedLinear::zeroed(self.arena, (inputs, outputs), arithmetic)
    }

    fn read(&mut self, name: &str, shape: &[usize], rows: impl FnMut(usize, &[f32])) -> Result<()> {
        let width = shape.last().copied().unwrap_or(1).max(1);
        let all = 0..shape.iter().product::<usize>() / width;
        self.tensors
            .read_rows(&format!("{}{name}", self.prefix), shape, all, rows)?;
        self.count(value_count(shape))
    }

    /// A table of rows times `factor`, each padded with zeros to the next multiple of 16. A large one that needs neither
    /// stays in its file: of tens of thousands of words a text has a few.
    ///
    /// # Errors
    /// What [`SafeTensors::read_rows`] says, [`OwnedError::OutOfMemory`], [`OwnedError::Cancelled`].
    pub fn table(&mut self, name: &str, (rows, width): (usize, usize), factor: f64) -> Result<Table> {
        /// Values of a table that is worth a mapping.
        const LARGE: usize = 1 << 20;
        let stride = width.next_multiple_of(LANES);
        let size = rows.checked_mul(stride).ok_or(OutOfMemory { bytes: usize::MAX })?;
        if factor == 1.0 && stride == width && size >= LARGE {
            let name = format!("{}{name}", self.prefix);
            if let Some(mapped) = self.tensors.map_values(&name, &[rows, width])? {
                self.count(size as u64)?;
                return Ok(Table::Mapped(mapped));
            }
        }
        let mut table = self.arena.zeroed(size)?;
        self.read(name, &[rows, width], |first, values| {
            let targets = table.values_mut()[first * stride..].chunks_exact_mut(stride);
            for (target, values) in targets.zip(values.chunks_exact(width)) {
                let target = &mut target[..width];
                target.copy_from_slice(values);
                // A factor of 1 changes no bit.
                if factor != 1.0 {
                    target.iter_mut().for_each(|value| *value = scaled(*value, factor));
                }
            }
        })?;
        Ok(Table::Held(table))
    }

    /// `NAME.weight` and `NAME.bias` of a normalisation over `width` values, times `factor`.
    ///
    /// # Errors
    /// As [`Self::table`].
    pub fn norm(&mut self, norm: &Norm, width: usize, factor: f64) -> Result<NormWeights> {
        let from = if norm.kind == NormKind::RmsFromOne { 1.0 } else { 0.0 };
        let mut vector = |part: &str, from: f64| -> Result<Buffer> {
            let mut buffer = self.arena.zeroed(width.next_multiple_of(LANES))?;
            self.read(&format!("{}.{part}", norm.name), &[width], |_, values| {
                for (target, &value) in buffer.values_mut().iter_mut().zip(values) {
                    *target = rounded((f64::from(value) + from) * factor);
                }
            })?;
            Ok(buffer)
        };
        let weight = vector("weight", from)?;
        let bias = if norm.bias {
            vector("bias", 0.0)?
        } else {
            self.arena.zeroed(width.next_multiple_of(LANES))?
        };
        Ok(NormWeights {
            weight,
            bias,
            kind: norm.kind,
            eps: norm.eps,
            width,
        })
    }

    /// Some rows of `NAME.weight` (`rows × inputs`) and `NAME.bias`, times `factor`, into columns and inputs of a
    /// packed layer as `column` and `place` say.
    ///
    /// # Errors
    /// As [`Self::table`].
    pub fn linear(
        &mut self,
        linear: &Linear,
        (outputs, inputs): (usize, usize),
        layer: &mut PackedLinear,
        factor: f64,
        column: impl Fn(usize) -> usize,
        place: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let mut bias = vec![0.0; outputs];
        if linear.bias {
            let name = format!("{}{}.bias", self.prefix, linear.name);
            self.tensors
                .read_rows(&name, &[linear.tensor_rows], 0..1, |_, values| {
                    bias.copy_from_slice(&values[linear.first..linear.first + outputs]);
                })?;
            self.count(outputs as u64)?;
        }
        let name = format!("{}{}.weight", self.prefix, linear.name);
        let shape = [linear.tensor_rows, inputs];
        let some = linear.first..linear.first + outputs;
        self.tensors.read_rows(&name, &shape, some, |first, weights| {
            let bias = &bias[first..first + weights.len() / inputs];
            layer.set_outputs(weights, bias, factor, |output| column(first + output), &place);
        })?;
        self.count((outputs * inputs) as u64)
    }
}

fn scaled(value: f32, factor: f64) -> f32 {
    rounded(f64::from(value) * factor)
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is asked for")]
fn rounded(value: f64) -> f32 {
    value as f32
}

/// Every tensor that these parts need, with its shape, each once.
#[derive(Default)]
pub struct TensorPlan {
    tensors: Vec<(String, Vec<usize>)>,
}

impl TensorPlan {
    /// Adds a tensor.
    pub fn add(&mut self, name: String, shape: Vec<usize>) {
        if !self.tensors.iter().any(|(known, _)| *known == name) {
            self.tensors.push((name, shape));
        }
    }

    /// Adds the tensors of a linear layer.
    pub fn add_linear(&mut self, prefix: &str, linear: &Linear, inputs: usize) {
        let name = format!("{prefix}{}", linear.name);
        self.add(format!("{name}.weight"), vec![linear.tensor_rows, inputs]);
        if linear.bias {
            self.add(format!("{name}.bias"), vec![linear.tensor_rows]);
        }
    }

    /// Adds the tensors of a normalisation.
    pub fn add_norm(&mut self, prefix: &str, norm: &Norm, width: usize) {
        self.add(format!("{prefix}{}.weight", norm.name), vec![width]);
        if norm.bias {
            self.add(format!("{prefix}{}.bias", norm.name), vec![width]);
        }
    }

    /// Checks that a file has them all.
    ///
    /// # Errors
    /// [`OwnedError::Tensor`] naming the first that is missing or has another shape or type.
    pub fn check(&self, tensors: &SafeTensors) -> Result<()> {
        self.tensors
            .iter()
            .try_for_each(|(name, shape)| tensors.require(name, shape))
    }

    /// Values in all.
    #[must_use]
    pub fn values(&self) -> u64 {
        self.tensors.iter().map(|(_, shape)| value_count(shape)).sum()
    }

    /// The file's tensors that are neither planned nor known to be left over from training.
    #[must_use]
    pub fn unused(&self, tensors: &SafeTensors, prefix: &str, left_over: &[&str]) -> Vec<String> {
        let needed: std::collections::HashSet<&str> = self.tensors.iter().map(|(name, _)| name.as_str()).collect();
        tensors
            .names()
            .into_iter()
            .filter(|&name| !needed.contains(name) && !left_over.contains(&name.strip_prefix(prefix).unwrap_or(name)))
            .map(str::to_owned)
            .collect()
    }
}
