//! What BERT and its kin share: post-norm layers with biases everywhere, learned positions, plain feed-forward blocks.
//!
//! Owns nothing. Each architecture names its tensors and constants; this file puts them into a blueprint.

use super::blueprint::{Activation, Blueprint, Embedding, Join, Layer, Linear, Norm, NormKind};
use crate::kernel::attention::Span;

/// The sizes of a post-norm encoder.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Rows of the word table.
    pub vocabulary: usize,
    /// The longest input.
    pub longest: usize,
    /// Added to every variance.
    pub eps: f32,
    /// The feed-forward layer's.
    pub activation: Activation,
}

/// The names of a layer's tensors, below `PREFIX{number}.`.
#[derive(Clone, Copy, Debug)]
pub struct LayerNames {
    /// What stands before the layer's number.
    pub prefix: &'static str,
    /// Queries, keys, values, attention's output.
    pub attention: [&'static str; 4],
    /// The normalisation after attention.
    pub attention_norm: &'static str,
    /// The feed-forward layers.
    pub feed: [&'static str; 2],
    /// The normalisation after them.
    pub feed_norm: &'static str,
}

impl Sizes {
    /// A layer normalisation of this encoder.
    #[must_use]
    pub const fn norm(&self, name: String) -> Norm {
        Norm {
            name,
            kind: NormKind::Layer,
            bias: true,
            eps: self.eps,
        }
    }
}

/// The blueprint of a post-norm encoder without distance bias.
#[must_use]
pub fn blueprint(
    sizes: Sizes,
    names: &LayerNames,
    embedding: Embedding,
    prefixes: &'static [&'static str],
    left_over: &'static [&'static str],
) -> Blueprint {
    let layer = |number: usize| {
        let name = |part: &str| format!("{}{number}.{part}", names.prefix);
        let square = |part| Linear::whole(name(part), sizes.hidden, true);
        let [query, key, value, attention_out] = names.attention;
        let [up, down] = names.feed;
        Layer {
            attention_in: None,
            query: square(query),
            key: square(key),
            value: square(value),
            head_norms: None,
            rotary_base: None,
            span: Span::ALL,
            attention_out: square(attention_out),
            attention_join: Join::NormOfSum(sizes.norm(name(names.attention_norm))),
            feed_in: None,
            up: Linear::whole(name(up), sizes.intermediate, true),
            activation: sizes.activation,
            gate: None,
            down: square(down),
            feed_join: Join::NormOfSum(sizes.norm(name(names.feed_norm))),
        }
    };
    Blueprint {
        prefixes,
        hidden: sizes.hidden,
        heads: sizes.heads,
        kv_heads: sizes.heads,
        head_width: sizes.head_width,
        query_factor: one_over_root(sizes.head_width),
        intermediate: sizes.intermediate,
        vocabulary: sizes.vocabulary,
        longest: sizes.longest,
        embedding,
        distance_bias: None,
        layers: (0..sizes.layers).map(layer).collect(),
        final_norm: None,
        left_over,
    }
}

/// 1 ÷ √width.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a width is at most 65,536")]
pub fn one_over_root(width: usize) -> f64 {
    1.0 / (width as f64).sqrt()
}
