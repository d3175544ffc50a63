//! llama.cpp as a Synapse engine: GGUF embeddings, reranking and generation.
//!
//! Owns the llama.cpp backend of its process and the loaded models. Loaded in a worker process only: llama.cpp ends the
//! process where it meets what it does not expect. It knows nothing of tokenizers, templates or requests: the host
//! sends token ids and has checked the GGUF file.
//!
//! | file | purpose |
//! |---|---|
//! | `backend.rs` | the backend of this process, and the CPU that it was built for |
//! | `log.rs` | where llama.cpp's lines and its last words go |
//! | `model.rs` | loading a GGUF file, and what it says of itself |
//! | `seat.rs` | a model with the context that computes on it, kept from call to call |
//! | `encode.rs` | embeddings and scores, one sequence at a time |
//! | `generate.rs` | generation token by token |
//! | `sample.rs` | choosing the next token: greedy, sampling, grammar |
//! | `grammar.rs` | which grammars may reach llama.cpp's parser |
//! | `text.rs` | whole characters and stop texts |
//!
//! # Numbers
//! Every sequence is a batch of its own, so that an item alone and in company are the same computation. For vectors and
//! scores attention is computed in f32; for generation keys and values are f16, and the catalog's row says whether
//! llama.cpp's flash attention computes.
//! The dtype `f32` is a label: weights stay as the file stores them, activations are converted to what the kernel of
//! that storage takes, and GELU is a table of f16 values; no claim of exact f32 is made.

mod backend;
pub mod encode;
pub mod generate;
pub mod grammar;
mod log;
mod model;
mod sample;
mod seat;
mod text;

use synapse_plugin_sdk::prelude::*;

/// The numeric version: the release of llama-cpp-sys-2, which holds llama.cpp's source, and ours.
pub const NUMERIC_VERSION: &str = "0.1.161-1";

/// Where the numbers are computed.
const DEVICE: &str = if cfg!(feature = "cuda") {
    "cuda"
} else if cfg!(feature = "vulkan") {
    "vulkan"
} else {
    "cpu"
};

/// `[engine.config]` of tests: the tokens of every context, whatever a model is loaded for, so that a longer item
/// reaches an assertion of ggml. Builds without debug assertions, such as every bundle that is handed out, refuse the
/// key.
const FAULT_CONTEXT: &str = "fault_context_tokens";

/// The plugin: what it is and how its engines are made.
#[must_use]
pub fn plugin() -> Plugin {
    let identity = Identity::new("llama-cpp", NUMERIC_VERSION)
        .build_flag(DEVICE)
        .build_flag("generate-kv-f16")
        .build_flag("pooled-attention-f32");
    let keys: &[&str] = if cfg!(debug_assertions) { &[FAULT_CONTEXT] } else { &[] };
    let quantum = |support: Support| support.preempt(Preempt::QUANTUM);
    Plugin::new(identity)
        .supports(quantum(Support::embed("gguf", "f32")))
        .supports(quantum(Support::rerank("gguf", "f32")))
        .supports(quantum(Support::generate("gguf", "f32")))
        .config_keys(keys)
        .environment(backend::environment)
        .embedder(|setup| started(&setup).map(encode::Embed))
        .reranker(|setup| started(&setup).map(encode::Rerank))
        .generator(|setup| started(&setup).map(generate::Generate))
}

/// Starts the backend and reads the settings: the tokens of every context, if tests set them.
fn started(setup: &Setup) -> Result<Option<u32>, Error> {
    backend::start(setup.host)?;
    setup.config.parsed(FAULT_CONTEXT)
}

export_plugin!(id: "llama-cpp", plugin: plugin);
