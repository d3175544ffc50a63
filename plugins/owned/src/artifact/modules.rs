//! The sentence-transformers layout: modules.json and the configs of its modules, read strictly where a record lists them.
//!
//! Owns nothing. The record's pooling decides; these files must agree with it, so that a wrong record cannot quietly
//! serve another vector. Module classes are compared with a closed list, never imported; module paths are never
//! opened.

use std::path::Path;

use serde::Deserialize;

use super::config::{Config, WIDTH};
use super::{ArtifactFiles, DenseFiles, read_json};
use crate::error::{OwnedError, Result};
use crate::model::blueprint::{Activation, Linear, Step};

/// How token vectors become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all tokens of the item, special tokens included.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    Last,
}

impl Pooling {
    /// Reads the setting.
    ///
    /// # Errors
    /// [`OwnedError::Config`] for another name.
    pub fn from_setting(name: &str) -> Result<Self> {
        match name {
            "mean" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            "last" => Ok(Self::Last),
            other => Err(OwnedError::Config {
                key: "pooling".to_owned(),
                problem: format!("{other:?} is not supported; expected mean, cls or last"),
            }),
        }
    }
}

#[derive(Deserialize)]
struct RawModule {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

/// Checks the optional files against the record's pooling and the model's width.
///
/// # Errors
/// [`OwnedError::File`] for a bad file, [`OwnedError::Unsupported`] for a module that this engine lacks,
/// [`OwnedError::Config`] where file and setting disagree.
pub fn check(files: &ArtifactFiles, pooling: Pooling, hidden: usize) -> Result<()> {
    if let Some(path) = &files.modules {
        check_modules(path, files.pooling.is_some(), files.dense.len())?;
    }
    if let Some(path) = &files.pooling {
        check_pooling(path, pooling, hidden)?;
    }
    Ok(())
}

fn check_modules(path: &Path, has_pooling_config: bool, dense: usize) -> Result<()> {
    let modules: Vec<RawModule> = read_json(path)?;
    let problem = |problem| OwnedError::File {
        path: path.to_owned(),
        problem,
    };
    let mut classes = Vec::new();
    for module in &modules {
        let components = module.path.split(['/', '\\']);
        let leaves = module.path.starts_with(['/', '\\']) || module.path.contains(':');
        if leaves || components.clone().any(|component| component == "..") {
            return Err(problem(format!(
                "module path {:?} leaves the model's folder",
                module.path
            )));
        }
        let class = module
            .class
            .strip_prefix("sentence_transformers.models.")
            .unwrap_or(&module.class);
        match class {
            "Transformer" | "Normalize" | "Dense" => {}
            "Pooling" if has_pooling_config => {}
            "Pooling" => {
                return Err(problem(format!(
                    "module {:?} is a Pooling, but its config was not given; list it with the role \"pooling\"",
                    module.path
                )));
            }
            _ => {
                return Err(OwnedError::Unsupported {
                    path: path.to_owned(),
                    problem: format!(
                        "module {:?} is a {:?}; this engine has Transformer, Pooling, Dense and Normalize",
                        module.path, module.class
                    ),
                });
            }
        }
        classes.push(class);
    }
    let middle = match classes[..] {
        ["Transformer", "Pooling", ref middle @ .., "Normalize"] | ["Transformer", "Pooling", ref middle @ ..] => {
            middle
        }
        _ => &["nothing that begins so"],
    };
    if middle.iter().any(|class| *class != "Dense") {
        return Err(problem(format!(
            "modules are {classes:?}, expected Transformer, Pooling, Dense modules if any, and perhaps Normalize, in \
             that order"
        )));
    }
    if middle.len() != dense {
        return Err(problem(format!(
            "{} Dense modules, and the files of {dense} were given; list each as dense.N.weights and dense.N.config",
            middle.len()
        )));
    }
    Ok(())
}

/// One Dense module as a step after pooling; `inputs` is what comes in.
///
/// # Errors
/// [`OwnedError::File`] for a bad file or a width that does not fit, [`OwnedError::Unsupported`] for an activation that
/// is not on the list.
pub fn dense(files: &DenseFiles, inputs: usize) -> Result<Step> {
    let config = Config::read(&files.config)?;
    let stated = config.size(&["in_features"], WIDTH)?;
    if stated != inputs {
        return Err(config.problem(format!("in_features is {stated}, but {inputs} values come in")));
    }
    let outputs = config.size(&["out_features"], WIDTH)?;
    let activations = [
        ("torch.nn.modules.linear.Identity", Activation::None),
        ("torch.nn.modules.activation.Tanh", Activation::Tanh),
        ("torch.nn.modules.activation.ReLU", Activation::Relu),
    ];
    let name = config.word(&["activation_function"], &activations.map(|(name, _)| name), None)?;
    let activation = activations.iter().find(|(known, _)| *known == name);
    Ok(Step {
        linear: Linear::whole("linear".to_owned(), outputs, config.flag("bias", true)?),
        inputs,
        outputs,
        activation: activation.map_or(Activation::None, |(_, activation)| *activation),
        norm: None,
    })
}

fn check_pooling(path: &Path, pooling: Pooling, hidden: usize) -> Result<()> {
    let raw: serde_json::Map<String, serde_json::Value> = read_json(path)?;
    let problem = |problem| OwnedError::File {
        path: path.to_owned(),
        problem,
    };
    let width = raw.get("word_embedding_dimension");
    if width.and_then(serde_json::Value::as_u64) != Some(hidden as u64) {
        return Err(problem(format!(
            "word_embedding_dimension is {}, the encoder's hidden_size is {hidden}",
            width.map_or_else(|| "missing".to_owned(), ToString::to_string)
        )));
    }
    let mut modes = Vec::new();
    for (key, value) in &raw {
        if let Some(mode) = key.strip_prefix("pooling_mode_") {
            match value {
                serde_json::Value::Bool(true) => modes.push(mode),
                serde_json::Value::Bool(false) => {}
                other => return Err(problem(format!("{key} is {other}, expected true or false"))),
            }
        }
    }
    let expected = match pooling {
        Pooling::Mean => "mean_tokens",
        Pooling::Cls => "cls_token",
        Pooling::Last => "lasttoken",
    };
    if modes == [expected] {
        return Ok(());
    }
    Err(OwnedError::Config {
        key: "pooling".to_owned(),
        problem: format!(
            "{} asks for {modes:?}, the record for [{expected:?}]; exactly that one mode must be true",
            path.display()
        ),
    })
}
