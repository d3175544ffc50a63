//! MPNet (Song et al. 2020): BERT's layers, positions counted as RoBERTa does, and a learned bias by distance.
//!
//! Owns nothing: a blueprint from a config.json.

use super::bert;
use super::blueprint::{Blueprint, DistanceBias, Embedding, Positions};
use super::post_norm::{self, LayerNames};
use super::roberta;
use crate::artifact::config::Config;
use crate::error::Result;

const NAMES: LayerNames = LayerNames {
    prefix: "encoder.layer.",
    attention: [
        "attention.attn.q",
        "attention.attn.k",
        "attention.attn.v",
        "attention.attn.o",
    ],
    attention_norm: "attention.LayerNorm",
    feed: ["intermediate.dense", "output.dense"],
    feed_norm: "output.LayerNorm",
};

/// Reads the config.
///
/// # Errors
/// As [`bert::blueprint`].
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    let mut sizes = bert::sizes(config)?;
    let (rows, pad) = roberta::padded_positions(config, sizes.longest)?;
    sizes.longest = rows - pad - 1;
    let embedding = Embedding {
        words: "embeddings.word_embeddings".to_owned(),
        scale: 1.0,
        segments: None,
        positions: Some(Positions {
            name: "embeddings.position_embeddings".to_owned(),
            rows,
            pad: Some(pad),
        }),
        norm: Some(sizes.norm("embeddings.LayerNorm".to_owned())),
    };
    let buckets = config.size(&["relative_attention_num_buckets"], 1 << 12)?;
    if buckets < 4 || !buckets.is_multiple_of(4) {
        return Err(config.problem(format!(
            "relative_attention_num_buckets is {buckets}, expected a multiple of 4"
        )));
    }
    let mut blueprint = post_norm::blueprint(sizes, &NAMES, embedding, &["mpnet.", ""], bert::LEFT_OVER);
    blueprint.distance_bias = Some(DistanceBias {
        name: "encoder.relative_attention_bias".to_owned(),
        buckets,
    });
    Ok(blueprint)
}
