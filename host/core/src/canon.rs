//! The canonical form that hashes are taken over: RFC 8785 (JSON Canonicalization Scheme).
//!
//! State: none. Callers: [`crate::fingerprint`] for its hash inputs, the catalog for JSON configs of models. This
//! module writes and never reads JSON: a parser (one per crate that reads JSON) hands it a [`Value`] and has to refuse
//! duplicate keys itself, because a map cannot show them any more.
//!
//! RFC 8785 in short: no white space; object keys sorted by UTF-16 code units; numbers as ECMAScript prints them;
//! in strings only `"`, `\` and the control characters below U+0020 are escaped.

use std::collections::BTreeMap;

use crate::digest::{Sha256Digest, sha256};

/// The deepest nesting that is written; a hostile config cannot overflow the stack.
pub const MAX_DEPTH: u32 = 128;

/// The largest integer (absolute value) that is written: 2^53 − 1. Beyond it two integers can be one double.
pub const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// A JSON value, before it is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`. In our hash inputs an absent key is left out, which is another value than `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer of at most [`MAX_SAFE_INTEGER`] in absolute value.
    Int(i64),
    /// A finite double. `Number(2.0)` and `Int(2)` have the same canonical form.
    Number(f64),
    /// A string.
    Str(String),
    /// An array; its order counts.
    Array(Vec<Value>),
    /// An object; keys are sorted when it is written.
    Object(BTreeMap<String, Value>),
}

impl Value {
    /// An object from key and value pairs; a later pair with the same key wins.
    pub fn object<K: Into<String>>(pairs: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self::Object(pairs.into_iter().map(|(k, v)| (k.into(), v)).collect())
    }

    /// A string value.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Str(text.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(i64::from(number))
    }
}

impl From<Sha256Digest> for Value {
    fn from(digest: Sha256Digest) -> Self {
        Self::Str(digest.to_string())
    }
}

/// Why a value has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CanonError {
    /// An integer of 2^53 or more.
    #[error("the integer {0} is outside ±(2^53 − 1): its canonical form would be ambiguous; write it as a string")]
    IntegerRange(i64),
    /// NaN or an infinity.
    #[error("a number is NaN or infinite: JSON has no form for it")]
    NotFinite,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A double in a hash input of ours.
    #[error("hash inputs hold strings and integers, found the number {0}")]
    FloatInHashInput(String),
    /// A non-ASCII key in a hash input of ours.
    #[error("hash inputs have ASCII keys, found {0:?}")]
    KeyNotAscii(String),
}

/// Writes `value` in its canonical form (RFC 8785), UTF-8.
///
/// # Errors
/// [`CanonError`] for integers beyond 2^53 − 1, numbers that are not finite, and nesting beyond [`MAX_DEPTH`].
pub fn to_bytes(value: &Value) -> Result<Vec<u8>, CanonError> {
    let mut out = Vec::new();
    write(value, 0, &mut out)?;
    Ok(out)
}

/// The digest of one of our hash inputs: SHA-256 over `domain`, a zero byte, and the canonical form.
///
/// The domain (for example `synapse.numeric_profile.v1`) keeps two kinds of hash apart even where their inputs are
/// the same bytes.
///
/// # Errors
/// As [`to_bytes`]; besides, hash inputs hold no [`Value::Number`] and no key outside ASCII (DECISIONS, fingerprint).
pub fn domain_hash(domain: &str, value: &Value) -> Result<Sha256Digest, CanonError> {
    refuse_loose(value, 0)?;
    hash_unchecked(domain, value)
}

/// The keys of a model's JSON config that say who wrote it and with what, and nothing about the arithmetic.
pub const BOOKKEEPING_KEYS: [&str; 2] = ["_name_or_path", "transformers_version"];

/// The digest by which a model's JSON config enters the model digest: its canonical form, numbers included, without
/// the top-level [`BOOKKEEPING_KEYS`]. Activation, eps and RoPE settings count; white space, key order and the path
/// that a trainer once used do not (FPR-01).
///
/// # Errors
/// As [`to_bytes`].
pub fn config_digest(config: &Value) -> Result<Sha256Digest, CanonError> {
    const DOMAIN: &str = "synapse.model_config.v1";
    match config {
        Value::Object(map) => {
            let mut kept = map.clone();
            for key in BOOKKEEPING_KEYS {
                kept.remove(key);
            }
            hash_unchecked(DOMAIN, &Value::Object(kept))
        }
        other => hash_unchecked(DOMAIN, other),
    }
}

fn hash_unchecked(domain: &str, value: &Value) -> Result<Sha256Digest, CanonError> {
    let mut bytes = Vec::with_capacity(domain.len() + 1);
    bytes.extend_from_slice(domain.as_bytes());
    bytes.push(0);
    write(value, 0, &mut bytes)?;
    Ok(sha256(&bytes))
}

fn refuse_loose(value: &Value, depth: u32) -> Result<(), CanonError> {
    if depth > MAX_DEPTH {
        return Err(CanonError::TooDeep);
    }
    match value {
        Value::Number(number) => Err(CanonError::FloatInHashInput(number.to_string())),
        Value::Array(items) => items.iter().try_for_each(|item| refuse_loose(item, depth + 1)),
        Value::Object(map) => map.iter().try_for_each(|(key, item)| {
            if key.is_ascii() {
                refuse_loose(item, depth + 1)
            } else {
                Err(CanonError::KeyNotAscii(key.chars().take(80).collect()))
            }
        }),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Str(_) => Ok(()),
    }
}

fn write(value: &Value, depth: u32, out: &mut Vec<u8>) -> Result<(), CanonError> {
    if depth > MAX_DEPTH {
        return Err(CanonError::TooDeep);
    }
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Int(number) if number.unsigned_abs() > MAX_SAFE_INTEGER.unsigned_abs() => {
            return Err(CanonError::IntegerRange(*number));
        }
        Value::Int(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Value::Number(number) if !number.is_finite() => return Err(CanonError::NotFinite),
        Value::Number(number) => out.extend_from_slice(ryu_js::Buffer::new().format_finite(*number).as_bytes()),
        Value::Str(text) => write_text(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(item, depth + 1, out)?;
            }
            out.push(b']');
        }
        Value::Object(map) => {
            // The map's own order is by UTF-8 bytes, which differs from UTF-16 above the surrogates' place.
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| a.0.encode_utf16().cmp(b.0.encode_utf16()));
            out.push(b'{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_text(key, out);
                out.push(b':');
                write(item, depth + 1, out)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0x00..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &Value) -> String {
        String::from_utf8(to_bytes(value).expect("the value has a canonical form")).expect("UTF-8")
    }

    /// RFC 8785, appendix B: bits of a double and what ECMAScript prints.
    #[test]
    fn numbers_of_appendix_b() {
        let table: [(u64, &str); 24] = [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ];
        for (bits, expected) in table {
            assert_eq!(written(&Value::Number(f64::from_bits(bits))), expected, "{bits:016x}");
        }
        for bits in [0x7fff_ffff_ffff_ffff, 0x7ff0_0000_0000_0000, 0xfff0_0000_0000_0000] {
            assert_eq!(
                to_bytes(&Value::Number(f64::from_bits(bits))),
                Err(CanonError::NotFinite)
            );
        }
    }

    /// RFC 8785, 3.2.2: the sample of literals, numbers and string escapes.
    #[test]
    fn sample_of_section_3_2_2() {
        let value = Value::object([
            (
                "numbers",
                Value::Array(
                    [333_333_333.333_333_3, 1e30, 4.5, 2e-3, 1e-27]
                        .map(Value::Number)
                        .to_vec(),
                ),
            ),
            (
                "string",
                Value::text("\u{20ac}$\u{000f}\u{000a}A'B\u{0022}\u{005c}\\\"/"),
            ),
            (
                "literals",
                Value::Array(vec![Value::Null, Value::Bool(true), Value::Bool(false)]),
            ),
        ]);
        let expected = concat!(
            r#"{"literals":[null,true,false],"#,
            r#""numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
            r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        assert_eq!(written(&value), expected);
    }

    /// RFC 8785, 3.2.3: keys by UTF-16 code units, where the emoji's surrogates come before U+FB33.
    #[test]
    fn key_order_of_section_3_2_3() {
        let names = ["\u{20ac}", "\r", "\u{fb33}", "1", "\u{1f600}", "\u{80}", "\u{f6}"];
        let text = written(&Value::object(names.map(|name| (name, Value::Int(0)))));
        assert_eq!(
            text,
            "{\"\\r\":0,\"1\":0,\"\u{80}\":0,\"\u{f6}\":0,\"\u{20ac}\":0,\"\u{1f600}\":0,\"\u{fb33}\":0}"
        );
    }

    #[test]
    fn control_characters() {
        let all: String = (0..0x20u8).map(char::from).chain(['\u{7f}']).collect();
        let expected = concat!(
            r#""\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f"#,
            r#"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e\u001f"#,
            "\u{7f}\""
        );
        assert_eq!(written(&Value::Str(all)), expected);
    }

    #[test]
    fn integers_stop_at_2_pow_53() {
        assert_eq!(written(&Value::Int(MAX_SAFE_INTEGER)), "9007199254740991");
        assert_eq!(written(&Value::Int(-MAX_SAFE_INTEGER)), "-9007199254740991");
        for beyond in [MAX_SAFE_INTEGER + 1, -MAX_SAFE_INTEGER - 1, i64::MAX, i64::MIN] {
            assert_eq!(to_bytes(&Value::Int(beyond)), Err(CanonError::IntegerRange(beyond)));
        }
        assert_eq!(to_bytes(&Value::Int(2)), to_bytes(&Value::Number(2.0)));
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: u32| (0..levels).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        assert!(to_bytes(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(to_bytes(&nested(MAX_DEPTH + 1)), Err(CanonError::TooDeep));
        assert_eq!(domain_hash("test.v1", &nested(MAX_DEPTH + 1)), Err(CanonError::TooDeep));
    }

    /// Bookkeeping at the top does not count; every other key and every number does.
    #[test]
    fn config_digests() {
        let config = |extra: &[(&str, Value)]| {
            let mut pairs = vec![
                ("hidden_act", Value::text("gelu")),
                ("layer_norm_eps", Value::Number(1e-12)),
            ];
            pairs.extend(extra.iter().cloned());
            config_digest(&Value::object(pairs)).expect("a canonical form")
        };
        let base = config(&[]);
        assert_eq!(
            config(&[
                ("_name_or_path", Value::text("x")),
                ("transformers_version", Value::text("5"))
            ]),
            base
        );
        assert_ne!(config(&[("rope_theta", Value::Number(1e4))]), base);
        assert_ne!(config(&[("layer_norm_eps", Value::Number(1e-5))]), base);
        assert_ne!(
            config(&[("inner", Value::object([("_name_or_path", Value::text("x"))]))]),
            config(&[("inner", Value::object::<&str>([]))])
        );
    }
}
