//! Rotary position embeddings (Su et al. 2021), in the layout that turns the two halves of a head (GPT-NeoX).
//!
//! A [`Rotary`] owns the cosines and sines of every position, computed in float64. The rotation is plain products and
//! sums in a fixed order, so it gives the same bits on every instruction set.

use super::buffer::{Buffer, OutOfMemory};

/// Angles for heads of one width and one base.
pub struct Rotary {
    /// `[position][cosines of the half, sines of the half]`.
    table: Buffer,
    half: usize,
}

impl Rotary {
    /// Angles for positions `0 .. positions` of heads that are `width` wide (even): position × theta^(−2i ÷ width).
    ///
    /// # Errors
    /// [`OutOfMemory`].
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "positions and widths are far below 2²⁴; the table is f32"
    )]
    pub fn new(positions: usize, width: usize, theta: f64) -> Result<Self, OutOfMemory> {
        let half = width / 2;
        let size = positions.checked_mul(width).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mut table = Buffer::zeroed(size)?;
        let frequencies: Vec<f64> = (0..half).map(|i| theta.powf(-2.0 * i as f64 / width as f64)).collect();
        for (position, row) in table.values_mut().chunks_exact_mut(width).enumerate() {
            let (cosines, sines) = row.split_at_mut(half);
            for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(&frequencies) {
                let angle = position as f64 * frequency;
                *cosine = angle.cos() as f32;
                *sine = angle.sin() as f32;
            }
        }
        Ok(Self { table, half })
    }

    /// Turns one head at a position.
    ///
    /// # Panics
    /// When the head is not as wide as the angles, or the position has none.
    pub fn turn(&self, position: usize, head: &mut [f32]) {
        let width = 2 * self.half;
        let (cosines, sines) = self.table.values()[position * width..(position + 1) * width].split_at(self.half);
        let (low, high) = head.split_at_mut(self.half);
        assert_eq!(high.len(), self.half, "a head of another width");
        for (((low, high), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
            let (a, b) = (*low, *high);
            *low = a * cosine - b * sine;
            *high = b * cosine + a * sine;
        }
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }
}
