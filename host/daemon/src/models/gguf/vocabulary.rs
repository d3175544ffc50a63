//! The vocabulary of a header, for `text` to make a tokenizer of.
//!
//! State: none. Callers: `models`. Not known here: what a vocabulary family does (`text/vocabulary.rs`).

use super::reader::{Gguf, Value};
use super::{GgufError, invalid};
use crate::text::vocabulary::{Entry, EntryKind, MAX_ENTRIES, MAX_MERGES, Vocabulary};

/// Reads the vocabulary.
///
/// # Errors
/// [`GgufError`] where there is none, where it is not text, or where it has more entries or merges than are taken.
pub fn read(gguf: &Gguf) -> Result<Vocabulary, GgufError> {
    let model = required(gguf, "model")?;
    let Some(Value::Strings(tokens)) = gguf.metadata.get("tokenizer.ggml.tokens") else {
        return invalid("the file carries no vocabulary (tokenizer.ggml.tokens)");
    };
    if tokens.len() > MAX_ENTRIES {
        return invalid(format!("{} tokens, at most {MAX_ENTRIES} are taken", tokens.len()));
    }
    let scores = floats(gguf, "scores")?;
    let kinds = integers(gguf, "token_type")?;
    let mut entries = Vec::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        let Ok(text) = std::str::from_utf8(token) else {
            return invalid(format!("the vocabulary's entry {id} is not UTF-8"));
        };
        entries.push(Entry {
            text: text.to_owned(),
            score: scores.get(id).copied().unwrap_or_default(),
            kind: match kinds.get(id).copied() {
                None => EntryKind::Normal,
                Some(number) => kind(id, number)?,
            },
        });
    }
    Ok(Vocabulary {
        model,
        pre: gguf.text("tokenizer.ggml.pre").map(str::to_owned),
        entries,
        merges: merges(gguf)?,
        bos: id(gguf, "bos_token_id")?,
        eos: id(gguf, "eos_token_id")?,
        unknown: id(gguf, "unknown_token_id")?,
        add_bos: gguf.flag("tokenizer.ggml.add_bos_token"),
        add_eos: gguf.flag("tokenizer.ggml.add_eos_token"),
        add_space_prefix: gguf.flag("tokenizer.ggml.add_space_prefix"),
        lowercase: gguf.flag("tokenizer.ggml.normalizer.lowercase"),
    })
}

/// How the begin and the end token are spelled, for chat templates that write them; empty where the file names none.
#[must_use]
pub fn chat_tokens(gguf: &Gguf) -> (String, String) {
    let spelled = |key: &str| {
        let id = gguf.unsigned(&format!("tokenizer.ggml.{key}"))?;
        let Some(Value::Strings(tokens)) = gguf.metadata.get("tokenizer.ggml.tokens") else {
            return None;
        };
        String::from_utf8(tokens.get(usize::try_from(id).ok()?)?.clone()).ok()
    };
    (
        spelled("bos_token_id").unwrap_or_default(),
        spelled("eos_token_id").unwrap_or_default(),
    )
}

fn required(gguf: &Gguf, key: &str) -> Result<String, GgufError> {
    match gguf.text(&format!("tokenizer.ggml.{key}")) {
        Some(text) => Ok(text.to_owned()),
        None => invalid(format!("tokenizer.ggml.{key} is missing or no text")),
    }
}

fn id(gguf: &Gguf, key: &str) -> Result<Option<u32>, GgufError> {
    let key = format!("tokenizer.ggml.{key}");
    match (gguf.metadata.contains_key(&key), gguf.unsigned(&key)) {
        (false, _) => Ok(None),
        (true, Some(id)) => u32::try_from(id)
            .map(Some)
            .map_err(|_| GgufError::Invalid(format!("{key} {id} is no token id"))),
        (true, None) => invalid(format!("{key} is no token id")),
    }
}

fn floats<'g>(gguf: &'g Gguf, key: &str) -> Result<&'g [f32], GgufError> {
    match gguf.metadata.get(&format!("tokenizer.ggml.{key}")) {
        None => Ok(&[]),
        Some(Value::Floats(list)) => Ok(list),
        Some(_) => invalid(format!("tokenizer.ggml.{key} is no array of floats")),
    }
}

fn integers<'g>(gguf: &'g Gguf, key: &str) -> Result<&'g [i64], GgufError> {
    match gguf.metadata.get(&format!("tokenizer.ggml.{key}")) {
        None => Ok(&[]),
        Some(Value::Integers(list)) => Ok(list),
        Some(_) => invalid(format!("tokenizer.ggml.{key} is no array of integers")),
    }
}

fn merges(gguf: &Gguf) -> Result<Vec<String>, GgufError> {
    match gguf.metadata.get("tokenizer.ggml.merges") {
        None => Ok(Vec::new()),
        Some(Value::Strings(list)) if list.len() > MAX_MERGES => {
            invalid(format!("{} merges, at most {MAX_MERGES} are taken", list.len()))
        }
        Some(Value::Strings(list)) => list
            .iter()
            .enumerate()
            .map(|(at, merge)| match std::str::from_utf8(merge) {
                Ok(merge) => Ok(merge.to_owned()),
                Err(_) => invalid(format!("merge {at} is not UTF-8")),
            })
            .collect(),
        Some(_) => invalid("tokenizer.ggml.merges is no array of strings"),
    }
}

fn kind(id: usize, number: i64) -> Result<EntryKind, GgufError> {
    Ok(match number {
        1 => EntryKind::Normal,
        2 => EntryKind::Unknown,
        3 => EntryKind::Control,
        4 => EntryKind::UserDefined,
        5 => EntryKind::Unused,
        6 => EntryKind::Byte,
        other => return invalid(format!("the vocabulary's entry {id} is of the unknown type {other}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pairs: &[(&str, Value)]) -> Gguf {
        let mut gguf = Gguf::default();
        for (key, value) in pairs {
            gguf.metadata.insert(format!("tokenizer.ggml.{key}"), value.clone());
        }
        gguf
    }

    fn tokens(list: &[&[u8]]) -> (&'static str, Value) {
        (
            "tokens",
            Value::Strings(list.iter().map(|token| token.to_vec()).collect()),
        )
    }

    fn model() -> (&'static str, Value) {
        ("model", Value::String(b"llama".to_vec()))
    }

    #[test]
    fn a_vocabulary_is_read_as_it_stands() {
        let gguf = file(&[
            model(),
            tokens(&[b"<s>", b"a"]),
            ("scores", Value::Floats(vec![0.0, -1.5])),
            ("token_type", Value::Integers(vec![3, 1])),
            ("merges", Value::Strings(vec![b"a b".to_vec()])),
            ("bos_token_id", Value::Unsigned(0)),
            ("add_bos_token", Value::Bool(true)),
        ]);
        let read = read(&gguf).expect("a vocabulary");
        assert_eq!((read.model.as_str(), read.pre), ("llama", None));
        assert_eq!(read.entries[0].kind, EntryKind::Control);
        assert_eq!((read.entries[1].text.as_str(), read.entries[1].score), ("a", -1.5));
        assert_eq!(
            (read.merges, read.bos, read.eos),
            (vec![String::from("a b")], Some(0), None)
        );
        assert_eq!((read.add_bos, read.add_eos), (Some(true), None));
        assert_eq!(chat_tokens(&gguf), (String::from("<s>"), String::new()));
    }

    #[test]
    fn what_is_no_vocabulary_is_refused() {
        let many = Value::Strings(vec![Vec::new(); MAX_ENTRIES + 1]);
        let cases: [(&[(&str, Value)], &str); 10] = [
            (&[tokens(&[b"a"])], "model is missing"),
            (&[model()], "carries no vocabulary"),
            (&[model(), tokens(&[b"\xff"])], "entry 0 is not UTF-8"),
            (&[model(), ("tokens", many.clone())], "at most"),
            (&[model(), tokens(&[b"a"]), ("merges", many)], "at most"),
            (
                &[model(), tokens(&[b"a"]), ("merges", Value::Strings(vec![vec![0xff]]))],
                "merge 0 is not UTF-8",
            ),
            (
                &[model(), tokens(&[b"a"]), ("merges", Value::Bool(true))],
                "no array of strings",
            ),
            (
                &[model(), tokens(&[b"a"]), ("scores", Value::Bool(true))],
                "no array of floats",
            ),
            (
                &[model(), tokens(&[b"a"]), ("token_type", Value::Integers(vec![7]))],
                "unknown type 7",
            ),
            (
                &[model(), tokens(&[b"a"]), ("bos_token_id", Value::Signed(-1))],
                "no token id",
            ),
        ];
        for (pairs, words) in cases {
            let error = read(&file(pairs)).expect_err(words).to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
