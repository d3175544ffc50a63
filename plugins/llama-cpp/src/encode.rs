//! Embeddings and scores: one sequence is one batch of llama.cpp, so that an item alone and in company are the same
//! computation.
//!
//! Owns the loaded models. Called by the host through the SDK.

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaPoolingType;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use synapse_plugin_sdk::prelude::*;

use crate::log;
use crate::model;
use crate::seat::{Seat, Shape, threads};

/// Architectures that llama.cpp scores faithfully.
///
/// Not `bert`: llama.cpp gives every token segment 0 and drops the pooler, and scores are off by units; the same code
/// serves XLM-RoBERTa, off by 0.5 at the worst. Not `qwen3`: its output is a probability under a template that is
/// not ours to keep (TOK-06).
const FAITHFUL_RERANKERS: [&str; 1] = ["modern-bert"];

/// Embeddings. Holds the context's tokens where tests set them.
#[derive(Debug)]
pub struct Embed(pub Option<u32>);

/// Scores. Holds the context's tokens where tests set them.
#[derive(Debug)]
pub struct Rerank(pub Option<u32>);

/// A loaded encoder.
#[derive(Debug)]
pub struct Encoder {
    seat: Seat,
    tokens: u32,
    width: usize,
}

impl Embedder for Embed {
    type Model = Encoder;

    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Encoder>, Error> {
        let pooling = match config.pooling {
            "mean" => LlamaPoolingType::Mean,
            "cls" => LlamaPoolingType::Cls,
            "last" => LlamaPoolingType::Last,
            other => {
                let other = other.escape_debug();
                return Err(Error::config_invalid(format!(
                    "pooling `{other}`, expected mean, cls or last"
                )));
            }
        };
        let file = model::load(call, artifact, config)?;
        let dims = u32::try_from(file.model.n_embd_out()).unwrap_or(0);
        if dims == 0 {
            return Err(Error::artifact_invalid("the model gives vectors of no values"));
        }
        let loaded = encoder(call, file, pooling, dims as usize, self.0, config)?;
        Ok(Loaded { dims, ..loaded })
    }

    fn embed(&self, call: &Call<'_>, model: &Encoder, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        if batch.type_ids.iter().any(|segment| *segment != 0) {
            return Err(Error::unsupported(
                "segment ids other than 0: llama.cpp gives every token segment 0; onnxruntime serves such texts",
            ));
        }
        model.run(call, &batch, out.chunks_exact_mut(model.width))
    }
}

impl Reranker for Rerank {
    type Model = Encoder;

    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Encoder>, Error> {
        let file = model::load(call, artifact, config)?;
        if !FAITHFUL_RERANKERS.contains(&file.architecture.as_str()) {
            let found = file.architecture.escape_debug();
            return Err(Error::unsupported(format!(
                "llama.cpp does not score a GGUF of architecture `{found}` faithfully (only {FAITHFUL_RERANKERS:?}); \
                 install the model in the onnx format, which the engine onnxruntime serves"
            )));
        }
        // Without this tensor llama.cpp would give a value of the hidden state as the score.
        if !model::has_tensor(&artifact.file("weights")?.path, c"cls.output.weight") {
            return Err(Error::artifact_invalid(
                "the file has no tensor `cls.output.weight`: it is no reranker, but an embedding model",
            ));
        }
        if file.model.n_cls_out() != 1 {
            let labels = file.model.n_cls_out();
            return Err(Error::artifact_invalid(format!(
                "a classifier of {labels} labels, expected 1"
            )));
        }
        encoder(call, file, LlamaPoolingType::Rank, 1, self.0, config)
    }

    /// Segments are not looked at: the architectures served here have none.
    fn score(&self, call: &Call<'_>, model: &Encoder, batch: PairBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        model.run(call, &batch.tokens, out.chunks_exact_mut(1))
    }
}

/// The encoder of a loaded file, giving `width` values an item.
fn encoder(
    call: &Call<'_>,
    file: model::File,
    pooling: LlamaPoolingType,
    width: usize,
    fault: Option<u32>,
    config: RuntimeConfig<'_>,
) -> Result<Loaded<Encoder>, Error> {
    let tokens = config.max_tokens;
    let shape = Shape::pooled(fault.unwrap_or(tokens), pooling);
    let seat = Seat::new(file.model, shape, threads(call))?;
    let memory = file.bytes + seat.context_bytes();
    let encoder = Encoder { seat, tokens, width };
    Ok(Loaded::new(encoder, 0)
        .max_concurrency(1)
        .max_tokens(tokens)
        .memory_bytes(memory))
}

impl Encoder {
    /// One item after another into one row each.
    fn run<'r>(
        &self,
        call: &Call<'_>,
        batch: &TokenBatch<'_>,
        rows: impl Iterator<Item = &'r mut [f32]>,
    ) -> Result<(), Error> {
        self.seat.run(threads(call), |context| {
            let total = batch.ids.len() as u64;
            let mut done = 0;
            for (item, row) in batch.items().zip(rows) {
                self.one(context, item.ids, row)?;
                done += item.ids.len() as u64;
                call.checkpoint(done, total)?;
            }
            Ok(())
        })
    }

    fn one(&self, context: &mut LlamaContext<'_>, ids: &[i32], row: &mut [f32]) -> Result<(), Error> {
        if ids.len() > self.tokens as usize {
            let (found, most) = (ids.len(), self.tokens);
            return Err(Error::input_too_long(format!(
                "{found} tokens, the model was loaded for {most}"
            )));
        }
        self.seat.check_ids(ids)?;
        context.clear_kv_cache();
        log::clear();
        let tokens: Vec<LlamaToken> = ids.iter().copied().map(LlamaToken).collect();
        let mut batch = LlamaBatch::new(tokens.len(), 1);
        // Pooling needs the hidden state of every token.
        batch
            .add_sequence(&tokens, 0, true)
            .map_err(|error| Error::internal(format!("llama.cpp's batch: {error}")))?;
        context
            .decode(&mut batch)
            .map_err(|error| Error::internal(format!("{error}: {}", log::complaint())))?;
        let values = context
            .embeddings_seq_ith(0)
            .map_err(|error| Error::internal(format!("{error}: {}", log::complaint())))?;
        // A classifier of one label gives one value, whatever lies behind it.
        let values = values.get(..row.len()).ok_or_else(|| {
            let (found, expected) = (values.len(), row.len());
            Error::internal(format!("llama.cpp gives {found} values, expected {expected}"))
        })?;
        row.copy_from_slice(values);
        Ok(())
    }
}
