//! JSON of strangers: size, depth, node count and duplicate keys are checked before anything else looks at it.
//!
//! State: none. Callers: `text/sanitise.rs` (tokenizers), `models/ingest.rs` (configs), `models/record.rs` (our own
//! records, which lie on a disk that others can write). Not known here: what the values mean. The client's JSON goes
//! through `synapse-wire` and `rpc`, never through here.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use synapse_core::canon::Value;

/// What a document may cost.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// The most bytes.
    pub bytes: usize,
    /// The deepest nesting of arrays and objects.
    pub depth: usize,
    /// The most values, keys not counted.
    pub nodes: usize,
}

/// For small files of ours and of models: configs, records.
pub const SMALL: Caps = Caps {
    bytes: 4 << 20,
    depth: 32,
    nodes: 200_000,
};

/// Why a document was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonRefused {
    /// Too long.
    #[error("{found} bytes, at most {limit} are read")]
    Bytes {
        /// Bytes found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// Nested too deeply.
    #[error("nested deeper than {limit} levels")]
    Depth {
        /// The limit.
        limit: usize,
    },
    /// A web page where JSON was expected: a portal, a login page, a missing file.
    #[error("looks like HTML, expected JSON")]
    Html,
    /// Not JSON, or with duplicate keys, or with too many values.
    #[error("not acceptable JSON: {0}")]
    Invalid(String),
}

/// Reads a document.
///
/// # Errors
/// [`JsonRefused`]; nothing is allocated before size and depth are known to be within `caps`.
pub fn parse(bytes: &[u8], caps: Caps) -> Result<Value, JsonRefused> {
    if bytes.len() > caps.bytes {
        return Err(JsonRefused::Bytes {
            found: bytes.len(),
            limit: caps.bytes,
        });
    }
    if looks_like_html(bytes) {
        return Err(JsonRefused::Html);
    }
    if deepest(bytes) > caps.depth {
        return Err(JsonRefused::Depth { limit: caps.depth });
    }
    let left = Cell::new(caps.nodes);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Reader { left: &left }
        .deserialize(&mut reader)
        .map_err(|error| JsonRefused::Invalid(error.to_string()))?;
    reader.end().map_err(|error| JsonRefused::Invalid(error.to_string()))?;
    Ok(value)
}

/// Whether bytes are a web page: what a captive portal or a hub's error page answers with status 200.
#[must_use]
pub fn looks_like_html(bytes: &[u8]) -> bool {
    let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    ["<!doctype", "<html", "<head", "<?xml"].iter().any(|tag| {
        start
            .get(..tag.len())
            .is_some_and(|head| head.eq_ignore_ascii_case(tag.as_bytes()))
    })
}

/// The deepest nesting, counted on bytes outside of strings. Says nothing about well-formedness.
fn deepest(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let (mut in_text, mut escaped) = (false, false);
    for &byte in bytes {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Builds [`Value`]s and counts them.
#[derive(Clone, Copy)]
struct Reader<'c> {
    left: &'c Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self
            .left
            .get()
            .checked_sub(1)
            .ok_or_else(|| D::Error::custom("too many values"))?;
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        i64::try_from(value)
            .map(Value::Int)
            .map_err(|_| E::custom(format!("the integer {value} is too large")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Str(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Str(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = BTreeMap::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            if object.contains_key(&key) {
                let shown: String = key.chars().take(80).collect();
                return Err(A::Error::custom(format!("the key {shown:?} stands twice")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// Reading fields of a [`Value`].
pub trait Fields {
    /// The member `key`, where this is an object that has it and it is not `null`.
    fn member(&self, key: &str) -> Option<&Value>;
    /// The text, where this is a string.
    fn as_text(&self) -> Option<&str>;
    /// The integer, where this is one.
    fn as_int(&self) -> Option<i64>;
    /// The items, where this is an array.
    fn as_array(&self) -> Option<&[Value]>;
    /// The members, where this is an object.
    fn as_object(&self) -> Option<&BTreeMap<String, Value>>;
}

impl Fields for Value {
    fn member(&self, key: &str) -> Option<&Value> {
        self.as_object()?.get(key).filter(|value| !matches!(value, Value::Null))
    }

    fn as_text(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    fn as_object(&self) -> Option<&BTreeMap<String, Value>> {
        match self {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: Caps = Caps {
        bytes: 1000,
        depth: 3,
        nodes: 10,
    };

    #[test]
    fn refuses_what_would_cost_too_much() {
        let cases: [(&[u8], &str); 9] = [
            (&[b' '; 1001], "1001 bytes"),
            (b"[[[[]]]]", "deeper than 3"),
            (b"[1,2,3,4,5,6,7,8,9,10]", "too many values"),
            (b"  <!DOCTYPE html><p>", "looks like HTML"),
            (b"{\"a\":1,\"a\":2}", "stands twice"),
            (b"{\"a\":1} x", "trailing"),
            (b"{\"a\":NaN}", "not acceptable JSON"),
            (b"[9223372036854775808]", "too large"),
            (b"[\"\xff\"]", "not acceptable JSON"),
        ];
        for (bytes, words) in cases {
            let error = parse(bytes, CAPS).expect_err(words).to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }

    #[test]
    fn brackets_in_strings_are_no_depth() {
        let value = parse(br#"{"a":"[[[[\"[[[["}"#, CAPS).expect("parses");
        assert_eq!(value.member("a").and_then(Fields::as_text), Some("[[[[\"[[[["));
    }
}
