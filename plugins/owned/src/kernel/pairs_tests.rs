//! The fast mode's product against its specification (equal bits), against float64 and at the edge of its integers.
#![expect(clippy::cast_precision_loss, reason = "test sizes are small")]

use proptest::prelude::*;

use super::buffer::{Arena, Buffer};
use super::gemm::Epilogue;
use super::isa::{Isa, Kernels};
use super::lanes::LANES;
use super::packed::{Arithmetic, PackedLinear, Panels};
use super::pairs::{self, BLOCK, LARGEST_ACTIVATION, LARGEST_WEIGHT, PairGemm, Rows};
use super::tests::{bits, filled, noise};

struct Product {
    rows: usize,
    k: usize,
    a: Buffer,
    layer: PackedLinear,
    weights: Vec<Vec<f32>>,
}

impl Product {
    fn new(rows: usize, k: usize, columns: usize, mut next: impl FnMut() -> f32) -> Self {
        let weights: Vec<Vec<f32>> = (0..columns).map(|_| (0..k).map(|_| next()).collect()).collect();
        let mut layer = PackedLinear::zeroed(&mut Arena::default(), (k, columns), Arithmetic::S16).unwrap();
        let bias = vec![0.5; columns];
        layer.set_outputs(&weights.concat(), &bias, 1.0, |output| output, |input| input);
        Self {
            rows,
            k,
            a: filled(rows * k, next),
            layer,
            weights,
        }
    }

    /// Quantises and multiplies.
    fn run(&self, kernels: &Kernels) -> Vec<f32> {
        let width = self.layer.columns();
        let mut integers = Buffer::zeroed((self.rows * self.k).div_ceil(2)).unwrap();
        let mut scales = filled(self.rows * pairs::blocks(self.k), || f32::NAN);
        let mut out = filled(self.rows * width, || f32::NAN);
        let Panels::Pairs {
            integers: panels,
            scales: panel_scales,
        } = self.layer.panels()
        else {
            unreachable!("the layer is of integers");
        };
        // SAFETY: every buffer has the size that the calls state.
        unsafe {
            kernels.quantise(&Rows {
                input: self.a.values().as_ptr(),
                stride: self.k,
                rows: self.rows,
                width: self.k,
                out: integers.integers_mut().as_mut_ptr(),
                scales: scales.values_mut().as_mut_ptr(),
            });
            kernels.pair_gemm(&PairGemm {
                a: integers.integers().as_ptr(),
                a_scales: scales.values().as_ptr(),
                rows: self.rows,
                k: self.k,
                panels: panels.integers().as_ptr(),
                panel_scales: panel_scales.values().as_ptr(),
                panel_count: width / LANES,
                bias: self.layer.bias().as_ptr(),
                out: out.values_mut().as_mut_ptr(),
                out_stride: width,
                epilogue: Epilogue::None,
            });
        }
        out.values().to_vec()
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.a.values()[row * self.k..(row + 1) * self.k]
    }
}

/// Values as integers with one scale a block, in float64, by the definition.
fn quantised(values: &[f32], largest: i16) -> Vec<f64> {
    let block = |block: &[f32]| -> Vec<f64> {
        let highest = block
            .iter()
            .fold(0.0_f64, |highest, &value| highest.max(f64::from(value).abs()));
        let scale = highest / f64::from(largest);
        block
            .iter()
            .map(|&value| {
                if scale > 0.0 {
                    (f64::from(value) / scale).round_ties_even() * scale
                } else {
                    0.0
                }
            })
            .collect()
    };
    values.chunks(BLOCK).flat_map(block).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn products_equal_the_specification_and_approach_float64(
        rows in 1_usize..30, sixteens in 1_usize..30, columns in 1_usize..70, seed in any::<u64>(),
    ) {
        let k = 16 * sixteens;
        let product = Product::new(rows, k, columns, noise(seed));
        let width = product.layer.columns();
        let expected = product.run(Kernels::of(Isa::Portable).unwrap());
        for kernels in Kernels::available() {
            prop_assert_eq!(bits(&product.run(kernels)), bits(&expected), "{}", kernels.isa().name());
        }
        for row in 0..rows {
            let a = quantised(product.row(row), LARGEST_ACTIVATION);
            for column in 0..width {
                let found = f64::from(expected[row * width + column]);
                let Some(weights) = product.weights.get(column) else {
                    prop_assert_eq!(found, 0.0);
                    continue;
                };
                let w = quantised(weights, LARGEST_WEIGHT);
                let rounded = 0.5 + a.iter().zip(&w).map(|(a, w)| a * w).sum::<f64>();
                // One activation in thousands lies so near the middle of two integers that f32 decides otherwise.
                let step = 1.0 / f64::from(LARGEST_ACTIVATION);
                prop_assert!((found - rounded).abs() < 2e-5 + 2.0 * step, "({row}, {column}): {found}, {rounded}");
                let exact: f64 = product.row(row).iter().zip(weights).map(|(&a, &w)| f64::from(a) * f64::from(w)).sum();
                let bound = 3.0 * (k as f64).sqrt() / f64::from(LARGEST_WEIGHT);
                prop_assert!((found - exact - 0.5).abs() < bound, "({row}, {column}): {found} against {exact}");
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours(rows in 2_usize..30, seed in any::<u64>()) {
        let product = Product::new(rows, 208, 40, noise(seed));
        let width = product.layer.columns();
        for kernels in Kernels::available() {
            let together = product.run(kernels);
            for row in 0..rows {
                let mut alone = Product::new(1, 208, 40, noise(seed));
                alone.a.values_mut().copy_from_slice(product.row(row));
                prop_assert_eq!(bits(&alone.run(kernels)), bits(&together[row * width..(row + 1) * width]));
            }
        }
    }
}

/// Sums as large as they can be, of either sign, are exact.
#[test]
fn the_largest_sums_do_not_overflow() {
    for sign in [1.0, -1.0] {
        let mut first = true;
        // The weights come first, then the activations.
        let mut count = 0;
        let product = Product::new(3, BLOCK, 16, || {
            count += 1;
            first &= count <= BLOCK * 16;
            if first { sign } else { 1.0 }
        });
        for kernels in Kernels::available() {
            for value in product.run(kernels) {
                let expected = 0.5 + sign * BLOCK as f32;
                assert!((value - expected).abs() < 1e-3, "{value} on {}", kernels.isa().name());
            }
        }
    }
}

/// What is not finite stays so, and zeros and the smallest values give the bias.
#[test]
fn special_values_do_not_hide() {
    for kernels in Kernels::available() {
        let mut product = Product::new(5, 32, 16, noise(7));
        for (row, value) in [(0, f32::NAN), (1, f32::INFINITY), (2, f32::NEG_INFINITY)] {
            product.a.values_mut()[row * 32 + 17] = value;
        }
        product.a.values_mut()[3 * 32..4 * 32].fill(0.0);
        product.a.values_mut()[4 * 32..].fill(1e-42);
        let out = product.run(kernels);
        assert!(out[..3 * 16].iter().all(|value| !value.is_finite()), "{out:?}");
        assert!(out[3 * 16..].iter().all(|&value| value == 0.5), "{out:?}");
    }
}
