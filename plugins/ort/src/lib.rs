//! onnxruntime as a Synapse engine: encoder embeddings and cross-encoder scores from ONNX graphs.
//!
//! Owns one onnxruntime environment per process and one session per loaded model. Loaded by the host like any plugin;
//! the runtime itself is the private library `libonnxruntime` of the bundle. It knows nothing of tokenizers,
//! normalisation or requests.
//!
//! | file | purpose |
//! |---|---|
//! | `runtime.rs` | the environment, and where the runtime's library lies |
//! | `graph.rs` | what an ONNX file says, read with bounds before the runtime sees it |
//! | `session.rs` | one graph ready to run, several calls at once, cancellation |
//! | `plan.rs` | a ragged batch cut into small padded ones |
//! | `encoder.rs` | the two engines |

pub mod encoder;
pub mod graph;
mod plan;
mod runtime;
mod session;

use synapse_plugin_sdk::prelude::*;

/// The numeric version: the minor version of onnxruntime that the bundle carries, and ours.
pub const NUMERIC_VERSION: &str = "1.32-1";

/// The plugin: what it is and how its engines are made.
#[must_use]
pub fn plugin() -> Plugin {
    let share = |support: Support| support.preempt(Preempt::SHARE);
    Plugin::new(Identity::new("ort", NUMERIC_VERSION))
        .supports(share(Support::embed("onnx", "f32")).f32_exact())
        .supports(share(Support::embed("onnx", "int8")))
        .supports(share(Support::rerank("onnx", "f32")).f32_exact())
        .embedder(|setup| encoder::Embed::new(setup.host))
        .reranker(|setup| encoder::Rerank::new(setup.host))
}

export_plugin!(id: "ort", plugin: plugin);
