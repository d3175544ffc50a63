//! Sixteen lanes in one AVX-512 register.
//!
//! Owns no state. Instantiated by `kernel::isa` inside functions compiled for `avx512f`, after the CPU was asked.

use std::arch::x86_64::{
    __m256, __m512, __m512i, _MM_HINT_T1, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_max_ps, _mm_max_ss, _mm_movehl_ps,
    _mm_prefetch, _mm_shuffle_ps, _mm256_add_ps, _mm256_castpd_ps, _mm256_castps256_ps128, _mm256_extractf128_ps,
    _mm256_max_ps, _mm256_storeu_si256, _mm512_add_epi32, _mm512_add_ps, _mm512_castps_pd, _mm512_castps_si512,
    _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_cvtsepi32_epi16,
    _mm512_div_ps, _mm512_dpwssd_epi32, _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::lanes::Lanes;
use super::pairs::PairLanes;

/// Lanes 0–15.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

/// Calls intrinsics on values of [`Avx512`].
macro_rules! avx512 {
    ($call:expr) => {
        // SAFETY: a value of this type exists only where the caller of `load` or `splat` promised AVX-512F.
        unsafe { $call }
    };
}

impl Avx512 {
    #[inline(always)]
    fn low_and_high(self) -> (__m256, __m256) {
        avx512!((
            _mm512_castps512_ps256(self.0),
            _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0)))
        ))
    }
}

impl Lanes for Avx512 {
    const TILE_ROWS: usize = 12;
    const TILE_PANELS: usize = 2;

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller promises AVX-512F and 16 readable values.
        Self(unsafe { _mm512_loadu_ps(source) })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller promises AVX-512F.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller promises 16 writable values; `self` proves AVX-512F.
        unsafe { _mm512_storeu_ps(target, self.0) };
    }

    #[inline(always)]
    fn prefetch(address: *const f32) {
        // SAFETY: a hint: it reads nothing and cannot fault. SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        avx512!(Self(_mm512_add_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        avx512!(Self(_mm512_sub_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        avx512!(Self(_mm512_mul_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        avx512!(Self(_mm512_div_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        avx512!(Self(_mm512_fmadd_ps(self.0, factor.0, addend.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        avx512!(Self(_mm512_max_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        avx512!(Self(_mm512_min_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn scale_by_power(self, power: Self) -> Self {
        avx512!(Self(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(self.0),
            _mm512_slli_epi32::<23>(_mm512_castps_si512(power.0))
        ))))
    }

    #[inline(always)]
    fn tree_sum(self) -> f32 {
        let (low, high) = self.low_and_high();
        avx512!({
            let eight = _mm256_add_ps(low, high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn tree_max(self) -> f32 {
        let (low, high) = self.low_and_high();
        avx512!({
            let eight = _mm256_max_ps(low, high);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
}

/// Pairs need AVX-512 VNNI besides.
impl PairLanes for Avx512 {
    type Sums = __m512i;

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: the caller promises AVX-512F.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self::Sums, weights: *const i16, activations: i32) -> Self::Sums {
        // SAFETY: the caller promises AVX-512F with VNNI and 16 readable pairs.
        unsafe { _mm512_dpwssd_epi32(sums, _mm512_loadu_si512(weights.cast()), _mm512_set1_epi32(activations)) }
    }

    #[inline(always)]
    unsafe fn to_floats(sums: Self::Sums) -> Self {
        // SAFETY: the caller promises AVX-512F.
        Self(unsafe { _mm512_cvtepi32_ps(sums) })
    }

    #[inline(always)]
    unsafe fn store_rounded(self, target: *mut i16) {
        // SAFETY: the caller promises 16 writable integers; `self` proves AVX-512F.
        unsafe { _mm256_storeu_si256(target.cast(), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(self.0))) };
    }
}
