//! The `gpt2` family: byte-level BPE, with the rule of `tokenizer.ggml.pre` that cuts a text into words.
//!
//! State: none. Callers: [`super::tokenizer_json`].
//!
//! The rules are those of the published tokenizers (not llama.cpp's, whose regular expressions differ in corners):
//! Hugging Face's `tokenizer.json` of GPT-2, `SmolLM`, Llama 3, Qwen 2 and `ModernBERT`. A rule is listed here when a
//! test compares its ids with those of such a file.

use synapse_core::canon::Value;

use super::{EntryKind, Parts, Vocabulary, component};

/// How a text becomes words.
struct Rule {
    /// The value of `tokenizer.ggml.pre`.
    name: &'static str,
    /// Composed characters (NFC) first.
    composes: bool,
    words: Words,
    /// A word that is an entry is taken whole, without merges.
    whole_words: bool,
    /// A text begins with the begin token where the file does not say.
    begins: bool,
}

enum Words {
    /// GPT-2's own expression, which the library has built in.
    Gpt2,
    /// The same, each digit apart.
    Gpt2Digits,
    /// An expression of the model's own.
    Pattern(&'static str),
}

/// Llama 3: up to three digits together.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Qwen 2: each digit apart.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const RULES: [Rule; 7] = [
    Rule {
        name: "gpt-2",
        composes: false,
        words: Words::Gpt2,
        whole_words: false,
        begins: false,
    },
    Rule {
        name: "roberta-bpe",
        composes: false,
        words: Words::Gpt2,
        whole_words: false,
        begins: true,
    },
    Rule {
        name: "modern-bert",
        composes: true,
        words: Words::Gpt2,
        whole_words: false,
        begins: true,
    },
    Rule {
        name: "smollm",
        composes: false,
        words: Words::Gpt2Digits,
        whole_words: false,
        begins: false,
    },
    Rule {
        name: "llama-bpe",
        composes: false,
        words: Words::Pattern(LLAMA3),
        whole_words: true,
        begins: true,
    },
    Rule {
        name: "llama3",
        composes: false,
        words: Words::Pattern(LLAMA3),
        whole_words: true,
        begins: true,
    },
    Rule {
        name: "qwen2",
        composes: true,
        words: Words::Pattern(QWEN2),
        whole_words: false,
        begins: false,
    },
];

/// The parts of the tokenizer.
pub fn parts(vocabulary: &Vocabulary) -> Result<Parts, String> {
    let rule = rule(vocabulary.pre.as_deref())?;
    if let Some((id, _, _)) = vocabulary.used().find(|(_, _, kind)| *kind == EntryKind::Byte) {
        return Err(format!(
            "entry {id} is a byte token, which a byte-level vocabulary has not"
        ));
    }
    let merges = vocabulary
        .merges
        .iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                Ok(Value::Array(vec![Value::text(left), Value::text(right)]))
            }
            _ => Err(format!(
                "the merge {:?} is not two parts with a space between",
                merge.chars().take(40).collect::<String>()
            )),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let prefix = vocabulary.add_space_prefix.unwrap_or(false);
    let model = component(
        "BPE",
        [
            ("dropout", Value::Null),
            ("unk_token", Value::Null),
            ("continuing_subword_prefix", Value::Null),
            ("end_of_word_suffix", Value::Null),
            ("fuse_unk", Value::Bool(false)),
            ("byte_fallback", Value::Bool(false)),
            ("ignore_merges", Value::Bool(rule.whole_words)),
            ("vocab", vocabulary.table(|entry, _| entry.text.clone())?),
            ("merges", Value::Array(merges)),
        ],
    );
    Ok(Parts {
        added_tokens: vocabulary.added_tokens(false),
        normalizer: if rule.composes {
            component("NFC", [])
        } else {
            Value::Null
        },
        pre_tokenizer: words(&rule.words, prefix),
        post_processor: vocabulary.post_processor(rule.begins, false, false)?,
        model,
    })
}

fn rule(name: Option<&str>) -> Result<&'static Rule, String> {
    let known = || RULES.map(|rule| rule.name).join(", ");
    let Some(name) = name else {
        return Err(format!(
            "it names no rule for words (tokenizer.ggml.pre); known are {}",
            known()
        ));
    };
    RULES.iter().find(|rule| rule.name == name).ok_or_else(|| {
        format!(
            "its rule for words (tokenizer.ggml.pre) {:?} is unknown; known are {}",
            name.chars().take(40).collect::<String>(),
            known()
        )
    })
}

fn words(words: &Words, prefix: bool) -> Value {
    let bytes = |own_pattern: bool| {
        component(
            "ByteLevel",
            [
                ("add_prefix_space", Value::Bool(prefix)),
                ("trim_offsets", Value::Bool(true)),
                ("use_regex", Value::Bool(own_pattern)),
            ],
        )
    };
    let sequence = |first| component("Sequence", [("pretokenizers", first)]);
    match words {
        Words::Gpt2 => bytes(true),
        Words::Gpt2Digits => {
            let digits = component("Digits", [("individual_digits", Value::Bool(true))]);
            sequence(Value::Array(vec![digits, bytes(true)]))
        }
        Words::Pattern(pattern) => {
            let split = component(
                "Split",
                [
                    ("pattern", Value::object([("Regex", Value::text(*pattern))])),
                    ("behavior", Value::text("Isolated")),
                    ("invert", Value::Bool(false)),
                ],
            );
            sequence(Value::Array(vec![split, bytes(false)]))
        }
    }
}
