//! The two engines: encoder embeddings and cross-encoder scores.
//!
//! Owns the loaded graphs. Called by the host through the SDK. Both cut a ragged batch into small rectangles of
//! similar length, padded with id 0 and masked; a graph that quantises its activations dynamically gets one item at a
//! time, because there a batch would change the values.

use ort::environment::Environment;
use ort::value::{DynValue, Tensor, TensorElementType};
use synapse_plugin_sdk::prelude::*;

use crate::graph::{self, Facts};
use crate::plan::groups;
use crate::runtime;
use crate::session::{External, Graph, Port};

/// Calls on one session at once.
const CONCURRENCY: u32 = 2;
/// Roles of files outside the model begin with this; the rest is the file's name in the model.
pub const EXTERNAL_ROLE: &str = "external:";

/// Embeddings.
pub struct Embed(Environment);

/// Scores.
pub struct Rerank(Environment);

/// How hidden states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    Mean,
    Cls,
    Last,
    /// The graph gives one vector an item.
    InGraph,
}

/// What a graph's input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    Ids,
    Mask,
    TypeIds,
    Positions,
}

/// A loaded graph and how to talk to it.
pub struct Model {
    graph: Graph,
    feeds: Vec<(Feed, TensorElementType)>,
    output: String,
    pooling: Pooling,
    dims: usize,
    /// Items and tokens of every rectangle, where the graph fixes them.
    fixed: (Option<usize>, Option<usize>),
    most: usize,
}

impl Embed {
    /// The engine, with the process's environment.
    ///
    /// # Errors
    /// As [`runtime::environment`].
    pub fn new(host: Host) -> Result<Self, Error> {
        runtime::environment(host).map(Self)
    }
}

impl Rerank {
    /// The engine, with the process's environment.
    ///
    /// # Errors
    /// As [`runtime::environment`].
    pub fn new(host: Host) -> Result<Self, Error> {
        runtime::environment(host).map(Self)
    }
}

impl Embedder for Embed {
    type Model = Model;

    fn load(&self, _: &Call<'_>, artifact: Artifact<'_>, config: RuntimeConfig<'_>) -> Result<Loaded<Model>, Error> {
        let pooling = match config.pooling {
            "mean" => Pooling::Mean,
            "cls" => Pooling::Cls,
            "last" => Pooling::Last,
            "none" => Pooling::InGraph,
            other => {
                return Err(Error::config_invalid(format!(
                    "pooling `{other}`, expected mean, cls, last or none"
                )));
            }
        };
        let (graph, facts, bytes) = load(&self.0, artifact, config)?;
        let rank = if pooling == Pooling::InGraph { 2 } else { 3 };
        let output = embedding_output(&graph.outputs, rank)?;
        model(graph, &facts, output, pooling, config, bytes)
    }

    fn embed(&self, call: &Call<'_>, model: &Model, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        model.run(call, &batch, |group, shape, values| {
            let (length, dims) = match shape {
                [_, length, dims] => (*length, *dims),
                [_, dims] => (1, *dims),
                _ => return Err(Error::artifact_invalid(format!("output of shape {shape:?}"))),
            };
            if dims != model.dims {
                return Err(Error::artifact_invalid(format!(
                    "vectors of {dims} values, the graph said {}",
                    model.dims
                )));
            }
            for (row, index) in group.iter().enumerate() {
                let states = &values[row * length * dims..][..length * dims];
                let tokens = batch.item(*index).ids.len();
                pool(model.pooling, states, tokens, &mut out[index * dims..][..dims]);
            }
            Ok(())
        })
    }
}

impl Reranker for Rerank {
    type Model = Model;

    fn load(&self, _: &Call<'_>, artifact: Artifact<'_>, config: RuntimeConfig<'_>) -> Result<Loaded<Model>, Error> {
        let (graph, facts, bytes) = load(&self.0, artifact, config)?;
        let is_score =
            |port: &&Port| port.ty == TensorElementType::Float32 && matches!(port.shape[..], [_, 1] | [_, -1] | [_]);
        let output = graph
            .outputs
            .iter()
            .find(is_score)
            .map(|port| port.name.clone())
            .ok_or_else(|| {
                Error::artifact_invalid(format!("no output of one f32 score an item among {:?}", graph.outputs))
            })?;
        let mut loaded = model(graph, &facts, output, Pooling::InGraph, config, bytes)?;
        loaded.dims = 0;
        Ok(loaded)
    }

    fn score(&self, call: &Call<'_>, model: &Model, batch: PairBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        model.run(call, &batch.tokens, |group, _, values| {
            if values.len() < group.len() || values.len() % group.len() != 0 {
                return Err(Error::artifact_invalid(format!(
                    "{} scores for {} pairs",
                    values.len(),
                    group.len()
                )));
            }
            let width = values.len() / group.len();
            for (row, index) in group.iter().enumerate() {
                out[*index] = values[row * width];
            }
            Ok(())
        })
    }
}

fn load(
    environment: &Environment,
    artifact: Artifact<'_>,
    config: RuntimeConfig<'_>,
) -> Result<(Graph, Facts, u64), Error> {
    let file = artifact.file("weights")?;
    // A dense module that was left out would give vectors of another space without an error.
    if let Some(other) = artifact.files().iter().find(|file| !is_ours(&file.role)) {
        return Err(Error::unsupported(format!(
            "the artifact has a file `{}`, and modules outside of the graph are not run",
            other.role
        )));
    }
    let read = |path: &str| {
        std::fs::read(path).map_err(|error| Error::artifact_invalid(format!("cannot read {path}: {error}")))
    };
    let bytes = read(&file.path)?;
    let facts = graph::read(&bytes)?;
    let dynamic = facts.quantises_dynamically();
    if dynamic != (config.dtype == "int8") {
        let found = if dynamic {
            "quantises its activations dynamically"
        } else {
            "computes in f32"
        };
        return Err(Error::config_invalid(format!(
            "dtype `{}`, but the graph {found}",
            config.dtype
        )));
    }
    let mut external = Vec::new();
    let mut size = file.size;
    for name in &facts.external {
        let role = format!("{EXTERNAL_ROLE}{name}");
        let file = artifact.find(&role).ok_or_else(|| {
            Error::artifact_invalid(format!(
                "the model keeps weights in `{name}`, and the record lists no file `{role}`"
            ))
        })?;
        size += file.size;
        external.push(External {
            name: name.clone(),
            bytes: read(&file.path)?,
        });
    }
    let threads = usize::try_from(config.threads).unwrap_or(1);
    let graph = Graph::load(environment, &bytes, external, threads)?;
    Ok((graph, facts, size))
}

/// Whether a file of this role is part of a graph, or says about it what the graph says itself.
fn is_ours(role: &str) -> bool {
    role == "weights" || role == "config" || role.starts_with(EXTERNAL_ROLE)
}

fn embedding_output(outputs: &[Port], rank: usize) -> Result<String, Error> {
    let fits = |port: &&Port| port.ty == TensorElementType::Float32 && port.shape.len() == rank;
    let preferred = ["last_hidden_state", "token_embeddings", "sentence_embedding"];
    preferred
        .iter()
        .find_map(|name| outputs.iter().filter(fits).find(|port| port.name == *name))
        .or_else(|| outputs.iter().find(fits))
        .map(|port| port.name.clone())
        .ok_or_else(|| Error::artifact_invalid(format!("no f32 output of rank {rank} among {outputs:?}")))
}

fn model(
    graph: Graph,
    facts: &Facts,
    output: String,
    pooling: Pooling,
    config: RuntimeConfig<'_>,
    bytes: u64,
) -> Result<Loaded<Model>, Error> {
    let mut feeds = Vec::new();
    for port in &graph.inputs {
        let feed = match port.name.as_str() {
            "input_ids" => Feed::Ids,
            "attention_mask" => Feed::Mask,
            "token_type_ids" => Feed::TypeIds,
            "position_ids" => Feed::Positions,
            name => {
                return Err(Error::artifact_invalid(format!(
                    "unknown input `{name}`: an encoder takes input_ids"
                )));
            }
        };
        if !matches!(port.ty, TensorElementType::Int64 | TensorElementType::Int32) || port.shape.len() != 2 {
            return Err(Error::artifact_invalid(format!(
                "input {port:?}, expected integers of rank 2"
            )));
        }
        feeds.push((feed, port.ty));
    }
    let ids = graph
        .inputs
        .iter()
        .find(|port| port.name == "input_ids")
        .ok_or_else(|| Error::artifact_invalid("the graph has no input `input_ids`"))?;
    let fixed = |axis: usize| usize::try_from(ids.shape[axis]).ok().filter(|size| *size > 0);
    let fixed = (fixed(0), fixed(1));
    let width = graph
        .outputs
        .iter()
        .find(|port| port.name == output)
        .and_then(|port| port.shape.last().copied());
    let dims = match (pooling, width) {
        (Pooling::InGraph, width) => width.and_then(|width| usize::try_from(width).ok()).unwrap_or(1),
        (_, Some(width)) if width > 0 => usize::try_from(width).unwrap_or(0),
        (_, width) => {
            return Err(Error::artifact_invalid(format!(
                "output `{output}` has width {width:?}"
            )));
        }
    };
    let most = if facts.quantises_dynamically() {
        1
    } else {
        fixed.0.unwrap_or(usize::MAX)
    };
    let longest = fixed
        .1
        .and_then(|length| u32::try_from(length).ok())
        .unwrap_or(u32::MAX)
        .min(config.max_tokens);
    let model = Model {
        graph,
        feeds,
        output,
        pooling,
        dims,
        fixed,
        most,
    };
    let dims = u32::try_from(dims).map_err(|_| Error::artifact_invalid("vectors are too long"))?;
    let mut loaded = Loaded::new(model, dims)
        .max_concurrency(CONCURRENCY)
        .max_tokens(longest)
        .memory_bytes(bytes);
    if facts.quantises_dynamically() {
        let why = "because the graph takes the scales of its activations from everything that is in the call";
        loaded.extra.push(("one_at_a_time".to_owned(), why.to_owned()));
    }
    Ok(loaded)
}

impl Model {
    /// Runs every group and hands its output to `take`: the group, the output's shape and its values.
    fn run(
        &self,
        call: &Call<'_>,
        batch: &TokenBatch<'_>,
        mut take: impl FnMut(&[usize], &[usize], &[f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let total = batch.ids.len() as u64;
        let mut done = 0;
        for group in groups(batch, self.most) {
            let length = group
                .iter()
                .map(|index| batch.item(*index).ids.len())
                .max()
                .unwrap_or(0);
            let (rows, length) = (
                self.fixed.0.unwrap_or(group.len()),
                self.fixed.1.unwrap_or(length.max(1)),
            );
            let inputs = self.inputs(batch, &group, rows, length)?;
            let output = self.graph.run(call, &inputs, &self.output, rows * length)?;
            let (shape, values) = output
                .try_extract_tensor::<f32>()
                .map_err(|error| Error::artifact_invalid(format!("output `{}`: {error}", self.output)))?;
            let shape: Vec<usize> = shape.iter().filter_map(|size| usize::try_from(*size).ok()).collect();
            let expected = shape.iter().product::<usize>();
            let fits = match shape[..] {
                [found_rows, found_length, _] => found_rows == rows && found_length == length,
                [found_rows, _] | [found_rows] => found_rows == rows,
                _ => false,
            };
            if !fits || values.len() != expected {
                return Err(Error::artifact_invalid(format!(
                    "output of shape {shape:?} for {rows} items of {length}"
                )));
            }
            take(&group, &shape, values)?;
            done += group
                .iter()
                .map(|index| batch.item(*index).ids.len() as u64)
                .sum::<u64>();
            call.checkpoint(done, total)?;
        }
        Ok(())
    }

    fn inputs(
        &self,
        batch: &TokenBatch<'_>,
        group: &[usize],
        rows: usize,
        length: usize,
    ) -> Result<Vec<DynValue>, Error> {
        let fail = |error: ort::Error| Error::out_of_memory(format!("onnxruntime: {error}"));
        let mut inputs = Vec::with_capacity(self.feeds.len());
        for (feed, ty) in &self.feeds {
            let mut values = vec![0i64; rows * length];
            for (row, index) in group.iter().enumerate() {
                let item = batch.item(*index);
                for (at, slot) in values[row * length..][..item.ids.len()].iter_mut().enumerate() {
                    *slot = match feed {
                        Feed::Ids => item.ids[at].into(),
                        Feed::Mask => 1,
                        Feed::TypeIds => item.type_ids.get(at).copied().unwrap_or(0).into(),
                        Feed::Positions => i64::try_from(at).unwrap_or(i64::MAX),
                    };
                }
            }
            let shape = [rows, length];
            inputs.push(match ty {
                TensorElementType::Int32 => {
                    // Every value is a token id, a position or a flag, and those are i32 at the ABI.
                    let narrow: Vec<i32> = values.iter().map(|value| i32::try_from(*value).unwrap_or(0)).collect();
                    Tensor::from_array((shape, narrow)).map_err(fail)?.into_dyn()
                }
                _ => Tensor::from_array((shape, values)).map_err(fail)?.into_dyn(),
            });
        }
        Ok(inputs)
    }
}

/// One item's hidden states (`length × dims`, padding after `tokens`) as one vector.
fn pool(pooling: Pooling, states: &[f32], tokens: usize, out: &mut [f32]) {
    let dims = out.len();
    let row = |at: usize| &states[at * dims..][..dims];
    match pooling {
        Pooling::Cls | Pooling::InGraph => out.copy_from_slice(row(0)),
        Pooling::Last => out.copy_from_slice(row(tokens.saturating_sub(1))),
        Pooling::Mean => {
            out.fill(0.0);
            for at in 0..tokens {
                for (sum, value) in out.iter_mut().zip(row(at)) {
                    *sum += value;
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "items are far shorter than 2^24 tokens")]
            let scale = 1.0 / tokens.max(1) as f32;
            for value in out {
                *value *= scale;
            }
        }
    }
}
