//! The list of architectures: which name in a config.json leads to which file of this folder.
//!
//! Owns nothing. A new architecture is one file and one row here.

use super::blueprint::Blueprint;
use super::load::Output;
use super::{bert, distilbert, gemma3, gte, modernbert, mpnet, nomic_bert, qwen3, roberta};
use crate::artifact::config::Config;
use crate::error::Result;

/// Makes a blueprint.
type Read = fn(&Config) -> Result<Blueprint>;
/// Makes what follows the encoder of a cross-encoder.
type Score = fn(&Config, &Blueprint) -> Result<Output>;

/// `model_type`, the blueprint, and the head of a cross-encoder where there is one.
const ARCHITECTURES: [(&str, Read, Option<Score>); 11] = [
    ("bert", bert::blueprint, Some(bert::scorer)),
    ("roberta", roberta::blueprint, Some(roberta::scorer)),
    ("xlm-roberta", roberta::blueprint, Some(roberta::scorer)),
    ("distilbert", distilbert::blueprint, Some(distilbert::scorer)),
    ("mpnet", mpnet::blueprint, None),
    ("modernbert", modernbert::blueprint, Some(modernbert::scorer)),
    ("qwen3", qwen3::blueprint, None),
    ("gemma3_text", gemma3::blueprint, None),
    ("nomic_bert", nomic_bert::blueprint, None),
    ("gte", gte::blueprint, None),
    ("new", gte::blueprint, None),
];

/// The blueprint of a config.json.
///
/// # Errors
/// [`crate::error::OwnedError::Unsupported`] for another architecture, or for a setting that this engine does not
/// compute; [`crate::error::OwnedError::File`] for a wrong value.
pub fn blueprint(config: &Config) -> Result<Blueprint> {
    let (_, read, _) = find(config)?;
    read(config)
}

/// What follows the encoder of a cross-encoder.
///
/// # Errors
/// As [`blueprint`]; [`crate::error::OwnedError::Unsupported`] for an architecture that does not score here.
pub fn scorer(config: &Config, blueprint: &Blueprint) -> Result<Output> {
    let (_, _, Some(score)) = find(config)? else {
        let name = config.model_type()?;
        let scored: Vec<&str> = ARCHITECTURES
            .iter()
            .filter(|(_, _, score)| score.is_some())
            .map(|(name, _, _)| *name)
            .collect();
        return Err(config.unsupported(format!(
            "model_type {name:?} does not score pairs in this engine; supported: {}",
            scored.join(", ")
        )));
    };
    score(config, blueprint)
}

fn find(config: &Config) -> Result<&'static (&'static str, Read, Option<Score>)> {
    let name = config.word(&["model_type"], &ARCHITECTURES.map(|(name, _, _)| name), None)?;
    ARCHITECTURES
        .iter()
        .find(|(known, _, _)| *known == name)
        .ok_or_else(|| config.unsupported(format!("model_type {name:?} is not supported by this engine")))
}
