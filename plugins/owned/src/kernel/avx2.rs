//! Sixteen lanes in two AVX2 registers, with FMA.
//!
//! Owns no state. Instantiated by `kernel::isa` inside functions compiled for `avx2,fma`, after the CPU was asked.

use std::arch::x86_64::{
    __m128, __m256, __m256i, _MM_HINT_T1, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_max_ps, _mm_max_ss, _mm_movehl_ps,
    _mm_prefetch, _mm_shuffle_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_castps_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_extractf128_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps,
    _mm256_packs_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256,
    _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_ps,
};

use super::lanes::Lanes;
use super::pairs::PairLanes;

/// Lanes 0–7 and 8–15.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

/// Calls intrinsics on values of [`Avx2`].
macro_rules! avx2 {
    ($call:expr) => {
        // SAFETY: a value of this type exists only where the caller of `load` or `splat` promised AVX2 and FMA.
        unsafe { $call }
    };
}

impl Avx2 {
    #[inline(always)]
    fn low_and_high(vector: __m256) -> (__m128, __m128) {
        avx2!((_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector)))
    }

    #[inline(always)]
    fn scale_half(value: __m256, power: __m256) -> __m256 {
        avx2!(_mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_castps_si256(value),
            _mm256_slli_epi32::<23>(_mm256_castps_si256(power))
        )))
    }
}

impl Lanes for Avx2 {
    const TILE_ROWS: usize = 6;
    const TILE_PANELS: usize = 1;

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller promises AVX2 and 16 readable values.
        unsafe { Self(_mm256_loadu_ps(source), _mm256_loadu_ps(source.add(8))) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller promises AVX2.
        let lanes = unsafe { _mm256_set1_ps(value) };
        Self(lanes, lanes)
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller promises 16 writable values; `self` proves AVX2.
        unsafe {
            _mm256_storeu_ps(target, self.0);
            _mm256_storeu_ps(target.add(8), self.1);
        }
    }

    #[inline(always)]
    fn prefetch(address: *const f32) {
        // SAFETY: a hint: it reads nothing and cannot fault. SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        avx2!(Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        avx2!(Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        avx2!(Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        avx2!(Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        avx2!(Self(
            _mm256_fmadd_ps(self.0, factor.0, addend.0),
            _mm256_fmadd_ps(self.1, factor.1, addend.1)
        ))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        avx2!(Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        avx2!(Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)))
    }

    #[inline(always)]
    fn scale_by_power(self, power: Self) -> Self {
        Self(Self::scale_half(self.0, power.0), Self::scale_half(self.1, power.1))
    }

    #[inline(always)]
    fn tree_sum(self) -> f32 {
        let eight = avx2!(_mm256_add_ps(self.0, self.1));
        let (low, high) = Self::low_and_high(eight);
        avx2!({
            let four = _mm_add_ps(low, high);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn tree_max(self) -> f32 {
        let eight = avx2!(_mm256_max_ps(self.0, self.1));
        let (low, high) = Self::low_and_high(eight);
        avx2!({
            let four = _mm_max_ps(low, high);
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
}

impl PairLanes for Avx2 {
    type Sums = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: the caller promises AVX2.
        let zero = unsafe { _mm256_setzero_si256() };
        (zero, zero)
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self::Sums, weights: *const i16, activations: i32) -> Self::Sums {
        // SAFETY: the caller promises AVX2 and 16 readable pairs.
        unsafe {
            let activations = _mm256_set1_epi32(activations);
            let (low, high) = (
                _mm256_loadu_si256(weights.cast()),
                _mm256_loadu_si256(weights.add(16).cast()),
            );
            (
                _mm256_add_epi32(sums.0, _mm256_madd_epi16(low, activations)),
                _mm256_add_epi32(sums.1, _mm256_madd_epi16(high, activations)),
            )
        }
    }

    #[inline(always)]
    unsafe fn to_floats(sums: Self::Sums) -> Self {
        // SAFETY: the caller promises AVX2.
        unsafe { Self(_mm256_cvtepi32_ps(sums.0), _mm256_cvtepi32_ps(sums.1)) }
    }

    #[inline(always)]
    unsafe fn store_rounded(self, target: *mut i16) {
        // SAFETY: the caller promises 16 writable integers; `self` proves AVX2.
        unsafe {
            // The pack interleaves the two halves of 128 bits.
            let packed = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            _mm256_storeu_si256(target.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
}
