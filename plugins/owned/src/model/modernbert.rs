//! ModernBERT (Warner et al. 2024): pre-norm layers, rotary positions, gated feed-forward blocks, and attention that is
//! local in all but every n-th layer.
//!
//! Owns nothing: a blueprint from a config.json.

use super::bert;
use super::blueprint::{Activation, Blueprint, Embedding, Join, Layer, Linear, Norm, NormKind, Step};
use super::load::Output;
use super::post_norm::one_over_root;
use crate::artifact::config::{Config, HEADS, LAYERS, TABLE, WIDTH};
use crate::artifact::modules::Pooling;
use crate::error::Result;
use crate::kernel::attention::Span;

/// Reads the config.
///
/// # Errors
/// As [`bert::blueprint`].
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    let hidden = config.size(&["hidden_size"], WIDTH)?;
    let heads = config.size(&["num_attention_heads"], HEADS)?;
    let head_width = even_head_width(config, hidden, heads)?;
    let intermediate = config.size(&["intermediate_size"], WIDTH)?;
    let layers = config.size(&["num_hidden_layers"], LAYERS)?;
    let activation = bert::activation(config, &["hidden_activation"])?;
    let attention_bias = config.flag("attention_bias", false)?;
    let feed_bias = config.flag("mlp_bias", false)?;
    let norm = |name: String| norm(config, name);
    let global = global_layers(config, layers)?;
    let global_base = config.rotary_base("full_attention", "global_rope_theta")?;
    let local_base = config.rotary_base("sliding_attention", "local_rope_theta")?;
    // `local_attention` is the whole window: half of it to each side of the token.
    let side = config.size(&["local_attention"], TABLE)? / 2;
    let layer = |number: usize| -> Result<Layer> {
        let name = |part: &str| format!("layers.{number}.{part}");
        let of_qkv = |part: usize| Linear {
            name: name("attn.Wqkv"),
            tensor_rows: 3 * hidden,
            first: part * hidden,
            bias: attention_bias,
        };
        let of_feed = |part: usize| Linear {
            name: name("mlp.Wi"),
            tensor_rows: 2 * intermediate,
            first: part * intermediate,
            bias: feed_bias,
        };
        Ok(Layer {
            // The first layer's input was normalised with the embeddings.
            attention_in: if number == 0 {
                None
            } else {
                Some(norm(name("attn_norm"))?)
            },
            query: of_qkv(0),
            key: of_qkv(1),
            value: of_qkv(2),
            head_norms: None,
            rotary_base: Some(if global[number] { global_base } else { local_base }),
            span: if global[number] {
                Span::ALL
            } else {
                Span {
                    before: side,
                    after: side,
                }
            },
            attention_out: Linear::whole(name("attn.Wo"), hidden, attention_bias),
            attention_join: Join::Add,
            feed_in: Some(norm(name("mlp_norm"))?),
            up: of_feed(0),
            activation,
            gate: Some(of_feed(1)),
            down: Linear::whole(name("mlp.Wo"), hidden, feed_bias),
            feed_join: Join::Add,
        })
    };
    Ok(Blueprint {
        prefixes: &["model.", ""],
        hidden,
        heads,
        kv_heads: heads,
        head_width,
        query_factor: one_over_root(head_width),
        intermediate,
        vocabulary: config.size(&["vocab_size"], TABLE)?,
        longest: config.size(&["max_position_embeddings"], TABLE)?,
        embedding: Embedding {
            words: "embeddings.tok_embeddings".to_owned(),
            scale: 1.0,
            segments: None,
            positions: None,
            norm: Some(norm("embeddings.norm".to_owned())?),
        },
        distance_bias: None,
        layers: (0..layers).map(layer).collect::<Result<_>>()?,
        final_norm: Some(norm("final_norm".to_owned())?),
        left_over: &[],
    })
}

/// A width of heads that can be turned in halves.
///
/// # Errors
/// [`crate::error::OwnedError::File`].
pub fn even_head_width(config: &Config, hidden: usize, heads: usize) -> Result<usize> {
    let width = config.head_width(hidden, heads)?;
    if width.is_multiple_of(2) {
        return Ok(width);
    }
    Err(config.problem(format!(
        "heads are {width} wide, expected an even width for rotary positions"
    )))
}

fn norm(config: &Config, name: String) -> Result<Norm> {
    Ok(Norm {
        name,
        kind: NormKind::Layer,
        bias: config.flag("norm_bias", false)?,
        eps: config.eps(&["norm_eps", "layer_norm_eps"])?,
    })
}

/// Which layers see the whole sequence, in either dialect.
fn global_layers(config: &Config, layers: usize) -> Result<Vec<bool>> {
    match config.words("layer_types")? {
        None => {
            let every = config.size(&["global_attn_every_n_layers"], LAYERS)?;
            Ok((0..layers).map(|number| number.is_multiple_of(every)).collect())
        }
        Some(kinds) => full_attention(config, &kinds, layers),
    }
}

/// Which of the listed layers see the whole sequence.
///
/// # Errors
/// [`crate::error::OwnedError::File`] for a list of another length, [`crate::error::OwnedError::Unsupported`] for
/// another kind.
pub fn full_attention(config: &Config, kinds: &[&str], layers: usize) -> Result<Vec<bool>> {
    if kinds.len() != layers {
        return Err(config.problem(format!("layer_types has {} entries for {layers} layers", kinds.len())));
    }
    let full = |kind: &&str| match *kind {
        "full_attention" => Ok(true),
        "sliding_attention" => Ok(false),
        other => Err(config.unsupported(format!(
            "layer_types has {other:?}; this engine has full_attention and sliding_attention"
        ))),
    };
    kinds.iter().map(full).collect()
}

/// A cross-encoder's head: mean or first token, a dense layer with activation and norm, one label.
///
/// # Errors
/// As [`bert::scorer`].
pub fn scorer(config: &Config, blueprint: &Blueprint) -> Result<Output> {
    bert::one_label(config)?;
    let width = blueprint.hidden;
    let pooling = match config.word(&["classifier_pooling"], &["cls", "mean"], Some("cls"))? {
        "mean" => Pooling::Mean,
        _ => Pooling::Cls,
    };
    let activation = if config.has("classifier_activation") {
        bert::activation(config, &["classifier_activation"])?
    } else {
        Activation::Gelu
    };
    let head = Step {
        linear: Linear::whole("head.dense".to_owned(), width, config.flag("classifier_bias", false)?),
        inputs: width,
        outputs: width,
        activation,
        norm: Some(norm(config, "head.norm".to_owned())?),
    };
    Ok(Output {
        pooling,
        steps: vec![(None, head), (None, bert::label("classifier", width))],
    })
}
