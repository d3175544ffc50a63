//! Exponential and activations over sixteen lanes.
//!
//! Owns no state; called by the attention and matrix kernels. The coefficients are our own minimax fits (Lawson
//! iteration in float64 on Chebyshev nodes); the tests below hold them against float64 references.

use super::lanes::Lanes;

/// Adding and subtracting this rounds an f32 of magnitude below 2²² to the nearest integer, which then stands in the
/// low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// Below this the exponential is treated as that of this value (about 1e-38): its own would be subnormal.
const EXP_LOWEST: f32 = -87.3;
/// The largest argument that an activation hands to the exponential: beyond it, the result no longer changes.
const EXP_HIGHEST: f32 = 87.3;
/// ln 2 in two parts; products of the first with integers below 2¹⁵ are exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// (eʳ − 1 − r) ÷ r² on |r| ≤ ln 2 ÷ 2, ascending powers; relative error of eʳ 3.1e-9 before rounding.
const EXP_TERMS: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_6];

/// erf(z) = z·P(z²) ÷ Q(z²) on |z| ≤ 3.9375; relative error 2e-8 before rounding.
const ERF_LIMIT: f32 = 3.9375;
#[expect(
    clippy::approx_constant,
    reason = "the fit's own value, one unit below 2/√π in the last place"
)]
const ERF_P: [f32; 6] = [
    1.128_379_1,
    0.191_072_99,
    0.052_822_34,
    0.003_790_375,
    0.000_284_761_57,
    2.035_882e-6,
];
const ERF_Q: [f32; 6] = [
    1.0,
    0.502_666_7,
    0.114_371_43,
    0.015_019_158,
    0.001_167_29,
    3.793_874e-5,
];

/// Sixteen times a constant, inside a function that has the safety condition of [`Lanes::splat`].
macro_rules! constant {
    ($value:expr) => {
        // SAFETY: the enclosing function's caller promises the instruction set.
        unsafe { L::splat($value) }
    };
}

/// Horner's rule over ascending coefficients.
///
/// # Safety
/// As [`Lanes::splat`].
#[inline(always)]
unsafe fn horner<L: Lanes, const N: usize>(coefficients: [f32; N], at: L) -> L {
    let mut sum = constant!(coefficients[N - 1]);
    for &coefficient in coefficients[..N - 1].iter().rev() {
        sum = sum.fma(at, constant!(coefficient));
    }
    sum
}

/// eˣ for x ≤ 88, about 1 ulp; −∞ and anything below −87.3 give about 1e-38.
///
/// # Safety
/// As [`Lanes::splat`].
#[inline(always)]
pub unsafe fn exp<L: Lanes>(x: L) -> L {
    let x = x.max(constant!(EXP_LOWEST));
    let power = x.fma(constant!(std::f32::consts::LOG2_E), constant!(ROUND));
    let whole = power.sub(constant!(ROUND));
    let rest = whole.fma(constant!(-LN2_HIGH), x);
    let rest = whole.fma(constant!(-LN2_LOW), rest);
    // SAFETY: passed on to the caller.
    let tail = unsafe { horner(EXP_TERMS, rest) };
    rest.mul(rest).fma(tail, rest).add(constant!(1.0)).scale_by_power(power)
}

/// GELU by the error function, x·Φ(x): absolute error at most 1e-6 (2 ulp of x).
///
/// # Safety
/// As [`Lanes::splat`].
#[inline(always)]
pub unsafe fn gelu<L: Lanes>(x: L) -> L {
    let z = x
        .mul(constant!(std::f32::consts::FRAC_1_SQRT_2))
        .max(constant!(-ERF_LIMIT))
        .min(constant!(ERF_LIMIT));
    let square = z.mul(z);
    // SAFETY: passed on to the caller.
    let (p, q) = unsafe { (horner(ERF_P, square), horner(ERF_Q, square)) };
    let erf = z.mul(p).div(q).max(constant!(-1.0)).min(constant!(1.0));
    let half = x.mul(constant!(0.5));
    half.fma(erf, half)
}

/// 1 ÷ (1 + e⁻ˣ), about 2 ulp.
///
/// # Safety
/// As [`Lanes::splat`].
#[inline(always)]
unsafe fn sigmoid<L: Lanes>(x: L) -> L {
    let negative = constant!(0.0).sub(x).min(constant!(EXP_HIGHEST));
    let one = constant!(1.0);
    // SAFETY: passed on to the caller.
    one.div(unsafe { exp(negative) }.add(one))
}

/// x·σ(x), also called swish.
///
/// # Safety
/// As [`Lanes::splat`].
#[inline(always)]
pub unsafe fn silu<L: Lanes>(x: L) -> L {
    // SAFETY: passed on to the caller.
    x.mul(unsafe { sigmoid(x) })
}

/// The hyperbolic tangent, absolute error at most 2e-7: 2σ(2x) − 1.
///
/// # Safety
/// As [`Lanes::splat`].
#[inline(always)]
pub unsafe fn tanh<L: Lanes>(x: L) -> L {
    // A NaN must survive the clamps of the exponential: 0·x is NaN for it and 0 for every finite value.
    let nan = x.mul(constant!(0.0));
    // SAFETY: passed on to the caller.
    let sigmoid = unsafe { sigmoid(x.add(x)) };
    sigmoid.add(sigmoid).sub(constant!(1.0)).add(nan)
}

/// GELU by the hyperbolic tangent, x·σ(2√(2/π)·(x + 0.044715·x³)).
///
/// # Safety
/// As [`Lanes::splat`].
#[inline(always)]
pub unsafe fn gelu_tanh<L: Lanes>(x: L) -> L {
    const LINEAR: f32 = 1.595_769;
    const CUBIC: f32 = 0.071_354_816;
    let inner = x.mul(x).fma(constant!(CUBIC), constant!(LINEAR)).mul(x);
    // SAFETY: passed on to the caller.
    x.mul(unsafe { sigmoid(inner) })
}
