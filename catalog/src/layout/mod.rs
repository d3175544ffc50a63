//! What a sentence-transformers folder says about itself, checked before any engine sees the model.
//!
//! State: none. Caller: the daemon's model store, at ingest, with the bytes of the folder's JSON files. The rule
//! throughout: what is not understood is refused by name, never skipped and never guessed, because a module left out
//! gives vectors of another space without an error. Not known here: tensors (an engine checks their shapes against the
//! config), files (the caller reads), Python (no type or activation is ever imported by name).

mod config;
mod fields;
mod modules;

pub use config::{ModelConfig, check_config};
use modules::{ModuleKind, read_dense, read_modules, read_pooling};

use crate::file::Pooling;
use crate::json::JsonError;
use crate::record::{Format, Record};

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

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}
