//! The one place in this crate that reads JSON: bytes to [`Value`].
//!
//! State: none. Callers: [`crate::layout`] and [`crate::profile`], and the daemon where it needs a config's canonical
//! digest. Duplicate keys are refused (two parsers may disagree on which one wins), as are NaN and infinities, which
//! Python writes and JSON does not know, and integers beyond 2^53 − 1.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use synapse_core::canon::{MAX_SAFE_INTEGER, Value};

/// The largest JSON file that is read: a model's own configs are a few kilobytes.
pub const MAX_JSON_BYTES: usize = 1 << 20;

/// Bytes that are not the JSON we accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Larger than [`MAX_JSON_BYTES`].
    #[error("{0} bytes of JSON, expected at most {MAX_JSON_BYTES}")]
    TooLarge(usize),
    /// Not JSON, a duplicate key, too deep, or a number out of range.
    #[error("not acceptable JSON: {0}")]
    Syntax(String),
}

/// Reads one JSON value; nothing but white space may follow.
///
/// # Errors
/// [`JsonError`].
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    if bytes.len() > MAX_JSON_BYTES {
        return Err(JsonError::TooLarge(bytes.len()));
    }
    let any: Any = serde_json::from_slice(bytes).map_err(|error| JsonError::Syntax(error.to_string()))?;
    Ok(any.0)
}

struct Any(Value);

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor).map(Any)
    }
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        if value.unsigned_abs() > MAX_SAFE_INTEGER.unsigned_abs() {
            return Err(E::custom(format_args!("the integer {value} is outside ±(2^53 - 1)")));
        }
        Ok(Value::Int(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => Err(E::custom(format_args!("the integer {value} is outside ±(2^53 - 1)"))),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        if !value.is_finite() {
            return Err(E::custom("a number is too large for a double"));
        }
        Ok(Value::Number(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Str(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::Str(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Any>()? {
            items.push(item.0);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, item)) = access.next_entry::<String, Any>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("the key {key:?} appears twice")));
            }
            map.insert(key, item.0);
        }
        Ok(Value::Object(map))
    }
}
