//! A config.json, key by key: typed, bounded, and refused where this engine would compute something else.
//!
//! A [`Config`] owns the parsed object. Which keys matter, and under which names, is each architecture's business
//! (`model`); what a wrong value looks like in an error is decided here. Keys that nobody asks for are ignored, as are
//! references to remote code, which is never run.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::read_json;
use crate::error::{OwnedError, Result};

/// The most layers.
pub const LAYERS: usize = 512;
/// The most heads.
pub const HEADS: usize = 512;
/// The widest matrix.
pub const WIDTH: usize = 1 << 16;
/// The longest table.
pub const TABLE: usize = 1 << 24;

/// A config.json that parsed as an object.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`OwnedError::Read`] and [`OwnedError::File`].
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            object: read_json(path)?,
        })
    }

    /// A sound file that says something wrong.
    #[must_use]
    pub fn problem(&self, problem: String) -> OwnedError {
        OwnedError::File {
            path: self.path.clone(),
            problem,
        }
    }

    /// A sound file that asks for something that this engine does not have.
    #[must_use]
    pub fn unsupported(&self, problem: String) -> OwnedError {
        OwnedError::Unsupported {
            path: self.path.clone(),
            problem,
        }
    }

    /// The value of the first of these keys that is present and not null, with its name.
    fn find<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Value)> {
        keys.iter()
            .filter_map(|&key| Some((key, self.object.get(key)?)))
            .find(|(_, value)| !value.is_null())
    }

    fn required<'k>(&self, keys: &[&'k str]) -> Result<(&'k str, &Value)> {
        self.find(keys)
            .ok_or_else(|| self.problem(format!("{} is missing", keys.join(" or "))))
    }

    /// Whether a key is present and not null.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.find(&[key]).is_some()
    }

    /// A size from 1 to `limit`, under the first of these names that is present.
    ///
    /// # Errors
    /// [`OwnedError::File`] when it is missing, no integer or out of range.
    pub fn size(&self, keys: &[&str], limit: usize) -> Result<usize> {
        let (key, value) = self.required(keys)?;
        value
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .filter(|size| (1..=limit).contains(size))
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected an integer from 1 to {limit}")))
    }

    /// The same, or `default` when no name is present.
    ///
    /// # Errors
    /// As [`Self::size`].
    pub fn size_or(&self, keys: &[&str], limit: usize, default: usize) -> Result<usize> {
        match self.find(keys) {
            None => Ok(default),
            Some(_) => self.size(keys, limit),
        }
    }

    /// An index from 0 to below `limit`.
    ///
    /// # Errors
    /// As [`Self::size`].
    pub fn index(&self, key: &str, limit: usize) -> Result<usize> {
        let (key, value) = self.required(&[key])?;
        value
            .as_u64()
            .and_then(|index| usize::try_from(index).ok())
            .filter(|&index| index < limit)
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected an integer from 0 to {}", limit - 1)))
    }

    /// What a normalisation adds to the variance, under the first of these names that is present.
    ///
    /// # Errors
    /// [`OwnedError::File`] when it is missing or no number from 1e-30 to 0.1.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "f32 is the arithmetic; the range is checked"
    )]
    pub fn eps(&self, keys: &[&str]) -> Result<f32> {
        let (key, value) = self.required(keys)?;
        value
            .as_f64()
            .filter(|eps| (1e-30..=0.1).contains(eps))
            .map(|eps| eps as f32)
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected a number from 1e-30 to 0.1")))
    }

    /// A positive number up to 1e12.
    ///
    /// # Errors
    /// [`OwnedError::File`].
    pub fn positive(&self, keys: &[&str]) -> Result<f64> {
        let (key, value) = self.required(keys)?;
        self.positive_value(key, value)
    }

    fn positive_value(&self, key: &str, value: &Value) -> Result<f64> {
        value
            .as_f64()
            .filter(|number| *number > 0.0 && *number <= 1e12)
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected a positive number")))
    }

    /// The base of the rotary angles: of the layers of kind `kind` in the newer dialect (`rope_parameters`, by kind or
    /// flat), else under `key`.
    ///
    /// # Errors
    /// [`OwnedError::File`]; [`OwnedError::Unsupported`] for angles that are scaled.
    pub fn rotary_base(&self, kind: &str, key: &str) -> Result<f64> {
        if let Some((name, scaling)) = self.find(&["rope_scaling"]) {
            return Err(self.unsupported(format!("{name} is {scaling}; this engine has unscaled angles only")));
        }
        let Some((_, parameters)) = self.find(&["rope_parameters"]) else {
            return self.positive(&[key]);
        };
        let parameters = parameters.get(kind).unwrap_or(parameters);
        match parameters.get("rope_type").and_then(Value::as_str) {
            None | Some("default") => {}
            Some(other) => {
                return Err(self.unsupported(format!(
                    "rope_parameters have rope_type {other:?}; this engine has unscaled angles only"
                )));
            }
        }
        let theta = parameters
            .get("rope_theta")
            .ok_or_else(|| self.problem(format!("rope_parameters are {parameters}, expected a rope_theta")))?;
        self.positive_value("rope_parameters.rope_theta", theta)
    }

    /// One of some known words, under the first of these names that is present; `default` when none is and there is
    /// one.
    ///
    /// # Errors
    /// [`OwnedError::Unsupported`] for another word, [`OwnedError::File`] for a missing or mistyped one.
    pub fn word<'w>(&self, keys: &[&str], known: &[&'w str], default: Option<&'w str>) -> Result<&'w str> {
        let (key, value) = match (self.find(keys), default) {
            (Some(found), _) => found,
            (None, Some(default)) => return Ok(default),
            (None, None) => return Err(self.problem(format!("{} is missing", keys.join(" or ")))),
        };
        let text = value
            .as_str()
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected a string")))?;
        known.iter().copied().find(|&word| word == text).ok_or_else(|| {
            self.unsupported(format!(
                "{key} {text:?} is not supported by this engine; supported: {}",
                known.join(", ")
            ))
        })
    }

    /// A switch; `default` when it is absent.
    ///
    /// # Errors
    /// [`OwnedError::File`] for another type.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.find(&[key]) {
            None => Ok(default),
            Some((_, Value::Bool(value))) => Ok(*value),
            Some((_, value)) => Err(self.problem(format!("{key} is {value}, expected true or false"))),
        }
    }

    /// Refuses a switch that is on.
    ///
    /// # Errors
    /// [`OwnedError::Unsupported`].
    pub fn must_be_off(&self, key: &str) -> Result<()> {
        match self.find(&[key]) {
            None | Some((_, Value::Bool(false))) => Ok(()),
            Some((_, value)) => Err(self.unsupported(format!(
                "{key} is {value}; this engine runs plain encoders, where it is false"
            ))),
        }
    }

    /// A list of words, or `None` when it is absent.
    ///
    /// # Errors
    /// [`OwnedError::File`] for another type.
    pub fn words(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some((_, value)) = self.find(&[key]) else {
            return Ok(None);
        };
        let words = value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        match words {
            Some(words) => Ok(Some(words)),
            None => Err(self.problem(format!("{key} is {value}, expected a list of strings"))),
        }
    }

    /// The number of labels of a classifier: `num_labels`, or the entries of `id2label`, or 2 as transformers assumes.
    #[must_use]
    pub fn labels(&self) -> usize {
        let stated = self.object.get("num_labels").and_then(Value::as_u64);
        let listed = self.object.get("id2label").and_then(Value::as_object).map(Map::len);
        stated
            .and_then(|labels| usize::try_from(labels).ok())
            .or(listed)
            .unwrap_or(2)
    }

    /// The architecture's name, `model_type`.
    ///
    /// # Errors
    /// [`OwnedError::File`] when it is missing or no string.
    pub fn model_type(&self) -> Result<&str> {
        let (key, value) = self.required(&["model_type"])?;
        value
            .as_str()
            .ok_or_else(|| self.problem(format!("{key} is {value}, expected a string")))
    }

    /// Checks that the heads divide the residual stream, and gives the width of one.
    ///
    /// # Errors
    /// [`OwnedError::File`].
    pub fn head_width(&self, hidden: usize, heads: usize) -> Result<usize> {
        if !hidden.is_multiple_of(heads) {
            return Err(self.problem(format!(
                "num_attention_heads {heads} does not divide hidden_size {hidden}"
            )));
        }
        Ok(hidden / heads)
    }
}
