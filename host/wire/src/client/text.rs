//! Texts as clients send them, and `text.tokenize`.
//!
//! No state. A text that is not valid Unicode (a lone surrogate escape such as `"\ud800"`) must fail its own item and
//! not the line that it came in, so [`Text`] keeps it as [`InvalidText`] and the service answers `invalid_text` for
//! that item. Tokens and templates are not known here.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use super::embed::Role;
use super::method::operation;

/// A text of a request: a string, or the knowledge that it was none.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(Result<String, InvalidText>);

/// A JSON string that spells no Unicode text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text holds half of a surrogate pair at byte {offset}; send whole characters")]
pub struct InvalidText {
    /// How many bytes of valid UTF-8 come before it.
    pub offset: usize,
}

impl Text {
    /// The text, or why there is none.
    ///
    /// # Errors
    /// [`InvalidText`] for a lone surrogate.
    pub fn as_str(&self) -> Result<&str, InvalidText> {
        self.0.as_deref().map_err(|invalid| *invalid)
    }

    /// Takes the text out.
    ///
    /// # Errors
    /// [`InvalidText`] for a lone surrogate.
    pub fn into_string(self) -> Result<String, InvalidText> {
        self.0
    }

    /// Its UTF-8 length in bytes; 0 for an invalid one, which is never tokenized.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.0.as_ref().map_or(0, String::len)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Ok(text))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Ok(text.to_owned()))
    }
}

/// Shows the length only: payload stays out of logs (LOG-11).
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(text) => write!(f, "Text({} bytes)", text.len()),
            Err(invalid) => write!(f, "Text(invalid at byte {})", invalid.offset),
        }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(text) => serializer.serialize_str(text),
            Err(invalid) => Err(ser::Error::custom(invalid)),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Bytes {
            fn read(bytes: Vec<u8>) -> Text {
                Text(String::from_utf8(bytes).map_err(|error| InvalidText {
                    offset: error.utf8_error().valid_up_to(),
                }))
            }
        }

        impl Visitor<'_> for Bytes {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text::from(text))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Text, E> {
                Ok(Text::from(text))
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Self::read(bytes.to_vec()))
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Text, E> {
                Ok(Self::read(bytes))
            }
        }

        // As bytes: serde_json then hands out a lone surrogate instead of failing the whole params.
        deserializer.deserialize_byte_buf(Bytes)
    }
}

impl JsonSchema for Text {
    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// Params of `text.tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeParams {
    /// A model id, or `MODEL@ENGINE[:VARIANT]`.
    pub model: String,
    /// The text. Any valid Unicode; strings that spell control tokens stay text.
    pub text: Text,
    /// Which template to apply; default `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Whether to cut at the model's length; default as the model's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
}

/// Result of `text.tokenize`: exactly what `embed.query` would give to the engine and report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenizeResult {
    /// The model id.
    pub model: String,
    /// SHA-256 of the tokenizer in the form used, lower-case hex.
    pub tokenizer_digest: String,
    /// The role applied.
    pub role: Role,
    /// The template applied, where the model has one for the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
    /// The token ids, special tokens included.
    pub ids: Vec<i32>,
    /// How many ids: equal to `effective_tokens`.
    pub count: u32,
    /// Tokens of the whole text.
    pub submitted_tokens: u32,
    /// Tokens that an engine would see.
    pub effective_tokens: u32,
    /// Whether something was cut off.
    pub truncated: bool,
    /// For each id the bytes `[start, end)` of the submitted text; `[0, 0]` where the token comes from a template or
    /// is a special one.
    pub offsets: Vec<[u32; 2]>,
}

operation!(
    /// `text.tokenize`.
    TextTokenize(TokenizeParams) -> TokenizeResult
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_surrogate_stays_in_its_own_text() {
        let texts: Vec<Text> =
            serde_json::from_str(r#"["a", "x\ud800y", "\udc00", "\ud83d\ude00", "é\u0000"]"#).unwrap();
        assert_eq!(texts[0].as_str(), Ok("a"));
        assert_eq!(texts[1].as_str(), Err(InvalidText { offset: 1 }));
        assert_eq!(texts[2].as_str(), Err(InvalidText { offset: 0 }));
        assert_eq!(texts[3].as_str(), Ok("😀"));
        assert_eq!(texts[4].as_str(), Ok("é\0"));
    }

    #[test]
    fn only_strings_are_texts() {
        for json in ["1", "null", "[65]", "{}", "true"] {
            assert!(serde_json::from_str::<Text>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn debug_never_shows_payload() {
        assert!(!format!("{:?}", Text::from("secret")).contains("secret"));
    }
}
