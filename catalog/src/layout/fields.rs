//! Typed access to one JSON object of a model folder, with errors that name the file and the field.
//!
//! State: none. Callers: the other files of this folder.

use std::collections::BTreeMap;

use synapse_core::canon::Value;

use super::LayoutError;
use crate::json;

/// Typed access to one JSON object, with errors that name the file and the field.
pub(super) struct Fields<'a> {
    pub(super) file: &'a str,
    pub(super) map: &'a BTreeMap<String, Value>,
}

impl Fields<'_> {
    /// The first of several names that is present.
    pub(super) fn first<'k>(&self, names: &[&'k str]) -> Result<(&'k str, &Value), LayoutError> {
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

    pub(super) fn text(&self, names: &[&str]) -> Result<String, LayoutError> {
        match self.first(names)? {
            (_, Value::Str(text)) => Ok(text.clone()),
            (name, other) => Err(self.wrong(name, other, "a string")),
        }
    }

    /// An integer from 1 to `most`.
    pub(super) fn count(&self, names: &[&str], most: u32) -> Result<u32, LayoutError> {
        let (name, value) = self.first(names)?;
        match value {
            Value::Int(number) => match u32::try_from(*number) {
                Ok(count) if (1..=most).contains(&count) => Ok(count),
                _ => Err(self.wrong(name, value, "a positive integer of a sensible size")),
            },
            _ => Err(self.wrong(name, value, "a positive integer")),
        }
    }

    pub(super) fn small_positive(&self, name: &str) -> Result<(), LayoutError> {
        match self.map.get(name) {
            None => Ok(()),
            Some(Value::Number(number)) if *number > 0.0 && *number < 1.0 => Ok(()),
            Some(other) => Err(self.wrong(name, other, "a number between 0 and 1")),
        }
    }

    pub(super) fn wrong(&self, field: &str, found: &Value, expected: &'static str) -> LayoutError {
        let field = field.chars().take(80).collect();
        LayoutError::Field {
            file: self.file.to_owned(),
            field,
            found: describe(found),
            expected,
        }
    }
}

pub(super) fn object(file: &str, bytes: &[u8]) -> Result<BTreeMap<String, Value>, LayoutError> {
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
pub(super) fn describe(value: &Value) -> String {
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
