//! What the tests stand on: where the data lies, engines as a host opens them, batches that own their parts.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use synapse_llama_cpp::plugin;
use synapse_plugin_sdk::api::abi_stable::std_types::{RSlice, RStr};
use synapse_plugin_sdk::api::{
    EmbedEngineObject, EngineError, GenerateEngineObject, GenerateOptions, Generated, KeyValue, LoadedModel, PairBatch,
    Prompt, PromptKind, RerankEngineObject, RuntimeConfig, ScoresOut, TokenBatch, VectorsOut,
};
use synapse_plugin_sdk::testing::{Collected, FakeCall, FakeHost, artifact, runtime_config};

/// One item's token ids.
pub type Ids = Vec<i32>;

/// A folder of the repository's own tiny models.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
        .join("model.gguf")
}

fn skip(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: needs {what}");
}

/// The shared data, or a loud skip.
pub fn shared() -> Option<PathBuf> {
    let found = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("shared/data"))
        .find(|folder| folder.is_dir());
    if found.is_none() {
        skip("shared/data beside the repository");
    }
    found
}

/// A file of the cache that `make test` fills, or a loud skip.
pub fn cached(path: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.synapse/cache")
        .join(path);
    if file.is_file() {
        return Some(file);
    }
    skip(&file.display().to_string());
    None
}

pub fn embedder() -> EmbedEngineObject {
    let host = FakeHost::new().host();
    plugin().open_embed(host, "{}").unwrap().expect("the plugin embeds")
}

pub fn reranker() -> RerankEngineObject {
    let host = FakeHost::new().host();
    plugin().open_rerank(host, "{}").unwrap().expect("the plugin reranks")
}

pub fn generator() -> GenerateEngineObject {
    let host = FakeHost::new().host();
    plugin()
        .open_generate(host, "{}")
        .unwrap()
        .expect("the plugin generates")
}

/// Settings of a model of so many tokens.
pub fn config(pooling: &str, max_tokens: u32) -> RuntimeConfig {
    RuntimeConfig {
        pooling: pooling.into(),
        max_tokens,
        ..runtime_config("gguf", "f32")
    }
}

/// Settings of a generator whose context is so many tokens, as the catalog's rows have them.
pub fn generation(max_tokens: u32) -> RuntimeConfig {
    RuntimeConfig {
        extra: vec![KeyValue::new("flash_attention", "on")].into(),
        ..config("none", max_tokens)
    }
}

/// Loads through any of the three objects, which have the method but no trait in common.
macro_rules! load {
    ($engine:expr, $file:expr, $config:expr) => {{
        let files = synapse_plugin_sdk::testing::artifact(&[("weights", $file)]).unwrap();
        let call = synapse_plugin_sdk::testing::FakeCall::new(2);
        let loaded = $engine.load(&call.context(), &files, &$config).into_result();
        assert_eq!(call.violations(), Vec::<String>::new());
        loaded
    }};
}
pub(crate) use load;

/// A ragged batch that owns its parts.
#[derive(Default)]
pub struct Ragged {
    ids: Vec<i32>,
    types: Vec<i32>,
    offsets: Vec<u32>,
}

impl Ragged {
    pub fn of(items: &[Ids]) -> Self {
        let mut offsets = vec![0];
        for ids in items {
            offsets.push(offsets.last().unwrap() + u32::try_from(ids.len()).unwrap());
        }
        Self {
            ids: items.concat(),
            types: Vec::new(),
            offsets,
        }
    }

    /// The same with one segment id for all tokens.
    pub fn in_segment(mut self, segment: i32) -> Self {
        self.types = vec![segment; self.ids.len()];
        self
    }

    pub fn batch(&self) -> TokenBatch<'_> {
        TokenBatch {
            ids: RSlice::from_slice(&self.ids),
            offsets: RSlice::from_slice(&self.offsets),
            type_ids: RSlice::from_slice(&self.types),
        }
    }
}

/// Embeds under a call of the test's.
pub fn try_embed(
    engine: &EmbedEngineObject,
    loaded: &LoadedModel,
    call: &FakeCall,
    batch: &Ragged,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let dims = loaded.dims as usize;
    let mut out = vec![f32::NAN; (batch.offsets.len() - 1) * dims];
    let into = VectorsOut::new(&mut out, loaded.dims);
    engine
        .embed_batch(&call.context(), loaded.model, &batch.batch(), into)
        .into_result()?;
    assert_eq!(call.violations(), Vec::<String>::new());
    Ok(out.chunks_exact(dims).map(<[f32]>::to_vec).collect())
}

pub fn embed(engine: &EmbedEngineObject, loaded: &LoadedModel, items: &[Ids], threads: u32) -> Vec<Vec<f32>> {
    try_embed(engine, loaded, &FakeCall::new(threads), &Ragged::of(items))
        .unwrap_or_else(|error| panic!("{}", error.message))
}

pub fn score(engine: &RerankEngineObject, loaded: &LoadedModel, items: &[Ids]) -> Vec<f32> {
    let ragged = Ragged::of(items);
    let starts = vec![1; items.len()];
    let pairs = PairBatch {
        tokens: ragged.batch(),
        doc_starts: RSlice::from_slice(&starts),
    };
    let mut out = vec![f32::NAN; items.len()];
    let call = FakeCall::new(2);
    engine
        .score_batch(&call.context(), loaded.model, &pairs, ScoresOut::new(&mut out))
        .into_result()
        .unwrap_or_else(|error| panic!("{}", error.message));
    assert_eq!(call.violations(), Vec::<String>::new());
    out
}

/// Greedy, so many tokens, nothing else.
pub fn options(max_tokens: u32) -> GenerateOptions {
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

pub fn generate_under(
    engine: &GenerateEngineObject,
    loaded: &LoadedModel,
    call: &FakeCall,
    ids: &[i32],
    options: &GenerateOptions,
    into: &mut Collected,
) -> Result<Generated, EngineError> {
    let prompt = Prompt {
        kind: PromptKind::IDS,
        ids: RSlice::from_slice(ids),
        text: RStr::from_str(""),
    };
    let done = engine
        .generate(&call.context(), loaded.model, prompt, options, into.sink())
        .into_result();
    assert_eq!(call.violations(), Vec::<String>::new());
    done
}

/// What a generation gave.
pub struct Output {
    pub ids: Vec<i32>,
    pub text: String,
    pub done: Generated,
}

pub fn generate(
    engine: &GenerateEngineObject,
    loaded: &LoadedModel,
    ids: &[i32],
    options: &GenerateOptions,
) -> Result<Output, EngineError> {
    let mut collected = Collected::default();
    let done = generate_under(engine, loaded, &FakeCall::new(2), ids, options, &mut collected)?;
    assert_eq!(done.generated_tokens as usize, collected.ids.len());
    assert_eq!(done.prompt_tokens as usize, ids.len());
    Ok(Output {
        ids: collected.ids,
        text: String::from_utf8(collected.bytes).expect("whole characters"),
        done,
    })
}

pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Lines of JSON.
pub fn json_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

/// An artifact of one file, for calls that a test makes itself.
pub fn weights(file: &Path) -> synapse_plugin_sdk::api::ValidatedArtifact {
    artifact(&[("weights", file)]).unwrap()
}
