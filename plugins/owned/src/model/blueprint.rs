//! What an architecture is, as data: which tensors it has, and what each layer does with them.
//!
//! A [`Blueprint`] is a value, made by one file per architecture from its config.json; `load` reads the tensors that
//! it names and `encoder` runs what it says. Widths and counts were bounded when the config was read.

use crate::kernel::attention::Span;

/// A whole encoder.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// What may stand before every tensor's name; the first with which the word table exists counts.
    pub prefixes: &'static [&'static str],
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// What queries are multiplied with.
    pub query_factor: f64,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    /// Rows of the word table.
    pub vocabulary: usize,
    /// The longest input in tokens.
    pub longest: usize,
    /// The first layer's input.
    pub embedding: Embedding,
    /// Attention bias by distance, one column per head, shared by all layers.
    pub distance_bias: Option<DistanceBias>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// After the last layer.
    pub final_norm: Option<Norm>,
    /// Tensors that training leaves behind: neither needed nor worth a warning.
    pub left_over: &'static [&'static str],
}

/// The first layer's input: the sum of table rows, normalised.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The word table.
    pub words: String,
    /// What its rows are multiplied with.
    pub scale: f64,
    /// The segment table and its rows.
    pub segments: Option<(String, usize)>,
    /// The position table.
    pub positions: Option<Positions>,
    /// Normalisation of the sum.
    pub norm: Option<Norm>,
}

/// A learned position table.
#[derive(Clone, Debug)]
pub struct Positions {
    /// The tensor.
    pub name: String,
    /// Its rows.
    pub rows: usize,
    /// `None`: row 0 for the first token. `Some(pad)`: the family's rule that counts tokens other than `pad` from
    /// `pad + 1`, and gives `pad` itself the row `pad`.
    pub pad: Option<usize>,
}

/// A learned bias of attention scores by bucketed distance (T5's buckets).
#[derive(Clone, Debug)]
pub struct DistanceBias {
    /// The tensor, `[buckets][heads]`.
    pub name: String,
    /// Buckets, half of them for each direction.
    pub buckets: usize,
}

/// One normalisation.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Tensors `NAME.weight` and, with `bias`, `NAME.bias`.
    pub name: String,
    /// Which.
    pub kind: NormKind,
    /// Whether there is a bias.
    pub bias: bool,
    /// Added to the variance.
    pub eps: f32,
}

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Layer normalisation.
    Layer,
    /// Root-mean-square normalisation.
    Rms,
    /// The same with weights stored as their distance from 1.
    RmsFromOne,
}

/// Rows `first .. first + outputs` of the tensor `NAME.weight` and, with `bias`, of `NAME.bias`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The name.
    pub name: String,
    /// Rows of the whole tensor.
    pub tensor_rows: usize,
    /// The first row that counts.
    pub first: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Linear {
    /// A whole tensor of that many rows.
    #[must_use]
    pub fn whole(name: String, rows: usize, bias: bool) -> Self {
        Self {
            name,
            tensor_rows: rows,
            first: 0,
            bias,
        }
    }
}

/// One layer: attention, then a feed-forward block, each with what stands before and after it.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Normalises attention's input; `None` takes the residual stream as it is.
    pub attention_in: Option<Norm>,
    /// Queries.
    pub query: Linear,
    /// Keys.
    pub key: Linear,
    /// Values.
    pub value: Linear,
    /// Normalises each query and each key head.
    pub head_norms: Option<(Norm, Norm)>,
    /// Base of the rotary angles; `None` turns nothing.
    pub rotary_base: Option<f64>,
    /// Which keys a query sees.
    pub span: Span,
    /// Attention's output.
    pub attention_out: Linear,
    /// How it joins the stream.
    pub attention_join: Join,
    /// Normalises the feed-forward block's input.
    pub feed_in: Option<Norm>,
    /// The activated projection.
    pub up: Linear,
    /// What follows it.
    pub activation: Activation,
    /// Multiplied with the activated projection, in gated blocks.
    pub gate: Option<Linear>,
    /// Back to the stream's width.
    pub down: Linear,
    /// How it joins the stream.
    pub feed_join: Join,
}

/// How a block's output joins the residual stream.
#[derive(Clone, Debug)]
pub enum Join {
    /// stream ← stream + output.
    Add,
    /// stream ← norm(stream + output).
    NormOfSum(Norm),
    /// stream ← stream + norm(output).
    SumOfNorm(Norm),
}

/// What follows a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// GELU by the error function.
    Gelu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
    /// x·σ(x).
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// max(x, 0).
    Relu,
}

/// What follows pooling: a chain of small layers over one vector an item.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One small layer.
#[derive(Clone, Debug)]
pub struct Step {
    /// The tensor; its name is complete, no prefix is added.
    pub linear: Linear,
    /// Values in.
    pub inputs: usize,
    /// Values out.
    pub outputs: usize,
    /// What follows.
    pub activation: Activation,
    /// Normalisation at the end; its name is complete too.
    pub norm: Option<Norm>,
}

/// The transformers' names of activations that an encoder may have.
pub const ACTIVATIONS: [(&str, Activation); 4] = [
    ("gelu", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("silu", Activation::Silu),
    ("relu", Activation::Relu),
];
