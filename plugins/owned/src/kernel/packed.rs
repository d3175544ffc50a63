//! Linear layers packed for the matrix kernels.
//!
//! A [`PackedLinear`] owns its panels and its bias. It is filled row by row of the published `[outputs][inputs]` matrix;
//! both sides may be laid out with gaps (zeros), so that every head starts on a panel. Panels are f32,
//! `[columns / 16][k][16]`, or for the fast mode 16-bit integers, `[columns / 16][k / 2][16][2]`, with scales.

use super::buffer::{Buffer, OutOfMemory};
use super::lanes::LANES;
use super::pairs::{self, BLOCK, LARGEST_WEIGHT};

/// How a layer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// f32 throughout.
    F32,
    /// Sums of products of 16-bit integers, scaled block by block: the fast mode.
    S16,
}

impl Arithmetic {
    /// The name in rows, settings and profiles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::S16 => "s16",
        }
    }
}

/// The weights of one linear layer.
pub enum Panels {
    /// f32.
    Floats(Buffer),
    /// 16-bit integers, and `[panel][block][16]` scales.
    Pairs {
        /// Two to a value.
        integers: Buffer,
        /// One for each column and block of the sum.
        scales: Buffer,
    },
}

/// Weights and bias of one linear layer.
pub struct PackedLinear {
    panels: Panels,
    bias: Buffer,
    inputs: usize,
    columns: usize,
}

impl PackedLinear {
    /// A layer of zeros with `inputs` inputs and `outputs` outputs (rounded up to whole panels).
    ///
    /// # Errors
    /// [`OutOfMemory`].
    ///
    /// # Panics
    /// When an integer layer has inputs that are no multiple of 16 (a bug of the caller, not of a file).
    pub fn zeroed(inputs: usize, outputs: usize, arithmetic: Arithmetic) -> Result<Self, OutOfMemory> {
        let columns = outputs.next_multiple_of(LANES);
        let size = inputs.checked_mul(columns).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let panels = match arithmetic {
            Arithmetic::F32 => Panels::Floats(Buffer::zeroed(size)?),
            Arithmetic::S16 => {
                assert!(inputs.is_multiple_of(LANES), "{inputs} inputs of an integer layer");
                Panels::Pairs {
                    integers: Buffer::zeroed(size / 2)?,
                    scales: Buffer::zeroed(columns * pairs::blocks(inputs))?,
                }
            }
        };
        Ok(Self {
            panels,
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
        self.bias.values_mut()[column] = scaled(bias, factor);
        let placed = weights.iter().enumerate().map(|(index, &weight)| {
            let at = place(index);
            assert!(at < inputs, "input {at} of a layer with {inputs}");
            (at, scaled(weight, factor))
        });
        let (panel, lane) = (column / LANES, column % LANES);
        match &mut self.panels {
            Panels::Floats(panels) => {
                let panel = &mut panels.values_mut()[panel * inputs * LANES..][..inputs * LANES];
                for (at, weight) in placed {
                    panel[at * LANES + lane] = weight;
                }
            }
            Panels::Pairs { integers, scales } => {
                let mut row = vec![0.0; inputs];
                placed.for_each(|(at, weight)| row[at] = weight);
                let panel_scales = &mut scales.values_mut()[panel * pairs::blocks(inputs) * LANES..];
                let panel = &mut integers.integers_mut()[panel * inputs * LANES..][..inputs * LANES];
                for (block, values) in row.chunks(BLOCK).enumerate() {
                    let largest = f64::from(LARGEST_WEIGHT);
                    let highest = values
                        .iter()
                        .fold(0.0_f64, |highest, &value| highest.max(f64::from(value).abs()));
                    panel_scales[block * LANES + lane] = rounded(highest / largest);
                    for (at, &value) in values.iter().enumerate() {
                        let k = block * BLOCK + at;
                        let integer = if highest > 0.0 {
                            f64::from(value) / highest * largest
                        } else {
                            0.0
                        };
                        panel[k / 2 * 2 * LANES + 2 * lane + k % 2] = integer_of(integer);
                    }
                }
            }
        }
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
    pub const fn panels(&self) -> &Panels {
        &self.panels
    }

    /// The bias, one value per column.
    #[must_use]
    pub fn bias(&self) -> &[f32] {
        self.bias.values()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let panels = match &self.panels {
            Panels::Floats(panels) => panels.bytes(),
            Panels::Pairs { integers, scales } => integers.bytes() + scales.bytes(),
        };
        panels + self.bias.bytes()
    }
}

/// `value × factor`, rounded once to f32.
fn scaled(value: f32, factor: f64) -> f32 {
    rounded(f64::from(value) * factor)
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is asked for")]
const fn rounded(value: f64) -> f32 {
    value as f32
}

#[expect(clippy::cast_possible_truncation, reason = "the values are at most LARGEST_WEIGHT")]
fn integer_of(value: f64) -> i16 {
    value.round_ties_even() as i16
}
