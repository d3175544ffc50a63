//! The three engine traits: one lifecycle, three call shapes.
//!
//! Plugins implement them (the SDK does it for authors), the loader calls them. An implementation never unwinds:
//! abi_stable ends the process when a panic reaches this boundary. Engines live until the process ends or the host
//! drops them with no call running.

use abi_stable::{
    sabi_trait,
    std_types::{RBox, ROption, RResult, RSlice, RStr},
};

use crate::{
    batch::{PairBatch, ScoresOut, TokenBatch, VectorsOut},
    call::CallContext,
    error::EngineError,
    ext::ExtensionRef,
    generate::{GenerateOptions, Generated, Prompt, TokenSink},
    identity::EngineIdentity,
    load::{LoadedModel, MemoryReport, ModelRef, RuntimeConfig, ValidatedArtifact},
};

/// Token ids to vectors: the output of the last module before Normalize. L2 norm, dimension slice and the finite
/// check are the host's.
#[sabi_trait]
pub trait EmbedEngine: Send + Sync + 'static {
    /// `[any]` The numeric identity: constant, equal to the descriptor's.
    fn identity(&self) -> EngineIdentity;

    /// `[control]` Loads a model. Errors: CONFIG_INVALID, ARTIFACT_INVALID, UNSUPPORTED, OUT_OF_MEMORY, DEVICE,
    /// CANCELLED, PANIC; a failed load leaves no model behind. Checkpoints count bytes or steps.
    fn load(
        &self,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> RResult<LoadedModel, EngineError>;

    /// `[compute]` Embeds `n` items into `n × dims` values, fully written on Ok. Errors: INVALID_ARGUMENT,
    /// INPUT_TOO_LONG, NON_FINITE, OUT_OF_MEMORY, CANCELLED, DEADLINE_EXCEEDED, DEVICE, PANIC.
    fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &TokenBatch<'_>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError>;

    /// `[compute]` Embeds one item (segment ids all 0) into `dims` values. Errors: as `embed_batch`.
    fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        ids: RSlice<'_, i32>,
        out: VectorsOut<'_>,
    ) -> RResult<(), EngineError>;

    /// `[control]` Forgets a model; no compute call runs on it. Errors: INVALID_ARGUMENT for an unknown model.
    fn unload(&self, model: ModelRef) -> RResult<(), EngineError>;

    /// `[any]` Bytes held now.
    fn memory(&self) -> MemoryReport;

    /// `[any]` An extension of this engine by id, valid as long as the engine object.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<ExtensionRef<'_>>;
}

/// Query and document pairs to raw scores.
#[sabi_trait]
pub trait RerankEngine: Send + Sync + 'static {
    /// `[any]` As [`EmbedEngine::identity`].
    fn identity(&self) -> EngineIdentity;

    /// `[control]` As [`EmbedEngine::load`].
    fn load(
        &self,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> RResult<LoadedModel, EngineError>;

    /// `[compute]` Scores `n` pairs into `n` raw values (before any sigmoid), in input order, fully written on Ok.
    /// Errors: as [`EmbedEngine::embed_batch`].
    fn score_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &PairBatch<'_>,
        out: ScoresOut<'_>,
    ) -> RResult<(), EngineError>;

    /// `[control]` As [`EmbedEngine::unload`].
    fn unload(&self, model: ModelRef) -> RResult<(), EngineError>;

    /// `[any]` Bytes held now.
    fn memory(&self) -> MemoryReport;

    /// `[any]` As [`EmbedEngine::extension`].
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<ExtensionRef<'_>>;
}

/// A prompt to a continuation.
#[sabi_trait]
pub trait GenerateEngine: Send + Sync + 'static {
    /// `[any]` As [`EmbedEngine::identity`].
    fn identity(&self) -> EngineIdentity;

    /// `[control]` As [`EmbedEngine::load`].
    fn load(
        &self,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> RResult<LoadedModel, EngineError>;

    /// `[compute]` Generates into `sink` and checks for cancellation at every token. Errors: as
    /// [`EmbedEngine::embed_batch`], and CONFIG_INVALID, UNSUPPORTED, GRAMMAR_INVALID, GRAMMAR_UNAVAILABLE.
    fn generate(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        sink: TokenSink<'_>,
    ) -> RResult<Generated, EngineError>;

    /// `[control]` As [`EmbedEngine::unload`].
    fn unload(&self, model: ModelRef) -> RResult<(), EngineError>;

    /// `[any]` Bytes held now.
    fn memory(&self) -> MemoryReport;

    /// `[any]` As [`EmbedEngine::extension`].
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<ExtensionRef<'_>>;
}

/// An embed engine as it crosses the boundary.
pub type EmbedEngineObject = EmbedEngine_TO<RBox<()>>;
/// A rerank engine as it crosses the boundary.
pub type RerankEngineObject = RerankEngine_TO<RBox<()>>;
/// A generate engine as it crosses the boundary.
pub type GenerateEngineObject = GenerateEngine_TO<RBox<()>>;
