//! A worker's engine as the scheduler sees it: an engine like any other.
//!
//! State: none beyond the supervisor. Callers: `lane`, through `synapse_core::engine`. Not known here: processes.
//! Batches become a header and one raw frame; the reply's raw frame is copied into the host's buffer after its counts
//! were checked, so a short or long reply never becomes a partial result.

use std::sync::Arc;

use synapse_core::digest::sha256;
use synapse_core::engine::{
    self, CallContext, EmbedEngine, Engine, EngineError, EngineErrorCode, EngineIdentity, EngineState, FinishReason,
    GenerateEngine, GenerateOptions, Generated, LoadedModel, MemoryReport, ModelRef, PairBatch, Prompt, RerankEngine,
    RuntimeConfig, TokenBatch, TokenSink, ValidatedArtifact,
};
use synapse_wire::worker::message::{self, ArtifactFile, BatchItem, Budget, EngineKind, PromptHeader};
use synapse_wire::worker::{HostMessage, WorkerMessage, raw};

use super::supervisor::{LoadRequest, ModelKey, Supervisor};

/// One engine of a bundle, in a worker.
#[derive(Debug)]
pub struct RemoteEngine {
    kind: EngineKind,
    identity: EngineIdentity,
    supervisor: Arc<Supervisor>,
}

impl RemoteEngine {
    /// The engine of this kind behind `supervisor`, with the identity that its HELLO must repeat.
    #[must_use]
    pub const fn new(kind: EngineKind, identity: EngineIdentity, supervisor: Arc<Supervisor>) -> Self {
        Self {
            kind,
            identity,
            supervisor,
        }
    }

    /// The worker's supervisor, for health and shutdown.
    #[must_use]
    pub const fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }
}

/// A kind of engine on the worker protocol.
#[must_use]
pub const fn wire_kind(kind: engine::EngineKind) -> EngineKind {
    match kind {
        engine::EngineKind::Embed => EngineKind::Embed,
        engine::EngineKind::Rerank => EngineKind::Rerank,
        engine::EngineKind::Generate => EngineKind::Generate,
    }
}

/// Names the pair of artifact and configuration in the crash budget and in the quarantine.
#[must_use]
pub fn model_key(artifact: &ValidatedArtifact, config: &RuntimeConfig) -> ModelKey {
    let mut lines: Vec<String> = artifact
        .files()
        .iter()
        .map(|file| format!("{} {}", file.role(), file.sha256()))
        .collect();
    lines.sort();
    lines.push(format!("{config:?}"));
    sha256(lines.join("\n").as_bytes()).to_string()
}

fn budget(ctx: &CallContext<'_>) -> Budget {
    let deadline_ms = ctx
        .remaining
        .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    Budget {
        deadline_ms,
        threads: ctx.threads,
    }
}

fn wrong_shape(message: &str) -> EngineError {
    EngineError::new(EngineErrorCode::InvalidArgument, EngineState::Usable, message)
}

/// The header's items and the raw frame of a batch.
fn pack(batch: &TokenBatch<'_>, doc_starts: Option<&[u32]>) -> Result<(Vec<BatchItem>, bool, Vec<u8>), EngineError> {
    let typed = !batch.type_ids.is_empty();
    if typed && batch.type_ids.len() != batch.ids.len() {
        return Err(wrong_shape("there must be one segment id a token, or none at all"));
    }
    let mut items = Vec::with_capacity(batch.len());
    for (index, ends) in batch.offsets.windows(2).enumerate() {
        let n_tokens = ends[1]
            .checked_sub(ends[0])
            .ok_or_else(|| wrong_shape("offsets must ascend"))?;
        let id = u32::try_from(index).map_err(|_| wrong_shape("too many items"))?;
        items.push(BatchItem {
            id,
            n_tokens,
            doc_start: doc_starts.and_then(|starts| starts.get(index).copied()),
        });
    }
    if batch.offsets.last().is_none_or(|end| *end as usize != batch.ids.len()) {
        return Err(wrong_shape("the last offset must be the number of ids"));
    }
    let mut bytes = Vec::with_capacity(batch.ids.len() * if typed { 8 } else { 4 });
    raw::put_i32(batch.ids, &mut bytes);
    raw::put_i32(batch.type_ids, &mut bytes);
    Ok((items, typed, bytes))
}

fn contradiction(what: &str, expected: usize, found: u64) -> EngineError {
    let message = format!("the worker's reply has {found} {what}, expected {expected}");
    EngineError::new(EngineErrorCode::Internal, EngineState::Usable, message)
}

impl Engine for RemoteEngine {
    fn identity(&self) -> EngineIdentity {
        self.identity.clone()
    }

    fn load(
        &self,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> Result<LoadedModel, EngineError> {
        let files = artifact
            .files()
            .iter()
            .map(|file| ArtifactFile {
                role: file.role().to_owned(),
                path: file.path().to_string_lossy().into_owned(),
                sha256: file.sha256().to_string(),
                size: file.size(),
            })
            .collect();
        let runtime_config = message::RuntimeConfig {
            format: config.format.clone(),
            dtype: config.dtype.clone(),
            pooling: config.pooling.clone(),
            max_tokens: config.max_tokens,
            max_batch: config.max_batch,
            max_batch_tokens: config.max_batch_tokens,
            threads: config.threads,
            extra: config.extra.iter().cloned().collect(),
        };
        let request = LoadRequest {
            engine: self.kind,
            files,
            runtime_config,
        };
        self.supervisor.load(ctx, model_key(artifact, config), request)
    }

    fn unload(&self, model: ModelRef) -> Result<(), EngineError> {
        self.supervisor.unload(model)
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport {
            model_bytes: self.supervisor.model_bytes(),
            scratch_bytes: 0,
        }
    }
}

impl EmbedEngine for RemoteEngine {
    fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &TokenBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (items, type_ids, bytes) = pack(batch, None)?;
        let n = items.len();
        let reply = self.supervisor.exchange(ctx, model, |req_id, model_ref| {
            let raw_bytes = bytes.len() as u64;
            (
                HostMessage::EmbedBatch {
                    req_id,
                    model_ref,
                    budget: budget(ctx),
                    items,
                    type_ids,
                    raw_bytes,
                },
                bytes,
            )
        })?;
        let WorkerMessage::Vectors { n: found, dims, .. } = reply.message else {
            return Err(contradiction("vectors", n, 0));
        };
        if found as usize != n {
            return Err(contradiction("vectors", n, found.into()));
        }
        raw::get_f32(&reply.raw, out).map_err(|_| contradiction("values a vector", out.len() / n.max(1), dims.into()))
    }

    fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        ids: &[i32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let end = u32::try_from(ids.len()).map_err(|_| wrong_shape("too many tokens"))?;
        self.embed_batch(
            ctx,
            model,
            &TokenBatch {
                ids,
                offsets: &[0, end],
                type_ids: &[],
            },
            out,
        )
    }
}

impl RerankEngine for RemoteEngine {
    fn score_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &PairBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (items, type_ids, bytes) = pack(&batch.tokens, Some(batch.doc_starts))?;
        let reply = self.supervisor.exchange(ctx, model, |req_id, model_ref| {
            let raw_bytes = bytes.len() as u64;
            (
                HostMessage::Rerank {
                    req_id,
                    model_ref,
                    budget: budget(ctx),
                    items,
                    type_ids,
                    raw_bytes,
                },
                bytes,
            )
        })?;
        raw::get_f32(&reply.raw, out).map_err(|error| contradiction("scores", out.len(), error.found / 4))
    }
}

impl GenerateEngine for RemoteEngine {
    fn generate(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        sink: &mut dyn TokenSink,
    ) -> Result<Generated, EngineError> {
        let mut bytes = Vec::new();
        let prompt = match prompt {
            Prompt::Ids(ids) => {
                raw::put_i32(ids, &mut bytes);
                PromptHeader::Ids(u32::try_from(ids.len()).map_err(|_| wrong_shape("too many tokens"))?)
            }
            Prompt::Text(text) => PromptHeader::Text(text.to_owned()),
        };
        let reply = self.supervisor.exchange(ctx, model, |req_id, model_ref| {
            let message = HostMessage::Generate {
                req_id,
                model_ref,
                budget: budget(ctx),
                max_tokens: options.max_tokens,
                temperature: options.temperature,
                top_p: options.top_p,
                seed: options.seed,
                stop: options.stop.clone(),
                grammar: (!options.grammar.is_empty()).then(|| options.grammar.clone()),
                prompt,
                raw_bytes: bytes.len() as u64,
            };
            (message, bytes)
        })?;
        let WorkerMessage::Text {
            text,
            n_prompt,
            n_gen,
            finish_reason,
            ..
        } = reply.message
        else {
            return Err(contradiction("texts", 1, 0));
        };
        let spelt = reply.raw.len() as u64 / 4;
        let ids = raw::get_i32(&reply.raw, spelt)
            .map_err(|error| contradiction("generated ids", n_gen as usize, error.found / 4))?;
        // The generation is over: whether the sink wants more changes nothing.
        let _ = sink.push(&ids, text.as_bytes());
        let finish = match finish_reason {
            message::FinishReason::Stop => FinishReason::Stop,
            message::FinishReason::Length => FinishReason::Length,
        };
        Ok(Generated {
            prompt_tokens: n_prompt,
            generated_tokens: n_gen,
            finish,
        })
    }
}
