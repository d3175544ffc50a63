//! The messages: one JSON object per control frame, told apart by `type`.
//!
//! Additions are new types or optional fields: a peer ignores fields that it does not know and answers an unknown type
//! with `ERR unknown_type` (WPROTO-25). Every other change is a new protocol version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an engine does, on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// Token ids to vectors.
    Embed,
    /// Pairs to raw scores.
    Rerank,
    /// A prompt to a continuation.
    Generate,
}

/// The numeric identity of one engine of the bundle (WPROTO-13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineHello {
    /// What it does.
    pub kind: EngineKind,
    /// Its name.
    pub engine: String,
    /// Its numeric version.
    pub version: String,
    /// Its numerically relevant build flags, sorted.
    pub build_flags: Vec<String>,
}

/// The bundle that a worker loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleHello {
    /// The bundle's id.
    pub id: String,
    /// The bundle's package version.
    pub version: String,
}

/// One file of an artifact. The worker measures the digest again before it maps the file (WPROTO-18).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactFile {
    /// The file's role, for example `weights`.
    pub role: String,
    /// Its absolute path.
    pub path: String,
    /// Its SHA-256, 64 lower-case hex digits.
    pub sha256: String,
    /// Its length in bytes.
    pub size: u64,
}

/// How a model is to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeConfig {
    /// Artifact format, for example `gguf`.
    pub format: String,
    /// Arithmetic, for example `f32`.
    pub dtype: String,
    /// `mean`, `cls`, `last` or `none`.
    pub pooling: String,
    /// The longest item in tokens, special tokens included.
    pub max_tokens: u32,
    /// The most items of one exchange.
    pub max_batch: u32,
    /// The most tokens of one exchange.
    pub max_batch_tokens: u32,
    /// The most threads of one exchange.
    pub threads: u32,
    /// Further settings by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
}

/// One item of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchItem {
    /// The item's number in the batch, from 0.
    pub id: u32,
    /// Its tokens, special tokens included.
    pub n_tokens: u32,
    /// For a pair: the position of the document's first token inside the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doc_start: Option<u32>,
}

/// What a generation starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptHeader {
    /// This many token ids follow in the raw frame.
    Ids(u32),
    /// The text itself, for engines that own their tokenizer.
    Text(String),
}

/// What every compute request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Milliseconds until the caller's deadline, from the receipt of the message; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Threads that the call may use, at least 1.
    pub threads: u32,
}

/// From the daemon to the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum HostMessage {
    /// The answer to `HELLO`; without it the daemon closes (WPROTO-14).
    HelloAck {
        /// The protocol version.
        v: u32,
        /// Always true: a refusal is a closed connection.
        accept: bool,
        /// The frame size that both sides keep from here on, in bytes.
        max_frame: u32,
    },
    /// Load a model; answered by `LOADED` or `ERR`.
    Load {
        /// The request's number, unique on the connection.
        req_id: u64,
        /// Which of the bundle's engines.
        engine: EngineKind,
        /// The artifact's files.
        files: Vec<ArtifactFile>,
        /// How to run it.
        runtime_config: RuntimeConfig,
    },
    /// Embed a batch; answered by `VECTORS` or `ERR`. One raw i32 frame follows: all ids, then, where `type_ids` is
    /// true, as many segment ids.
    EmbedBatch {
        /// The request's number.
        req_id: u64,
        /// The model, as `LOADED` named it.
        model_ref: u64,
        /// Deadline and threads.
        #[serde(flatten)]
        budget: Budget,
        /// The items, in the order of their ids in the raw frame.
        items: Vec<BatchItem>,
        /// Whether segment ids follow the ids.
        type_ids: bool,
        /// Bytes of the raw frame that follows.
        raw_bytes: u64,
    },
    /// Score pairs; answered by `SCORES` or `ERR`. The raw frame is as for `EMBED_BATCH`.
    Rerank {
        /// The request's number.
        req_id: u64,
        /// The model.
        model_ref: u64,
        /// Deadline and threads.
        #[serde(flatten)]
        budget: Budget,
        /// The pairs, each with its `doc_start`.
        items: Vec<BatchItem>,
        /// Whether segment ids follow the ids.
        type_ids: bool,
        /// Bytes of the raw frame that follows.
        raw_bytes: u64,
    },
    /// Generate; answered by `TEXT` or `ERR`.
    Generate {
        /// The request's number.
        req_id: u64,
        /// The model.
        model_ref: u64,
        /// Deadline and threads.
        #[serde(flatten)]
        budget: Budget,
        /// The most tokens to generate.
        max_tokens: u32,
        /// 0 is greedy.
        #[serde(default)]
        temperature: f32,
        /// Nucleus mass; 1 keeps everything.
        #[serde(default = "one")]
        top_p: f32,
        /// The sampler's seed.
        #[serde(default)]
        seed: u64,
        /// Texts that end the generation.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stop: Vec<String>,
        /// A GBNF grammar. A build without grammars refuses it, never ignores it (WPROTO-21).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grammar: Option<String>,
        /// Token ids (in the raw frame) or text.
        prompt: PromptHeader,
        /// Bytes of the raw frame that follows; 0: none follows.
        #[serde(default)]
        raw_bytes: u64,
    },
    /// End the exchange `req_id` soon. Legal during an exchange, has no answer of its own, and is ignored for an
    /// unknown or finished number.
    Cancel {
        /// The exchange.
        req_id: u64,
    },
    /// Forget a model; answered by `UNLOADED` or `ERR`.
    Unload {
        /// The request's number.
        req_id: u64,
        /// The model.
        model_ref: u64,
    },
    /// Are you there; answered by `PONG`.
    Ping {
        /// The request's number.
        req_id: u64,
    },
    /// Finish the running exchange, then exit with 0.
    Shutdown {},
}

const fn one() -> f32 {
    1.0
}

/// What a progress message counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Loading a model.
    Setup,
    /// A compute call.
    Inference,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token, a stop text or the end of the grammar.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

/// What an error leaves behind in the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// Everything may be used again.
    Usable,
    /// The model must be unloaded.
    ModelBad,
    /// The worker must be replaced.
    EngineBad,
}

/// From the worker to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum WorkerMessage {
    /// The first message; anything else first is a protocol violation (WPROTO-10, WPROTO-15).
    Hello {
        /// The protocol version.
        v: u32,
        /// The nonce of the spawn (WPROTO-12).
        nonce: String,
        /// The bundle.
        bundle: BundleHello,
        /// The bundle's engines.
        engines: Vec<EngineHello>,
        /// The worker's process id.
        pid: u32,
        /// The largest frame that the worker takes, in bytes.
        max_frame: u32,
    },
    /// A model is loaded.
    Loaded {
        /// The request's number.
        req_id: u64,
        /// The worker's name for the model.
        model_ref: u64,
        /// The length of an output vector; 0 where there is none.
        dims: u32,
        /// The longest item in tokens.
        max_tokens: u32,
        /// Bytes that the model holds.
        memory_bytes: u64,
        /// Milliseconds that the load took.
        cold_load_ms: u64,
    },
    /// Vectors follow in one raw f32 frame of `n × dims` values.
    Vectors {
        /// The request's number.
        req_id: u64,
        /// Values per vector.
        dims: u32,
        /// Vectors.
        n: u32,
        /// Bytes of the raw frame that follows.
        raw_bytes: u64,
    },
    /// Scores follow in one raw f32 frame of `n` values.
    Scores {
        /// The request's number.
        req_id: u64,
        /// Scores.
        n: u32,
        /// Bytes of the raw frame that follows.
        raw_bytes: u64,
    },
    /// A generation. One raw i32 frame of the generated ids follows.
    Text {
        /// The request's number.
        req_id: u64,
        /// The generated text, whole UTF-8 sequences only.
        text: String,
        /// Prompt tokens.
        n_prompt: u32,
        /// Generated tokens, as the engine counts them: at least as many as the ids that follow. Tokens that only ended
        /// the text need not be among those.
        n_gen: u32,
        /// Why it ended.
        finish_reason: FinishReason,
        /// Bytes of the raw frame that follows: 4 for each id of the text, at most `4 × n_gen`.
        raw_bytes: u64,
    },
    /// The model is forgotten.
    Unloaded {
        /// The request's number.
        req_id: u64,
    },
    /// I am here.
    Pong {
        /// The request's number.
        req_id: u64,
        /// Resident memory in MiB.
        rss_mb: u64,
        /// Models loaded.
        models_loaded: u32,
        /// Share of operations that the Neural Engine takes, 0 to 1, where the engine reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        placement_share: Option<f32>,
    },
    /// Completed work of the running exchange: strictly larger than before, at most every 100 ms.
    Progress {
        /// The exchange.
        req_id: u64,
        /// What is counted.
        phase: Phase,
        /// Completed units, at least 1.
        completed: u64,
        /// All units, fixed at the first report.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
    },
    /// The exchange failed.
    Err {
        /// The request's number; 0 where the request had none.
        req_id: u64,
        /// A plugin-contract code such as `artifact_invalid`, or `unknown_type`.
        code: String,
        /// What may still be used.
        state: EngineState,
        /// What was wrong, what was expected, what to do.
        msg: String,
    },
}

impl HostMessage {
    /// Bytes of the raw frame that follows this message; 0: none follows.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        match self {
            Self::EmbedBatch { raw_bytes, .. } | Self::Rerank { raw_bytes, .. } | Self::Generate { raw_bytes, .. } => {
                *raw_bytes
            }
            _ => 0,
        }
    }
}

impl WorkerMessage {
    /// Bytes of the raw frame that follows this message; 0: none follows.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        match self {
            Self::Vectors { raw_bytes, .. } | Self::Scores { raw_bytes, .. } | Self::Text { raw_bytes, .. } => {
                *raw_bytes
            }
            _ => 0,
        }
    }
}

/// What one control frame turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed<M> {
    /// A message of this version.
    Message(M),
    /// A type that this peer does not know. `raw_bytes` says how much raw data follows and must be skipped.
    UnknownType {
        /// The type's name.
        name: String,
        /// The request's number; 0 where it had none.
        req_id: u64,
        /// Bytes of the raw frame that follows; 0: none follows.
        raw_bytes: u64,
    },
}

/// A control frame that is no message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Not a JSON object with a `type`.
    #[error("control frame is not a JSON object with a type: {0}")]
    NotAMessage(serde_json::Error),
    /// A known type whose fields are wrong.
    #[error("{name} message is malformed: {error}")]
    Malformed {
        /// The type's name.
        name: String,
        /// What the parser said.
        error: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "type")]
    name: String,
    #[serde(default)]
    req_id: u64,
    #[serde(default)]
    raw_bytes: u64,
}

const HOST_TYPES: [&str; 9] = [
    "HELLO_ACK",
    "LOAD",
    "EMBED_BATCH",
    "RERANK",
    "GENERATE",
    "CANCEL",
    "UNLOAD",
    "PING",
    "SHUTDOWN",
];
const WORKER_TYPES: [&str; 9] = [
    "HELLO", "LOADED", "VECTORS", "SCORES", "TEXT", "UNLOADED", "PONG", "PROGRESS", "ERR",
];

fn parse<M: serde::de::DeserializeOwned>(payload: &[u8], known: &[&str]) -> Result<Parsed<M>, MessageError> {
    let envelope: Envelope = serde_json::from_slice(payload).map_err(MessageError::NotAMessage)?;
    if !known.contains(&envelope.name.as_str()) {
        let Envelope {
            name,
            req_id,
            raw_bytes,
        } = envelope;
        return Ok(Parsed::UnknownType {
            name,
            req_id,
            raw_bytes,
        });
    }
    serde_json::from_slice(payload)
        .map(Parsed::Message)
        .map_err(|error| MessageError::Malformed {
            name: envelope.name,
            error,
        })
}

impl HostMessage {
    /// The number of the request; `None` for what is no request: HELLO_ACK, SHUTDOWN, and CANCEL, whose number is that of
    /// the exchange that it ends.
    #[must_use]
    pub const fn req_id(&self) -> Option<u64> {
        match self {
            Self::HelloAck { .. } | Self::Cancel { .. } | Self::Shutdown {} => None,
            Self::Load { req_id, .. }
            | Self::EmbedBatch { req_id, .. }
            | Self::Rerank { req_id, .. }
            | Self::Generate { req_id, .. }
            | Self::Unload { req_id, .. }
            | Self::Ping { req_id } => Some(*req_id),
        }
    }

    /// Reads one control frame from the daemon.
    ///
    /// # Errors
    /// [`MessageError`] for anything that is not a message.
    pub fn parse(payload: &[u8]) -> Result<Parsed<Self>, MessageError> {
        parse(payload, &HOST_TYPES)
    }

    /// The message as the payload of one control frame.
    #[must_use]
    pub fn to_payload(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl WorkerMessage {
    /// The number of the request that this answers or reports on; `None` for HELLO.
    #[must_use]
    pub const fn req_id(&self) -> Option<u64> {
        match self {
            Self::Hello { .. } => None,
            Self::Loaded { req_id, .. }
            | Self::Vectors { req_id, .. }
            | Self::Scores { req_id, .. }
            | Self::Text { req_id, .. }
            | Self::Unloaded { req_id }
            | Self::Pong { req_id, .. }
            | Self::Progress { req_id, .. }
            | Self::Err { req_id, .. } => Some(*req_id),
        }
    }

    /// Reads one control frame from the worker.
    ///
    /// # Errors
    /// [`MessageError`] for anything that is not a message.
    pub fn parse(payload: &[u8]) -> Result<Parsed<Self>, MessageError> {
        parse(payload, &WORKER_TYPES)
    }

    /// The message as the payload of one control frame.
    #[must_use]
    pub fn to_payload(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
