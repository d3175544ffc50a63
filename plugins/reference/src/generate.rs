//! The generate engine: letters that depend on everything before them.
//!
//! Owns per model one number. See [`crate::numbers`] for the arithmetic. It takes ids or text (the bytes are the ids)
//! and has no grammars.

use synapse_plugin_sdk::prelude::*;

use crate::{
    fault::Fault,
    numbers::{Numbers, mix},
};

/// The generate engine.
pub struct Toy {
    pub(crate) fault: Fault,
}

impl Generator for Toy {
    type Model = (Numbers, Fault);
    const EXTRA_KEYS: &'static [&'static str] = &["fault"];

    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Self::Model>, Error> {
        let fault = self.fault.or_of(config)?;
        fault.at_load(call)?;
        let numbers = Numbers::read(artifact.file("weights")?)?;
        Ok(Loaded::new((numbers, fault), 0)
            .max_concurrency(4)
            .memory_bytes(numbers.bytes()))
    }

    fn generate(
        &self,
        call: &Call<'_>,
        model: &Self::Model,
        prompt: Prompt<'_>,
        options: GenerateOptions<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Generated, Error> {
        let (numbers, fault) = model;
        fault.at_call(call)?;
        if options.grammar.is_some() {
            return Err(Error::grammar_unavailable(
                "the reference engine has no grammars; leave `grammar` out",
            ));
        }
        let start = numbers.seed();
        let mut h = if options.temperature > 0.0 {
            mix(start ^ options.seed)
        } else {
            start
        };
        let prompt: Vec<i32> = match prompt {
            Prompt::Ids(ids) => ids.to_vec(),
            Prompt::Text(text) => text.bytes().map(i32::from).collect(),
        };
        for &token in &prompt {
            h = mix(h ^ u64::from(token.cast_unsigned()));
        }
        let prompt_tokens = u32::try_from(prompt.len()).map_err(|_| Error::input_too_long("more than 2^32 tokens"))?;
        // Letters that may turn out to begin a stop text are held back.
        let mut held = String::new();
        let mut generated_tokens = 0;
        let mut finish = FinishReason::LENGTH;
        while generated_tokens < options.max_tokens {
            h = mix(h);
            let draw = h >> 32;
            if draw.is_multiple_of(64) {
                finish = FinishReason::STOP;
                break;
            }
            let letter = b'a' + u8::try_from(draw % 26).unwrap_or(0);
            h = mix(h ^ u64::from(letter));
            generated_tokens += 1;
            held.push(char::from(letter));
            if let Some(stop) = options.stop.iter().find(|stop| held.ends_with(**stop)) {
                held.truncate(held.len() - stop.len());
                finish = FinishReason::STOP;
                break;
            }
            let keep = options
                .stop
                .iter()
                .map(|stop| stop.len() - 1)
                .max()
                .unwrap_or(0)
                .min(held.len());
            emit(sink, held.drain(..held.len() - keep).as_str())?;
            fault.after_token(call, u64::from(generated_tokens), u64::from(options.max_tokens))?;
        }
        emit(sink, &held)?;
        Ok(Generated {
            prompt_tokens,
            generated_tokens,
            finish,
        })
    }
}

/// Gives letters and their ids.
fn emit(sink: &mut Sink<'_>, letters: &str) -> Result<(), Error> {
    if letters.is_empty() {
        return Ok(());
    }
    let ids: Vec<i32> = letters.bytes().map(i32::from).collect();
    sink.push(&ids, letters)
}
