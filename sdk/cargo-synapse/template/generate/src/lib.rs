//! A generation plugin: it recites the line that the prompt chooses.
//!
//! Owns per model a few lines ([`lines`]). Loaded by a Synapse host; everything here runs on the host's threads. The
//! host turns prompts into token ids; this engine says what the tokens that it generates spell.

mod lines;
#[cfg(test)]
mod tests;

use lines::Lines;
use synapse_plugin_sdk::prelude::*;

/// The engine. One object serves every model.
struct Engine;

impl Generator for Engine {
    type Model = Lines;

    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        _: RuntimeConfig<'_>,
    ) -> Result<Loaded<Lines>, Error> {
        let lines = Lines::read(artifact.file("weights")?)?;
        let bytes = lines.bytes();
        info!(call.host(), "loaded {bytes} bytes");
        Ok(Loaded::new(lines, 0).max_concurrency(4).memory_bytes(bytes))
    }

    fn generate(
        &self,
        call: &Call<'_>,
        lines: &Lines,
        prompt: Prompt<'_>,
        options: GenerateOptions<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Generated, Error> {
        if options.grammar.is_some() {
            return Err(Error::grammar_unavailable(
                "this engine has no grammars; leave `grammar` out",
            ));
        }
        let Prompt::Ids(ids) = prompt else {
            return Err(Error::unsupported(
                "a prompt of text; this engine takes token ids",
            ));
        };
        // Greedy is always the same line; with a temperature the seed has a say.
        let seed = if options.temperature > 0.0 {
            options.seed
        } else {
            0
        };
        let number = ids.iter().fold(seed, |sum, &id| {
            sum.wrapping_add(u64::from(id.unsigned_abs()))
        });
        let mut finish = FinishReason::STOP;
        let mut held = Held::new(&options.stop);
        let mut generated_tokens = 0;
        for word in lines.choose(number) {
            if generated_tokens == options.max_tokens {
                finish = FinishReason::LENGTH;
                break;
            }
            call.checkpoint(u64::from(generated_tokens), u64::from(options.max_tokens))?;
            generated_tokens += 1;
            let stopped = held.take(&word.text);
            sink.push(&[word.id], &held.sure())?;
            if stopped {
                break;
            }
        }
        sink.push(&[], &held.rest())?;
        Ok(Generated {
            prompt_tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
            generated_tokens,
            finish,
        })
    }
}

/// Text that may turn out to begin a stop text, which is no part of the answer.
struct Held<'a> {
    stops: &'a [&'a str],
    text: String,
}

impl<'a> Held<'a> {
    fn new(stops: &'a [&'a str]) -> Self {
        let text = String::new();
        Self { stops, text }
    }

    /// Adds text; true when a stop text is complete, which is cut off with all that follows it.
    fn take(&mut self, text: &str) -> bool {
        self.text.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.text.find(stop))
            .min();
        if let Some(at) = found {
            self.text.truncate(at);
        }
        found.is_some()
    }

    /// Takes out what cannot begin a stop text any more.
    fn sure(&mut self) -> String {
        let ends = self.text.char_indices().map(|(at, _)| at);
        let begins = |at: &usize| {
            self.stops
                .iter()
                .any(|stop| stop.starts_with(&self.text[*at..]))
        };
        let end = ends.into_iter().find(begins).unwrap_or(self.text.len());
        self.text.drain(..end).collect()
    }

    /// Takes out everything.
    fn rest(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

/// The plugin: what it is, what it serves, and how its engine is made.
fn plugin() -> Plugin {
    let support = Support::generate("lines", "f32")
        .preempt(Preempt::CHECKPOINT)
        .thread_invariant()
        .f32_exact();
    // The name and the numeric version say which texts it gives: a new version when they can change.
    Plugin::new(Identity::new(env!("CARGO_PKG_NAME"), "1"))
        .supports(support)
        .generator(|_| Ok(Engine))
}

export_plugin!(id: env!("CARGO_PKG_NAME"), plugin: plugin);
