//! Control tokens: which vocabulary entries steer a model, and how text is kept from spelling them.
//!
//! State: none. Callers: `text/sanitise.rs` marks control tokens once, `text/tokenizer.rs` hides them at every load.
//! Not known here: which model uses which control token for what.
//!
//! The library's own switch (`encode_special_tokens`) only stops the search for added tokens. A Unigram model still
//! finds the piece `</s>` in its vocabulary, WordPiece behind a white-space splitter finds the word `[SEP]`, and BPE
//! with `ignore_merges` finds any whole entry. So the content tokenizer does not know these strings at all: their
//! entries keep their ids under names that no text can spell (random, made anew at every load).

use std::collections::{BTreeMap, BTreeSet};

use synapse_core::canon::Value;

use super::json_guard::Fields;

/// Names by which control tokens are known even where a file forgets to mark them.
const KNOWN: [&str; 18] = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[BOS]",
    "[EOS]",
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "<mask>",
    "<bos>",
    "<eos>",
    "<cls>",
    "<sep>",
    "<|endoftext|>",
    "<|padding|>",
];

/// Whether a string is a control token by its name alone.
#[must_use]
pub fn known_name(surface: &str) -> bool {
    KNOWN.contains(&surface)
}

/// Whether an added token's name has the shape of a chat marker, such as `<|im_end|>`.
#[must_use]
pub fn marker_shape(surface: &str) -> bool {
    surface.len() > 4 && surface.starts_with("<|") && surface.ends_with("|>")
}

/// Every token that a post-processor puts into a sequence, with its ids.
#[must_use]
pub fn post_processor_tokens(processor: &Value) -> Vec<(String, Vec<i64>)> {
    let mut found = Vec::new();
    collect_post_processor(processor, &mut found);
    found
}

fn collect_post_processor(processor: &Value, found: &mut Vec<(String, Vec<i64>)>) {
    for key in ["sep", "cls"] {
        if let Some([Value::Str(surface), Value::Int(id)]) = processor.member(key).and_then(Fields::as_array) {
            found.push((surface.clone(), vec![*id]));
        }
    }
    if let Some(specials) = processor.member("special_tokens").and_then(Fields::as_object) {
        for (name, special) in specials {
            let ids: Vec<i64> = special
                .member("ids")
                .and_then(Fields::as_array)
                .unwrap_or_default()
                .iter()
                .filter_map(Fields::as_int)
                .collect();
            let surfaces = special.member("tokens").and_then(Fields::as_array).unwrap_or_default();
            if surfaces.len() == ids.len() {
                found.extend(
                    surfaces
                        .iter()
                        .zip(&ids)
                        .filter_map(|(surface, id)| Some((surface.as_text()?.to_owned(), vec![*id]))),
                );
            } else {
                found.push((name.clone(), ids));
            }
        }
    }
    for inner in processor
        .member("processors")
        .and_then(Fields::as_array)
        .unwrap_or_default()
    {
        collect_post_processor(inner, found);
    }
}

/// The control tokens of a sanitised tokenizer: its added tokens that are marked special.
#[must_use]
pub fn marked(tokenizer: &Value) -> BTreeSet<String> {
    tokenizer
        .member("added_tokens")
        .and_then(Fields::as_array)
        .unwrap_or_default()
        .iter()
        .filter(|token| token.member("special") == Some(&Value::Bool(true)))
        .filter_map(|token| Some(token.member("content")?.as_text()?.to_owned()))
        .collect()
}

/// A control token as a template may spell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// How it is spelled.
    pub surface: String,
    /// Its id.
    pub id: u32,
    /// It swallows the white space before it.
    pub lstrip: bool,
    /// It swallows the white space after it.
    pub rstrip: bool,
}

/// The control tokens with what their file says about them. `names` is what [`hide`] returned for this tokenizer.
#[must_use]
pub fn markers(hidden: &Value, names: &[(String, String)]) -> Vec<Marker> {
    let surfaces: BTreeMap<&str, &str> = names
        .iter()
        .map(|(surface, name)| (name.as_str(), surface.as_str()))
        .collect();
    let added = hidden
        .member("added_tokens")
        .and_then(Fields::as_array)
        .unwrap_or_default();
    added
        .iter()
        .filter_map(|token| {
            let flag = |key: &str| token.member(key) == Some(&Value::Bool(true));
            Some(Marker {
                surface: (*surfaces.get(token.member("content")?.as_text()?)?).to_owned(),
                id: u32::try_from(token.member("id")?.as_int()?).ok()?,
                lstrip: flag("lstrip"),
                rstrip: flag("rstrip"),
            })
        })
        .collect()
}

/// Renames every control token wherever the tokenizer could find it in a text, and says how each is called now. Ids
/// stay as they are.
pub fn hide(tokenizer: &mut Value, control: &BTreeSet<String>, nonce: &str) -> Vec<(String, String)> {
    let names: BTreeMap<&str, String> = control
        .iter()
        .enumerate()
        .map(|(index, surface)| (surface.as_str(), format!("\u{f8ff}{nonce}-{index}\u{f8ff}")))
        .collect();
    rename_all(tokenizer, &names);
    names
        .into_iter()
        .map(|(surface, name)| (surface.to_owned(), name))
        .collect()
}

fn rename_all(tokenizer: &mut Value, names: &BTreeMap<&str, String>) {
    let Value::Object(top) = tokenizer else { return };
    if let Some(Value::Array(added)) = top.get_mut("added_tokens") {
        for token in added {
            if let Value::Object(token) = token {
                rename(token.get_mut("content"), names);
            }
        }
    }
    let Some(Value::Object(model)) = top.get_mut("model") else {
        return;
    };
    rename(model.get_mut("unk_token"), names);
    match model.get_mut("vocab") {
        Some(Value::Object(vocab)) => {
            for (surface, name) in names {
                if let Some(id) = vocab.remove(*surface) {
                    vocab.insert(name.clone(), id);
                }
            }
        }
        Some(Value::Array(pieces)) => {
            for piece in pieces {
                if let Value::Array(piece) = piece {
                    rename(piece.first_mut(), names);
                }
            }
        }
        _ => {}
    }
    // A merge that would spell a control token has nothing left to produce.
    if let Some(Value::Array(merges)) = model.get_mut("merges") {
        merges.retain(|merge| {
            merge_parts(merge).is_none_or(|(left, right)| {
                !names.contains_key(left)
                    && !names.contains_key(right)
                    && !names.contains_key(format!("{left}{right}").as_str())
            })
        });
    }
}

fn rename(slot: Option<&mut Value>, names: &BTreeMap<&str, String>) {
    if let Some(Value::Str(surface)) = slot
        && let Some(name) = names.get(surface.as_str())
    {
        surface.clone_from(name);
    }
}

/// A merge's two parts, in either of its two published forms.
fn merge_parts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::Str(both) => both.split_once(' '),
        Value::Array(parts) => match parts.as_slice() {
            [Value::Str(left), Value::Str(right)] => Some((left, right)),
            _ => None,
        },
        _ => None,
    }
}
