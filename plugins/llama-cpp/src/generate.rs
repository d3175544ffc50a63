//! Generation, token by token, with a checkpoint at each.
//!
//! Owns the loaded models. Called by the host through the SDK. The prompt is token ids of the host; text that spells a
//! control token was never turned into one there, and none is shown here.

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use synapse_plugin_sdk::prelude::*;

use crate::log;
use crate::model;
use crate::sample::{Choice, Sampler};
use crate::seat::{Seat, Shape, threads};
use crate::text::Text;

/// Prompt tokens between two checkpoints. Part of the numbers: another block gives other sums.
const PROMPT_BLOCK: u32 = 64;

/// Generation. Holds the context's tokens where tests set them.
#[derive(Debug)]
pub struct Generate(pub Option<u32>);

/// A loaded generator.
#[derive(Debug)]
pub struct Decoder {
    seat: Seat,
    tokens: u32,
    /// Whether the vocabulary has a token that ends a text.
    can_end: bool,
}

/// Whether llama.cpp's flash attention computes: `on` or `off`, which is the default. The catalog's row says it.
const FLASH_ATTENTION: &str = "flash_attention";

impl Generator for Generate {
    type Model = Decoder;

    const EXTRA_KEYS: &'static [&'static str] = &[FLASH_ATTENTION];

    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Decoder>, Error> {
        let flash_attention = flash_attention(&config)?;
        let file = model::load(call, artifact, config)?;
        let vocabulary = file.model.vocab();
        let can_end = vocabulary.tokens().any(|token| vocabulary.is_eog(token));
        let tokens = config.max_tokens;
        let shape = Shape {
            tokens: self.0.unwrap_or(tokens),
            block: Some(PROMPT_BLOCK),
            pooling: None,
            flash_attention,
        };
        let seat = Seat::new(file.model, shape, threads(call))?;
        let memory = file.bytes + seat.context_bytes();
        let decoder = Decoder { seat, tokens, can_end };
        Ok(Loaded::new(decoder, 0)
            .max_concurrency(1)
            .max_tokens(tokens)
            .memory_bytes(memory))
    }

    fn generate(
        &self,
        call: &Call<'_>,
        model: &Decoder,
        prompt: Prompt<'_>,
        options: GenerateOptions<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Generated, Error> {
        let Prompt::Ids(ids) = prompt else {
            return Err(Error::unsupported("a prompt of text: this engine takes token ids"));
        };
        model.check(ids, &options)?;
        let sampler = Sampler::new(model.seat.model(), &options)?;
        let (generated, finish) = model.seat.run(threads(call), |context| {
            model.write(call, context, ids, &options, sampler, sink)
        })?;
        let prompt_tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        Ok(Generated {
            prompt_tokens,
            generated_tokens: generated,
            finish,
        })
    }
}

fn flash_attention(config: &RuntimeConfig<'_>) -> Result<bool, Error> {
    match config.extra(FLASH_ATTENTION) {
        None | Some("off") => Ok(false),
        Some("on") => Ok(true),
        Some(other) => Err(Error::config_invalid(format!(
            "`{FLASH_ATTENTION}` is {other:?}, expected `on` or `off`"
        ))),
    }
}

impl Decoder {
    fn check(&self, ids: &[i32], options: &GenerateOptions<'_>) -> Result<(), Error> {
        if ids.is_empty() {
            return Err(Error::invalid_argument("the prompt has no tokens"));
        }
        let (found, wanted, most) = (ids.len(), options.max_tokens, self.tokens);
        if found.saturating_add(wanted as usize) > most as usize {
            return Err(Error::input_too_long(format!(
                "{found} prompt tokens and {wanted} to generate, the model was loaded for {most} together"
            )));
        }
        self.seat.check_ids(ids)
    }

    /// Generates into `sink`: the number of tokens and why it ended.
    fn write(
        &self,
        call: &Call<'_>,
        context: &mut LlamaContext<'_>,
        ids: &[i32],
        options: &GenerateOptions<'_>,
        mut sampler: Sampler,
        sink: &mut Sink<'_>,
    ) -> Result<(u32, FinishReason), Error> {
        let vocabulary = self.seat.model().vocab();
        let total = ids.len() as u64 + u64::from(options.max_tokens);
        let mut batch = LlamaBatch::new(PROMPT_BLOCK as usize, 1);
        let mut done = 0;
        for block in ids.chunks(PROMPT_BLOCK as usize) {
            let last = done + block.len() == ids.len();
            compute(context, &mut batch, done, block, last)?;
            done += block.len();
            call.checkpoint(done as u64, total)?;
        }
        let mut text = Text::new(&options.stop);
        let mut generated = 0;
        let finish = loop {
            if generated == options.max_tokens {
                break FinishReason::LENGTH;
            }
            let token = match sampler.choose(context.get_logits_ith(batch.n_tokens() - 1))? {
                Choice::Token(token) if vocabulary.is_eog(token) => break FinishReason::STOP,
                Choice::Token(token) => token,
                // At its end a grammar allows the tokens that end a text, and some vocabularies have none.
                Choice::Nothing if !self.can_end => break FinishReason::STOP,
                Choice::Nothing => {
                    return Err(Error::grammar_invalid(format!(
                        "after {generated} tokens no token of this model continues what the grammar asks for"
                    )));
                }
            };
            sampler.accept(token)?;
            generated += 1;
            let (safe, stopped) = text.push(&vocabulary.token_to_piece(token, false, None));
            sink.push(&[token.0], &safe)?;
            if stopped {
                return Ok((generated, FinishReason::STOP));
            }
            call.checkpoint(done as u64 + u64::from(generated), total)?;
            if generated < options.max_tokens {
                compute(context, &mut batch, done + generated as usize - 1, &[token.0], true)?;
            }
        };
        let rest = text.finish();
        if !rest.is_empty() {
            sink.push(&[], &rest)?;
        }
        Ok((generated, finish))
    }
}

/// Computes tokens at positions from `first`; with logits of the last one, if they are wanted.
fn compute(
    context: &mut LlamaContext<'_>,
    batch: &mut LlamaBatch<'_>,
    first: usize,
    ids: &[i32],
    logits: bool,
) -> Result<(), Error> {
    let failed = |what: &dyn std::fmt::Display| Error::internal(format!("{what}: {}", log::complaint()));
    log::clear();
    batch.clear();
    for (at, id) in ids.iter().enumerate() {
        let position = i32::try_from(first + at).map_err(|error| failed(&error))?;
        batch
            .add(LlamaToken(*id), position, &[0], logits && at + 1 == ids.len())
            .map_err(|error| failed(&error))?;
    }
    context.decode(batch).map_err(|error| failed(&error))
}
