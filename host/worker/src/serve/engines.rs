//! The bundle's engines and models: requests in, replies out.
//!
//! State: the models that the daemon loaded. Callers: [`super`]. Not known here: the socket's framing.
//!
//! Files are measured again before an engine opens them (WPROTO-18): what the daemon verified may have changed since.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use synapse_core::digest::Sha256Digest;
use synapse_core::engine::{
    CallContext, EngineError, EngineErrorCode, EngineState, FinishReason, Flow, GenerateOptions, LoadedModel, ModelRef,
    PairBatch, Prompt, RuntimeConfig, TokenBatch, TokenSink, ValidatedArtifact, VerifiedFile,
};
use synapse_loader::Plugin;
use synapse_wire::worker::message::{
    self, ArtifactFile, BatchItem, Budget, EngineKind, EngineState as WireState, Phase, PromptHeader,
};
use synapse_wire::worker::{HostMessage, WorkerMessage, raw};

use super::control::{Cancelled, Control};
use super::link::Link;

type Answer = Result<(WorkerMessage, Option<Vec<u8>>), EngineError>;

/// A loaded model and the engine that holds it.
struct Model {
    kind: EngineKind,
    model: ModelRef,
    dims: u32,
}

/// The bundle with its models.
pub struct Engines {
    plugin: Plugin,
    settings: Vec<(String, String)>,
    models: BTreeMap<u64, Model>,
    next: u64,
}

fn invalid(message: impl Into<String>) -> EngineError {
    EngineError::new(EngineErrorCode::InvalidArgument, EngineState::Usable, message)
}

impl Engines {
    /// The bundle without models.
    pub const fn new(plugin: Plugin, settings: Vec<(String, String)>) -> Self {
        Self {
            plugin,
            settings,
            models: BTreeMap::new(),
            next: 1,
        }
    }

    /// Tells the engines that the process ends.
    pub fn shutdown(&self) {
        self.plugin.shutdown();
    }

    /// Answers one request. The reply names the request, whatever happens.
    pub fn answer(
        &mut self,
        request: &HostMessage,
        raw: &[u8],
        link: &Link,
        cancelled: &Cancelled,
    ) -> (WorkerMessage, Option<Vec<u8>>) {
        let control = |req_id, phase| Control::new(link, cancelled, req_id, phase);
        let (req_id, answer) = match request {
            HostMessage::Load {
                req_id,
                engine,
                files,
                runtime_config,
            } => {
                let control = control(*req_id, Phase::Setup);
                (*req_id, self.load(*req_id, *engine, files, runtime_config, &control))
            }
            HostMessage::EmbedBatch {
                req_id,
                model_ref,
                budget,
                items,
                type_ids,
                ..
            } => {
                let control = control(*req_id, Phase::Inference);
                let call = Compute {
                    req_id: *req_id,
                    model: *model_ref,
                    budget: *budget,
                    control: &control,
                };
                (*req_id, self.embed(&call, items, *type_ids, raw, link.max_frame()))
            }
            HostMessage::Rerank {
                req_id,
                model_ref,
                budget,
                items,
                type_ids,
                ..
            } => {
                let control = control(*req_id, Phase::Inference);
                let call = Compute {
                    req_id: *req_id,
                    model: *model_ref,
                    budget: *budget,
                    control: &control,
                };
                (*req_id, self.rerank(&call, items, *type_ids, raw))
            }
            HostMessage::Generate {
                req_id,
                model_ref,
                budget,
                ..
            } => {
                let control = control(*req_id, Phase::Inference);
                let call = Compute {
                    req_id: *req_id,
                    model: *model_ref,
                    budget: *budget,
                    control: &control,
                };
                (*req_id, self.generate(&call, request, raw))
            }
            HostMessage::Unload { req_id, model_ref } => (*req_id, self.unload(*req_id, *model_ref)),
            HostMessage::Ping { req_id } => (*req_id, Ok((self.pong(*req_id), None))),
            HostMessage::HelloAck { .. } | HostMessage::Cancel { .. } | HostMessage::Shutdown {} => {
                (0, Err(invalid("this message is no request")))
            }
        };
        answer.unwrap_or_else(|error| (error_message(req_id, error), None))
    }

    fn pong(&self, req_id: u64) -> WorkerMessage {
        let models_loaded = u32::try_from(self.models.len()).unwrap_or(u32::MAX);
        WorkerMessage::Pong {
            req_id,
            rss_mb: resident_mib(),
            models_loaded,
            placement_share: None,
        }
    }

    fn load(
        &mut self,
        req_id: u64,
        kind: EngineKind,
        files: &[ArtifactFile],
        config: &message::RuntimeConfig,
        control: &Control<'_>,
    ) -> Answer {
        let started = Instant::now();
        let artifact = ValidatedArtifact::new(files.iter().map(verify).collect::<Result<_, _>>()?);
        let config = RuntimeConfig {
            format: config.format.clone(),
            dtype: config.dtype.clone(),
            pooling: config.pooling.clone(),
            max_tokens: config.max_tokens,
            max_batch: config.max_batch,
            max_batch_tokens: config.max_batch_tokens,
            threads: config.threads,
            extra: config.extra.clone().into_iter().collect(),
        };
        let ctx = CallContext {
            request_id: req_id,
            remaining: None,
            threads: config.threads,
            control,
        };
        let loaded = self.load_into(kind, &ctx, &artifact, &config)?;
        let model_ref = self.next;
        self.next += 1;
        self.models.insert(
            model_ref,
            Model {
                kind,
                model: loaded.model,
                dims: loaded.dims,
            },
        );
        let message = WorkerMessage::Loaded {
            req_id,
            model_ref,
            dims: loaded.dims,
            max_tokens: loaded.max_tokens,
            memory_bytes: loaded.memory_bytes,
            cold_load_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        Ok((message, None))
    }

    fn load_into(
        &self,
        kind: EngineKind,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> Result<LoadedModel, EngineError> {
        match kind {
            EngineKind::Embed => self
                .plugin
                .embed(&self.settings)
                .map_err(no_engine)?
                .load(ctx, artifact, config),
            EngineKind::Rerank => self
                .plugin
                .rerank(&self.settings)
                .map_err(no_engine)?
                .load(ctx, artifact, config),
            EngineKind::Generate => self
                .plugin
                .generate(&self.settings)
                .map_err(no_engine)?
                .load(ctx, artifact, config),
        }
    }

    fn model(&self, model_ref: u64, kind: EngineKind) -> Result<&Model, EngineError> {
        let model = self
            .models
            .get(&model_ref)
            .ok_or_else(|| invalid(format!("model {model_ref} is not loaded")))?;
        if model.kind == kind {
            Ok(model)
        } else {
            Err(invalid(format!(
                "model {model_ref} was loaded for {:?}, not for {kind:?}",
                model.kind
            )))
        }
    }

    fn embed(&self, call: &Compute<'_>, items: &[BatchItem], type_ids: bool, bytes: &[u8], max_frame: u32) -> Answer {
        let model = self.model(call.model, EngineKind::Embed)?;
        let batch = Batch::unpack(items, type_ids, bytes)?;
        let n = u32::try_from(items.len()).map_err(|_| invalid("too many items"))?;
        let values = u64::from(n) * u64::from(model.dims);
        if values * 4 > u64::from(max_frame) {
            return Err(invalid(format!(
                "{n} vectors of {} values do not fit into one frame",
                model.dims
            )));
        }
        // What an engine leaves unwritten must not pass for a number: the daemon checks that all are finite.
        let mut out = vec![f32::NAN; usize::try_from(values).map_err(|_| invalid("too many values"))?];
        let engine = self.plugin.embed(&self.settings).map_err(no_engine)?;
        if let ([_], false) = (items, type_ids) {
            engine.embed_one(&call.context(), model.model, &batch.ids, &mut out)?;
        } else {
            engine.embed_batch(&call.context(), model.model, &batch.tokens(), &mut out)?;
        }
        let mut raw = Vec::new();
        raw::put_f32(&out, &mut raw);
        let raw_bytes = raw.len() as u64;
        Ok((
            WorkerMessage::Vectors {
                req_id: call.req_id,
                dims: model.dims,
                n,
                raw_bytes,
            },
            Some(raw),
        ))
    }

    fn rerank(&self, call: &Compute<'_>, items: &[BatchItem], type_ids: bool, bytes: &[u8]) -> Answer {
        let model = self.model(call.model, EngineKind::Rerank)?;
        let batch = Batch::unpack(items, type_ids, bytes)?;
        let doc_starts: Vec<u32> = items.iter().filter_map(|item| item.doc_start).collect();
        if doc_starts.len() != items.len() || items.iter().zip(&doc_starts).any(|(item, at)| *at > item.n_tokens) {
            return Err(invalid("each pair needs a doc_start inside it"));
        }
        let mut out = vec![f32::NAN; items.len()];
        let engine = self.plugin.rerank(&self.settings).map_err(no_engine)?;
        let pairs = PairBatch {
            tokens: batch.tokens(),
            doc_starts: &doc_starts,
        };
        engine.score_batch(&call.context(), model.model, &pairs, &mut out)?;
        let mut raw = Vec::new();
        raw::put_f32(&out, &mut raw);
        let n = u32::try_from(items.len()).map_err(|_| invalid("too many items"))?;
        let raw_bytes = raw.len() as u64;
        Ok((
            WorkerMessage::Scores {
                req_id: call.req_id,
                n,
                raw_bytes,
            },
            Some(raw),
        ))
    }

    fn generate(&self, call: &Compute<'_>, request: &HostMessage, bytes: &[u8]) -> Answer {
        let HostMessage::Generate {
            max_tokens,
            temperature,
            top_p,
            seed,
            stop,
            grammar,
            prompt,
            ..
        } = request
        else {
            return Err(invalid("not a GENERATE message"));
        };
        let model = self.model(call.model, EngineKind::Generate)?;
        let ids;
        let prompt = match prompt {
            PromptHeader::Ids(count) => {
                ids = raw::get_i32(bytes, (*count).into()).map_err(|error| invalid(error.to_string()))?;
                Prompt::Ids(&ids)
            }
            PromptHeader::Text(text) => Prompt::Text(text),
        };
        let options = GenerateOptions {
            max_tokens: *max_tokens,
            temperature: *temperature,
            top_p: *top_p,
            seed: *seed,
            stop: stop.clone(),
            grammar: grammar.clone().unwrap_or_default(),
            extra: Vec::new(),
        };
        let mut sink = Collected::default();
        let engine = self.plugin.generate(&self.settings).map_err(no_engine)?;
        let generated = engine.generate(&call.context(), model.model, prompt, &options, &mut sink)?;
        if !u32::try_from(sink.ids.len()).is_ok_and(|ids| ids <= generated.generated_tokens) {
            let message = "the engine gave more token ids than it says that it generated";
            return Err(EngineError::new(
                EngineErrorCode::Internal,
                EngineState::Usable,
                message,
            ));
        }
        let mut raw = Vec::new();
        raw::put_i32(&sink.ids, &mut raw);
        let message = WorkerMessage::Text {
            req_id: call.req_id,
            text: String::from_utf8_lossy(&sink.bytes).into_owned(),
            n_prompt: generated.prompt_tokens,
            n_gen: generated.generated_tokens,
            finish_reason: match generated.finish {
                FinishReason::Stop => message::FinishReason::Stop,
                FinishReason::Length => message::FinishReason::Length,
            },
            raw_bytes: raw.len() as u64,
        };
        Ok((message, Some(raw).filter(|raw| !raw.is_empty())))
    }

    fn unload(&mut self, req_id: u64, model_ref: u64) -> Answer {
        let model = self
            .models
            .remove(&model_ref)
            .ok_or_else(|| invalid(format!("model {model_ref} is not loaded")))?;
        match model.kind {
            EngineKind::Embed => self
                .plugin
                .embed(&self.settings)
                .map_err(no_engine)?
                .unload(model.model)?,
            EngineKind::Rerank => self
                .plugin
                .rerank(&self.settings)
                .map_err(no_engine)?
                .unload(model.model)?,
            EngineKind::Generate => self
                .plugin
                .generate(&self.settings)
                .map_err(no_engine)?
                .unload(model.model)?,
        }
        Ok((WorkerMessage::Unloaded { req_id }, None))
    }
}

/// What every compute call has.
struct Compute<'a> {
    req_id: u64,
    model: u64,
    budget: Budget,
    control: &'a Control<'a>,
}

impl Compute<'_> {
    fn context(&self) -> CallContext<'_> {
        CallContext {
            request_id: self.req_id,
            remaining: self.budget.deadline_ms.map(Duration::from_millis),
            threads: self.budget.threads.max(1),
            control: self.control,
        }
    }
}

/// A batch read from its raw frame.
struct Batch {
    ids: Vec<i32>,
    offsets: Vec<u32>,
    type_ids: Vec<i32>,
}

impl Batch {
    fn unpack(items: &[BatchItem], typed: bool, bytes: &[u8]) -> Result<Self, EngineError> {
        let mut offsets = Vec::with_capacity(items.len() + 1);
        let mut end = 0u32;
        offsets.push(end);
        for item in items {
            end = end
                .checked_add(item.n_tokens)
                .ok_or_else(|| invalid("the batch has too many tokens"))?;
            offsets.push(end);
        }
        let values = u64::from(end) * if typed { 2 } else { 1 };
        let mut ids = raw::get_i32(bytes, values).map_err(|error| invalid(error.to_string()))?;
        let type_ids = if typed { ids.split_off(end as usize) } else { Vec::new() };
        Ok(Self { ids, offsets, type_ids })
    }

    fn tokens(&self) -> TokenBatch<'_> {
        TokenBatch {
            ids: &self.ids,
            offsets: &self.offsets,
            type_ids: &self.type_ids,
        }
    }
}

#[derive(Default)]
struct Collected {
    ids: Vec<i32>,
    bytes: Vec<u8>,
}

impl TokenSink for Collected {
    fn push(&mut self, ids: &[i32], bytes: &[u8]) -> Flow {
        self.ids.extend_from_slice(ids);
        self.bytes.extend_from_slice(bytes);
        Flow::Continue
    }
}

fn error_message(req_id: u64, error: EngineError) -> WorkerMessage {
    let state = match error.state {
        EngineState::Usable => WireState::Usable,
        EngineState::ModelBad => WireState::ModelBad,
        EngineState::EngineBad => WireState::EngineBad,
    };
    WorkerMessage::Err {
        req_id,
        code: error.code.name().to_owned(),
        state,
        msg: error.message,
    }
}

fn no_engine(error: synapse_loader::LoaderError) -> EngineError {
    EngineError::new(EngineErrorCode::ConfigInvalid, EngineState::Usable, error.to_string())
}

/// Measures a file and compares it with what the daemon verified.
fn verify(file: &ArtifactFile) -> Result<VerifiedFile, EngineError> {
    let refuse = |message: String| EngineError::new(EngineErrorCode::ArtifactInvalid, EngineState::Usable, message);
    let expected: Sha256Digest = file
        .sha256
        .parse()
        .map_err(|error| invalid(format!("{}: {error}", file.role)))?;
    let path = PathBuf::from(&file.path);
    let measured =
        measure(&path).map_err(|error| refuse(format!("{}: cannot read {}: {error}", file.role, file.path)))?;
    VerifiedFile::check(&file.role, path, (expected, file.size), measured).map_err(|error| refuse(error.to_string()))
}

fn measure(path: &Path) -> io::Result<(Sha256Digest, u64)> {
    let mut source = File::open(path)?;
    let (mut hash, mut size, mut chunk) = (Sha256::new(), 0u64, vec![0u8; 1 << 20]);
    loop {
        let count = source.read(&mut chunk)?;
        if count == 0 {
            return Ok((Sha256Digest(hash.finalize().into()), size));
        }
        hash.update(&chunk[..count]);
        size += count as u64;
    }
}

/// Resident memory of this process in MiB; 0 where the system does not say.
fn resident_mib() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    pages * rustix::param::page_size() as u64 / (1 << 20)
}
