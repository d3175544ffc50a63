//! BERT (Devlin et al. 2019): learned positions from 0, segments; as a cross-encoder with pooler and classifier.
//!
//! Owns nothing: a blueprint from a config.json.

use super::blueprint::{ACTIVATIONS, Activation, Blueprint, Embedding, Linear, Positions, Step};
use super::load::Output;
use super::post_norm::{self, LayerNames, Sizes};
use crate::artifact::config::{Config, HEADS, LAYERS, TABLE, WIDTH};
use crate::artifact::modules::Pooling;
use crate::error::Result;

/// The layers' tensors, which RoBERTa shares.
pub const NAMES: LayerNames = LayerNames {
    prefix: "encoder.layer.",
    attention: [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ],
    attention_norm: "attention.output.LayerNorm",
    feed: ["intermediate.dense", "output.dense"],
    feed_norm: "output.LayerNorm",
};

/// What training leaves behind.
pub const LEFT_OVER: &[&str] = &["embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"];

/// Reads the config.
///
/// # Errors
/// [`crate::error::OwnedError::File`] for a wrong value, [`crate::error::OwnedError::Unsupported`] for a sound one of
/// another architecture.
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    let sizes = sizes(config)?;
    let embedding = Embedding {
        words: "embeddings.word_embeddings".to_owned(),
        scale: 1.0,
        segments: Some(segments(config)?),
        positions: Some(Positions {
            name: "embeddings.position_embeddings".to_owned(),
            rows: sizes.longest,
            pad: None,
        }),
        norm: Some(sizes.norm("embeddings.LayerNorm".to_owned())),
    };
    Ok(post_norm::blueprint(
        sizes,
        &NAMES,
        embedding,
        &["bert.", ""],
        LEFT_OVER,
    ))
}

/// The segment table and its rows.
///
/// # Errors
/// [`crate::error::OwnedError::File`].
pub fn segments(config: &Config) -> Result<(String, usize)> {
    let rows = config.size(&["type_vocab_size"], WIDTH)?;
    Ok(("embeddings.token_type_embeddings".to_owned(), rows))
}

/// The sizes under BERT's names; `longest` is the position table's length.
///
/// # Errors
/// As [`blueprint`].
pub fn sizes(config: &Config) -> Result<Sizes> {
    let activation = activation(config, &["hidden_act"])?;
    config.word(&["position_embedding_type"], &["absolute"], Some("absolute"))?;
    config.must_be_off("is_decoder")?;
    config.must_be_off("add_cross_attention")?;
    let hidden = config.size(&["hidden_size"], WIDTH)?;
    let layers = config.size(&["num_hidden_layers"], LAYERS)?;
    let heads = config.size(&["num_attention_heads"], HEADS)?;
    Ok(Sizes {
        hidden,
        heads,
        head_width: config.head_width(hidden, heads)?,
        intermediate: config.size(&["intermediate_size"], WIDTH)?,
        layers,
        vocabulary: config.size(&["vocab_size"], TABLE)?,
        longest: config.size(&["max_position_embeddings"], TABLE)?,
        eps: config.eps(&["layer_norm_eps"])?,
        activation,
    })
}

/// An activation by its name in transformers.
///
/// # Errors
/// As [`blueprint`].
pub fn activation(config: &Config, keys: &[&str]) -> Result<Activation> {
    let names = ACTIVATIONS.map(|(name, _)| name);
    let name = config.word(keys, &names, None)?;
    let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
    Ok(known.map_or(Activation::None, |(_, activation)| *activation))
}

/// A cross-encoder's head: the first token's vector, pooler with tanh, one label.
///
/// # Errors
/// [`crate::error::OwnedError::Unsupported`] for a classifier of several labels.
pub fn scorer(config: &Config, blueprint: &Blueprint) -> Result<Output> {
    one_label(config)?;
    Ok(Output {
        pooling: Pooling::Cls,
        steps: vec![
            (None, dense("bert.pooler.dense", blueprint.hidden, Activation::Tanh)),
            (None, label("classifier", blueprint.hidden)),
        ],
    })
}

/// Refuses a classifier that gives more than one score.
///
/// # Errors
/// [`crate::error::OwnedError::Unsupported`].
pub fn one_label(config: &Config) -> Result<()> {
    match config.labels() {
        1 => Ok(()),
        labels => Err(config.unsupported(format!(
            "the classifier has {labels} labels; this engine scores with one"
        ))),
    }
}

/// A square layer with bias after pooling.
#[must_use]
pub fn dense(name: &str, width: usize, activation: Activation) -> Step {
    Step {
        linear: Linear::whole(name.to_owned(), width, true),
        inputs: width,
        outputs: width,
        activation,
        norm: None,
    }
}

/// The last layer of a classifier with one label.
#[must_use]
pub fn label(name: &str, width: usize) -> Step {
    Step {
        linear: Linear::whole(name.to_owned(), 1, true),
        inputs: width,
        outputs: 1,
        activation: Activation::None,
        norm: None,
    }
}
