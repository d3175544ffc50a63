//! The rerank engine: how alike the two parts of a pair are.
//!
//! Owns per model one number. See [`crate::numbers`] for the arithmetic.

use synapse_plugin_sdk::prelude::*;

use crate::{fault::Fault, numbers::Numbers};

/// The rerank engine.
pub struct Toy {
    pub(crate) fault: Fault,
}

impl Reranker for Toy {
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

    fn score(&self, call: &Call<'_>, model: &Self::Model, batch: PairBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        let (numbers, fault) = model;
        fault.at_call(call)?;
        let mut pace = call.pace(batch.tokens.ids.len() as u64);
        for (i, score) in out.iter_mut().enumerate() {
            let item = batch.tokens.item(i);
            *score = fault.spoil_score(i, numbers.score(item, batch.doc_starts[i] as usize));
            fault.after_item(call, &mut pace, item.ids.len() as u64)?;
        }
        Ok(())
    }
}
