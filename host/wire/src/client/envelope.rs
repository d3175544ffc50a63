//! The JSON-RPC 2.0 envelope: one object per line, read before its params are looked at.
//!
//! No state. A request's `params` stay raw JSON until the method is known, so that the order of keys does not matter
//! and a text that is no Unicode fails its own item only. What the methods mean is not known here.
//!
//! Policy (OQ-27): arrays of requests are refused; unknown and repeated keys are refused by name; an id is a string of
//! at most 256 bytes or a 64-bit integer; a request without id is a notification, for which nothing is answered.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, DeserializeOwned, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::error::ErrorObject;
use crate::framing::{MAX_DEPTH, depth_within};

/// The longest string id, in bytes.
pub const MAX_ID_BYTES: usize = 256;

/// A request's id, chosen by the client and echoed in the answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Id {
    /// A 64-bit integer.
    Number(i64),
    /// A string of at most [`MAX_ID_BYTES`] bytes.
    Text(String),
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl From<i64> for Id {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an id: a string of at most {MAX_ID_BYTES} bytes or a 64-bit integer")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Id, E> {
                Ok(Id::Number(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Id, E> {
                i64::try_from(number)
                    .map(Id::Number)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Id, E> {
                if text.len() > MAX_ID_BYTES {
                    return Err(E::invalid_length(text.len(), &self));
                }
                Ok(Id::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Id {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Id".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A request's id: a string of at most 256 bytes or a 64-bit integer.",
            "oneOf": [{"type": "integer"}, {"type": "string", "maxLength": MAX_ID_BYTES}]
        })
    }
}

/// One request, with its params unread.
#[derive(Clone, Debug)]
pub struct Request {
    /// The id; `None` for a notification.
    pub id: Option<Id>,
    /// The operation's name, as sent.
    pub method: String,
    /// The params, as sent; read them with [`parse_params`].
    pub params: Option<Box<RawValue>>,
}

/// Which JSON-RPC integer a broken envelope gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvelopeFault {
    /// Not JSON: -32700.
    Parse,
    /// JSON, but no request: -32600.
    Invalid,
}

/// A line that is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EnvelopeError {
    /// Which integer.
    pub fault: EnvelopeFault,
    /// The id, where the line let it be read.
    pub id: Option<Id>,
    /// What was wrong and what was expected.
    pub message: String,
}

impl EnvelopeError {
    fn new(fault: EnvelopeFault, message: impl Into<String>) -> Self {
        Self {
            fault,
            id: None,
            message: message.into(),
        }
    }
}

/// `null` is not the same as absent: what is there must be of its type.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    let found = String::deserialize(deserializer)?;
    if found == "2.0" {
        return Ok(());
    }
    Err(de::Error::invalid_value(de::Unexpected::Str(&found), &"\"2.0\""))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestShape {
    #[serde(deserialize_with = "version")]
    #[expect(dead_code, reason = "the version is checked while it is read")]
    jsonrpc: (),
    #[serde(default, deserialize_with = "present")]
    id: Option<Id>,
    method: String,
    #[serde(default, deserialize_with = "present")]
    params: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct IdOnly {
    #[serde(default, deserialize_with = "present")]
    id: Option<Id>,
}

/// Reads one line (without its newline) as a request. The depth is checked before any JSON is read.
///
/// # Errors
/// [`EnvelopeError`] says whether it was no JSON at all or no request.
pub fn parse_request(line: &[u8]) -> Result<Request, EnvelopeError> {
    let text = std::str::from_utf8(line).map_err(|error| {
        EnvelopeError::new(
            EnvelopeFault::Parse,
            format!("the line is not UTF-8: invalid byte at offset {}", error.valid_up_to()),
        )
    })?;
    if !depth_within(line, MAX_DEPTH) {
        return Err(EnvelopeError::new(
            EnvelopeFault::Invalid,
            format!("the line nests deeper than {MAX_DEPTH} levels"),
        ));
    }
    match serde_json::from_str::<RequestShape>(text) {
        Ok(shape) => Ok(Request {
            id: shape.id,
            method: shape.method,
            params: shape.params,
        }),
        Err(error) => Err(explain(text, &error)),
    }
}

/// Tells a line that is no JSON from one that is no request, and finds the id where it can be read.
fn explain(text: &str, error: &serde_json::Error) -> EnvelopeError {
    // A wrong field is reported before what follows it is read: only a second look tells that the rest is JSON.
    if let Err(syntax) = serde_json::from_str::<IgnoredAny>(text) {
        return EnvelopeError::new(EnvelopeFault::Parse, format!("the line is not JSON: {syntax}"));
    }
    if text.trim_start().starts_with('[') {
        return EnvelopeError::new(
            EnvelopeFault::Invalid,
            "arrays of requests are not served: send one object per line",
        );
    }
    EnvelopeError {
        fault: EnvelopeFault::Invalid,
        id: serde_json::from_str::<IdOnly>(text).ok().and_then(|only| only.id),
        message: format!("the line is not a JSON-RPC 2.0 request: {}", without_position(error)),
    }
}

/// Params that an operation does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParamsError(pub String);

/// Reads the params of an operation. Absent params are those of an empty object.
///
/// # Errors
/// [`ParamsError`] names the field that is unknown, missing, repeated or of the wrong type.
pub fn parse_params<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, ParamsError> {
    let text = params.map_or("{}", RawValue::get);
    if !text.trim_start().starts_with('{') {
        return Err(ParamsError("params must be an object with named fields".to_owned()));
    }
    serde_json::from_str(text).map_err(|error| ParamsError(without_position(&error)))
}

/// serde's message without "at line 1 column n", which says nothing about a one-line object.
fn without_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

/// What every answer carries besides its own content (API-13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stamp {
    /// The daemon's name for the request; its log lines carry it too.
    pub request_id: String,
    /// The daemon's start number: it changes exactly when the daemon restarts.
    pub module_generation: u64,
}

/// A result as it stands on the wire: the stamp's fields beside the result's own.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Stamped<R> {
    /// Request id and module generation.
    #[serde(flatten)]
    pub stamp: Stamp,
    /// The operation's own fields.
    #[serde(flatten)]
    pub result: R,
}

impl<R: DeserializeOwned> Stamped<R> {
    /// Reads a result, ignoring fields that this version does not know.
    ///
    /// # Errors
    /// A message that names the field that is missing or of the wrong type.
    pub fn read(raw: &RawValue) -> Result<Self, ParamsError> {
        let read = || -> Result<Self, serde_json::Error> {
            Ok(Self {
                stamp: serde_json::from_str(raw.get())?,
                result: serde_json::from_str(raw.get())?,
            })
        };
        read().map_err(|error| ParamsError(without_position(&error)))
    }
}

/// An answer, with its result unread.
#[derive(Clone, Debug)]
pub struct Response {
    /// The request's id; `None` where the daemon could not read one.
    pub id: Option<Id>,
    /// The result ([`Stamped::read`]) or the error.
    pub outcome: Result<Box<RawValue>, ErrorObject>,
}

#[derive(Deserialize)]
struct ResponseShape {
    #[serde(deserialize_with = "version")]
    #[expect(dead_code, reason = "the version is checked while it is read")]
    jsonrpc: (),
    #[serde(default)]
    id: Option<Id>,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<ErrorObject>,
}

/// Reads one line as an answer. For clients.
///
/// # Errors
/// [`EnvelopeError`] for a line that is no answer.
pub fn parse_response(line: &[u8]) -> Result<Response, EnvelopeError> {
    if !depth_within(line, MAX_DEPTH) {
        return Err(EnvelopeError::new(
            EnvelopeFault::Invalid,
            format!("the answer nests deeper than {MAX_DEPTH} levels"),
        ));
    }
    let shape: ResponseShape = serde_json::from_slice(line).map_err(|error| {
        let fault = match error.classify() {
            Category::Data => EnvelopeFault::Invalid,
            _ => EnvelopeFault::Parse,
        };
        EnvelopeError::new(fault, format!("not a JSON-RPC 2.0 answer: {error}"))
    })?;
    let outcome = match (shape.result, shape.error) {
        (Some(result), None) => Ok(result),
        (None, Some(error)) => Err(error),
        _ => {
            return Err(EnvelopeError {
                fault: EnvelopeFault::Invalid,
                id: shape.id,
                message: "an answer holds either a result or an error".to_owned(),
            });
        }
    };
    Ok(Response { id: shape.id, outcome })
}

#[derive(Serialize)]
struct RequestLine<'a, P> {
    jsonrpc: &'static str,
    id: &'a Id,
    method: &'a str,
    params: &'a P,
}

#[derive(Serialize)]
struct ResultLine<'a, R> {
    jsonrpc: &'static str,
    id: &'a Id,
    result: StampedRef<'a, R>,
}

#[derive(Serialize)]
struct StampedRef<'a, R> {
    #[serde(flatten)]
    stamp: &'a Stamp,
    #[serde(flatten)]
    result: &'a R,
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    jsonrpc: &'static str,
    id: Option<&'a Id>,
    error: &'a ErrorObject,
}

/// A value that has no JSON form, for example a [`Text`](super::Text) that is none.
#[derive(Debug, thiserror::Error)]
#[error("the message cannot be written as JSON: {0}")]
pub struct EncodeError(#[from] serde_json::Error);

fn line(value: &impl Serialize) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes a request as one line, newline included.
///
/// # Errors
/// [`EncodeError`] where the params have no JSON form.
pub fn encode_request<P: Serialize>(id: &Id, method: &str, params: &P) -> Result<Vec<u8>, EncodeError> {
    line(&RequestLine {
        jsonrpc: "2.0",
        id,
        method,
        params,
    })
}

/// Writes a result as one line, newline included. The stamp is part of every result (API-13).
///
/// # Errors
/// [`EncodeError`] where the result has no JSON form.
pub fn encode_result<R: Serialize>(id: &Id, stamp: &Stamp, result: &R) -> Result<Vec<u8>, EncodeError> {
    line(&ResultLine {
        jsonrpc: "2.0",
        id,
        result: StampedRef { stamp, result },
    })
}

/// Writes an error as one line, newline included; `id` is `None` where the request's could not be read.
///
/// # Errors
/// [`EncodeError`]; cannot happen with an error of this crate's types, which hold only strings and integers.
pub fn encode_error(id: Option<&Id>, error: &ErrorObject) -> Result<Vec<u8>, EncodeError> {
    line(&ErrorLine {
        jsonrpc: "2.0",
        id,
        error,
    })
}

#[cfg(test)]
mod tests;
