//! The arithmetic: matrix product, attention, normalisation, activation, each written once over sixteen lanes.
//!
//! Owns no state but the choice of instruction set. Called by `model`; knows nothing of files, threads or calls.

pub mod attention;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod buffer;
pub mod gemm;
pub mod isa;
pub mod lanes;
pub mod layer_norm;
pub mod math;
pub mod memory;
pub mod packed;
pub mod pairs;
#[cfg(test)]
mod pairs_tests;
pub mod portable;
pub mod rotary;
#[cfg(test)]
mod tests;
