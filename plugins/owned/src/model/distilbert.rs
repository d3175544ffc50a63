//! DistilBERT (Sanh et al. 2019): BERT's layers under other names, without segments.
//!
//! Owns nothing: a blueprint from a config.json.

use super::bert;
use super::blueprint::{Activation, Blueprint, Embedding, Positions};
use super::load::Output;
use super::post_norm::{self, LayerNames, Sizes};
use crate::artifact::config::{Config, HEADS, LAYERS, TABLE, WIDTH};
use crate::artifact::modules::Pooling;
use crate::error::Result;

/// The constant of the published code; the config has none.
const EPS: f32 = 1e-12;

const NAMES: LayerNames = LayerNames {
    prefix: "transformer.layer.",
    attention: [
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
    ],
    attention_norm: "sa_layer_norm",
    feed: ["ffn.lin1", "ffn.lin2"],
    feed_norm: "output_layer_norm",
};

/// Reads the config.
///
/// # Errors
/// As [`bert::blueprint`].
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    let hidden = config.size(&["dim"], WIDTH)?;
    let heads = config.size(&["n_heads"], HEADS)?;
    let sizes = Sizes {
        hidden,
        heads,
        head_width: config.head_width(hidden, heads)?,
        intermediate: config.size(&["hidden_dim"], WIDTH)?,
        layers: config.size(&["n_layers"], LAYERS)?,
        vocabulary: config.size(&["vocab_size"], TABLE)?,
        longest: config.size(&["max_position_embeddings"], TABLE)?,
        eps: EPS,
        activation: bert::activation(config, &["activation"])?,
    };
    let embedding = Embedding {
        words: "embeddings.word_embeddings".to_owned(),
        scale: 1.0,
        segments: None,
        // Sinusoidal tables are stored in the file like learned ones.
        positions: Some(Positions {
            name: "embeddings.position_embeddings".to_owned(),
            rows: sizes.longest,
            pad: None,
        }),
        norm: Some(sizes.norm("embeddings.LayerNorm".to_owned())),
    };
    let prefixes = &["distilbert.", ""];
    Ok(post_norm::blueprint(sizes, &NAMES, embedding, prefixes, &[]))
}

/// A cross-encoder's head: the first token's vector, a dense layer with ReLU, one label.
///
/// # Errors
/// As [`bert::scorer`].
pub fn scorer(config: &Config, blueprint: &Blueprint) -> Result<Output> {
    bert::one_label(config)?;
    let width = blueprint.hidden;
    Ok(Output {
        pooling: Pooling::Cls,
        steps: vec![
            (None, bert::dense("pre_classifier", width, Activation::Relu)),
            (None, bert::label("classifier", width)),
        ],
    })
}
