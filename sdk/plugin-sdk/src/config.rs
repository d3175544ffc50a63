//! The settings of `[engine.config]`: one JSON object of scalars, read here and nowhere else in the crate.
//!
//! Owns the parsed pairs. The plugin's list of keys is compared before any engine is made.

use std::collections::BTreeMap;

use crate::error::Error;

/// The most bytes of settings that are read.
const MAX_BYTES: usize = 64 * 1024;

/// The plugin's settings by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pairs: BTreeMap<String, String>,
}

impl Config {
    /// Reads a JSON object whose values are strings, numbers or booleans; an empty text is an empty object.
    ///
    /// # Errors
    /// CONFIG_INVALID when the text is no such object, or naming a key that is not in `known`.
    pub fn parse(json: &str, known: &[&str]) -> Result<Self, Error> {
        let bad = |what: String| Error::config_invalid(format!("engine.config: {what}"));
        if json.len() > MAX_BYTES {
            return Err(bad(format!("{} bytes, expected at most {MAX_BYTES}", json.len())));
        }
        if json.trim().is_empty() {
            return Ok(Self::default());
        }
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(json).map_err(|error| bad(format!("not a JSON object: {error}")))?;
        let mut pairs = BTreeMap::new();
        for (key, value) in object {
            if !known.contains(&key.as_str()) {
                return Err(bad(format!(
                    "unknown key `{}`, this plugin knows {known:?}",
                    key.escape_debug()
                )));
            }
            let text = match value {
                serde_json::Value::String(text) => text,
                serde_json::Value::Number(number) => number.to_string(),
                serde_json::Value::Bool(flag) => flag.to_string(),
                _ => return Err(bad(format!("key `{key}`: expected a string, a number or a boolean"))),
            };
            pairs.insert(key, text);
        }
        Ok(Self { pairs })
    }

    /// A setting, as text.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.get(key).map(String::as_str)
    }

    /// A setting of any type that parses from text.
    ///
    /// # Errors
    /// CONFIG_INVALID naming the key when the text does not parse.
    pub fn parsed<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, Error> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let wanted = std::any::type_name::<T>();
        let bad = |_| Error::config_invalid(format!("engine.config: key `{key}`: not a value of type {wanted}"));
        text.parse().map(Some).map_err(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::Config;
    use crate::api::ErrorCode;

    #[test]
    fn reads_scalars_and_refuses_unknown_keys_by_name() {
        let config = Config::parse(r#"{"a":"x","b":3,"c":true}"#, &["a", "b", "c"]).expect("valid");
        assert_eq!((config.get("a"), config.get("c")), (Some("x"), Some("true")));
        assert_eq!(config.parsed::<u32>("b"), Ok(Some(3)));
        assert_eq!(config.parsed::<u32>("d"), Ok(None));
        assert_eq!(config.parsed::<u32>("a").unwrap_err().code, ErrorCode::CONFIG_INVALID);
        assert_eq!(Config::parse("", &[]), Ok(Config::default()));
        for (json, names) in [
            (r#"{"zz":1}"#, "zz"),
            (r#"{"a":[]}"#, "a"),
            ("[1]", "JSON object"),
            ("{", "JSON object"),
        ] {
            let error = Config::parse(json, &["a"]).unwrap_err();
            assert_eq!(error.code, ErrorCode::CONFIG_INVALID);
            assert!(error.message.contains(names), "{error}");
        }
        assert!(Config::parse(&" ".repeat(70_000), &[]).is_err());
    }
}
