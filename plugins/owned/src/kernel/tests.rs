//! Kernels against the portable specification (equal bits) and against float64 (bounded error).
#![expect(clippy::cast_precision_loss, reason = "test sizes are small")]

use proptest::prelude::*;

use super::attention::{self, Head, Span};
use super::buffer::{Arena, Buffer};
use super::gemm::{Epilogue, Gemm};
use super::isa::{Isa, Kernels};
use super::lanes::LANES;
use super::lanes::Lanes;
use super::layer_norm::LayerNorm;
use super::math;
use super::packed::{Arithmetic, PackedLinear, Panels};
use super::portable::Portable;
use super::rotary::Rotary;

/// Deterministic values in [-1, 1).
pub(super) fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(i16::from_le_bytes([state.to_le_bytes()[3], state.to_le_bytes()[5]])) / 32_768.0
    }
}

pub(super) fn filled(len: usize, mut next: impl FnMut() -> f32) -> Buffer {
    let mut buffer = Buffer::zeroed(len).unwrap();
    buffer.values_mut().fill_with(&mut next);
    buffer
}

fn copied(buffer: &Buffer) -> Buffer {
    let mut copy = Buffer::zeroed(buffer.values().len()).unwrap();
    copy.values_mut().copy_from_slice(buffer.values());
    copy
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// erf in float64, independent of the kernel's fit: Maclaurin's series, and beyond 2.5 Laplace's continued fraction.
fn erf(z: f64) -> f64 {
    let square = z * z;
    if z.abs() < 2.5 {
        let (mut term, mut sum) = (z, z);
        for n in 1..80_u32 {
            term *= -square / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let fraction = (1..120_u32)
        .rev()
        .fold(z.abs(), |tail, n| z.abs() + f64::from(n) / 2.0 / tail);
    z.signum() * (1.0 - (-square).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 2.0)
}

#[test]
fn exp_and_gelu_are_close_to_float64() {
    assert!(
        (erf(1.0) - 0.842_700_792_949_714_9).abs() < 1e-15,
        "Abramowitz and Stegun, table 7.1"
    );
    assert!((erf(2.6) - 0.999_763_965_583_470_7).abs() < 1e-14);
    for step in 0..100_000_u32 {
        let part = f64::from(step) / 100_000.0;
        #[expect(clippy::cast_possible_truncation, reason = "test points are f32")]
        let (x, y) = ((-87.0 * part) as f32, (-12.0 + 24.0 * part) as f32);
        // SAFETY: portable lanes need no instruction set.
        let (exp, gelu) = unsafe { (math::exp(Portable::splat(x)), math::gelu(Portable::splat(y))) };
        let relative = f64::from(exp.tree_max()) / f64::from(x).exp() - 1.0;
        assert!(relative.abs() < 1.2e-7, "exp({x}) is off by {relative:e}");
        let y = f64::from(y);
        let expected = y / 2.0 * (1.0 + erf(y / 2.0_f64.sqrt()));
        let difference = f64::from(gelu.tree_max()) - expected;
        assert!(difference.abs() < 1e-6, "gelu({y}) is off by {difference:e}");
    }
}

#[test]
fn special_values_do_not_hide() {
    // SAFETY: portable lanes need no instruction set.
    unsafe {
        assert_eq!(math::gelu(Portable::splat(0.0)).tree_max(), 0.0);
        assert_eq!(math::gelu(Portable::splat(30.0)).tree_max(), 30.0);
        for nan in [math::gelu, math::gelu_tanh, math::silu, math::tanh].map(|f| f(Portable::splat(f32::NAN))) {
            assert!(nan.tree_sum().is_nan());
        }
        for (x, silu, tanh) in [(1e30, 1e30, 1.0), (-1e30, 0.0, -1.0), (0.0, 0.0, 0.0)] {
            assert!((math::silu(Portable::splat(x)).tree_max() - silu).abs() <= 1e-6 * silu.abs() + 1e-7);
            assert_eq!(math::tanh(Portable::splat(x)).tree_max(), tanh);
            assert!((math::gelu_tanh(Portable::splat(x)).tree_max() - silu).abs() <= 1e-6 * silu.abs() + 1e-7);
        }
        assert!(math::exp(Portable::splat(f32::NEG_INFINITY)).tree_max() < 2e-38);
        assert_eq!(math::exp(Portable::splat(0.0)).tree_max(), 1.0);
    }
}

/// One matrix product and what it needs.
struct Product {
    rows: usize,
    k: usize,
    a: Buffer,
    layer: PackedLinear,
    weights: Vec<Vec<f32>>,
    bias: Vec<f32>,
    residual: Buffer,
}

impl Product {
    fn new(rows: usize, k: usize, columns: usize, seed: u64) -> Self {
        let mut next = noise(seed);
        let weights: Vec<Vec<f32>> = (0..columns).map(|_| (0..k).map(|_| next()).collect()).collect();
        let bias: Vec<f32> = (0..columns).map(|_| next()).collect();
        let mut layer = PackedLinear::zeroed(&mut Arena::default(), (k, columns), Arithmetic::F32).unwrap();
        layer.set_outputs(&weights.concat(), &bias, 1.0, |output| output, |input| input);
        let width = layer.columns();
        Self {
            rows,
            k,
            a: filled(rows * k, &mut next),
            layer,
            weights,
            bias,
            residual: filled(rows * width, &mut next),
        }
    }

    fn run(&self, kernels: &Kernels, epilogue: Epilogue) -> Vec<f32> {
        let width = self.layer.columns();
        let mut out = Buffer::zeroed(self.rows * width).unwrap();
        let call = Gemm {
            a: self.a.values().as_ptr(),
            a_stride: self.k,
            rows: self.rows,
            k: self.k,
            panels: match self.layer.panels() {
                Panels::Floats(panels) => panels.values().as_ptr(),
                Panels::Pairs { .. } => unreachable!("the layer is of floats"),
            },
            panel_stride: self.k * LANES,
            panel_count: width / LANES,
            bias: self.layer.bias().as_ptr(),
            out: out.values_mut().as_mut_ptr(),
            out_stride: width,
            epilogue,
        };
        // SAFETY: every buffer has the size that the call states.
        unsafe { kernels.gemm(&call) };
        out.values().to_vec()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn products_equal_the_specification_and_approach_float64(
        rows in 1_usize..40, k in 1_usize..70, columns in 1_usize..90, seed in any::<u64>(),
    ) {
        let product = Product::new(rows, k, columns, seed);
        let width = product.layer.columns();
        let residual = Epilogue::Residual { source: product.residual.values().as_ptr(), stride: width };
        let factors: Vec<f32> = (0..rows).map(|row| 1.0 / (1.0 + row as f32)).collect();
        let times = Epilogue::Times { source: product.residual.values().as_ptr(), stride: width };
        let epilogues = [
            Epilogue::None, Epilogue::Gelu, Epilogue::GeluTanh, Epilogue::Silu, Epilogue::Tanh, Epilogue::Relu,
            residual, times, Epilogue::RowScale { factors: factors.as_ptr() },
        ];
        let specification = Kernels::of(Isa::Portable).unwrap();
        for epilogue in epilogues {
            let expected = product.run(specification, epilogue);
            for kernels in Kernels::available() {
                prop_assert_eq!(bits(&product.run(kernels, epilogue)), bits(&expected), "{}", kernels.isa().name());
            }
            for row in 0..rows {
                for column in 0..width {
                    let found = f64::from(expected[row * width + column]);
                    let sum = if column < columns {
                        let a = &product.a.values()[row * k..(row + 1) * k];
                        let products = a.iter().zip(&product.weights[column]).map(|(&a, &w)| f64::from(a) * f64::from(w));
                        f64::from(product.bias[column]) + products.sum::<f64>()
                    } else {
                        0.0
                    };
                    let exact = match epilogue {
                        Epilogue::None => sum,
                        Epilogue::Gelu => sum / 2.0 * (1.0 + erf(sum / 2.0_f64.sqrt())),
                        Epilogue::GeluTanh => {
                            sum / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (sum + 0.044_715 * sum.powi(3))).tanh())
                        }
                        Epilogue::Silu => sum / (1.0 + (-sum).exp()),
                        Epilogue::Tanh => sum.tanh(),
                        Epilogue::Relu => sum.max(0.0),
                        Epilogue::Residual { .. } => sum + f64::from(product.residual.values()[row * width + column]),
                        Epilogue::Times { .. } => sum * f64::from(product.residual.values()[row * width + column]),
                        Epilogue::RowScale { .. } => sum * f64::from(factors[row]),
                    };
                    prop_assert!((found - exact).abs() < 1e-5, "({row}, {column}): {found} against {exact}");
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours(rows in 2_usize..40, k in 1_usize..70, seed in any::<u64>()) {
        let product = Product::new(rows, k, 40, seed);
        for kernels in Kernels::available() {
            let together = product.run(kernels, Epilogue::Gelu);
            for row in 0..rows {
                let mut alone = Product::new(1, k, 40, seed);
                alone.a.values_mut().copy_from_slice(&product.a.values()[row * k..(row + 1) * k]);
                let width = alone.layer.columns();
                let alone = alone.run(kernels, Epilogue::Gelu);
                prop_assert_eq!(bits(&alone), bits(&together[row * width..(row + 1) * width]));
            }
        }
    }

    #[test]
    fn attention_equals_the_specification_and_approaches_float64(
        tokens in 1_usize..70, width in 1_usize..40, scale in 0.1_f32..60.0, seed in any::<u64>(),
        before in prop_oneof![Just(usize::MAX), 0_usize..40], after in prop_oneof![Just(usize::MAX), 0_usize..40],
        biased in any::<bool>(),
    ) {
        let span = Span { before, after };
        let reach = tokens + LANES;
        let head_stride = width.next_multiple_of(LANES);
        let stride = 3 * head_stride;
        let mut next = noise(seed);
        let mut qkv = Buffer::zeroed(tokens * stride).unwrap();
        for row in qkv.values_mut().chunks_exact_mut(stride) {
            for part in 0..3 {
                for value in &mut row[part * head_stride..part * head_stride + width] {
                    *value = next() * if part == 0 { scale } else { 1.0 };
                }
            }
        }
        let bias = filled(2 * reach, &mut next);
        let run = |kernels: &Kernels| {
            let mut qkv = copied(&qkv);
            let qkv = qkv.values_mut().as_mut_ptr();
            let mut keys = filled(attention::key_panel_len(tokens, width), || f32::NAN);
            let mut values = filled(attention::value_panel_len(tokens, width), || f32::NAN);
            let mut scores = filled(attention::score_len(tokens), || f32::NAN);
            let mut context = Buffer::zeroed(tokens * head_stride).unwrap();
            // SAFETY: every buffer has the size that the head states.
            unsafe {
                let head = Head {
                    q: qkv,
                    k: qkv.add(head_stride),
                    v: qkv.add(2 * head_stride),
                    stride,
                    tokens,
                    width,
                    span,
                    distance_bias: if biased { bias.values()[reach..].as_ptr() } else { std::ptr::null() },
                    key_panels: keys.values_mut().as_mut_ptr(),
                    value_panels: values.values_mut().as_mut_ptr(),
                    scores: scores.values_mut().as_mut_ptr(),
                    context: context.values_mut().as_mut_ptr(),
                    context_stride: head_stride,
                };
                kernels.prepare_head(&head);
                for first in (0..tokens).step_by(attention::SCORE_ROWS) {
                    kernels.head_rows(&head, first, attention::SCORE_ROWS.min(tokens - first));
                }
            }
            context.values().to_vec()
        };
        let expected = run(Kernels::of(Isa::Portable).unwrap());
        for kernels in Kernels::available() {
            prop_assert_eq!(bits(&run(kernels)), bits(&expected), "{}", kernels.isa().name());
        }
        let value = |token: usize, part: usize, at: usize| f64::from(qkv.values()[token * stride + part * head_stride + at]);
        for row in 0..tokens {
            let score = |key: usize| {
                let seen = key + before.min(tokens) >= row && key <= row.saturating_add(after);
                let bias = if biased { f64::from(bias.values()[reach + key - row]) } else { 0.0 };
                let product = (0..width).map(|d| value(row, 0, d) * value(key, 1, d)).sum::<f64>();
                if seen { product + bias } else { f64::NEG_INFINITY }
            };
            let scores: Vec<f64> = (0..tokens).map(score).collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..width {
                let exact = (0..tokens).map(|key| weights[key] * value(key, 2, d)).sum::<f64>() / sum;
                let found = f64::from(expected[row * head_stride + d]);
                // The error of a score grows with its size; e to it multiplies the weights.
                prop_assert!((found - exact).abs() < 2e-6 * (1.0 + f64::from(scale)), "({row}, {d}): {found} against {exact}");
            }
        }
    }

    #[test]
    fn layer_norm_equals_the_specification_and_approaches_float64(
        rows in 1_usize..5, width in 1_usize..100, offset in -4.0_f32..4.0, seed in any::<u64>(),
    ) {
        let stride = width.next_multiple_of(LANES);
        let mut next = noise(seed);
        let mut padded = |rows: usize, offset: f32| {
            let mut buffer = Buffer::zeroed(rows * stride).unwrap();
            for row in buffer.values_mut().chunks_exact_mut(stride) {
                row[..width].fill_with(|| next() + offset);
            }
            buffer
        };
        let (input, weight, bias) = (padded(rows, offset), padded(1, 1.0), padded(1, 0.0));
        let run = |kernels: &Kernels, rms: bool| {
            let mut out = filled(rows * stride, || f32::NAN);
            let call = LayerNorm {
                input: input.values().as_ptr(),
                out: out.values_mut().as_mut_ptr(),
                stride,
                rows,
                width,
                weight: weight.values().as_ptr(),
                bias: bias.values().as_ptr(),
                eps: 1e-6,
            };
            // SAFETY: every buffer has the size that the call states.
            unsafe { if rms { kernels.rms_norm(&call) } else { kernels.layer_norm(&call) } }
            out.values().to_vec()
        };
        let [expected, expected_rms] = [false, true].map(|rms| run(Kernels::of(Isa::Portable).unwrap(), rms));
        for kernels in Kernels::available() {
            prop_assert_eq!(bits(&run(kernels, false)), bits(&expected), "{}", kernels.isa().name());
            prop_assert_eq!(bits(&run(kernels, true)), bits(&expected_rms), "{}", kernels.isa().name());
        }
        for row in 0..rows {
            let values: Vec<f64> = input.values()[row * stride..][..width].iter().map(|&value| f64::from(value)).collect();
            let count = width as f64;
            let mean = values.iter().sum::<f64>() / count;
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
            for (at, value) in values.iter().enumerate() {
                let exact = (value - mean) / (variance + 1e-6).sqrt() * f64::from(weight.values()[at]) + f64::from(bias.values()[at]);
                let found = f64::from(expected[row * stride + at]);
                let bound = 2e-6 * (1.0 + f64::from(offset.abs()) / (variance + 1e-6).sqrt());
                prop_assert!((found - exact).abs() < bound, "({row}, {at}): {found} against {exact}");
                let mean_square = values.iter().map(|value| value * value).sum::<f64>() / count;
                let exact = value / (mean_square + 1e-6).sqrt() * f64::from(weight.values()[at]);
                let found = f64::from(expected_rms[row * stride + at]);
                prop_assert!((found - exact).abs() < 2e-6 * (1.0 + exact.abs()), "({row}, {at}): {found} against {exact}");
            }
            prop_assert!(expected_rms[row * stride + width..(row + 1) * stride].iter().all(|&value| value == 0.0));
            prop_assert!(expected[row * stride + width..(row + 1) * stride].iter().all(|&value| value == 0.0));
        }
    }
}

#[test]
fn a_turn_is_the_complex_product_with_the_position() {
    let rotary = Rotary::new(5_000, 8, 10_000.0).unwrap();
    for position in [0_u32, 1, 77, 4_999] {
        let mut next = noise(u64::from(position));
        let head: [f32; 8] = std::array::from_fn(|_| next());
        let mut turned = head;
        rotary.turn(position as usize, &mut turned);
        for i in 0..4_u8 {
            let at = usize::from(i);
            let angle = f64::from(position) * 10_000.0_f64.powf(-f64::from(i) / 4.0);
            let (a, b) = (f64::from(head[at]), f64::from(head[at + 4]));
            assert!((f64::from(turned[at]) - (a * angle.cos() - b * angle.sin())).abs() < 3e-7);
            assert!((f64::from(turned[at + 4]) - (a * angle.sin() + b * angle.cos())).abs() < 3e-7);
        }
    }
}
