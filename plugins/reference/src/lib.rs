//! A deterministic toy engine: the tutorial, the tests' stand-in, the fault injector.
//!
//! Owns per model one number and its settings. Loaded by hosts like any plugin; tests may also open it through the
//! SDK. This file is a whole embedding plugin; [`numbers`] is its arithmetic, [`rerank`] and [`generate`] are the two
//! other kinds, [`fault`] is what makes it misbehave on demand. It knows nothing of what the files mean: any bytes of
//! role `weights` are a model. `reference.py` computes the same values independently.

pub mod fault;
pub mod generate;
pub mod numbers;
pub mod rerank;

use fault::Fault;
use numbers::{Numbers, Pooling};
use synapse_plugin_sdk::prelude::*;

/// The embed engine.
pub struct Toy {
    fault: Fault,
    /// Calls misbehave only when they hold an item of so many tokens (setting `fault_tokens`); `None`: each does.
    fault_tokens: Option<usize>,
}

/// A loaded model.
pub struct Model {
    numbers: Numbers,
    pooling: Pooling,
    fault: Fault,
    fault_tokens: Option<usize>,
}

impl Embedder for Toy {
    type Model = Model;
    const EXTRA_KEYS: &'static [&'static str] = &["fault"];

    fn load(&self, call: &Call<'_>, artifact: Artifact<'_>, config: RuntimeConfig<'_>) -> Result<Loaded<Model>, Error> {
        let fault = self.fault.or_of(config)?;
        fault.at_load(call)?;
        let numbers = Numbers::read(artifact.file("weights")?)?;
        let pooling = Pooling::parse(config.pooling)?;
        info!(
            call.host(),
            "loaded {} bytes, pooling {}",
            numbers.bytes(),
            config.pooling
        );
        let model = Model {
            numbers,
            pooling,
            fault,
            fault_tokens: self.fault_tokens,
        };
        Ok(Loaded::new(model, numbers::DIMS)
            .max_concurrency(4)
            .memory_bytes(numbers.bytes()))
    }

    fn embed(&self, call: &Call<'_>, model: &Model, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        let struck = |tokens| batch.items().any(|item| item.ids.len() == tokens);
        if model.fault_tokens.is_none_or(struck) {
            model.fault.at_call(call)?;
        }
        let total = batch.ids.len() as u64;
        let mut pace = call.pace(total);
        for (i, row) in out.chunks_exact_mut(numbers::DIMS as usize).enumerate() {
            let item = batch.item(i);
            if model.fault.skips(i) {
                continue;
            }
            model.numbers.pool(item, model.pooling, row);
            model
                .fault
                .spoil(&model.numbers, model.pooling, &batch, i, call.threads(), row);
            model.fault.after_item(call, &mut pace, item.ids.len() as u64)?;
        }
        Ok(())
    }
}

/// The plugin: what it is and how its engines are made.
#[must_use]
pub fn plugin() -> Plugin {
    let offer = |support: Support| support.preempt(Preempt::CHECKPOINT).thread_invariant().f32_exact();
    Plugin::new(Identity::new("reference", "1"))
        .supports(offer(Support::embed("bytes", "f32")))
        .supports(offer(Support::rerank("bytes", "f32")))
        .supports(offer(Support::generate("bytes", "f32")))
        .config_keys(&["fault", "fault_tokens"])
        .environment(fault::environment)
        .embedder(|setup| {
            Ok(Toy {
                fault: Fault::of(&setup)?,
                fault_tokens: fault::tokens(&setup)?,
            })
        })
        .reranker(|setup| {
            Ok(rerank::Toy {
                fault: Fault::of(&setup)?,
            })
        })
        .generator(|setup| {
            Ok(generate::Toy {
                fault: Fault::of(&setup)?,
            })
        })
}

export_plugin!(id: "reference", plugin: plugin);
