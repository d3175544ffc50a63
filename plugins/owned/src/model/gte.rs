//! GTE v1.5 (Zhang et al. 2024): post-norm layers with rotary positions and GeGLU.
//!
//! Owns nothing: a blueprint from a config.json.

use super::bert;
use super::blueprint::{Blueprint, Embedding, Join, Layer, Linear, Norm, NormKind};
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
    config.word(&["position_embedding_type"], &["rope"], Some("rope"))?;
    config.word(&["layer_norm_type"], &["layer_norm"], Some("layer_norm"))?;
    config.must_be_off("logn_attention_scale")?;
    let hidden = config.size(&["hidden_size"], WIDTH)?;
    let heads = config.size(&["num_attention_heads"], HEADS)?;
    let head_width = even_head_width(config, hidden, heads)?;
    let intermediate = config.size(&["intermediate_size"], WIDTH)?;
    let layers = config.size(&["num_hidden_layers"], LAYERS)?;
    let activation = bert::activation(config, &["hidden_act"])?;
    let eps = config.eps(&["layer_norm_eps"])?;
    let base = config.rotary_base("full_attention", "rope_theta")?;
    let norm = |name: String| Norm {
        name,
        kind: NormKind::Layer,
        bias: true,
        eps,
    };
    let layer = |number: usize| {
        let name = |part: &str| format!("encoder.layer.{number}.{part}");
        let of_qkv = |part: usize| Linear {
            name: name("attention.qkv_proj"),
            tensor_rows: 3 * hidden,
            first: part * hidden,
            bias: true,
        };
        // The gate's rows, which are activated, come after the others.
        let of_feed = |part: usize| Linear {
            name: name("mlp.up_gate_proj"),
            tensor_rows: 2 * intermediate,
            first: part * intermediate,
            bias: false,
        };
        Layer {
            attention_in: None,
            query: of_qkv(0),
            key: of_qkv(1),
            value: of_qkv(2),
            head_norms: None,
            rotary_base: Some(base),
            span: Span::ALL,
            attention_out: Linear::whole(name("attention.o_proj"), hidden, true),
            attention_join: Join::NormOfSum(norm(name("attn_ln"))),
            feed_in: None,
            up: of_feed(1),
            activation,
            gate: Some(of_feed(0)),
            down: Linear::whole(name("mlp.down_proj"), hidden, true),
            feed_join: Join::NormOfSum(norm(name("mlp_ln"))),
        }
    };
    // A config that says 0 has no segment table.
    let has_segments = config.has("type_vocab_size") && config.index("type_vocab_size", WIDTH)? > 0;
    Ok(Blueprint {
        prefixes: &["new.", ""],
        hidden,
        heads,
        kv_heads: heads,
        head_width,
        query_factor: one_over_root(head_width),
        intermediate,
        vocabulary: config.size(&["vocab_size"], TABLE)?,
        longest: config.size(&["max_position_embeddings"], TABLE)?,
        embedding: Embedding {
            words: "embeddings.word_embeddings".to_owned(),
            scale: 1.0,
            segments: if has_segments {
                Some(bert::segments(config)?)
            } else {
                None
            },
            positions: None,
            norm: Some(norm("embeddings.LayerNorm".to_owned())),
        },
        distance_bias: None,
        layers: (0..layers).map(layer).collect(),
        final_norm: None,
        left_over: &[],
    })
}
