//! The portable lanes: the specification that the other instruction sets are held against, and the fallback.
//!
//! Owns no state. `f32::mul_add` rounds once on every machine; where the CPU has no fused instruction it is a library
//! call, so this path is slow there but gives the same bits.

use super::lanes::{LANES, Lanes};

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
