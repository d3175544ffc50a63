//! Qwen3 as an embedder (Zhang et al. 2025): causal pre-norm layers, grouped queries, normalised heads, rotary
//! positions, SwiGLU.
//!
//! Owns nothing: a blueprint from a config.json. The head of the language model is not read.

use super::blueprint::{Activation, Blueprint, Embedding, Join, Layer, Linear, Norm, NormKind};
use super::post_norm::one_over_root;
use crate::artifact::config::{Config, HEADS, LAYERS, TABLE, WIDTH};
use crate::error::Result;
use crate::kernel::attention::Span;

/// Reads the config.
///
/// # Errors
/// As [`super::bert::blueprint`].
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    config.word(&["hidden_act"], &["silu"], None)?;
    config.must_be_off("use_sliding_window")?;
    let decoder = Decoder::read(config, NormKind::Rms)?;
    let base = config.rotary_base("full_attention", "rope_theta")?;
    let bias = config.flag("attention_bias", false)?;
    let layer = |number: usize| {
        let name = |part: &str| format!("layers.{number}.{part}");
        let norm = |part: &str| decoder.norm(name(part));
        let mut layer = decoder.layer(number, Activation::Silu, bias);
        layer.attention_in = Some(norm("input_layernorm"));
        layer.feed_in = Some(norm("post_attention_layernorm"));
        layer.rotary_base = Some(base);
        layer.span.after = 0;
        layer
    };
    let layers = (0..decoder.layers).map(layer).collect();
    Ok(decoder.blueprint(1.0, one_over_root(decoder.head_width), layers))
}

/// What Qwen3 and Gemma 3 share: names, grouped queries, normalised heads, gated feed-forward blocks without bias.
pub struct Decoder {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    /// Width of a head.
    pub head_width: usize,
    intermediate: usize,
    /// Layers.
    pub layers: usize,
    vocabulary: usize,
    longest: usize,
    kind: NormKind,
    eps: f32,
}

impl Decoder {
    /// Reads the sizes.
    ///
    /// # Errors
    /// As [`blueprint`].
    pub fn read(config: &Config, kind: NormKind) -> Result<Self> {
        let hidden = config.size(&["hidden_size"], WIDTH)?;
        let heads = config.size(&["num_attention_heads"], HEADS)?;
        let kv_heads = config.size_or(&["num_key_value_heads"], HEADS, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(config.problem(format!(
                "num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}"
            )));
        }
        let head_width = if config.has("head_dim") {
            config.size(&["head_dim"], 1 << 12)?
        } else {
            config.head_width(hidden, heads)?
        };
        if !head_width.is_multiple_of(2) {
            return Err(config.problem(format!(
                "head_dim is {head_width}, expected an even width for rotary positions"
            )));
        }
        Ok(Self {
            hidden,
            heads,
            kv_heads,
            head_width,
            intermediate: config.size(&["intermediate_size"], WIDTH)?,
            layers: config.size(&["num_hidden_layers"], LAYERS)?,
            vocabulary: config.size(&["vocab_size"], TABLE)?,
            longest: config.size(&["max_position_embeddings"], TABLE)?,
            kind,
            eps: config.eps(&["rms_norm_eps"])?,
        })
    }

    /// A normalisation of this model.
    #[must_use]
    pub const fn norm(&self, name: String) -> Norm {
        Norm {
            name,
            kind: self.kind,
            bias: false,
            eps: self.eps,
        }
    }

    /// A layer without norms around its blocks, without positions, that sees everything.
    #[must_use]
    pub fn layer(&self, number: usize, activation: Activation, attention_bias: bool) -> Layer {
        let name = |part: &str| format!("layers.{number}.{part}");
        let of_heads = |part: &str, heads: usize| Linear::whole(name(part), heads * self.head_width, attention_bias);
        let plain = |part: &str, outputs: usize| Linear::whole(name(part), outputs, false);
        Layer {
            attention_in: None,
            query: of_heads("self_attn.q_proj", self.heads),
            key: of_heads("self_attn.k_proj", self.kv_heads),
            value: of_heads("self_attn.v_proj", self.kv_heads),
            head_norms: Some((self.norm(name("self_attn.q_norm")), self.norm(name("self_attn.k_norm")))),
            rotary_base: None,
            span: Span::ALL,
            attention_out: Linear::whole(name("self_attn.o_proj"), self.hidden, attention_bias),
            attention_join: Join::Add,
            feed_in: None,
            up: plain("mlp.gate_proj", self.intermediate),
            activation,
            gate: Some(plain("mlp.up_proj", self.intermediate)),
            down: plain("mlp.down_proj", self.hidden),
            feed_join: Join::Add,
        }
    }

    /// The whole model from its layers.
    #[must_use]
    pub fn blueprint(&self, embedding_scale: f64, query_factor: f64, layers: Vec<Layer>) -> Blueprint {
        Blueprint {
            prefixes: &["model.", ""],
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_width: self.head_width,
            query_factor,
            intermediate: self.intermediate,
            vocabulary: self.vocabulary,
            longest: self.longest,
            embedding: Embedding {
                words: "embed_tokens".to_owned(),
                scale: embedding_scale,
                segments: None,
                positions: None,
                norm: None,
            },
            distance_bias: None,
            layers,
            final_norm: Some(self.norm("norm".to_owned())),
            left_over: &["lm_head.weight"],
        }
    }

    /// √hidden, what Gemma multiplies its word vectors with.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a width is at most 65,536")]
    pub fn root_of_hidden(&self) -> f64 {
        (self.hidden as f64).sqrt()
    }
}
