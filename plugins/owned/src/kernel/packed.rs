//! Linear layers packed for the matrix kernel.
//!
//! A [`PackedLinear`] owns its panels `[columns / 16][k][16]` and its bias. It is filled row by row of the published
//! `[outputs][inputs]` matrix; both sides may be laid out with gaps (zeros), so that every head starts on a panel.

use super::buffer::{Buffer, OutOfMemory};
use super::lanes::LANES;

/// Weights and bias of one linear layer.
pub struct PackedLinear {
    panels: Buffer,
    bias: Buffer,
    inputs: usize,
    columns: usize,
}

impl PackedLinear {
    /// A layer of zeros with `inputs` inputs and `outputs` outputs (rounded up to whole panels).
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn zeroed(inputs: usize, outputs: usize) -> Result<Self, OutOfMemory> {
        let columns = outputs.next_multiple_of(LANES);
        let size = inputs.checked_mul(columns).ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(Self {
            panels: Buffer::zeroed(size)?,
            bias: Buffer::zeroed(columns)?,
            inputs,
            columns,
        })
    }

    /// Writes the weights of one output: `place` says at which input each of `weights` belongs.
    ///
    /// # Panics
    /// When the column or a place is outside the layer (a bug of the caller, not of a file).
    pub fn set_output(
        &mut self,
        column: usize,
        weights: &[f32],
        bias: f32,
        factor: f64,
        place: impl Fn(usize) -> usize,
    ) {
        let inputs = self.inputs;
        let first = column / LANES * inputs * LANES + column % LANES;
        let panels = self.panels.values_mut();
        for (index, &weight) in weights.iter().enumerate() {
            let at = place(index);
            assert!(at < inputs, "input {at} of a layer with {inputs}");
            panels[first + at * LANES] = scaled(weight, factor);
        }
        self.bias.values_mut()[column] = scaled(bias, factor);
    }

    /// Length of the sums.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Columns, a multiple of 16.
    #[must_use]
    pub const fn columns(&self) -> usize {
        self.columns
    }

    /// The panels.
    #[must_use]
    pub fn panels(&self) -> &[f32] {
        self.panels.values()
    }

    /// The bias, one value per column.
    #[must_use]
    pub fn bias(&self) -> &[f32] {
        self.bias.values()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.panels.bytes() + self.bias.bytes()
    }
}

/// `value × factor`, rounded once to f32.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is asked for")]
fn scaled(value: f32, factor: f64) -> f32 {
    (f64::from(value) * factor) as f32
}
