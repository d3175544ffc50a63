//! What a library check works with: the opened library, its engines, and one loaded model of each kind.
//!
//! State: one host, leaked, and the library, which is never unloaded. Callers: `check/`. A process runs one check, so each
//! engine is made once, as the contract has it. The library is called below every guard of the loader: what reaches it
//! here is what the contract says may reach it, and what it must refuse.

use std::path::PathBuf;
use std::sync::OnceLock;

use synapse_core::digest::sha256;
use synapse_plugin_api::abi_stable::std_types::{RSlice, RStr};
use synapse_plugin_api::{
    ArtifactFile, CallContext, Descriptor, EmbedEngineObject, EngineError, EngineIdentity, EngineKind, EngineSupport,
    ErrorCode, ExtensionRef, Flow, GenerateEngineObject, GenerateOptions, Generated, KeyValue, LoadedModel,
    MemoryReport, ModelRef, PairBatch, Prompt, RerankEngineObject, RuntimeConfig, ScoresOut, SynapsePlugin_Ref,
    TokenBatch, ValidatedArtifact, VectorsOut, module,
};

use crate::call::Call;
use crate::catalogue::{Outcome, Stop, Verdict, fail, skip};
use crate::host::Host;
use crate::json::{self, Job};
use crate::subject::{Kind, Model, ModelFile, Subject};
use crate::sys;

/// A drawn number after another, the same for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// What an error says, for a message.
pub(crate) fn said(error: &EngineError) -> String {
    let words: String = error.message.chars().take(200).collect();
    format!(
        "{} ({}, state {}): {words}",
        error.code.name(),
        error.code.0,
        error.state.0
    )
}

/// Fails unless a call was refused with one of these codes.
pub(crate) fn refused<T>(what: &str, result: &Result<T, EngineError>, codes: &[ErrorCode]) -> Verdict {
    let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
    match result {
        Ok(_) => fail(format!("{what}: accepted, expected {}", names.join(" or "))),
        Err(error) if codes.contains(&error.code) => Ok(()),
        Err(error) => fail(format!("{what}: {}, expected {}", said(error), names.join(" or "))),
    }
}

/// Fails unless a call went well.
pub(crate) fn went<T>(what: &str, result: Result<T, EngineError>) -> Result<T, Stop> {
    result.or_else(|error| fail(format!("{what}: {}", said(&error))))
}

/// A batch as it is lent to an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) ids: Vec<i32>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) type_ids: Vec<i32>,
    pub(crate) doc_starts: Vec<u32>,
}

impl Batch {
    /// A batch of these items. As pairs, each document starts in the middle.
    pub(crate) fn of(items: &[Vec<i32>]) -> Self {
        let mut batch = Self {
            offsets: vec![0],
            ..Self::default()
        };
        for item in items {
            batch.ids.extend(item);
            batch.offsets.push(count(batch.ids.len()));
            batch.doc_starts.push(count(item.len() / 2));
        }
        batch
    }

    /// How many items it has.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    pub(crate) fn tokens(&self) -> TokenBatch<'_> {
        TokenBatch::new(&self.ids, &self.offsets, &self.type_ids)
    }
}

/// A length as the ABI counts.
pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// What a sink heard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) ids: Vec<i32>,
    pub(crate) pushes: Vec<Vec<u8>>,
    /// The push, from 1, at which the sink says stop; 0 is never.
    pub(crate) stop_at: usize,
    /// Pushes after that one.
    pub(crate) after_stop: usize,
}

impl Heard {
    pub(crate) fn push(&mut self, ids: &[i32], bytes: &[u8]) -> Flow {
        self.ids.extend(ids);
        self.pushes.push(bytes.to_vec());
        if self.stop_at == 0 || self.pushes.len() < self.stop_at {
            return Flow::CONTINUE;
        }
        self.after_stop += usize::from(self.pushes.len() > self.stop_at);
        Flow::CANCEL
    }

    /// Everything that was written, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.pushes.concat()).into_owned()
    }
}

/// Greedy options.
pub(crate) fn greedy(max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        temperature: 0.0,
        top_p: 1.0,
        seed: 0,
        stop: Vec::new().into(),
        grammar: "".into(),
        extra: Vec::new().into(),
    }
}

/// An engine of any kind.
pub(crate) enum Engine {
    Embed(EmbedEngineObject),
    Rerank(RerankEngineObject),
    Generate(GenerateEngineObject),
}

/// Calls a method that all three kinds have.
macro_rules! on {
    ($engine:expr, $object:ident => $call:expr) => {
        match $engine {
            Engine::Embed($object) => $call,
            Engine::Rerank($object) => $call,
            Engine::Generate($object) => $call,
        }
    };
}

impl Engine {
    pub(crate) fn identity(&self) -> EngineIdentity {
        on!(self, object => object.identity())
    }

    pub(crate) fn load(
        &self,
        call: &'static Call,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> Result<LoadedModel, EngineError> {
        let context: CallContext<'_> = sys::context(call);
        let result = on!(self, object => object.load(&context, artifact, config));
        call.finish();
        result.into_result()
    }

    pub(crate) fn unload(&self, model: ModelRef) -> Result<(), EngineError> {
        on!(self, object => object.unload(model)).into_result()
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        on!(self, object => object.memory())
    }

    pub(crate) fn extension(&self, id: &str) -> Option<ExtensionRef<'_>> {
        on!(self, object => object.extension(RStr::from_str(id))).into_option()
    }

    /// Computes a batch into `out`: vectors of `dims` values, or scores. A generation continues the first item by at most
    /// eight tokens and gives their ids.
    pub(crate) fn compute(
        &self,
        call: &'static Call,
        model: ModelRef,
        batch: &Batch,
        out: &mut [f32],
        dims: u32,
    ) -> Result<Vec<f32>, EngineError> {
        let context = sys::context(call);
        let result = match self {
            Self::Embed(object) => {
                let into = VectorsOut::new(out, dims);
                object.embed_batch(&context, model, &batch.tokens(), into).into_result()
            }
            Self::Rerank(object) => {
                let pairs = PairBatch::new(batch.tokens(), &batch.doc_starts);
                object
                    .score_batch(&context, model, &pairs, ScoresOut::new(out))
                    .into_result()
            }
            Self::Generate(_) => {
                let end = batch.offsets.get(1).copied().unwrap_or(0) as usize;
                let prompt = Prompt::ids(batch.ids.get(..end).unwrap_or(&batch.ids));
                let mut heard = Heard::default();
                let result = self.generate_with(&context, model, prompt, &greedy(8), &mut heard);
                call.finish();
                #[expect(clippy::cast_precision_loss, reason = "ids of a vocabulary are far below 2^24")]
                return result.map(|_| heard.ids.iter().map(|id| *id as f32).collect());
            }
        };
        call.finish();
        result.map(|()| out.to_vec())
    }

    /// Embeds one item by the method for one item.
    pub(crate) fn embed_one(
        &self,
        call: &'static Call,
        model: ModelRef,
        ids: &[i32],
        dims: u32,
    ) -> Result<Vec<f32>, EngineError> {
        let Self::Embed(object) = self else {
            return Err(EngineError::new(
                ErrorCode::INTERNAL,
                "the kit asked another kind for a vector",
            ));
        };
        let mut out = vec![f32::NAN; dims as usize];
        let context = sys::context(call);
        let result = object.embed_one(
            &context,
            model,
            RSlice::from_slice(ids),
            VectorsOut::new(&mut out, dims),
        );
        call.finish();
        result.into_result().map(|()| out)
    }

    pub(crate) fn generate(
        &self,
        call: &'static Call,
        model: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        heard: &mut Heard,
    ) -> Result<Generated, EngineError> {
        let result = self.generate_with(&sys::context(call), model, prompt, options, heard);
        call.finish();
        result
    }

    fn generate_with(
        &self,
        context: &CallContext<'_>,
        model: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        heard: &mut Heard,
    ) -> Result<Generated, EngineError> {
        let Self::Generate(object) = self else {
            return Err(EngineError::new(
                ErrorCode::INTERNAL,
                "the kit asked another kind for a text",
            ));
        };
        object
            .generate(context, model, prompt, options, sys::sink(heard))
            .into_result()
    }
}

/// One engine with its model loaded.
pub(crate) struct Lane<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) kind: Kind,
    pub(crate) engine: Engine,
    pub(crate) spec: Model,
    pub(crate) loaded: LoadedModel,
    /// What the descriptor says of this kind, format and dtype.
    pub(crate) support: EngineSupport,
}

impl Lane<'_> {
    /// Items of these lengths with drawn ids; the same for the same `salt`.
    pub(crate) fn items(&self, salt: u64, lengths: &[usize]) -> Vec<Vec<i32>> {
        let mut draw = Draw(self.bench.seed() ^ salt.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let longest = self.longest();
        let mut id = || i32::try_from(draw.below(u64::from(self.spec.vocabulary))).unwrap_or(0);
        lengths
            .iter()
            .map(|length| (0..(*length).clamp(1, longest)).map(|_| id()).collect())
            .collect()
    }

    /// The longest item that the loaded model takes. A generation needs room for what it adds.
    pub(crate) fn longest(&self) -> usize {
        let longest = self.loaded.max_tokens.min(self.spec.max_tokens) as usize;
        if self.kind == Kind::Generate {
            longest.saturating_sub(16).max(1)
        } else {
            longest
        }
    }

    /// Values that a batch of so many items gives; a generation writes into no buffer.
    pub(crate) fn out_len(&self, items: usize) -> usize {
        match self.kind {
            Kind::Embed => items * self.loaded.dims as usize,
            Kind::Rerank => items,
            Kind::Generate => 0,
        }
    }

    /// Computes a batch in a call of its own.
    pub(crate) fn batch(&self, call: Call, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        self.batch_in(call.leaked(), batch)
    }

    pub(crate) fn batch_in(&self, call: &'static Call, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        let mut out = vec![f32::NAN; self.out_len(batch.len())];
        self.engine
            .compute(call, self.loaded.model, batch, &mut out, self.loaded.dims)
    }

    /// Computes items on two threads.
    pub(crate) fn values(&self, items: &[Vec<i32>]) -> Result<Vec<f32>, EngineError> {
        self.batch(Call::new(2), &Batch::of(items))
    }

    /// Loads the model once more, with a change of its settings.
    pub(crate) fn load(&self, change: impl FnOnce(&mut RuntimeConfig)) -> Result<LoadedModel, EngineError> {
        let mut config = runtime_config(&self.spec);
        change(&mut config);
        self.engine
            .load(Call::new(2).leaked(), &artifact(&self.spec.files), &config)
    }
}

/// What a library check works with.
pub(crate) struct Bench {
    pub(crate) job: Job,
    pub(crate) host: &'static Host,
    module: OnceLock<Result<SynapsePlugin_Ref, String>>,
}

impl Bench {
    pub(crate) fn new(job: Job) -> Self {
        let host = Host::leaked(&job.bundle, &job.work.join("scratch"));
        Self {
            job,
            host,
            module: OnceLock::new(),
        }
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.job.seed
    }

    /// The library, opened at the first call.
    pub(crate) fn module(&self) -> Result<SynapsePlugin_Ref, Stop> {
        let open = || {
            let library = self.job.library.clone().unwrap_or_default();
            module::open(&self.job.bundle.join(library)).map_err(|error| error.to_string())
        };
        self.module.get_or_init(open).clone().or_else(fail)
    }

    pub(crate) fn describe(&self) -> Result<Descriptor, Stop> {
        Ok(self.module()?.describe()())
    }

    /// Makes the engine of a kind with the manifest's settings; `None` when there is none.
    pub(crate) fn make(&self, kind: Kind) -> Result<Result<Option<Engine>, EngineError>, Stop> {
        self.make_with(kind, &json::settings(&self.job.settings))
    }

    /// Makes the engine of a kind with a text as its settings.
    pub(crate) fn make_with(&self, kind: Kind, settings: &str) -> Result<Result<Option<Engine>, EngineError>, Stop> {
        let (module, services) = (self.module()?, sys::services(self.host));
        let settings = RStr::from_str(settings);
        Ok(match kind {
            Kind::Embed => {
                let made = module.embed()(services, settings).into_result();
                made.map(|object| object.into_option().map(Engine::Embed))
            }
            Kind::Rerank => {
                let made = module.rerank()(services, settings).into_result();
                made.map(|object| object.into_option().map(Engine::Rerank))
            }
            Kind::Generate => {
                let made = module.generate()(services, settings).into_result();
                made.map(|object| object.into_option().map(Engine::Generate))
            }
        })
    }

    /// What the bundle is checked with.
    pub(crate) fn subject(&self) -> Result<Subject, Stop> {
        match &self.job.subject {
            None => Ok(Subject::default()),
            Some(path) => Subject::read(path).or_else(fail),
        }
    }

    /// The model of a kind: the author's, or drawn bytes for the first row of the descriptor.
    pub(crate) fn model(&self, kind: Kind) -> Result<Model, Stop> {
        let subject = self.subject()?;
        if let Some(model) = subject.models.into_iter().find(|model| model.kind == kind) {
            return Ok(model);
        }
        if subject.told {
            return skip(format!("conformance.toml names no model of kind {}", kind.name()));
        }
        let rows = self.describe()?.supports;
        let Some(row) = rows.iter().find(|row| row.kind == engine_kind(kind)) else {
            return skip(format!("no {} engine", kind.name()));
        };
        Ok(Model {
            kind,
            format: row.format.to_string(),
            dtype: row.dtype.to_string(),
            pooling: "mean".to_owned(),
            max_tokens: 128,
            vocabulary: 1000,
            output_normalized: false,
            extra: std::collections::BTreeMap::new(),
            files: vec![ModelFile {
                role: "weights".to_owned(),
                path: self.drawn_file("weights", 4096)?,
            }],
        })
    }

    /// A file of drawn bytes in the check's folder.
    pub(crate) fn drawn_file(&self, name: &str, bytes: usize) -> Result<PathBuf, Stop> {
        let path = self.job.work.join(name);
        let mut draw = Draw(self.seed());
        let content: Vec<u8> = (0..bytes).map(|_| draw.next().to_le_bytes()[0]).collect();
        match std::fs::write(&path, content) {
            Ok(()) => Ok(path),
            Err(error) => fail(format!("the kit's own file {}: {error}", path.display())),
        }
    }

    /// The engine of a kind that the descriptor lists.
    pub(crate) fn engine(&self, kind: Kind) -> Result<Engine, Stop> {
        match self.make(kind)? {
            Ok(Some(engine)) => Ok(engine),
            Ok(None) => skip(format!("no {} engine", kind.name())),
            Err(error) => skip(format!("the {} engine is not made: {}", kind.name(), said(&error))),
        }
    }

    /// An engine of a kind with its model loaded.
    pub(crate) fn lane(&self, kind: Kind) -> Result<Lane<'_>, Stop> {
        let rows = self.describe()?.supports;
        if !rows.iter().any(|row| row.kind == engine_kind(kind)) {
            return skip(format!("no {} engine", kind.name()));
        }
        let spec = self.model(kind)?;
        let Some(support) = rows.iter().find(|row| {
            row.kind == engine_kind(kind) && row.format == spec.format.as_str() && row.dtype == spec.dtype.as_str()
        }) else {
            return skip(format!(
                "the model's form {}, {} is not described",
                spec.format, spec.dtype
            ));
        };
        let engine = self.engine(kind)?;
        let result = engine.load(Call::new(2).leaked(), &artifact(&spec.files), &runtime_config(&spec));
        let loaded = match result {
            Ok(loaded) => loaded,
            Err(error) => return skip(format!("the {} model does not load: {}", kind.name(), said(&error))),
        };
        Ok(Lane {
            bench: self,
            kind,
            engine,
            spec,
            loaded,
            support: support.clone(),
        })
    }

    /// Runs a body on a lane of each of these kinds. It skips when none could be had.
    pub(crate) fn lanes(&self, kinds: &[Kind], body: impl Fn(&Lane<'_>) -> Verdict) -> Verdict {
        self.kinds(kinds, |kind| {
            let lane = self.lane(kind)?;
            let verdict = body(&lane);
            let unloaded = lane.engine.unload(lane.loaded.model);
            drop(lane);
            verdict?;
            went("unload", unloaded)
        })
    }

    /// Runs a body for each kind: the worst outcome counts, and one that ran counts more than one that was skipped.
    pub(crate) fn kinds(&self, kinds: &[Kind], body: impl Fn(Kind) -> Verdict) -> Verdict {
        let mut ran = false;
        let (mut worst, mut skipped): (Option<Stop>, Vec<String>) = (None, Vec::new());
        for kind in kinds {
            match body(*kind) {
                Ok(()) => ran = true,
                Err(stop) if stop.outcome == Outcome::Skip => skipped.push(stop.message),
                Err(stop) => {
                    let message = format!("{}: {}", kind.name(), stop.message);
                    let outcome = stop.outcome;
                    if worst.as_ref().is_none_or(|worst| worst.outcome < outcome) {
                        worst = Some(Stop { outcome, message });
                    }
                }
            }
        }
        match worst {
            Some(stop) => Err(stop),
            None if ran => Ok(()),
            None => skip(skipped.join("; ")),
        }
    }
}

/// A kind as the ABI names it.
pub(crate) const fn engine_kind(kind: Kind) -> EngineKind {
    match kind {
        Kind::Embed => EngineKind::EMBED,
        Kind::Rerank => EngineKind::RERANK,
        Kind::Generate => EngineKind::GENERATE,
    }
}

/// A model's files as an engine gets them: measured now.
pub(crate) fn artifact(files: &[ModelFile]) -> ValidatedArtifact {
    let measured = files.iter().map(|file| {
        let bytes = std::fs::read(&file.path).unwrap_or_default();
        ArtifactFile {
            role: file.role.as_str().into(),
            path: file.path.to_string_lossy().into_owned().into(),
            sha256: sha256(&bytes).to_string().into(),
            size: bytes.len() as u64,
        }
    });
    ValidatedArtifact {
        files: measured.collect::<Vec<_>>().into(),
    }
}

/// A model's settings as an engine gets them: 64 items and as many tokens as 32 of the longest a call, two threads.
pub(crate) fn runtime_config(spec: &Model) -> RuntimeConfig {
    let extra = spec
        .extra
        .iter()
        .map(|(key, value)| KeyValue::new(key.as_str(), value.as_str()));
    RuntimeConfig {
        format: spec.format.as_str().into(),
        dtype: spec.dtype.as_str().into(),
        pooling: spec.pooling.as_str().into(),
        max_tokens: spec.max_tokens,
        max_batch: 64,
        max_batch_tokens: spec.max_tokens.saturating_mul(32),
        threads: 2,
        extra: extra.collect::<Vec<_>>().into(),
    }
}
