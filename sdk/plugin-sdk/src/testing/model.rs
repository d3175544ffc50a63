//! One engine with one loaded model, called as a host calls it: what most tests of a plugin need.
//!
//! Each type owns the engine object and the model's handle. Batches are built here, so a test writes items, not
//! offsets; who wants to send a wrong batch calls the object itself.

use std::path::Path;

use super::{Collected, FakeCall, FakeHost, artifact};
use crate::{
    api::{
        self, EmbedEngineObject, GenerateEngineObject, LoadedModel, RerankEngineObject, RuntimeConfig, ScoresOut,
        VectorsOut, abi_stable::std_types::RSlice,
    },
    error::Error,
    plugin::Plugin,
};

/// An engine that the plugin offers, and the model that its `load` makes of a test's files. A file that cannot be looked
/// at is the test's own fault.
fn loaded<E>(
    offered: Option<E>,
    kind: &str,
    roles: &[(&str, &Path)],
    load: impl FnOnce(&E, &api::CallContext<'_>, &api::ValidatedArtifact) -> Result<LoadedModel, Error>,
) -> Result<(E, LoadedModel), Error> {
    let engine = offered.ok_or_else(|| Error::unsupported(format!("the plugin offers no {kind} engine")))?;
    let files = artifact(roles).map_err(|error| Error::invalid_argument(format!("a file of the test: {error}")))?;
    let model = load(&engine, &FakeCall::new(1).context(), &files)?;
    Ok((engine, model))
}

/// Offsets of items laid back to back.
fn ragged(items: &[&[i32]]) -> Result<(Vec<i32>, Vec<u32>), Error> {
    let mut ids = Vec::new();
    let mut offsets = vec![0];
    for item in items {
        ids.extend_from_slice(item);
        offsets.push(u32::try_from(ids.len()).map_err(|_| Error::input_too_long("more than 2^32 tokens"))?);
    }
    Ok((ids, offsets))
}

/// An embed engine with one model.
pub struct Embedding {
    engine: EmbedEngineObject,
    model: LoadedModel,
}

impl Embedding {
    /// Makes the plugin's embed engine without settings of its own and loads `files` (role and path).
    ///
    /// # Errors
    /// What the engine says, or UNSUPPORTED when the plugin offers none.
    pub fn load(
        plugin: &Plugin,
        host: FakeHost,
        roles: &[(&str, &Path)],
        settings: &RuntimeConfig,
    ) -> Result<Self, Error> {
        let offered = plugin.open_embed(host.host(), "{}")?;
        let (engine, model) = loaded(offered, "embed", roles, |engine, call, files| {
            Ok(engine.load(call, files, settings).into_result()?)
        })?;
        Ok(Self { engine, model })
    }

    /// What the load gave.
    #[must_use]
    pub const fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// The engine's object.
    #[must_use]
    pub const fn engine(&self) -> &EmbedEngineObject {
        &self.engine
    }

    /// One vector for each item, through `embed_batch`; the buffer is full of NaN before the call.
    ///
    /// # Errors
    /// What the engine says.
    pub fn embed(&self, call: &FakeCall, items: &[&[i32]]) -> Result<Vec<Vec<f32>>, Error> {
        let (ids, offsets) = ragged(items)?;
        let dims = self.model.dims as usize;
        let mut values = vec![f32::NAN; items.len() * dims];
        let batch = api::TokenBatch::new(&ids, &offsets, &[]);
        let out = VectorsOut::new(&mut values, self.model.dims);
        self.engine
            .embed_batch(&call.context(), self.model.model, &batch, out)
            .into_result()?;
        Ok(values.chunks(dims.max(1)).map(<[f32]>::to_vec).collect())
    }

    /// The vector of one item, through `embed_one`.
    ///
    /// # Errors
    /// What the engine says.
    pub fn embed_one(&self, call: &FakeCall, ids: &[i32]) -> Result<Vec<f32>, Error> {
        let mut values = vec![f32::NAN; self.model.dims as usize];
        let out = VectorsOut::new(&mut values, self.model.dims);
        self.engine
            .embed_one(&call.context(), self.model.model, RSlice::from_slice(ids), out)
            .into_result()?;
        Ok(values)
    }
}

/// A rerank engine with one model.
pub struct Reranking {
    engine: RerankEngineObject,
    model: LoadedModel,
}

impl Reranking {
    /// As [`Embedding::load`].
    ///
    /// # Errors
    /// As [`Embedding::load`].
    pub fn load(
        plugin: &Plugin,
        host: FakeHost,
        roles: &[(&str, &Path)],
        settings: &RuntimeConfig,
    ) -> Result<Self, Error> {
        let offered = plugin.open_rerank(host.host(), "{}")?;
        let (engine, model) = loaded(offered, "rerank", roles, |engine, call, files| {
            Ok(engine.load(call, files, settings).into_result()?)
        })?;
        Ok(Self { engine, model })
    }

    /// What the load gave.
    #[must_use]
    pub const fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// The raw score of each pair of query and document ids.
    ///
    /// # Errors
    /// What the engine says.
    pub fn score(&self, call: &FakeCall, pairs: &[(&[i32], &[i32])]) -> Result<Vec<f32>, Error> {
        let joined: Vec<Vec<i32>> = pairs
            .iter()
            .map(|(query, document)| [*query, *document].concat())
            .collect();
        let items: Vec<&[i32]> = joined.iter().map(Vec::as_slice).collect();
        let (ids, offsets) = ragged(&items)?;
        let starts: Result<Vec<u32>, _> = pairs.iter().map(|(query, _)| u32::try_from(query.len())).collect();
        let starts = starts.map_err(|_| Error::input_too_long("more than 2^32 tokens"))?;
        let segments = pairs.iter().flat_map(|(query, document)| {
            std::iter::repeat_n(0, query.len()).chain(std::iter::repeat_n(1, document.len()))
        });
        let segments: Vec<i32> = segments.collect();
        let mut scores = vec![f32::NAN; pairs.len()];
        let batch = api::PairBatch::new(api::TokenBatch::new(&ids, &offsets, &segments), &starts);
        self.engine
            .score_batch(&call.context(), self.model.model, &batch, ScoresOut::new(&mut scores))
            .into_result()?;
        Ok(scores)
    }
}

/// A generate engine with one model.
pub struct Generation {
    engine: GenerateEngineObject,
    model: LoadedModel,
}

impl Generation {
    /// As [`Embedding::load`].
    ///
    /// # Errors
    /// As [`Embedding::load`].
    pub fn load(
        plugin: &Plugin,
        host: FakeHost,
        roles: &[(&str, &Path)],
        settings: &RuntimeConfig,
    ) -> Result<Self, Error> {
        let offered = plugin.open_generate(host.host(), "{}")?;
        let (engine, model) = loaded(offered, "generate", roles, |engine, call, files| {
            Ok(engine.load(call, files, settings).into_result()?)
        })?;
        Ok(Self { engine, model })
    }

    /// What the load gave.
    #[must_use]
    pub const fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// Continues a prompt of token ids; gives what the engine counted and what its sink took.
    ///
    /// # Errors
    /// What the engine says.
    pub fn generate(
        &self,
        call: &FakeCall,
        prompt: &[i32],
        options: &api::GenerateOptions,
    ) -> Result<(api::Generated, Collected), Error> {
        let mut collected = Collected::default();
        let generated = self
            .engine
            .generate(
                &call.context(),
                self.model.model,
                api::Prompt::ids(prompt),
                options,
                collected.sink(),
            )
            .into_result()?;
        Ok((generated, collected))
    }
}

/// Greedy options without stop texts, grammar and extras.
#[must_use]
pub fn generate_options(max_tokens: u32) -> api::GenerateOptions {
    api::GenerateOptions {
        max_tokens,
        temperature: 0.0,
        top_p: 1.0,
        seed: 0,
        stop: Vec::new().into(),
        grammar: String::new().into(),
        extra: Vec::new().into(),
    }
}
