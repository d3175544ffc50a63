//! Linear layers packed for the matrix kernels.
//!
//! A [`PackedLinear`] owns its panels and its bias. It is filled row by row of the published `[outputs][inputs]` matrix;
//! both sides may be laid out with gaps (zeros), so that every head starts on a panel. Panels are f32,
//! `[columns / 16][k][16]`, or for the fast mode 16-bit integers, `[columns / 16][k / 2][16][2]`, with scales.

use super::buffer::{Arena, Buffer, OutOfMemory};
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
    /// A layer of zeros in an arena, with `inputs` inputs and `outputs` outputs (rounded up to whole panels).
    ///
    /// # Errors
    /// [`OutOfMemory`].
    ///
    /// # Panics
    /// When an integer layer has inputs that are no multiple of 16 (a bug of the caller, not of a file).
    pub fn zeroed(
        arena: &mut Arena,
        (inputs, outputs): (usize, usize),
        arithmetic: Arithmetic,
    ) -> Result<Self, OutOfMemory> {
        let columns = outputs.next_multiple_of(LANES);
        let size = inputs.checked_mul(columns).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let panels = match arithmetic {
            Arithmetic::F32 => Panels::Floats(arena.zeroed(size)?),
            Arithmetic::S16 => {
                assert!(inputs.is_multiple_of(LANES), "{inputs} inputs of an integer layer");
                Panels::Pairs {
                    integers: arena.zeroed(size / 2)?,
                    scales: arena.zeroed(columns * pairs::blocks(inputs))?,
                }
            }
        };
        Ok(Self {
            panels,
            bias: arena.zeroed(columns)?,
            inputs,
            columns,
        })
    }

    /// Writes the weights of some outputs, one row of `weights` and one bias each, times `factor`: `column` says which
    /// column an output is, `place` at which input each value of a row belongs.
    ///
    /// # Panics
    /// When a column or a place is outside the layer (a bug of the caller, not of a file).
    pub fn set_outputs(
        &mut self,
        weights: &[f32],
        bias: &[f32],
        factor: f64,
        column: impl Fn(usize) -> usize,
        place: impl Fn(usize) -> usize,
    ) {
        let width = weights.len() / bias.len().max(1);
        let rows = |first: usize, count: usize| &weights[first * width..(first + count) * width];
        let mut first = 0;
        while first < bias.len() {
            let start = column(first);
            let is_panel = start.is_multiple_of(LANES)
                && first + LANES <= bias.len()
                && (1..LANES).all(|lane| column(first + lane) == start + lane);
            if is_panel && let Panels::Floats(panels) = &mut self.panels {
                let size = self.inputs * LANES;
                let panel = &mut panels.values_mut()[start / LANES * size..][..size];
                transpose(rows(first, LANES), width, factor, panel, &place);
                for (target, &bias) in self.bias.values_mut()[start..]
                    .iter_mut()
                    .zip(&bias[first..first + LANES])
                {
                    *target = scaled(bias, factor);
                }
                first += LANES;
            } else {
                self.set_output(start, rows(first, 1), bias[first], factor, &place);
                first += 1;
            }
        }
    }

    /// The same for one output.
    fn set_output(&mut self, column: usize, weights: &[f32], bias: f32, factor: f64, place: impl Fn(usize) -> usize) {
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

/// Writes sixteen rows of `width` values, times `factor`, as the columns of a panel.
fn transpose(rows: &[f32], width: usize, factor: f64, panel: &mut [f32], place: impl Fn(usize) -> usize) {
    let mut lanes = rows.chunks_exact(width);
    let lanes: [&[f32]; LANES] = std::array::from_fn(|_| lanes.next().unwrap_or(&[]));
    for index in 0..width {
        let at = place(index);
        let line = &mut panel[at * LANES..][..LANES];
        for (target, row) in line.iter_mut().zip(&lanes) {
            *target = row[index];
        }
        // A factor of 1 changes no bit.
        if factor != 1.0 {
            line.iter_mut().for_each(|value| *value = scaled(*value, factor));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole panels are written another way than single outputs: both must give the same layer, with gaps and a factor.
    #[test]
    fn outputs_at_once_are_outputs_one_by_one() {
        let (outputs, width) = (53, 24);
        let weights: Vec<f32> = (0..outputs * width).map(|at| (at as f32 * 0.37).sin()).collect();
        let bias: Vec<f32> = (0..outputs).map(|at| at as f32 * 0.01 - 0.2).collect();
        let column = |first: usize| move |output: usize| (first + output) / 20 * 32 + (first + output) % 20;
        let place = |input: usize| input / 12 * 16 + input % 12;
        for factor in [1.0, 1.0 / 3.0] {
            let layer = || PackedLinear::zeroed(&mut Arena::default(), (32, 96), Arithmetic::F32).unwrap();
            let (mut at_once, mut one_by_one) = (layer(), layer());
            at_once.set_outputs(&weights, &bias, factor, column(0), place);
            for (output, weights) in weights.chunks_exact(width).enumerate() {
                one_by_one.set_outputs(weights, &bias[output..=output], factor, column(output), place);
            }
            assert_eq!(at_once.bias(), one_by_one.bias());
            let (Panels::Floats(left), Panels::Floats(right)) = (at_once.panels(), one_by_one.panels()) else {
                panic!("layers of floats");
            };
            assert_eq!(left.values(), right.values());
            let (output, input) = (21, 13);
            let (at, expected) = (column(0)(output), scaled(weights[output * width + input], factor));
            assert_eq!(
                left.values()[at / LANES * 32 * LANES + place(input) * LANES + at % LANES],
                expected
            );
        }
    }
}
