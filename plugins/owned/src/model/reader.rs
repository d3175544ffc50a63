//! Reading tensors into their packed places, for any architecture.
//!
//! A [`Reader`] owns the open file and the count of what was read; it tells the host after each tensor, so that a load
//! can be cancelled. Which tensors there are is the architecture's business.

use crate::artifact::safetensors::SafeTensors;
use crate::error::{OwnedError, Result};
use crate::kernel::buffer::{Buffer, OutOfMemory};
use crate::kernel::lanes::LANES;
use crate::kernel::packed::PackedLinear;

/// The constants of one layer normalisation, zeros up to the next multiple of 16.
pub struct Norm {
    /// Weights.
    pub weight: Buffer,
    /// Biases.
    pub bias: Buffer,
}

impl Norm {
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

/// Reads tensors into their packed places.
pub struct Reader<'r> {
    tensors: SafeTensors,
    prefix: &'static str,
    done: u64,
    total: u64,
    progress: &'r mut dyn FnMut(u64, u64) -> bool,
}

impl<'r> Reader<'r> {
    /// A reader of an open file. `prefix` stands before every name; `total` is how many values will be read;
    /// `progress` is told values read and values in all, and says `false` to stop.
    #[must_use]
    pub fn new(
        tensors: SafeTensors,
        prefix: &'static str,
        total: u64,
        progress: &'r mut dyn FnMut(u64, u64) -> bool,
    ) -> Self {
        Self {
            tensors,
            prefix,
            done: 0,
            total,
            progress,
        }
    }

    fn read(&mut self, name: &str, shape: &[usize], row: impl FnMut(usize, &[f32])) -> Result<()> {
        self.tensors.read_rows(&format!("{}{name}", self.prefix), shape, row)?;
        self.done += value_count(shape);
        if (self.progress)(self.done, self.total) {
            Ok(())
        } else {
            Err(OwnedError::Cancelled)
        }
    }

    /// A table of rows, each padded with zeros to the next multiple of 16.
    ///
    /// # Errors
    /// What [`SafeTensors::read_rows`] says, [`OwnedError::OutOfMemory`], [`OwnedError::Cancelled`].
    pub fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<Buffer> {
        let stride = width.next_multiple_of(LANES);
        let size = rows.checked_mul(stride).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mut table = Buffer::zeroed(size)?;
        self.read(name, &[rows, width], |row, values| {
            table.values_mut()[row * stride..][..values.len()].copy_from_slice(values);
        })?;
        Ok(table)
    }

    /// `NAME.weight` and `NAME.bias` of a layer normalisation.
    ///
    /// # Errors
    /// As [`Self::table`].
    pub fn norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        let mut vector = |part: &str| -> Result<Buffer> {
            let mut buffer = Buffer::zeroed(width.next_multiple_of(LANES))?;
            self.read(&format!("{name}.{part}"), &[width], |_, values| {
                buffer.values_mut()[..values.len()].copy_from_slice(values);
            })?;
            Ok(buffer)
        };
        Ok(Norm {
            weight: vector("weight")?,
            bias: vector("bias")?,
        })
    }

    /// `NAME.weight` (`outputs × inputs`) and `NAME.bias`, times `factor`, into columns and inputs of a packed layer
    /// as `column` and `place` say.
    ///
    /// # Errors
    /// As [`Self::table`].
    pub fn linear(
        &mut self,
        name: &str,
        (outputs, inputs): (usize, usize),
        layer: &mut PackedLinear,
        factor: f64,
        column: impl Fn(usize) -> usize,
        place: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let mut bias = vec![0.0; outputs];
        self.read(&format!("{name}.bias"), &[outputs], |_, values| {
            bias.copy_from_slice(values)
        })?;
        self.read(&format!("{name}.weight"), &[outputs, inputs], |output, weights| {
            layer.set_output(column(output), weights, bias[output], factor, &place);
        })
    }
}
