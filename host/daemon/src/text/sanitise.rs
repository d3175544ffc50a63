//! Sanitising: a published `tokenizer.json` becomes the form that the host trusts and keeps (TOK-02, CACHE-12).
//!
//! State: none. Callers: `models/ingest.rs`, once for each model. Not known here: where the file came from and where
//! the result is kept.
//!
//! Removed: padding, truncation, dropout, unknown top-level keys. (The published all-MiniLM-L6-v2 pads every text to
//! 128 tokens, which ruins mean pooling.) Marked: every control token, also those that the file forgot to mark.
//! Refused: ids outside the model's table, tokens that a template uses and the vocabulary lacks, patterns that can
//! take exponential time, and whatever the library would accept and then get wrong. The result is in canonical form,
//! so its digest does not depend on white space or key order.

use std::collections::{BTreeMap, BTreeSet};

use synapse_core::canon::{self, Value};
use synapse_core::digest::{Sha256Digest, sha256};

use super::json_guard::{self, Caps, Fields};
use super::tokenizer::Tokenizer;
use super::{TextError, control, pattern};

/// What a published tokenizer may cost. The largest in wide use (262,144 entries with merges) has 33 MB.
pub const CAPS: Caps = Caps {
    bytes: 64 << 20,
    depth: 24,
    nodes: 8_000_000,
};
/// The most bytes of one vocabulary entry; bounds what a search at one position of a text can cost.
const MAX_TOKEN_BYTES: usize = 1024;
/// The most added tokens.
const MAX_ADDED: usize = 100_000;
/// WordPiece tries every prefix of a word: the longest word that it may try.
const MAX_WORD_CHARS: i64 = 1000;
/// The keys of a tokenizer file that are kept.
const KEPT: [&str; 8] = [
    "version",
    "added_tokens",
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
    "model",
    "padding",
];

/// A sanitised tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sanitised {
    /// The file to keep, in canonical form.
    pub bytes: Vec<u8>,
    /// Its SHA-256 (TOK-03).
    pub digest: Sha256Digest,
}

/// Sanitises a published `tokenizer.json`. `embedding_rows` is the length of the model's embedding table (the
/// config's `vocab_size`), where it is known: no id may reach it.
///
/// # Errors
/// [`TextError::Refused`] says what is wrong.
pub fn sanitise(published: &[u8], embedding_rows: Option<u32>) -> Result<Sanitised, TextError> {
    let refuse = |reason: String| TextError::Refused(reason);
    let document = json_guard::parse(published, CAPS).map_err(|error| refuse(error.to_string()))?;
    let Value::Object(mut top) = document else {
        return Err(refuse(String::from("expected an object at the top")));
    };
    let limit = i64::from(embedding_rows.unwrap_or(1 << 31).min(1 << 31));
    top.retain(|key, _| KEPT.contains(&key.as_str()));
    let padding = top.remove("padding").unwrap_or(Value::Null);

    let vocabulary = {
        let model = top
            .get_mut("model")
            .ok_or_else(|| refuse(String::from("has no `model`")))?;
        if let Value::Object(model) = model
            && model.contains_key("dropout")
        {
            model.insert(String::from("dropout"), Value::Null);
        }
        Vocabulary::read(model, limit).map_err(refuse)?
    };
    for component in ["normalizer", "pre_tokenizer", "decoder"] {
        if let Some(component) = top.get(component) {
            pattern::check(component).map_err(refuse)?;
        }
    }
    let processor = top.get("post_processor").unwrap_or(&Value::Null);
    let inserted = control::post_processor_tokens(processor);
    let mut control: BTreeSet<String> = inserted.iter().map(|(surface, _)| surface.clone()).collect();
    control.extend(vocabulary.unknown.clone());
    control.extend(
        padding
            .member("pad_token")
            .and_then(Fields::as_text)
            .filter(|token| vocabulary.ids.contains_key(*token))
            .map(str::to_owned),
    );
    control.extend(
        vocabulary
            .ids
            .keys()
            .filter(|token| control::known_name(token))
            .cloned(),
    );

    let mut added = read_added(top.get("added_tokens"), &vocabulary, limit).map_err(refuse)?;
    let by_surface: BTreeMap<&str, i64> = added.iter().map(|token| (token.surface.as_str(), token.id)).collect();
    let id_of = |surface: &str| by_surface.get(surface).or_else(|| vocabulary.ids.get(surface)).copied();
    let known_ids: BTreeSet<i64> = vocabulary.ids.values().chain(by_surface.values()).copied().collect();
    for (surface, ids) in &inserted {
        for &id in ids {
            if id < 0 || id >= limit || !known_ids.contains(&id) {
                return Err(refuse(format!(
                    "the post-processor inserts id {id} for {surface:?}, which no token has"
                )));
            }
            if ids.len() == 1 && id_of(surface).is_some_and(|own| own != id) {
                return Err(refuse(format!(
                    "the post-processor inserts id {id} for {surface:?}, whose id is another one"
                )));
            }
        }
    }
    let missing: Vec<Added> = control
        .iter()
        .filter(|surface| !by_surface.contains_key(surface.as_str()))
        .filter_map(|surface| {
            Some(Added {
                id: *vocabulary.ids.get(surface)?,
                surface: surface.clone(),
                value: None,
            })
        })
        .collect();
    drop(by_surface);
    added.extend(missing);
    let mut marked = Vec::with_capacity(added.len());
    for token in &added {
        let special = token.is_special() || control.contains(&token.surface) || control::marker_shape(&token.surface);
        if special && token.surface.chars().nth(1).is_none() {
            return Err(refuse(format!(
                "the control token {:?} is one character, so text could not be told from it",
                token.surface
            )));
        }
        marked.push(token.to_value(special));
    }
    top.insert(String::from("added_tokens"), Value::Array(marked));
    top.insert(String::from("padding"), Value::Null);
    top.insert(String::from("truncation"), Value::Null);

    let bytes = canon::to_bytes(&Value::Object(top)).map_err(|error| refuse(error.to_string()))?;
    // The library has the last word: it must load, give each added token the id that the file declares, and encode.
    let loaded = Tokenizer::from_sanitised(&bytes)?;
    for token in &added {
        loaded.expect_added(&token.surface, token.id)?;
    }
    let digest = sha256(&bytes);
    Ok(Sanitised { bytes, digest })
}

/// The model's own entries.
struct Vocabulary {
    ids: BTreeMap<String, i64>,
    unknown: Option<String>,
}

impl Vocabulary {
    fn read(model: &Value, limit: i64) -> Result<Self, String> {
        let kind = model.member("type").and_then(Fields::as_text);
        if let Some(kind) = kind
            && !["WordPiece", "WordLevel", "BPE", "Unigram"].contains(&kind)
        {
            let shown: String = kind.chars().take(40).collect();
            return Err(format!(
                "the model type {shown:?} is unknown; WordPiece, WordLevel, BPE and Unigram are supported"
            ));
        }
        let mut ids = BTreeMap::new();
        let mut insert = |surface: &str, id: i64| {
            let shown: String = surface.chars().take(40).collect();
            if surface.len() > MAX_TOKEN_BYTES {
                return Err(format!("the entry {shown:?}… is longer than {MAX_TOKEN_BYTES} bytes"));
            }
            if id < 0 || id >= limit {
                return Err(format!(
                    "the entry {shown:?} has id {id}; the model's table ends at {limit}"
                ));
            }
            ids.insert(surface.to_owned(), id);
            Ok(())
        };
        let mut unknown_piece = None;
        match model.member("vocab") {
            Some(Value::Object(vocab)) => {
                for (surface, id) in vocab {
                    let id = id
                        .as_int()
                        .ok_or_else(|| format!("an entry's id is not an integer: {:.40}", format!("{id:?}")))?;
                    insert(surface, id)?;
                }
            }
            Some(Value::Array(pieces)) => {
                let unknown_index = match model.member("unk_id") {
                    None => None,
                    Some(id) => Some(
                        id.as_int()
                            .and_then(|id| usize::try_from(id).ok())
                            .filter(|&id| id < pieces.len())
                            .ok_or("`unk_id` is outside the vocabulary")?,
                    ),
                };
                for (index, piece) in pieces.iter().enumerate() {
                    let Some([Value::Str(surface), Value::Int(_) | Value::Number(_)]) = piece.as_array() else {
                        return Err(format!("piece {index} is not a pair of text and score"));
                    };
                    insert(surface, i64::try_from(index).unwrap_or(i64::MAX))?;
                    if Some(index) == unknown_index {
                        unknown_piece = Some(surface.clone());
                    }
                }
            }
            _ => return Err(String::from("the model has no vocabulary")),
        }
        if ids.is_empty() {
            return Err(String::from("the vocabulary is empty"));
        }
        let unknown = match model.member("unk_token").and_then(Fields::as_text) {
            Some(surface) if !ids.contains_key(surface) => {
                return Err(format!(
                    "the unknown token {surface:?} is not in the vocabulary, so unknown words would fail"
                ));
            }
            Some(surface) => Some(surface.to_owned()),
            None => unknown_piece,
        };
        if kind == Some("WordPiece") && unknown.is_none() {
            return Err(String::from("a WordPiece model needs an unknown token"));
        }
        if let Some(limit) = model.member("max_input_chars_per_word")
            && !limit
                .as_int()
                .is_some_and(|chars| (0..=MAX_WORD_CHARS).contains(&chars))
        {
            return Err(format!("`max_input_chars_per_word` is not within 0..={MAX_WORD_CHARS}"));
        }
        for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if model
                .member(affix)
                .and_then(Fields::as_text)
                .is_some_and(|affix| affix.len() > 64)
            {
                return Err(format!("`{affix}` is longer than 64 bytes"));
            }
        }
        Ok(Self { ids, unknown })
    }
}

/// One added token.
struct Added {
    id: i64,
    surface: String,
    /// As published; `None` for one that sanitising adds.
    value: Option<BTreeMap<String, Value>>,
}

impl Added {
    fn is_special(&self) -> bool {
        self.value
            .as_ref()
            .is_some_and(|value| value.get("special") == Some(&Value::Bool(true)))
    }

    fn to_value(&self, special: bool) -> Value {
        let flag = |key: &str| {
            let set = self.value.as_ref().and_then(|value| value.get(key)) == Some(&Value::Bool(true));
            (key.to_owned(), Value::Bool(set))
        };
        Value::object([
            (String::from("id"), Value::Int(self.id)),
            (String::from("content"), Value::text(self.surface.clone())),
            flag("single_word"),
            flag("lstrip"),
            flag("rstrip"),
            flag("normalized"),
            (String::from("special"), Value::Bool(special)),
        ])
    }
}

fn read_added(added: Option<&Value>, vocabulary: &Vocabulary, limit: i64) -> Result<Vec<Added>, String> {
    let items = match added {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(String::from("`added_tokens` is not a list")),
    };
    if items.len() > MAX_ADDED {
        return Err(format!("more than {MAX_ADDED} added tokens"));
    }
    let mut seen = BTreeMap::new();
    let mut tokens = Vec::with_capacity(items.len());
    for item in items {
        let value = item.as_object().ok_or("an added token is not an object")?;
        let (Some(surface), Some(id)) = (
            item.member("content").and_then(Fields::as_text),
            item.member("id").and_then(Fields::as_int),
        ) else {
            return Err(String::from("an added token lacks its `id` or `content`"));
        };
        let shown: String = surface.chars().take(40).collect();
        if surface.is_empty() || surface.len() > MAX_TOKEN_BYTES {
            return Err(format!(
                "the added token {shown:?} is empty or longer than {MAX_TOKEN_BYTES} bytes"
            ));
        }
        if id < 0 || id >= limit {
            return Err(format!(
                "the added token {shown:?} has id {id}; the model's table ends at {limit}"
            ));
        }
        if vocabulary.ids.get(surface).is_some_and(|&own| own != id) {
            return Err(format!(
                "the added token {shown:?} has id {id}, but another one in the vocabulary"
            ));
        }
        if seen.insert(surface.to_owned(), id).is_some() {
            return Err(format!("the added token {shown:?} stands twice"));
        }
        tokens.push(Added {
            id,
            surface: surface.to_owned(),
            value: Some(value.clone()),
        });
    }
    Ok(tokens)
}
