//! GGUF vocabularies: the tokenizer that a model file carries instead of a `tokenizer.json`.
//!
//! State: none. Callers: `models`, with what `models/gguf/vocabulary.rs` read from a header; the result goes the same
//! way as a published tokenizer (`text/sanitise.rs`). Not known here: files, headers, models.
//!
//! Three families of `tokenizer.ggml.model`, each a file: [`byte_level`] (`gpt2`), [`sentence_piece`] (`llama`) and
//! [`word_piece`] (`bert`). The reference is not llama.cpp but the tokenizer that the model was published with: a test
//! compares each with ids of that one. What cannot be compared is refused by name (DECISIONS "GGUF vocabularies").

mod byte_level;
mod sentence_piece;
mod word_piece;

use std::collections::BTreeMap;

use synapse_core::canon::{self, Value};

use super::{TextError, control};

/// Most entries: four times the largest vocabulary in wide use.
pub const MAX_ENTRIES: usize = 1 << 20;
/// Most merges, given or found: twice what the largest vocabulary in wide use has.
pub const MAX_MERGES: usize = 1 << 20;
/// Chat markers that files of older converters hold as ordinary entries, where no text could ever reach them.
const CHAT_MARKERS: [&str; 4] = ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"];

/// A vocabulary as a GGUF header has it. Nothing in it is checked yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// The family: `tokenizer.ggml.model`.
    pub model: String,
    /// The rule that cuts a text into words: `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// The entries; an entry's place is its id.
    pub entries: Vec<Entry>,
    /// The merges of a BPE, the first one first: `left right`.
    pub merges: Vec<String>,
    /// The begin token.
    pub bos: Option<u32>,
    /// The end token.
    pub eos: Option<u32>,
    /// The token for what the vocabulary lacks.
    pub unknown: Option<u32>,
    /// Whether a text begins with the begin token.
    pub add_bos: Option<bool>,
    /// Whether a text ends with the end token.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
    /// Whether case is folded (`bert` only).
    pub lowercase: Option<bool>,
}

/// One entry of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its text.
    pub text: String,
    /// Its score; the higher, the sooner it is merged.
    pub score: f32,
    /// What it is for.
    pub kind: EntryKind,
}

/// What an entry is for: `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A piece of text.
    Normal,
    /// Stands for what the vocabulary lacks.
    Unknown,
    /// Steers the model.
    Control,
    /// A piece of text that is found before all others.
    UserDefined,
    /// A place without a meaning.
    Unused,
    /// One byte.
    Byte,
}

/// Writes a vocabulary as a `tokenizer.json`.
///
/// # Errors
/// [`TextError::Refused`] says what is wrong or not supported.
pub fn tokenizer_json(vocabulary: &Vocabulary) -> Result<Vec<u8>, TextError> {
    write(vocabulary).map_err(|reason| TextError::Refused(format!("the GGUF's vocabulary: {reason}")))
}

fn write(vocabulary: &Vocabulary) -> Result<Vec<u8>, String> {
    if vocabulary.entries.is_empty() || vocabulary.entries.len() > MAX_ENTRIES {
        return Err(format!(
            "{} entries, expected 1 to {MAX_ENTRIES}",
            vocabulary.entries.len()
        ));
    }
    if vocabulary.merges.len() > MAX_MERGES {
        return Err(format!(
            "{} merges, at most {MAX_MERGES} are taken",
            vocabulary.merges.len()
        ));
    }
    let parts = match vocabulary.model.as_str() {
        "gpt2" => byte_level::parts(vocabulary)?,
        "llama" => sentence_piece::parts(vocabulary)?,
        "bert" => word_piece::parts(vocabulary)?,
        other => {
            return Err(format!(
                "its family (tokenizer.ggml.model) {:?} is unknown; gpt2, llama and bert are supported",
                other.chars().take(40).collect::<String>()
            ));
        }
    };
    let document = Value::object([
        ("version", Value::text("1.0")),
        ("added_tokens", parts.added_tokens),
        ("normalizer", parts.normalizer),
        ("pre_tokenizer", parts.pre_tokenizer),
        ("post_processor", parts.post_processor),
        ("model", parts.model),
    ]);
    canon::to_bytes(&document).map_err(|error| error.to_string())
}

/// The parts of a `tokenizer.json` that families differ in.
struct Parts {
    added_tokens: Value,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    model: Value,
}

/// A component of a `tokenizer.json`: its type and settings.
fn component<const N: usize>(kind: &str, settings: [(&str, Value); N]) -> Value {
    let pairs = [("type", Value::text(kind))].into_iter().chain(settings);
    Value::object(pairs)
}

impl Vocabulary {
    /// What an entry is for, the file's slips repaired: an entry named like a control token is one.
    fn kind(&self, entry: &Entry) -> EntryKind {
        let named = control::marker_shape(&entry.text) || CHAT_MARKERS.contains(&entry.text.as_str());
        match entry.kind {
            EntryKind::Normal if named => EntryKind::Control,
            // A text that is empty is found nowhere.
            _ if entry.text.is_empty() => EntryKind::Unused,
            kind => kind,
        }
    }

    /// The entries that mean something, with ids.
    fn used(&self) -> impl Iterator<Item = (u32, &Entry, EntryKind)> {
        (0_u32..)
            .zip(&self.entries)
            .filter_map(|(id, entry)| match self.kind(entry) {
                EntryKind::Unused => None,
                kind => Some((id, entry, kind)),
            })
    }

    /// The text of a special entry.
    fn special(&self, name: &str, id: Option<u32>) -> Result<Option<(&str, u32)>, String> {
        let Some(id) = id else { return Ok(None) };
        match usize::try_from(id).ok().and_then(|index| self.entries.get(index)) {
            Some(entry) if !entry.text.is_empty() => Ok(Some((&entry.text, id))),
            _ => Err(format!("the {name} token has id {id}, which no entry has")),
        }
    }

    /// Every entry that means something, by its text; `spell` says how the family's model spells it.
    fn table(&self, spell: impl Fn(&Entry, EntryKind) -> String) -> Result<Value, String> {
        let mut table = BTreeMap::new();
        for (id, entry, kind) in self.used() {
            let text = spell(entry, kind);
            if let Some(Value::Int(first)) = table.insert(text, Value::from(id)) {
                return Err(format!(
                    "the entries {first} and {id} are both {:?}",
                    entry.text.chars().take(40).collect::<String>()
                ));
            }
        }
        Ok(Value::Object(table))
    }

    /// The entries that are found in a text before all others, and those that steer the model.
    fn added_tokens(&self, normalized: bool) -> Value {
        let tokens = self.used().filter_map(|(id, entry, kind)| {
            let special = match kind {
                EntryKind::Control | EntryKind::Unknown => true,
                EntryKind::UserDefined => false,
                EntryKind::Normal | EntryKind::Byte | EntryKind::Unused => return None,
            };
            let no = Value::Bool(false);
            Some(Value::object([
                ("id", Value::from(id)),
                ("content", Value::text(entry.text.clone())),
                ("single_word", no.clone()),
                ("lstrip", no.clone()),
                ("rstrip", no),
                ("normalized", Value::Bool(normalized && !special)),
                ("special", Value::Bool(special)),
            ]))
        });
        Value::Array(tokens.collect())
    }

    /// What stands around a text: the begin and the end token where the file says so, or else where its family does.
    /// `pair` also frames a query with a document.
    fn post_processor(&self, begin: bool, end: bool, pair: bool) -> Result<Value, String> {
        let bos = self.special("begin", self.bos)?;
        let eos = self.special("end", self.eos)?;
        let wanted = |name: &str, wanted: bool, token: Option<_>| match (wanted, token) {
            (true, None) => Err(format!("a text should have a {name} token, but the file names none")),
            (true, token) => Ok(token),
            (false, _) => Ok(None),
        };
        let bos = wanted("begin", self.add_bos.unwrap_or(begin), bos)?;
        let eos = wanted("end", self.add_eos.unwrap_or(end), eos)?;
        if bos.is_none() && eos.is_none() {
            return Ok(Value::Null);
        }
        let place = |kind: &str, id: &str, segment: u32| {
            Value::object([(
                kind,
                Value::object([("id", Value::text(id)), ("type_id", Value::from(segment))]),
            )])
        };
        let token = |token: Option<(&str, u32)>, segment| token.map(|(text, _)| place("SpecialToken", text, segment));
        let single: Vec<Value> = token(bos, 0)
            .into_iter()
            .chain([place("Sequence", "A", 0)])
            .chain(token(eos, 0))
            .collect();
        let both: Vec<Value> = if pair {
            let second = [Some(place("Sequence", "B", 1)), token(eos, 1)];
            single.iter().cloned().chain(second.into_iter().flatten()).collect()
        } else {
            vec![place("Sequence", "A", 0), place("Sequence", "B", 1)]
        };
        let specials = bos.into_iter().chain(eos).map(|(text, id)| {
            let value = Value::object([
                ("id", Value::text(text)),
                ("ids", Value::Array(vec![Value::from(id)])),
                ("tokens", Value::Array(vec![Value::text(text)])),
            ]);
            (text, value)
        });
        Ok(component(
            "TemplateProcessing",
            [
                ("single", Value::Array(single)),
                ("pair", Value::Array(both)),
                ("special_tokens", Value::object(specials)),
            ],
        ))
    }
}
