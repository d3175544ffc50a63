//! The chat template that a GGUF file carries.
//!
//! State: none. Callers: `models::ingest`, which refuses one that is no text or too long, and `ModelStore`, at a load.
//! It is hostile code: nothing here reads it beyond its length (`text` renders it, bounded).

use super::reader::{Gguf, Value};
use super::{GgufError, invalid};

/// The key of the default template.
const KEY: &str = "tokenizer.chat_template";
/// The longest template that is taken, in bytes; the catalog's bound for its own is the same.
const MAX_BYTES: usize = 64 << 10;

/// The template's Jinja source; `None` where the file has none.
///
/// # Errors
/// [`GgufError::Invalid`] for one that is no UTF-8 text or longer than 64 KiB.
pub fn template(gguf: &Gguf) -> Result<Option<&str>, GgufError> {
    let bytes = match gguf.metadata.get(KEY) {
        None => return Ok(None),
        Some(Value::String(bytes)) => bytes,
        Some(_) => return invalid(format!("{KEY} is no text")),
    };
    if bytes.len() > MAX_BYTES {
        return invalid(format!(
            "{KEY} has {} bytes, at most {MAX_BYTES} are taken",
            bytes.len()
        ));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(_) => invalid(format!("{KEY} is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(value: Option<Value>) -> Gguf {
        let mut gguf = Gguf::default();
        if let Some(value) = value {
            gguf.metadata.insert(String::from(KEY), value);
        }
        gguf
    }

    #[test]
    fn a_template_is_a_text_of_bounded_length() {
        let text = |length: usize| Some(Value::String(vec![b'x'; length]));
        assert_eq!(template(&file(None)).expect("none"), None);
        assert_eq!(template(&file(text(0))).expect("empty"), None);
        assert_eq!(template(&file(text(3))).expect("a template"), Some("xxx"));
        assert!(template(&file(text(MAX_BYTES))).is_ok());
        for bad in [
            text(MAX_BYTES + 1),
            Some(Value::String(vec![0xff])),
            Some(Value::Strings(vec![b"x".to_vec()])),
        ] {
            assert!(template(&file(bad)).is_err());
        }
    }
}
