//! RoBERTa (Liu et al. 2019) and XLM-RoBERTa: BERT's layers, positions counted from the padding id + 1.
//!
//! Owns nothing: a blueprint from a config.json.

use super::bert::{self, NAMES};
use super::blueprint::{Activation, Blueprint, Embedding, Positions};
use super::load::Output;
use super::post_norm;
use crate::artifact::config::Config;
use crate::artifact::modules::Pooling;
use crate::error::Result;

/// Reads the config.
///
/// # Errors
/// As [`bert::blueprint`].
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    let mut sizes = bert::sizes(config)?;
    let (rows, pad) = padded_positions(config, sizes.longest)?;
    sizes.longest = rows - pad - 1;
    let embedding = Embedding {
        words: "embeddings.word_embeddings".to_owned(),
        scale: 1.0,
        segments: Some(bert::segments(config)?),
        positions: Some(Positions {
            name: "embeddings.position_embeddings".to_owned(),
            rows,
            pad: Some(pad),
        }),
        norm: Some(sizes.norm("embeddings.LayerNorm".to_owned())),
    };
    let prefixes = &["roberta.", ""];
    Ok(post_norm::blueprint(
        sizes,
        &NAMES,
        embedding,
        prefixes,
        bert::LEFT_OVER,
    ))
}

/// The rows of a position table, and the id from which the family counts, which must leave room for a token.
///
/// # Errors
/// [`crate::error::OwnedError::File`].
pub fn padded_positions(config: &Config, rows: usize) -> Result<(usize, usize)> {
    if rows < 2 {
        return Err(config.problem(format!(
            "max_position_embeddings is {rows}, expected room for the padding id and a token"
        )));
    }
    let pad = config.index("pad_token_id", rows - 1)?;
    Ok((rows, pad))
}

/// A cross-encoder's head: the first token's vector, a dense layer with tanh, one label.
///
/// # Errors
/// As [`bert::scorer`].
pub fn scorer(config: &Config, blueprint: &Blueprint) -> Result<Output> {
    bert::one_label(config)?;
    let width = blueprint.hidden;
    Ok(Output {
        pooling: Pooling::Cls,
        steps: vec![
            (None, bert::dense("classifier.dense", width, Activation::Tanh)),
            (None, bert::label("classifier.out_proj", width)),
        ],
    })
}
