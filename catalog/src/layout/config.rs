//! A transformer's `config.json`: the numbers that the host relies on.
//!
//! State: none. Caller: [`super::check_sentence_transformers`]. Families name the same thing differently (`hidden_size`,
//! `dim`, `n_embd`); the first name that is present counts. Not known here: what an engine reads besides.

use synapse_core::canon::Value;

use super::LayoutError;
use super::fields::{Fields, object};

/// The numbers of `config.json` that the host relies on, whichever of the usual names they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// `model_type`.
    pub family: String,
    /// Width of a token vector.
    pub hidden_size: u32,
    /// Layers.
    pub layers: u32,
    /// Attention heads; they divide `hidden_size` unless the config states a `head_dim`.
    pub heads: u32,
    /// Rows of the position table, where the family has one.
    pub positions: Option<u32>,
    /// Rows of the token table. A tokenizer must not give an id at or beyond it.
    pub vocab_size: u32,
}

/// Checks a transformer's `config.json`, as far as every engine relies on it. Keys that we do not know are ignored:
/// they are the engine's to judge, and `auto_map`, which asks for code, is never followed.
///
/// # Errors
/// [`LayoutError::Json`] or [`LayoutError::Field`].
pub fn check_config(bytes: &[u8]) -> Result<ModelConfig, LayoutError> {
    const FILE: &str = "config.json";
    const ACTIVATIONS: [&str; 12] = [
        "gelu",
        "gelu_python",
        "gelu_new",
        "gelu_fast",
        "gelu_pytorch_tanh",
        "quick_gelu",
        "relu",
        "relu2",
        "silu",
        "swish",
        "swiglu",
        "tanh",
    ];
    let map = object(FILE, bytes)?;
    let fields = Fields { file: FILE, map: &map };
    let family = fields.text(&["model_type"])?;
    let hidden_size = fields.count(&["hidden_size", "dim", "n_embd", "d_model"], 65_536)?;
    let heads = fields.count(&["num_attention_heads", "n_heads", "n_head"], 4_096)?;
    let layers = fields.count(&["num_hidden_layers", "n_layers", "n_layer"], 4_096)?;
    let vocab_size = fields.count(&["vocab_size"], 1 << 24)?;
    let positions = ["max_position_embeddings", "n_positions"];
    let positions = match positions.iter().any(|key| map.contains_key(*key)) {
        true => Some(fields.count(&positions, 1 << 24)?),
        false => None,
    };
    if !map.contains_key("head_dim") && hidden_size % heads != 0 {
        let field = "num_attention_heads".to_owned();
        let found = format!("{heads} with hidden_size {hidden_size}");
        return Err(LayoutError::Field {
            file: FILE.to_owned(),
            field,
            found,
            expected: "a divisor of hidden_size",
        });
    }
    for key in ["layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps"] {
        fields.small_positive(key)?;
    }
    for key in ["hidden_act", "hidden_activation", "activation", "activation_function"] {
        if let Some(value) = map.get(key).filter(|value| **value != Value::Null) {
            match value {
                Value::Str(name) if ACTIVATIONS.contains(&name.as_str()) => {}
                other => return Err(fields.wrong(key, other, "an activation that we know, such as gelu or silu")),
            }
        }
    }
    Ok(ModelConfig {
        family,
        hidden_size,
        layers,
        heads,
        positions,
        vocab_size,
    })
}
