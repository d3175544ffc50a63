//! What the author of an engine plugin writes against: three plain-Rust traits and one macro.
//!
//! Owns the containment of panics, the handles of loaded models and the plugin's link to the host's log. Used by
//! plugins only; it knows `synapse-plugin-api` and nothing of the host. The rules that a plugin must keep are in
//! `docs/plugin-contract.md`; what the SDK keeps for the author is marked there with "SDK".
//!
//! # A plugin
//! ```
//! use synapse_plugin_sdk::prelude::*;
//!
//! struct Toy;
//!
//! impl Embedder for Toy {
//!     type Model = u64;
//!
//!     fn load(&self, _: &Call<'_>, artifact: Artifact<'_>, _: RuntimeConfig<'_>) -> Result<Loaded<u64>, Error> {
//!         Ok(Loaded::new(artifact.file("weights")?.size, 4))
//!     }
//!
//!     fn embed(&self, call: &Call<'_>, size: &u64, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
//!         for (i, (item, row)) in batch.items().zip(out.chunks_exact_mut(4)).enumerate() {
//!             row.fill(*size as f32 * item.ids[0] as f32);
//!             call.checkpoint(i as u64 + 1, batch.len() as u64)?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! fn plugin() -> Plugin {
//!     Plugin::new(Identity::new("toy", "1"))
//!         .supports(Support::embed("bin", "f32").preempt(Preempt::CHECKPOINT))
//!         .embedder(|_| Ok(Toy))
//! }
//!
//! synapse_plugin_sdk::export_plugin!(id: "toy", plugin: plugin);
//! ```
//! The crate is built as `cdylib`; a bundle is the library beside a `plugin.toml`.

pub use synapse_plugin_api as api;

pub mod artifact;
pub mod batch;
pub mod call;
pub mod config;
pub mod engine;
pub mod error;
pub mod export;
pub mod generate;
pub mod host;
#[cfg(feature = "log")]
pub mod log_bridge;
pub mod plugin;
mod shim;
pub mod testing;

pub use artifact::{Artifact, Loaded, RuntimeConfig};
pub use batch::{Item, PairBatch, TokenBatch};
pub use call::{Call, Pace};
pub use config::Config;
pub use engine::{Embedder, Generator, Reranker};
pub use error::Error;
pub use generate::{GenerateOptions, Generated, Prompt, Sink};
pub use host::{Host, HostBuffer};
pub use plugin::{Identity, Plugin, Setup, Support};

/// Everything that a plugin usually names.
pub mod prelude {
    pub use crate::api::{ArtifactFile, EngineState, ErrorCode, ExtensionRef, FinishReason, LogLevel, Preempt};
    pub use crate::{
        Artifact, Call, Config, Embedder, Error, GenerateOptions, Generated, Generator, Host, HostBuffer, Identity,
        Item, Loaded, Pace, PairBatch, Plugin, Prompt, Reranker, RuntimeConfig, Setup, Sink, Support, TokenBatch,
        debug, error, export_plugin, info, warn,
    };
}
