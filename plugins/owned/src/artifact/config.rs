//! The config.json of a BERT encoder: typed, bounded, and refused where this engine would compute something else.
//!
//! Owns nothing. Keys that do not change the encoder's output are ignored, as are references to remote code, which
//! is never run.

use std::path::Path;

use serde::Deserialize;

use super::read_json;
use crate::error::{OwnedError, Result};

/// The largest sizes accepted; they only bound arithmetic and messages, the weights decide.
const LIMITS: Limits = Limits {
    layers: 512,
    heads: 512,
    width: 1 << 16,
    table: 1 << 24,
};

struct Limits {
    layers: u64,
    heads: u64,
    width: u64,
    table: u64,
}

/// The sizes and constants of a BERT encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads; divides `hidden`.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    /// Rows of the word table.
    pub vocabulary: usize,
    /// Rows of the position table: the longest input.
    pub positions: usize,
    /// Rows of the segment table.
    pub segments: usize,
    /// Added to the variance by every layer normalisation.
    pub layer_norm_eps: f32,
}

/// The file's keys that matter. Numbers are read as JSON values so that a wrong one can be shown.
#[derive(Deserialize)]
struct RawConfig {
    model_type: Option<serde_json::Value>,
    hidden_size: Option<serde_json::Value>,
    num_hidden_layers: Option<serde_json::Value>,
    num_attention_heads: Option<serde_json::Value>,
    intermediate_size: Option<serde_json::Value>,
    vocab_size: Option<serde_json::Value>,
    max_position_embeddings: Option<serde_json::Value>,
    type_vocab_size: Option<serde_json::Value>,
    layer_norm_eps: Option<serde_json::Value>,
    hidden_act: Option<serde_json::Value>,
    position_embedding_type: Option<serde_json::Value>,
    is_decoder: Option<serde_json::Value>,
    add_cross_attention: Option<serde_json::Value>,
}

impl BertConfig {
    /// Reads and checks a config.json.
    ///
    /// # Errors
    /// [`OwnedError::Read`] and [`OwnedError::File`] for a bad file, [`OwnedError::Unsupported`] for a sound one of
    /// another architecture.
    pub fn read(path: &Path) -> Result<Self> {
        let raw: RawConfig = read_json(path)?;
        let fields = Fields { path };
        fields.only("model_type", raw.model_type.as_ref(), &["bert"], None)?;
        fields.only("hidden_act", raw.hidden_act.as_ref(), &["gelu"], None)?;
        let absolute = Some("absolute");
        fields.only(
            "position_embedding_type",
            raw.position_embedding_type.as_ref(),
            &["absolute"],
            absolute,
        )?;
        fields.must_be_off("is_decoder", raw.is_decoder.as_ref())?;
        fields.must_be_off("add_cross_attention", raw.add_cross_attention.as_ref())?;
        let config = Self {
            hidden: fields.size("hidden_size", raw.hidden_size.as_ref(), LIMITS.width)?,
            layers: fields.size("num_hidden_layers", raw.num_hidden_layers.as_ref(), LIMITS.layers)?,
            heads: fields.size("num_attention_heads", raw.num_attention_heads.as_ref(), LIMITS.heads)?,
            intermediate: fields.size("intermediate_size", raw.intermediate_size.as_ref(), LIMITS.width)?,
            vocabulary: fields.size("vocab_size", raw.vocab_size.as_ref(), LIMITS.table)?,
            positions: fields.size(
                "max_position_embeddings",
                raw.max_position_embeddings.as_ref(),
                LIMITS.table,
            )?,
            segments: fields.size("type_vocab_size", raw.type_vocab_size.as_ref(), LIMITS.width)?,
            layer_norm_eps: fields.eps("layer_norm_eps", raw.layer_norm_eps.as_ref())?,
        };
        if !config.hidden.is_multiple_of(config.heads) {
            return Err(fields.problem(format!(
                "num_attention_heads {} does not divide hidden_size {}",
                config.heads, config.hidden
            )));
        }
        Ok(config)
    }

    /// Width of one head.
    #[must_use]
    pub const fn head_width(&self) -> usize {
        self.hidden / self.heads
    }
}

/// Reads single values and says what is wrong with them.
struct Fields<'a> {
    path: &'a Path,
}

impl Fields<'_> {
    fn problem(&self, problem: String) -> OwnedError {
        OwnedError::File {
            path: self.path.to_owned(),
            problem,
        }
    }

    fn present<'v>(&self, key: &str, value: Option<&'v serde_json::Value>) -> Result<&'v serde_json::Value> {
        value.ok_or_else(|| self.problem(format!("{key} is missing")))
    }

    fn size(&self, key: &str, value: Option<&serde_json::Value>, limit: u64) -> Result<usize> {
        let value = self.present(key, value)?;
        value
            .as_u64()
            .filter(|size| (1..=limit).contains(size))
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected an integer from 1 to {limit}")))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "f32 is the arithmetic; the range is checked"
    )]
    fn eps(&self, key: &str, value: Option<&serde_json::Value>) -> Result<f32> {
        let value = self.present(key, value)?;
        value
            .as_f64()
            .filter(|eps| (1e-30..=0.1).contains(eps))
            .map(|eps| eps as f32)
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected a number from 1e-30 to 0.1")))
    }

    fn only(&self, key: &str, value: Option<&serde_json::Value>, known: &[&str], default: Option<&str>) -> Result<()> {
        let text = match (value, default) {
            (None, Some(_)) => return Ok(()),
            (None, None) => return Err(self.problem(format!("{key} is missing"))),
            (Some(value), _) => value
                .as_str()
                .ok_or_else(|| self.problem(format!("{key} is {value}, expected a string")))?,
        };
        if known.contains(&text) {
            return Ok(());
        }
        Err(OwnedError::Unsupported {
            path: self.path.to_owned(),
            problem: format!(
                "{key} {text:?} is not supported by this engine; supported: {}",
                known.join(", ")
            ),
        })
    }

    fn must_be_off(&self, key: &str, value: Option<&serde_json::Value>) -> Result<()> {
        match value {
            None | Some(serde_json::Value::Null | serde_json::Value::Bool(false)) => Ok(()),
            Some(value) => Err(OwnedError::Unsupported {
                path: self.path.to_owned(),
                problem: format!("{key} is {value}; this engine runs plain encoders, where it is false"),
            }),
        }
    }
}
