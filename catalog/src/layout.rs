//! What a sentence-transformers folder says about itself, checked before any engine sees the model.
//!
//! State: none. Caller: the daemon's model store, at ingest, with the bytes of the folder's JSON files. The rule
//! throughout: what is not understood is refused by name, never skipped and never guessed, because a module left out
//! gives vectors of another space without an error. Not known here: tensors (an engine checks their shapes against the
//! config), files (the caller reads), Python (no type or activation is ever imported by name).

use std::collections::BTreeMap;

use synapse_core::canon::Value;

use crate::file::Pooling;
use crate::json::{self, JsonError};
use crate::path::safe_relative;
use crate::record::{Format, Record};

/// The most modules of a model.
const MAX_MODULES: usize = 16;

/// What the folder says, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// From the pooling module.
    pub pooling: Pooling,
    /// Length of the final vector, after the last dense module.
    pub dims: u32,
    /// Whether a Normalize module ends the list.
    pub normalize: bool,
    /// The dense modules in order.
    pub dense: Vec<DenseModule>,
    /// From `config.json`.
    pub config: ModelConfig,
}

/// One dense module: `activation(W x + b)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseModule {
    /// Its folder.
    pub path: String,
    /// Length of its input.
    pub in_features: u32,
    /// Length of its output.
    pub out_features: u32,
    /// Whether it has a bias.
    pub bias: bool,
    /// Its activation.
    pub activation: DenseActivation,
}

/// The activations of dense modules that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenseActivation {
    /// None.
    Identity,
    /// Hyperbolic tangent.
    Tanh,
    /// Rectifier.
    Relu,
}

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

/// Why a folder is refused. Every variant names the file or field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A file is not JSON.
    #[error("{file}: {problem}")]
    Json {
        /// Path in the folder.
        file: String,
        /// What is wrong.
        problem: JsonError,
    },
    /// A field is missing, of another type, or out of range.
    #[error("{file}: {field} is {found}, expected {expected}")]
    Field {
        /// Path in the folder.
        file: String,
        /// The field.
        field: String,
        /// What it is.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A module's path could leave the folder.
    #[error("modules.json: the path {path:?} {why}; expected a plain folder inside the model")]
    ModulePath {
        /// As written.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A module of a type that we do not know.
    #[error(
        "modules.json: module {index} has the unknown type {name:?}; expected Transformer, Pooling, Dense or Normalize"
    )]
    ModuleType {
        /// Its place, from 0.
        index: usize,
        /// As written.
        name: String,
    },
    /// Modules in an order that we do not run.
    #[error("modules.json: expected Transformer, Pooling, any Dense, and Normalize at most once at the end; found {0}")]
    ModuleOrder(String),
    /// A file that a module needs is not there.
    #[error("{0} is missing, and modules.json names its module")]
    Missing(String),
    /// No pooling mode is set.
    #[error("{0}: no pooling mode is set; which one was meant cannot be guessed")]
    PoolingNone(String),
    /// Several modes, whose outputs would be concatenated.
    #[error("{file}: several pooling modes are set ({modes}); concatenated pooling is not supported")]
    PoolingSeveral {
        /// Path in the folder.
        file: String,
        /// The modes, separated by commas.
        modes: String,
    },
    /// A mode that no engine computes.
    #[error("{file}: the pooling mode {mode:?} is not supported; expected mean, cls or last")]
    PoolingMode {
        /// Path in the folder.
        file: String,
        /// The mode.
        mode: String,
    },
    /// Two neighbours disagree about the length of a vector.
    #[error("{file}: {field} is {found}, but the module before gives {expected}")]
    Width {
        /// Path in the folder.
        file: String,
        /// The field.
        field: &'static str,
        /// As written.
        found: u32,
        /// What comes in.
        expected: u32,
    },
    /// The folder is sound, but not what the record says.
    #[error("{field}: the record says {record}, the model says {model}")]
    Record {
        /// The record's field.
        field: &'static str,
        /// The record's value.
        record: String,
        /// The model's.
        model: String,
    },
}

/// Checks a sentence-transformers folder: `modules.json`, the configs it leads to, and `config.json`.
///
/// `read` gives the bytes of a file by its path relative to the folder, or `None` if there is none; it is called only
/// with paths that stay inside.
///
/// # Errors
/// [`LayoutError`] for whatever is missing, malformed, unknown or contradictory.
pub fn check_sentence_transformers<B: AsRef<[u8]>>(read: impl Fn(&str) -> Option<B>) -> Result<Layout, LayoutError> {
    let need = |path: &str| read(path).ok_or_else(|| LayoutError::Missing(path.to_owned()));
    let config = check_config(need("config.json")?.as_ref())?;
    let modules = read_modules(need("modules.json")?.as_ref())?;
    let kinds: Vec<ModuleKind> = modules.iter().map(|module| module.kind).collect();
    let order = || LayoutError::ModuleOrder(kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", "));
    let (middle, normalize) = match kinds.as_slice() {
        [
            ModuleKind::Transformer,
            ModuleKind::Pooling,
            middle @ ..,
            ModuleKind::Normalize,
        ] => (middle, true),
        [ModuleKind::Transformer, ModuleKind::Pooling, middle @ ..] => (middle, false),
        _ => return Err(order()),
    };
    if middle.iter().any(|kind| *kind != ModuleKind::Dense) {
        return Err(order());
    }
    let mut dims = config.hidden_size;
    let file = join(&modules[1].path, "config.json");
    let pooling = read_pooling(&file, need(&file)?.as_ref(), dims)?;
    let mut dense = Vec::with_capacity(middle.len());
    for module in &modules[2..2 + middle.len()] {
        let file = join(&module.path, "config.json");
        let next = read_dense(&module.path, &file, need(&file)?.as_ref(), dims)?;
        dims = next.out_features;
        dense.push(next);
    }
    Ok(Layout {
        pooling,
        dims,
        normalize,
        dense,
        config,
    })
}

/// Compares a sound folder with the record that led to it, for the stored form to be served.
///
/// # Errors
/// [`LayoutError::Record`] names the first field that differs.
pub fn check_record(record: &Record, format: &Format, layout: &Layout) -> Result<(), LayoutError> {
    let differs = |field: &'static str, record: String, model: String| {
        if record == model {
            Ok(())
        } else {
            Err(LayoutError::Record { field, record, model })
        }
    };
    differs("family", record.family.clone(), layout.config.family.clone())?;
    differs("dims", record.dims.to_string(), layout.dims.to_string())?;
    differs(
        "pooling",
        record.pooling.name().to_owned(),
        layout.pooling.name().to_owned(),
    )?;
    differs("normalize", record.normalize.to_string(), layout.normalize.to_string())?;
    if let Some(positions) = layout.config.positions
        && record.context > positions
    {
        let (record, model) = (record.context.to_string(), format!("a table of {positions} positions"));
        return Err(LayoutError::Record {
            field: "context",
            record,
            model,
        });
    }
    // A dense module that the engine is not given would be skipped in silence.
    for (index, module) in layout.dense.iter().enumerate() {
        let role = format!("dense.{index}.weights");
        let given = format
            .files
            .iter()
            .any(|file| file.role == role && file.path.starts_with(&module.path));
        if !given {
            let record = format!("no file with the role {role} in {}", module.path);
            return Err(LayoutError::Record {
                field: "formats",
                record,
                model: "a Dense module there".to_owned(),
            });
        }
    }
    let surplus = format!("dense.{}.", layout.dense.len());
    match format.files.iter().find(|file| file.role.starts_with(&surplus)) {
        Some(file) => differs(
            "formats",
            format!("a file with the role {}", file.role),
            "no such module".to_owned(),
        ),
        None => Ok(()),
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModuleKind {
    Transformer,
    Pooling,
    Dense,
    Normalize,
}

impl ModuleKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Transformer => "Transformer",
            Self::Pooling => "Pooling",
            Self::Dense => "Dense",
            Self::Normalize => "Normalize",
        }
    }
}

struct Module {
    kind: ModuleKind,
    path: String,
}

fn read_modules(bytes: &[u8]) -> Result<Vec<Module>, LayoutError> {
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

fn read_pooling(file: &str, bytes: &[u8], width: u32) -> Result<Pooling, LayoutError> {
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

fn read_dense(path: &str, file: &str, bytes: &[u8], width: u32) -> Result<DenseModule, LayoutError> {
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

/// Typed access to one JSON object, with errors that name the file and the field.
struct Fields<'a> {
    file: &'a str,
    map: &'a BTreeMap<String, Value>,
}

impl Fields<'_> {
    /// The first of several names that is present.
    fn first<'k>(&self, names: &[&'k str]) -> Result<(&'k str, &Value), LayoutError> {
        let found = names
            .iter()
            .find_map(|name| self.map.get(*name).map(|value| (*name, value)));
        found.ok_or_else(|| LayoutError::Field {
            file: self.file.to_owned(),
            field: names[0].to_owned(),
            found: "missing".to_owned(),
            expected: "a value",
        })
    }

    fn text(&self, names: &[&str]) -> Result<String, LayoutError> {
        match self.first(names)? {
            (_, Value::Str(text)) => Ok(text.clone()),
            (name, other) => Err(self.wrong(name, other, "a string")),
        }
    }

    /// An integer from 1 to `most`.
    fn count(&self, names: &[&str], most: u32) -> Result<u32, LayoutError> {
        let (name, value) = self.first(names)?;
        match value {
            Value::Int(number) => match u32::try_from(*number) {
                Ok(count) if (1..=most).contains(&count) => Ok(count),
                _ => Err(self.wrong(name, value, "a positive integer of a sensible size")),
            },
            _ => Err(self.wrong(name, value, "a positive integer")),
        }
    }

    fn small_positive(&self, name: &str) -> Result<(), LayoutError> {
        match self.map.get(name) {
            None => Ok(()),
            Some(Value::Number(number)) if *number > 0.0 && *number < 1.0 => Ok(()),
            Some(other) => Err(self.wrong(name, other, "a number between 0 and 1")),
        }
    }

    fn wrong(&self, field: &str, found: &Value, expected: &'static str) -> LayoutError {
        let field = field.chars().take(80).collect();
        LayoutError::Field {
            file: self.file.to_owned(),
            field,
            found: describe(found),
            expected,
        }
    }
}

fn object(file: &str, bytes: &[u8]) -> Result<BTreeMap<String, Value>, LayoutError> {
    match json::parse(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(LayoutError::Field {
            file: file.to_owned(),
            field: "the file".to_owned(),
            found: describe(&other),
            expected: "an object",
        }),
        Err(problem) => Err(LayoutError::Json {
            file: file.to_owned(),
            problem,
        }),
    }
}

/// A value in a message: short, and scalars as they are.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Str(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(map) => format!("an object of {} keys", map.len()),
    }
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}
