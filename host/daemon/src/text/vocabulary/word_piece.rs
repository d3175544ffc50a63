//! The `bert` family: `WordPiece`, whose file marks the begin of a word where the published form marks its rest.
//!
//! State: none. Callers: [`super::tokenizer_json`].
//!
//! A converter writes `##ing` as `ing` and `walk` as `▁walk`; here it is turned back. What a GGUF does not say is as in
//! the published BERT models: accents go with the case, Chinese characters are words, words end at 100 characters.

use synapse_core::canon::Value;

use super::{Entry, EntryKind, Parts, Vocabulary, component};

/// Marks the begin of a word.
const BEGIN: char = '\u{2581}';
/// The longest word that is looked for.
const MAX_WORD: u32 = 100;

/// The parts of the tokenizer.
pub fn parts(vocabulary: &Vocabulary) -> Result<Parts, String> {
    let unknown = vocabulary
        .special("unknown", vocabulary.unknown)?
        .ok_or("it names no token for what it lacks (tokenizer.ggml.unknown_token_id)")?;
    let model = component(
        "WordPiece",
        [
            ("unk_token", Value::text(unknown.0)),
            ("continuing_subword_prefix", Value::text("##")),
            ("max_input_chars_per_word", Value::from(MAX_WORD)),
            ("vocab", vocabulary.table(spell)?),
        ],
    );
    Ok(Parts {
        added_tokens: vocabulary.added_tokens(false),
        normalizer: component(
            "BertNormalizer",
            [
                ("clean_text", Value::Bool(true)),
                ("handle_chinese_chars", Value::Bool(true)),
                ("strip_accents", Value::Null),
                ("lowercase", Value::Bool(vocabulary.lowercase.unwrap_or(true))),
            ],
        ),
        pre_tokenizer: component("BertPreTokenizer", []),
        post_processor: vocabulary.post_processor(true, true, true)?,
        model,
    })
}

fn spell(entry: &Entry, kind: EntryKind) -> String {
    match (kind, entry.text.strip_prefix(BEGIN)) {
        (EntryKind::Normal, Some(word)) => word.to_owned(),
        (EntryKind::Normal, None) => format!("##{}", entry.text),
        _ => entry.text.clone(),
    }
}
