//! Nomic BERT (Nussbaum et al. 2024): post-norm layers with rotary positions and SwiGLU.
//!
//! Owns nothing: a blueprint from a config.json.

use super::bert;
use super::blueprint::{Activation, Blueprint, Embedding, Join, Layer, Linear, Norm, NormKind};
use super::modernbert::even_head_width;
use super::post_norm::one_over_root;
use crate::artifact::config::{Config, HEADS, LAYERS, TABLE, WIDTH};
use crate::error::Result;
use crate::kernel::attention::Span;

/// Reads the config.
///
/// # Errors
/// As [`bert::blueprint`].
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    config.word(&["activation_function"], &["swiglu"], None)?;
    for switch in ["causal", "prenorm", "rotary_emb_interleaved"] {
        config.must_be_off(switch)?;
    }
    if config.has("rotary_emb_fraction") && (config.positive(&["rotary_emb_fraction"])? - 1.0).abs() > 0.0 {
        return Err(config.unsupported("rotary_emb_fraction is not 1; this engine turns whole heads".to_owned()));
    }
    let hidden = config.size(&["n_embd", "hidden_size"], WIDTH)?;
    let heads = config.size(&["n_head", "num_attention_heads"], HEADS)?;
    let head_width = even_head_width(config, hidden, heads)?;
    let intermediate = config.size(&["n_inner", "intermediate_size"], WIDTH)?;
    let layers = config.size(&["n_layer", "num_hidden_layers"], LAYERS)?;
    let eps = config.eps(&["layer_norm_epsilon", "layer_norm_eps"])?;
    let qkv_bias = config.flag("qkv_proj_bias", false)?;
    let up_bias = config.flag("mlp_fc1_bias", false)?;
    let down_bias = config.flag("mlp_fc2_bias", false)?;
    let base = config.positive(&["rotary_emb_base"])?;
    let norm = |name: String| Norm {
        name,
        kind: NormKind::Layer,
        bias: true,
        eps,
    };
    let layer = |number: usize| {
        let name = |part: &str| format!("encoder.layers.{number}.{part}");
        let of_qkv = |part: usize| Linear {
            name: name("attn.Wqkv"),
            tensor_rows: 3 * hidden,
            first: part * hidden,
            bias: qkv_bias,
        };
        Layer {
            attention_in: None,
            query: of_qkv(0),
            key: of_qkv(1),
            value: of_qkv(2),
            head_norms: None,
            rotary_base: Some(base),
            span: Span::ALL,
            attention_out: Linear::whole(name("attn.out_proj"), hidden, qkv_bias),
            attention_join: Join::NormOfSum(norm(name("norm1"))),
            feed_in: None,
            up: Linear::whole(name("mlp.fc12"), intermediate, up_bias),
            activation: Activation::Silu,
            gate: Some(Linear::whole(name("mlp.fc11"), intermediate, up_bias)),
            down: Linear::whole(name("mlp.fc2"), hidden, down_bias),
            feed_join: Join::NormOfSum(norm(name("norm2"))),
        }
    };
    Ok(Blueprint {
        prefixes: &["nomic_bert.", ""],
        hidden,
        heads,
        kv_heads: heads,
        head_width,
        query_factor: one_over_root(head_width),
        intermediate,
        vocabulary: config.size(&["vocab_size"], TABLE)?,
        longest: config.size(&["n_positions", "max_position_embeddings"], TABLE)?,
        embedding: Embedding {
            words: "embeddings.word_embeddings".to_owned(),
            scale: 1.0,
            segments: if config.has("type_vocab_size") {
                Some(bert::segments(config)?)
            } else {
                None
            },
            positions: None,
            norm: Some(norm("emb_ln".to_owned())),
        },
        distance_bias: None,
        layers: (0..layers).map(layer).collect(),
        final_norm: None,
        left_over: &[],
    })
}
