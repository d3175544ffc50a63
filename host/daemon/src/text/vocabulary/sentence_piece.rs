//! The `llama` family: `SentencePiece` pieces with scores, merged the highest score first, bytes where no piece fits.
//!
//! State: none. Callers: [`super::tokenizer_json`].
//!
//! Published tokenizers of this family are BPE with merges, which a GGUF does not carry. They follow from the scores:
//! every way to put a piece together from two others is a merge, in the order of the piece's score. That is how the
//! published ones came about, and what `SentencePiece` itself does step by step.

use std::collections::HashSet;

use synapse_core::canon::Value;

use super::{EntryKind, MAX_MERGES, Parts, Vocabulary, component};

/// The mark that stands for a space.
const SPACE: &str = "\u{2581}";
/// Most bytes that are compared to find the merges; the largest vocabulary in wide use needs a fifteenth.
const MAX_WORK: usize = 1 << 28;

/// The parts of the tokenizer.
pub fn parts(vocabulary: &Vocabulary) -> Result<Parts, String> {
    let unknown = vocabulary
        .special("unknown", vocabulary.unknown)?
        .ok_or("it names no token for what it lacks (tokenizer.ggml.unknown_token_id)")?;
    for (id, entry, kind) in vocabulary.used() {
        if !entry.score.is_finite() {
            return Err(format!("the score of entry {id} is not finite"));
        }
        if kind == EntryKind::Byte && !is_byte(&entry.text) {
            return Err(format!(
                "entry {id} is a byte token, but not written as <0x00> to <0xFF>"
            ));
        }
    }
    let model = component(
        "BPE",
        [
            ("dropout", Value::Null),
            ("unk_token", Value::text(unknown.0)),
            ("continuing_subword_prefix", Value::Null),
            ("end_of_word_suffix", Value::Null),
            ("fuse_unk", Value::Bool(true)),
            ("byte_fallback", Value::Bool(true)),
            ("ignore_merges", Value::Bool(false)),
            ("vocab", vocabulary.table(|entry, _| entry.text.clone())?),
            ("merges", merges(vocabulary)?),
        ],
    );
    let replace = component(
        "Replace",
        [
            ("pattern", Value::object([("String", Value::text(" "))])),
            ("content", Value::text(SPACE)),
        ],
    );
    let normalizer = if vocabulary.add_space_prefix.unwrap_or(true) {
        let prepend = component("Prepend", [("prepend", Value::text(SPACE))]);
        component("Sequence", [("normalizers", Value::Array(vec![prepend, replace]))])
    } else {
        replace
    };
    Ok(Parts {
        added_tokens: vocabulary.added_tokens(true),
        normalizer,
        pre_tokenizer: Value::Null,
        post_processor: vocabulary.post_processor(true, false, false)?,
        model,
    })
}

fn is_byte(text: &str) -> bool {
    text.strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|c| c.is_ascii_digit() || (b'A'..=b'F').contains(&c)))
}

/// One way to put a piece together.
struct Merge<'v> {
    score: f32,
    /// Characters of the two parts.
    lengths: (usize, usize),
    parts: (&'v str, &'v str),
}

fn merges(vocabulary: &Vocabulary) -> Result<Value, String> {
    let pieces: HashSet<&str> = vocabulary
        .used()
        .filter(|(_, _, kind)| matches!(kind, EntryKind::Normal | EntryKind::UserDefined))
        .map(|(_, entry, _)| entry.text.as_str())
        .collect();
    let mut work = 0_usize;
    let mut merges: Vec<Merge<'_>> = Vec::new();
    for (_, entry, kind) in vocabulary.used() {
        if !matches!(kind, EntryKind::Normal | EntryKind::UserDefined) {
            continue;
        }
        let text = entry.text.as_str();
        let length = text.chars().count();
        work = work.saturating_add(length.saturating_mul(text.len()));
        if work > MAX_WORK || merges.len() > MAX_MERGES {
            return Err(String::from(
                "its pieces are so long or so many that the merges cannot be found",
            ));
        }
        for (left_length, (at, _)) in text.char_indices().enumerate().skip(1) {
            let (left, right) = text.split_at(at);
            if pieces.contains(left) && pieces.contains(right) {
                merges.push(Merge {
                    score: entry.score,
                    lengths: (left_length, length - left_length),
                    parts: (left, right),
                });
            }
        }
    }
    // The sort is stable: of pieces with one score the older comes first.
    merges.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.lengths.cmp(&a.lengths)));
    let written = merges.iter().map(
        |Merge {
             parts: (left, right), ..
         }| Value::Array(vec![Value::text(*left), Value::text(*right)]),
    );
    Ok(Value::Array(written.collect()))
}

#[cfg(test)]
mod tests {
    use super::super::Entry;
    use super::*;

    fn vocabulary(pieces: &[(&str, f32)]) -> Vocabulary {
        Vocabulary {
            entries: pieces
                .iter()
                .map(|(text, score)| Entry {
                    text: (*text).to_owned(),
                    score: *score,
                    kind: EntryKind::Normal,
                })
                .collect(),
            ..Vocabulary::default()
        }
    }

    /// The order by hand: the score of what comes out first, then the longer left part.
    #[test]
    fn merges_follow_from_scores() {
        let found = merges(&vocabulary(&[
            ("a", -9.0),
            ("b", -9.0),
            ("ab", -2.0),
            ("aba", -3.0),
            ("ba", -1.0),
        ]));
        let pair = |left: &str, right: &str| Value::Array(vec![Value::text(left), Value::text(right)]);
        let expected = vec![pair("b", "a"), pair("a", "b"), pair("ab", "a"), pair("a", "ba")];
        assert_eq!(found, Ok(Value::Array(expected)));
    }

    #[test]
    fn long_pieces_are_refused_before_they_cost() {
        let long = "x".repeat(1 << 15);
        assert!(merges(&vocabulary(&[(&long, 0.0)])).is_err());
    }

    #[test]
    fn bytes_are_written_in_one_way() {
        assert!(is_byte("<0x0A>") && is_byte("<0xFF>"));
        for other in ["<0x0a>", "<0xA>", "<0x0AB>", "0x0A", "<0xé>"] {
            assert!(!is_byte(other), "{other}");
        }
    }
}
