//! The three traits that an author implements.
//!
//! Own no state. The shims call them with checked arguments, contain their panics and keep their models; the rules of
//! threading are the ABI's: `load` is `[control]` (never two at once per engine), the work is `[compute]` (up to
//! [`Loaded::max_concurrency`] at once on one model, from plain threads).

use crate::{
    api::ExtensionRef,
    artifact::{Artifact, Loaded, RuntimeConfig},
    batch::{PairBatch, TokenBatch},
    call::Call,
    error::Error,
    generate::{GenerateOptions, Generated, Prompt, Sink},
};

/// Token ids to vectors.
pub trait Embedder: Send + Sync + 'static {
    /// What a load makes. Dropping it frees everything.
    type Model: Send + Sync + 'static;

    /// Keys of [`RuntimeConfig::extra`] that this engine knows; others are refused by name before `load`.
    const EXTRA_KEYS: &'static [&'static str] = &[];

    /// `[control]` Loads a model. The files are verified; their content is still foreign: check it.
    ///
    /// # Errors
    /// [`Error`]; a failed load leaves nothing behind.
    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Self::Model>, Error>;

    /// `[compute]` Embeds `batch.len()` items into `out`, row-major `n × dims`, fully written on Ok: the output of the
    /// last module before Normalize. No item depends on another.
    ///
    /// # Errors
    /// [`Error`]; `out` is then undefined.
    fn embed(&self, call: &Call<'_>, model: &Self::Model, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error>;

    /// `[compute]` Embeds one item with segment ids 0 into `dims` values. The default runs `embed`; override it only
    /// for speed, with the same bits.
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    fn embed_one(&self, call: &Call<'_>, model: &Self::Model, ids: &[i32], out: &mut [f32]) -> Result<(), Error> {
        let end = u32::try_from(ids.len()).map_err(|_| Error::input_too_long("more than 2^32 tokens"))?;
        self.embed(
            call,
            model,
            TokenBatch {
                ids,
                offsets: &[0, end],
                type_ids: &[],
            },
            out,
        )
    }

    /// `[any]` Bytes of scratch space kept between calls. The models' bytes are counted by the SDK.
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// `[any]` An extension of this engine by id, for example `synapse.compiled-shapes/1`.
    fn extension(&self, id: &str) -> Option<ExtensionRef<'_>> {
        let _ = id;
        None
    }
}

/// Query and document pairs to raw scores.
pub trait Reranker: Send + Sync + 'static {
    /// What a load makes. Dropping it frees everything.
    type Model: Send + Sync + 'static;

    /// As [`Embedder::EXTRA_KEYS`].
    const EXTRA_KEYS: &'static [&'static str] = &[];

    /// `[control]` As [`Embedder::load`].
    ///
    /// # Errors
    /// As [`Embedder::load`].
    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Self::Model>, Error>;

    /// `[compute]` Scores every pair into `out`, one raw value each (before any sigmoid), in input order.
    ///
    /// # Errors
    /// [`Error`]; `out` is then undefined.
    fn score(&self, call: &Call<'_>, model: &Self::Model, batch: PairBatch<'_>, out: &mut [f32]) -> Result<(), Error>;

    /// `[any]` As [`Embedder::scratch_bytes`].
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// `[any]` As [`Embedder::extension`].
    fn extension(&self, id: &str) -> Option<ExtensionRef<'_>> {
        let _ = id;
        None
    }
}

/// A prompt to a continuation.
pub trait Generator: Send + Sync + 'static {
    /// What a load makes. Dropping it frees everything.
    type Model: Send + Sync + 'static;

    /// As [`Embedder::EXTRA_KEYS`].
    const EXTRA_KEYS: &'static [&'static str] = &[];

    /// Keys of [`GenerateOptions::extra`] that this engine knows; others are refused by name.
    const OPTION_KEYS: &'static [&'static str] = &[];

    /// `[control]` As [`Embedder::load`].
    ///
    /// # Errors
    /// As [`Embedder::load`].
    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Self::Model>, Error>;

    /// `[compute]` Generates into `sink`, with a checkpoint at every token.
    ///
    /// # Errors
    /// [`Error`]; what the sink took stands.
    fn generate(
        &self,
        call: &Call<'_>,
        model: &Self::Model,
        prompt: Prompt<'_>,
        options: GenerateOptions<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Generated, Error>;

    /// `[any]` As [`Embedder::scratch_bytes`].
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// `[any]` As [`Embedder::extension`].
    fn extension(&self, id: &str) -> Option<ExtensionRef<'_>> {
        let _ = id;
        None
    }
}
