//! The portable lanes: the specification that the other instruction sets are held against, and the fallback.
//!
//! Owns no state. `f32::mul_add` rounds once on every machine; where the CPU has no fused instruction it is a library
//! call, so this path is slow there but gives the same bits.

use super::lanes::{LANES, Lanes};
use super::pairs::PairLanes;

/// Sixteen lanes as an array.
#[derive(Clone, Copy, Debug)]
pub struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| op(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn tree(self, op: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] = op(lanes[lane], lanes[lane + half]);
            }
            half /= 2;
        }
        lanes[0]
    }
}

impl Lanes for Portable {
    const TILE_ROWS: usize = 4;
    const TILE_PANELS: usize = 1;

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller promises 16 readable values; an array of f32 has the alignment that is asked of none.
        Self(unsafe { source.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller promises 16 writable values.
        unsafe { target.cast::<[f32; LANES]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    fn prefetch(_address: *const f32) {}

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            self.0[lane].mul_add(factor.0[lane], addend.0[lane])
        }))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn scale_by_power(self, power: Self) -> Self {
        self.zip(power, |value, power| {
            f32::from_bits(value.to_bits().wrapping_add(power.to_bits() << 23))
        })
    }

    #[inline(always)]
    fn tree_sum(self) -> f32 {
        self.tree(|a, b| a + b)
    }

    #[inline(always)]
    fn tree_max(self) -> f32 {
        self.tree(|a, b| if a > b { a } else { b })
    }
}

impl PairLanes for Portable {
    type Sums = [i32; LANES];

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self::Sums, weights: *const i16, activations: i32) -> Self::Sums {
        let [a, b, c, d] = activations.to_ne_bytes();
        let (low, high) = (i16::from_ne_bytes([a, b]), i16::from_ne_bytes([c, d]));
        // SAFETY: the caller promises 16 readable pairs.
        let weights = unsafe { weights.cast::<[[i16; 2]; LANES]>().read_unaligned() };
        std::array::from_fn(|lane| {
            let [first, second] = weights[lane].map(i32::from);
            sums[lane]
                .wrapping_add(first * i32::from(low))
                .wrapping_add(second * i32::from(high))
        })
    }

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "rounding to f32 is what is asked for")]
    unsafe fn to_floats(sums: Self::Sums) -> Self {
        Self(sums.map(|sum| sum as f32))
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "saturating to 16 bits is what is asked for"
    )]
    unsafe fn store_rounded(self, target: *mut i16) {
        let rounded = self.0.map(|value| value.round_ties_even() as i16);
        // SAFETY: the caller promises 16 writable integers.
        unsafe { target.cast::<[i16; LANES]>().write_unaligned(rounded) };
    }
}
