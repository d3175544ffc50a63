//! `owned`: a pure-Rust CPU runtime for text encoders, as an engine plugin.
//!
//! The library owns loaded models, helper threads and workspaces; the daemon loads it in-process (risk class
//! abort-safe) and calls it from its compute threads; benchmarks use the same code through the rlib. It deliberately
//! does not know tokenizers, catalogs or sockets: ids come in, pooled vectors before L2 normalisation or raw scores go
//! out.
//!
//! - [`artifact`]: files, checked in every respect before use;
//! - [`kernel`]: arithmetic, written once over sixteen lanes, instantiated per instruction set;
//! - [`model`]: architectures over shared blocks;
//! - [`thread`]: helper threads, barrier, checkpoint gate;
//! - [`engine`]: loads and calls; [`plugin`]: the same behind the ABI.
//!
//! | config.json's `model_type` | vectors | scores |
//! |---|---|---|
//! | bert, roberta, xlm-roberta, distilbert, modernbert | yes | yes |
//! | mpnet, qwen3, gemma3_text (bidirectional), nomic_bert, gte (also `new`) | yes | no |
//!
//! Two kinds of arithmetic, each a profile of its own: `f32`, and the fast mode `s16`, in which the layers multiply
//! 16-bit integers with exact 32-bit sums; attention, norms and activations are f32 in both. An item of any length that
//! the model takes is computed with memory linear in its length.
//!
//! Weights are packed into panels at each load, from the file that the host has just measured: no packed copy lies on the
//! disk, which would have to be measured too. A large table of f32 words stays where it is, mapped.
//!
//! **Not run.** AVX-512 without VNNI (its fast mode takes AVX2's kernels), and any machine that is not x86-64: there is
//! no NEON path, such machines use the portable lanes.
//!
//! **Invariant.** Every output value is one fixed chain of correctly rounded operations over its own item. An item
//! alone, in any batch, at any position, on any number of threads and on every instruction set gives the same bits.

pub mod artifact;
pub mod engine;
pub mod error;
pub mod kernel;
pub mod model;
pub mod plugin;
pub mod thread;

/// The numeric version: bumped exactly when output bits can change (`tests/golden_bits.rs` holds it).
pub const NUMERIC_VERSION: &str = "1";
