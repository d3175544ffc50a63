//! Vectors on the wire: JSON arrays, or base64 of little-endian f32.
//!
//! No state. The daemon encodes what an engine gave, the client decodes it. Whether the numbers are finite or of unit
//! length is not known here.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How vectors are written in a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// A JSON array of numbers, each with the fewest digits that give the same f32 back.
    #[default]
    Array,
    /// A string: standard base64 with padding over `4 × dims` bytes, little-endian f32. Exact, and a third of the
    /// size.
    Base64,
}

/// One vector as it stands on the wire.
#[derive(Clone, PartialEq)]
pub enum Vector {
    /// `encoding: "array"`.
    Array(Vec<f32>),
    /// `encoding: "base64"`.
    Base64(String),
}

/// A base64 vector that is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorError {
    /// Not base64.
    #[error("the vector is not standard base64: {0}")]
    Base64(String),
    /// The bytes are not a whole number of f32.
    #[error("the vector has {0} bytes, which is not a multiple of 4")]
    Length(usize),
}

impl Vector {
    /// Writes values in the asked encoding.
    #[must_use]
    pub fn encode(values: &[f32], encoding: Encoding) -> Self {
        match encoding {
            Encoding::Array => Self::Array(values.to_vec()),
            Encoding::Base64 => {
                let mut bytes = Vec::with_capacity(values.len().saturating_mul(4));
                for value in values {
                    bytes.extend_from_slice(&value.to_le_bytes());
                }
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }

    /// The values.
    ///
    /// # Errors
    /// [`VectorError`] for a string that is not base64 of whole f32.
    pub fn into_values(self) -> Result<Vec<f32>, VectorError> {
        match self {
            Self::Array(values) => Ok(values),
            Self::Base64(text) => {
                let bytes = STANDARD
                    .decode(text)
                    .map_err(|error| VectorError::Base64(error.to_string()))?;
                let (chunks, rest) = bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(VectorError::Length(bytes.len()));
                }
                Ok(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect())
            }
        }
    }
}

/// Shows the size only: vectors stay out of logs (LOG-11).
impl fmt::Debug for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(values) => write!(f, "Array({} values)", values.len()),
            Self::Base64(text) => write!(f, "Base64({} characters)", text.len()),
        }
    }
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Array(values) => values.serialize(serializer),
            Self::Base64(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Vector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of numbers or a base64 string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Vector, E> {
                Ok(Vector::Base64(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Vector, E> {
                Ok(Vector::Base64(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vector, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = items.next_element::<f32>()? {
                    values.push(value);
                }
                Ok(Vector::Array(values))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Vector {
    fn schema_name() -> Cow<'static, str> {
        "Vector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "With encoding `array` an array of `dims` numbers; with `base64` a string: base64 of little-endian f32.",
            "oneOf": [
                {"type": "array", "items": {"type": "number"}},
                {"type": "string", "contentEncoding": "base64"}
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The base64 was made by Python: `base64.b64encode(struct.pack('<3f', 1.0, -0.5, 1e-8))`.
    #[test]
    fn base64_is_little_endian_f32() {
        let vector = Vector::encode(&[1.0, -0.5, 1e-8], Encoding::Base64);
        assert_eq!(vector, Vector::Base64("AACAPwAAAL93zCsy".to_owned()));
        assert_eq!(vector.into_values(), Ok(vec![1.0, -0.5, 1e-8]));
    }

    #[test]
    fn arrays_give_the_same_bits_back() {
        let values = [
            0.1_f32,
            -0.0,
            f32::MIN_POSITIVE,
            16_777_217.0,
            0.333_333_34,
            1.0e-45,
            f32::MAX,
        ];
        let json = serde_json::to_string(&Vector::encode(&values, Encoding::Array)).unwrap();
        let back = serde_json::from_str::<Vector>(&json).unwrap().into_values().unwrap();
        assert_eq!(back.map_bits(), values.to_vec().map_bits(), "{json}");
    }

    trait Bits {
        fn map_bits(&self) -> Vec<u32>;
    }

    impl Bits for Vec<f32> {
        fn map_bits(&self) -> Vec<u32> {
            self.iter().map(|value| value.to_bits()).collect()
        }
    }

    #[test]
    fn what_is_not_whole_floats_is_refused() {
        assert!(matches!(
            Vector::Base64("AAA=".to_owned()).into_values(),
            Err(VectorError::Length(2))
        ));
        assert!(matches!(
            Vector::Base64("?".to_owned()).into_values(),
            Err(VectorError::Base64(_))
        ));
        assert!(serde_json::from_str::<Vector>("{}").is_err());
    }
}
