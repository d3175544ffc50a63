//! `modules.json` and the configs of pooling and dense modules.
//!
//! State: none. Caller: [`super::check_sentence_transformers`]. Types and activations are compared with a list and never
//! looked up by name, and a path is judged before anybody opens it.

use synapse_core::canon::Value;

use super::fields::{Fields, describe, object};
use super::{DenseActivation, DenseModule, LayoutError};
use crate::file::Pooling;
use crate::json;
use crate::path::safe_relative;

/// The most modules of a model.
const MAX_MODULES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModuleKind {
    Transformer,
    Pooling,
    Dense,
    Normalize,
}

impl ModuleKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Transformer => "Transformer",
            Self::Pooling => "Pooling",
            Self::Dense => "Dense",
            Self::Normalize => "Normalize",
        }
    }
}

pub(super) struct Module {
    pub(super) kind: ModuleKind,
    pub(super) path: String,
}

pub(super) fn read_modules(bytes: &[u8]) -> Result<Vec<Module>, LayoutError> {
    const FILE: &str = "modules.json";
    let value = json::parse(bytes).map_err(|problem| LayoutError::Json {
        file: FILE.to_owned(),
        problem,
    })?;
    let whole = |found: String, expected| LayoutError::Field {
        file: FILE.to_owned(),
        field: "the file".to_owned(),
        found,
        expected,
    };
    let Value::Array(list) = value else {
        return Err(whole(describe(&value), "a list of modules"));
    };
    if list.len() > MAX_MODULES {
        return Err(whole(format!("a list of {}", list.len()), "at most 16 modules"));
    }
    let mut modules = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        let Value::Object(map) = item else {
            return Err(whole(
                format!("{} at place {index}", describe(item)),
                "objects in the list",
            ));
        };
        let fields = Fields { file: FILE, map };
        let name = fields.text(&["type"])?;
        let kind = match name.as_str() {
            "sentence_transformers.models.Transformer" => ModuleKind::Transformer,
            "sentence_transformers.models.Pooling" => ModuleKind::Pooling,
            "sentence_transformers.models.Dense" => ModuleKind::Dense,
            "sentence_transformers.models.Normalize" => ModuleKind::Normalize,
            _ => {
                return Err(LayoutError::ModuleType {
                    index,
                    name: name.chars().take(200).collect(),
                });
            }
        };
        let path = fields.text(&["path"])?;
        // Only the transformer lies in the folder itself.
        if !(path.is_empty() && kind == ModuleKind::Transformer) {
            safe_relative(&path).map_err(|why| LayoutError::ModulePath {
                path: path.chars().take(200).collect(),
                why,
            })?;
        }
        modules.push(Module { kind, path });
    }
    Ok(modules)
}

pub(super) fn read_pooling(file: &str, bytes: &[u8], width: u32) -> Result<Pooling, LayoutError> {
    let map = object(file, bytes)?;
    let fields = Fields { file, map: &map };
    let mut modes = Vec::new();
    for (key, value) in &map {
        let Some(mode) = key.strip_prefix("pooling_mode_") else {
            continue;
        };
        match value {
            Value::Bool(true) => modes.push(mode),
            Value::Bool(false) => {}
            other => return Err(fields.wrong(key, other, "true or false")),
        }
    }
    let mode = match modes.as_slice() {
        [] => return Err(LayoutError::PoolingNone(file.to_owned())),
        [mode] => *mode,
        several => {
            return Err(LayoutError::PoolingSeveral {
                file: file.to_owned(),
                modes: several.join(", "),
            });
        }
    };
    let pooling = match mode {
        "mean_tokens" => Pooling::Mean,
        "cls_token" => Pooling::Cls,
        "lasttoken" => Pooling::Last,
        other => {
            return Err(LayoutError::PoolingMode {
                file: file.to_owned(),
                mode: other.chars().take(80).collect(),
            });
        }
    };
    let found = fields.count(&["word_embedding_dimension"], 65_536)?;
    if found != width {
        let field = "word_embedding_dimension";
        return Err(LayoutError::Width {
            file: file.to_owned(),
            field,
            found,
            expected: width,
        });
    }
    match map.get("include_prompt") {
        None | Some(Value::Bool(true)) => Ok(pooling),
        Some(other) => Err(fields.wrong(
            "include_prompt",
            other,
            "true: pooling without the prompt is not supported",
        )),
    }
}

pub(super) fn read_dense(path: &str, file: &str, bytes: &[u8], width: u32) -> Result<DenseModule, LayoutError> {
    let map = object(file, bytes)?;
    let fields = Fields { file, map: &map };
    let in_features = fields.count(&["in_features"], 65_536)?;
    if in_features != width {
        return Err(LayoutError::Width {
            file: file.to_owned(),
            field: "in_features",
            found: in_features,
            expected: width,
        });
    }
    let bias = match map.get("bias") {
        Some(Value::Bool(bias)) => *bias,
        None => true,
        Some(other) => return Err(fields.wrong("bias", other, "true or false")),
    };
    let name = fields.text(&["activation_function"])?;
    let activation = match name.as_str() {
        "torch.nn.modules.linear.Identity" => DenseActivation::Identity,
        "torch.nn.modules.activation.Tanh" => DenseActivation::Tanh,
        "torch.nn.modules.activation.ReLU" => DenseActivation::Relu,
        _ => {
            let found = Value::Str(name);
            return Err(fields.wrong(
                "activation_function",
                &found,
                "Identity, Tanh or ReLU of torch.nn.modules",
            ));
        }
    };
    let out_features = fields.count(&["out_features"], 65_536)?;
    Ok(DenseModule {
        path: path.to_owned(),
        in_features,
        out_features,
        bias,
        activation,
    })
}
