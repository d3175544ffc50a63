//! The engine seam: what an engine is to the host, whichever way it is packaged.
//!
//! `synapse-loader` implements these traits over the plugin ABI (in this process or, later, in a worker); the
//! daemon calls them from its compute threads. Nothing here knows about files, threads or the ABI. Batches are
//! ragged (ENG-02): `ids` holds every item's tokens back to back, `offsets` (n + 1 entries, first 0, last
//! `ids.len()`) says where each begins. Padding never crosses this seam.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::digest::Sha256Digest;

/// The numeric identity of an engine build (FPR-03). Enters the numeric profile, so two builds that can give
/// different bits must differ here, and two that cannot must not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineIdentity {
    /// The engine's name, for example `owned`.
    pub engine: String,
    /// The numeric version: bumped exactly when output bits can change. Not the package version.
    pub version: String,
    /// Numerically relevant build flags, sorted, without duplicates. Never a target or a compiler.
    pub build_flags: Vec<String>,
}

/// What kinds of work an engine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineKind {
    /// Token ids to one vector per item.
    Embed,
    /// Query and document pairs to one raw score per pair.
    Rerank,
    /// A prompt to a continuation.
    Generate,
}

impl EngineKind {
    /// The work in a word, for messages: `embedding`, `reranking`, `generation`.
    #[must_use]
    pub const fn work(self) -> &'static str {
        match self {
            Self::Embed => "embedding",
            Self::Rerank => "reranking",
            Self::Generate => "generation",
        }
    }
}

/// How an engine gives way to an interactive call while a bulk call runs (DECISIONS, pre-emption).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preempt {
    /// The engine calls the checkpoint often; the host may hold a bulk call there.
    Checkpoint,
    /// The engine runs several calls on one model at once.
    Share,
    /// The engine can do neither: work is cut into quanta.
    Quantum,
}

/// One combination that an engine serves: kind, file format and arithmetic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSupport {
    /// The kind of work.
    pub kind: EngineKind,
    /// The artifact format, for example `safetensors`, `onnx`, `gguf`.
    pub format: String,
    /// The arithmetic type, for example `f32`.
    pub dtype: String,
    /// How a bulk call gives way.
    pub preempt: Preempt,
    /// The engine declares that its output does not depend on the number of threads.
    pub thread_invariant: bool,
    /// The engine declares exact f32 arithmetic (gates then demand max abs ≤ 1e-4).
    pub f32_exact: bool,
}

/// One file of an artifact whose digest and size were measured and found equal to the expected ones.
///
/// Only [`VerifiedFile::check`] makes one, so holding it proves the comparison (ENG-04, CACHE-08).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedFile {
    role: String,
    path: PathBuf,
    sha256: Sha256Digest,
    size: u64,
}

/// Why a file did not become a [`VerifiedFile`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileMismatch {
    /// The length is not the expected one.
    #[error("{role}: expected {expected} bytes, found {found}")]
    Size {
        /// The file's role.
        role: String,
        /// Expected bytes.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The content is not the expected one.
    #[error("{role}: expected SHA-256 {expected}, found {found}")]
    Digest {
        /// The file's role.
        role: String,
        /// Expected digest.
        expected: Sha256Digest,
        /// Digest found.
        found: Sha256Digest,
    },
}

impl VerifiedFile {
    /// Compares what was measured with what was expected.
    ///
    /// # Errors
    /// [`FileMismatch`] names the role and both values.
    pub fn check(
        role: impl Into<String>,
        path: PathBuf,
        expected: (Sha256Digest, u64),
        measured: (Sha256Digest, u64),
    ) -> Result<Self, FileMismatch> {
        let role = role.into();
        if expected.1 != measured.1 {
            return Err(FileMismatch::Size {
                role,
                expected: expected.1,
                found: measured.1,
            });
        }
        if expected.0 != measured.0 {
            return Err(FileMismatch::Digest {
                role,
                expected: expected.0,
                found: measured.0,
            });
        }
        Ok(Self {
            role,
            path,
            sha256: measured.0,
            size: measured.1,
        })
    }

    /// The file's role in the artifact, for example `weights`, `config`, `dense.0.weights`.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Where the file lies.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The file's SHA-256.
    #[must_use]
    pub const fn sha256(&self) -> Sha256Digest {
        self.sha256
    }

    /// The file's length in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }
}

/// The files of one model in one format, each verified. The tokenizer is not among them: it is the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidatedArtifact {
    files: Vec<VerifiedFile>,
}

impl ValidatedArtifact {
    /// Collects verified files.
    #[must_use]
    pub const fn new(files: Vec<VerifiedFile>) -> Self {
        Self { files }
    }

    /// The files, in the record's order.
    #[must_use]
    pub fn files(&self) -> &[VerifiedFile] {
        &self.files
    }
}

/// How a model is to be run. Everything that can change output bits is also in the numeric profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// The artifact's format, for example `safetensors`.
    pub format: String,
    /// The arithmetic type, for example `f32`.
    pub dtype: String,
    /// The record's pooling: `mean`, `cls`, `last`, or `none` for engines that do not pool.
    pub pooling: String,
    /// The longest item in tokens, special tokens included.
    pub max_tokens: u32,
    /// The most items of one call.
    pub max_batch: u32,
    /// The most tokens of one call, over all items.
    pub max_batch_tokens: u32,
    /// The most threads of one call.
    pub threads: u32,
    /// Further settings by key. An engine refuses a key that it does not know (`CONFIG_INVALID`).
    pub extra: Vec<(String, String)>,
}

/// An engine's handle of one loaded model. Meaningful only to the engine that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelRef(pub u64);

/// What a load gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedModel {
    /// The handle for later calls.
    pub model: ModelRef,
    /// The length of an output vector (0 where the engine gives none).
    pub dims: u32,
    /// The longest item in tokens that the loaded model takes.
    pub max_tokens: u32,
    /// How many compute calls may run on it at once; at least 1.
    pub max_concurrency: u32,
    /// Bytes that the model holds while loaded.
    pub memory_bytes: u64,
    /// Further facts by key.
    pub extra: Vec<(String, String)>,
}

/// Bytes held by an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Weights and other state of the loaded models.
    pub model_bytes: u64,
    /// Scratch space kept between calls.
    pub scratch_bytes: u64,
}

/// A ragged batch, borrowed for one call.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// Every item's token ids, back to back.
    pub ids: &'a [i32],
    /// `n + 1` ascending offsets into `ids`.
    pub offsets: &'a [u32],
    /// One segment id per token, or empty when all are 0.
    pub type_ids: &'a [i32],
}

impl TokenBatch<'_> {
    /// The number of items.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether the batch has no item.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A ragged batch of query and document pairs, built by the host.
#[derive(Clone, Copy, Debug)]
pub struct PairBatch<'a> {
    /// The pairs, special tokens included.
    pub tokens: TokenBatch<'a>,
    /// For each item the position, inside that item, of the document's first token.
    pub doc_starts: &'a [u32],
}

/// What the host says at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop soon and return [`EngineErrorCode::Cancelled`].
    Cancel,
}

/// The host's side of one call. Implemented by the daemon's executor.
pub trait CallControl: Send + Sync {
    /// Whether the call should end. Any thread; never blocks.
    fn cancelled(&self) -> bool;

    /// Reports completed work and may hold the call for a while. Calling thread only.
    fn checkpoint(&self, done: u64, total: u64) -> Flow;
}

/// What accompanies every call to an engine.
#[derive(Clone, Copy)]
pub struct CallContext<'a> {
    /// The request's number, for logs.
    pub request_id: u64,
    /// Time left until the caller's deadline, measured when the call starts; `None` has no deadline.
    pub remaining: Option<Duration>,
    /// How many threads the call may use, at least 1.
    pub threads: u32,
    /// The host's side of the call.
    pub control: &'a dyn CallControl,
}

/// Why an engine call failed, in the contract's words (`plugin-api` error codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineErrorCode {
    /// The call broke the contract: shapes, ranges, an unknown model.
    InvalidArgument,
    /// A setting is unknown or out of range.
    ConfigInvalid,
    /// The artifact is not what its format or record says.
    ArtifactInvalid,
    /// The engine lacks the operation, the architecture or the build option.
    Unsupported,
    /// Memory could not be had.
    OutOfMemory,
    /// An item is longer than the loaded model takes.
    InputTooLong,
    /// The result is not finite.
    NonFinite,
    /// The host asked the call to end.
    Cancelled,
    /// The deadline passed inside the engine.
    DeadlineExceeded,
    /// The device was lost or refused.
    Device,
    /// The grammar does not parse.
    GrammarInvalid,
    /// The build has no grammar support.
    GrammarUnavailable,
    /// The author's code panicked; the SDK contained it.
    Panic,
    /// Anything else that the engine calls its own fault.
    Internal,
    /// The process that ran the engine ended, fell silent or broke the protocol. Only hosts give this one.
    Crashed,
    /// The model crashed its process too often; it is refused until it is probed or loaded again. Only hosts give
    /// this one.
    Quarantined,
    /// A code that this host does not know.
    Other(u32),
}

/// The codes by their names, which the worker protocol carries and logs show.
const CODE_NAMES: [(EngineErrorCode, &str); 14] = [
    (EngineErrorCode::InvalidArgument, "invalid_argument"),
    (EngineErrorCode::ConfigInvalid, "config_invalid"),
    (EngineErrorCode::ArtifactInvalid, "artifact_invalid"),
    (EngineErrorCode::Unsupported, "unsupported"),
    (EngineErrorCode::OutOfMemory, "oom"),
    (EngineErrorCode::InputTooLong, "input_too_long"),
    (EngineErrorCode::NonFinite, "non_finite"),
    (EngineErrorCode::Cancelled, "cancelled"),
    (EngineErrorCode::DeadlineExceeded, "deadline_exceeded"),
    (EngineErrorCode::Device, "device"),
    (EngineErrorCode::GrammarInvalid, "grammar_invalid"),
    (EngineErrorCode::GrammarUnavailable, "grammar_unavailable"),
    (EngineErrorCode::Panic, "panic"),
    (EngineErrorCode::Internal, "internal"),
];

impl EngineErrorCode {
    /// The code's name on the worker protocol; `internal` for a code that this host does not know.
    #[must_use]
    pub fn name(self) -> &'static str {
        CODE_NAMES
            .iter()
            .find(|(code, _)| *code == self)
            .map_or("internal", |(_, name)| name)
    }

    /// The code of a name; `None` for a name that this host does not know.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        CODE_NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(code, _)| *code)
    }
}

/// What an error leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineState {
    /// Engine and model may be used again.
    Usable,
    /// The model must be unloaded; the engine may be used.
    ModelBad,
    /// The engine must not be called again in this process.
    EngineBad,
}

/// A failed engine call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// What happened.
    pub code: EngineErrorCode,
    /// What may still be used.
    pub state: EngineState,
    /// What was wrong, what was expected, what to do. Written by the engine: untrusted text.
    pub message: String,
    /// What is known of the engine's process, for [`EngineErrorCode::Crashed`].
    pub crash: Option<Box<Crash>>,
}

/// What is known of an engine process that is lost (ERR-08).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Where in its life: `start`, `exit`, `timeout`, `protocol`, `panic` or `engine`.
    pub stage: &'static str,
    /// The end of what it printed, at most 8 KiB. Written by the engine: untrusted text.
    pub last_words: String,
}

impl EngineError {
    /// An error of an engine that lives.
    #[must_use]
    pub fn new(code: EngineErrorCode, state: EngineState, message: impl Into<String>) -> Self {
        Self {
            code,
            state,
            message: message.into(),
            crash: None,
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for EngineError {}

/// What all three kinds of engine share. Threading: `load`, `unload` are serialised per engine by the caller.
pub trait Engine: Send + Sync {
    /// The numeric identity.
    fn identity(&self) -> EngineIdentity;

    /// Loads a model.
    ///
    /// # Errors
    /// [`EngineError`]; a failed load leaves no model behind.
    fn load(
        &self,
        ctx: &CallContext<'_>,
        artifact: &ValidatedArtifact,
        config: &RuntimeConfig,
    ) -> Result<LoadedModel, EngineError>;

    /// Forgets a model.
    ///
    /// # Errors
    /// [`EngineErrorCode::InvalidArgument`] for an unknown model.
    fn unload(&self, model: ModelRef) -> Result<(), EngineError>;

    /// Bytes held now.
    fn memory(&self) -> MemoryReport;
}

/// Token ids to vectors: the output of the last module before Normalize, row-major `n × dims`.
pub trait EmbedEngine: Engine {
    /// Embeds a batch into `out` (`n × dims` values, fully written on `Ok`).
    ///
    /// # Errors
    /// [`EngineError`]; `out` is then undefined.
    fn embed_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &TokenBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError>;

    /// Embeds one item into `out` (`dims` values). Bit for bit what `embed_batch` gives for the same item, or the
    /// probe splits the profile.
    ///
    /// # Errors
    /// [`EngineError`]; `out` is then undefined.
    fn embed_one(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        ids: &[i32],
        out: &mut [f32],
    ) -> Result<(), EngineError>;
}

/// Query and document pairs to raw scores.
pub trait RerankEngine: Engine {
    /// Scores a batch of pairs into `out` (one raw value per pair).
    ///
    /// # Errors
    /// [`EngineError`]; `out` is then undefined.
    fn score_batch(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        batch: &PairBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError>;
}

/// What a generation starts from.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Token ids made by the host.
    Ids(&'a [i32]),
    /// Text, for engines that own their tokenizer.
    Text(&'a str),
}

/// How to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass, 1 keeps everything.
    pub top_p: f32,
    /// The sampler's seed.
    pub seed: u64,
    /// Texts that end the generation and are not part of it.
    pub stop: Vec<String>,
    /// A GBNF grammar, or empty for none.
    pub grammar: String,
    /// Further settings by key.
    pub extra: Vec<(String, String)>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, a stop text or the end of the grammar.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

/// What a generation used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Generated tokens.
    pub generated_tokens: u32,
    /// Why it ended.
    pub finish: FinishReason,
}

/// Where generated tokens go.
pub trait TokenSink {
    /// Takes token ids and the bytes that they spell (whole UTF-8 sequences only).
    fn push(&mut self, ids: &[i32], bytes: &[u8]) -> Flow;
}

/// A prompt to a continuation.
pub trait GenerateEngine: Engine {
    /// Generates into `sink`.
    ///
    /// # Errors
    /// [`EngineError`].
    fn generate(
        &self,
        ctx: &CallContext<'_>,
        model: ModelRef,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        sink: &mut dyn TokenSink,
    ) -> Result<Generated, EngineError>;
}
