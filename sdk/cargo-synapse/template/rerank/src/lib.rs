//! A reranking plugin: the dot product of what query and document have in a table.
//!
//! Owns per model one table ([`table`]). Loaded by a Synapse host; everything here runs on the host's threads. The
//! host builds the pairs, special tokens included, and says where each document starts.

mod table;
#[cfg(test)]
mod tests;

use synapse_plugin_sdk::prelude::*;
use table::Table;

/// The engine. One object serves every model.
struct Engine;

impl Reranker for Engine {
    type Model = Table;

    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        _: RuntimeConfig<'_>,
    ) -> Result<Loaded<Table>, Error> {
        let table = Table::read(artifact.file("weights")?)?;
        let bytes = table.bytes();
        info!(
            call.host(),
            "loaded rows of {} values, {bytes} bytes",
            table.dims()
        );
        Ok(Loaded::new(table, 0).max_concurrency(4).memory_bytes(bytes))
    }

    fn score(
        &self,
        call: &Call<'_>,
        table: &Table,
        batch: PairBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let (mut query, mut document) = (vec![0.0; table.dims()], vec![0.0; table.dims()]);
        // The host may hold the call at a checkpoint or end it there; `pace` asks often enough and not too often.
        let mut pace = call.pace(batch.tokens.ids.len() as u64);
        for ((pair, &start), score) in batch.tokens.items().zip(batch.doc_starts).zip(out) {
            let (before, after) = pair.ids.split_at(start as usize);
            table.mean(before, &mut query);
            table.mean(after, &mut document);
            *score = query.iter().zip(&document).map(|(q, d)| q * d).sum();
            pace.advance(pair.ids.len() as u64)?;
        }
        Ok(())
    }
}

/// The plugin: what it is, what it serves, and how its engine is made.
fn plugin() -> Plugin {
    let support = Support::rerank("table", "f32")
        .preempt(Preempt::CHECKPOINT)
        .thread_invariant()
        .f32_exact();
    // The name and the numeric version are part of every score's space: a new version when bits can change.
    Plugin::new(Identity::new(env!("CARGO_PKG_NAME"), "1"))
        .supports(support)
        .reranker(|_| Ok(Engine))
}

export_plugin!(id: env!("CARGO_PKG_NAME"), plugin: plugin);
