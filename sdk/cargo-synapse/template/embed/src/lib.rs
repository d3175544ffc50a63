//! An embedding plugin: the mean of the rows that the tokens have in a table.
//!
//! Owns per model one table ([`table`]). Loaded by a Synapse host; everything here runs on the host's threads.

mod table;
#[cfg(test)]
mod tests;

use synapse_plugin_sdk::prelude::*;
use table::Table;

/// The engine. One object serves every model.
struct Engine;

impl Embedder for Engine {
    type Model = Table;

    fn load(
        &self,
        call: &Call<'_>,
        artifact: Artifact<'_>,
        config: RuntimeConfig<'_>,
    ) -> Result<Loaded<Table>, Error> {
        if config.pooling != "mean" {
            let pooling = config.pooling.escape_debug();
            return Err(Error::config_invalid(format!(
                "pooling `{pooling}`, this engine has mean"
            )));
        }
        let table = Table::read(artifact.file("weights")?)?;
        let (dims, bytes) = (table.dims(), table.bytes());
        info!(call.host(), "loaded rows of {dims} values, {bytes} bytes");
        Ok(Loaded::new(table, dims as u32)
            .max_concurrency(4)
            .memory_bytes(bytes))
    }

    fn embed(
        &self,
        call: &Call<'_>,
        table: &Table,
        batch: TokenBatch<'_>,
        out: &mut [f32],
    ) -> Result<(), Error> {
        // The host may hold the call at a checkpoint or end it there; `pace` asks often enough and not too often.
        let mut pace = call.pace(batch.ids.len() as u64);
        for (item, row) in batch.items().zip(out.chunks_exact_mut(table.dims())) {
            table.mean(item.ids, row);
            pace.advance(item.ids.len() as u64)?;
        }
        Ok(())
    }
}

/// The plugin: what it is, what it serves, and how its engine is made.
fn plugin() -> Plugin {
    let support = Support::embed("table", "f32")
        .preempt(Preempt::CHECKPOINT)
        .thread_invariant()
        .f32_exact();
    // The name and the numeric version are part of every vector's space: a new version when bits can change.
    Plugin::new(Identity::new(env!("CARGO_PKG_NAME"), "1"))
        .supports(support)
        .embedder(|_| Ok(Engine))
}

export_plugin!(id: env!("CARGO_PKG_NAME"), plugin: plugin);
