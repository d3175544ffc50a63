//! Gemma 3 as an embedder (EmbeddingGemma): bidirectional layers with norms before and after each block, local attention
//! in most layers with a rotary base of its own, one-plus RMS norms, scaled word vectors.
//!
//! Owns nothing: a blueprint from a config.json. The Dense modules that follow are the artifact's (`engine`).

use super::blueprint::{Activation, Blueprint, Join, NormKind};
use super::modernbert::full_attention;
use super::qwen3::Decoder;
use crate::artifact::config::{Config, LAYERS, TABLE};
use crate::error::Result;
use crate::kernel::attention::Span;

/// Reads the config.
///
/// # Errors
/// As [`super::bert::blueprint`].
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    config.word(&["hidden_activation"], &["gelu_pytorch_tanh"], None)?;
    if !config.flag("use_bidirectional_attention", false)? {
        return Err(config.unsupported(
            "use_bidirectional_attention is not true; this engine runs Gemma 3 as an embedder only".to_owned(),
        ));
    }
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.has(cap) {
            return Err(config.unsupported(format!("{cap} is set; this engine has no capped logits")));
        }
    }
    let decoder = Decoder::read(config, NormKind::RmsFromOne)?;
    let bias = config.flag("attention_bias", false)?;
    let global = match config.words("layer_types")? {
        Some(kinds) => full_attention(config, &kinds, decoder.layers)?,
        None => {
            let every = config.size(&["sliding_window_pattern", "_sliding_window_pattern"], LAYERS)?;
            (1..=decoder.layers)
                .map(|number| number.is_multiple_of(every))
                .collect()
        }
    };
    let global_base = config.rotary_base("full_attention", "rope_theta")?;
    let local_base = config.rotary_base("sliding_attention", "rope_local_base_freq")?;
    // Bidirectional layers halve the window: a query sees the tokens at most this far from its own.
    let side = config.size(&["sliding_window"], TABLE)? / 2;
    let layer = |number: usize| {
        let norm = |part: &str| decoder.norm(format!("layers.{number}.{part}"));
        let mut layer = decoder.layer(number, Activation::GeluTanh, bias);
        layer.attention_in = Some(norm("input_layernorm"));
        layer.attention_join = Join::SumOfNorm(norm("post_attention_layernorm"));
        layer.feed_in = Some(norm("pre_feedforward_layernorm"));
        layer.feed_join = Join::SumOfNorm(norm("post_feedforward_layernorm"));
        layer.rotary_base = Some(if global[number] { global_base } else { local_base });
        if !global[number] {
            layer.span = Span {
                before: side,
                after: side,
            };
        }
        layer
    };
    let layers = (0..decoder.layers).map(layer).collect();
    let query_factor = 1.0 / config.positive(&["query_pre_attn_scalar"])?.sqrt();
    Ok(decoder.blueprint(decoder.root_of_hidden(), query_factor, layers))
}
