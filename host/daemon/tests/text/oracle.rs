//! Tokenization against ids that other implementations computed.
//!
//! Sources: `tests/fixtures/minilm` (Hugging Face tokenizers from Python, one text at a time), `tests/fixtures/
//! tokenizers/nasty` and `bad` (the same library, on files made to go wrong), and, where a shared data folder lies
//! beside the repository, the tokenizers and oracles of its model zoo.

use std::fs;

use synapse_daemon::text::{Encoded, Limits, MAX_TEXT_BYTES, Template, TextError, Tokenizer};

use crate::support::{cut, fixtures, ids, json, json_lines, load, shared};

/// What must hold of every encoding, whatever the text.
pub fn check_shape(encoded: &Encoded, text: &str) {
    let length = encoded.ids.len();
    assert_eq!(encoded.type_ids.len(), length);
    assert_eq!(encoded.offsets.len(), length);
    assert_eq!(usize::try_from(encoded.effective_tokens).ok(), Some(length));
    assert_eq!(encoded.truncated, encoded.effective_tokens < encoded.submitted_tokens);
    for &(begin, end) in encoded.offsets.iter().flatten() {
        assert!(begin <= end && usize::try_from(end).expect("fits") <= text.len());
    }
}

fn minilm() -> Tokenizer {
    load(&fixtures().join("minilm/tokenizer.json"), Some(30_522)).expect("the published tokenizer is good")
}

/// Proves TOK-01, TOK-02, TOK-04, API-14. Reference: transformers' tokenizer, one text at a time; for the three texts
/// that spell control tokens, the same library with those strings read as text.
#[test]
fn minilm_ids_equal_the_oracle() {
    let tokenizer = minilm();
    let folder = fixtures().join("minilm");
    let plain = json_lines(&folder.join("plain_text_specials.jsonl"));
    let texts = json_lines(&folder.join("corpus.jsonl"));
    let rows = json_lines(&folder.join("tokens.jsonl"));
    assert_eq!((texts.len(), rows.len(), plain.len()), (201, 201, 3));
    for (text, row) in texts.iter().zip(&rows) {
        assert_eq!(text["id"], row["id"]);
        let row = plain.iter().find(|special| special["id"] == row["id"]).unwrap_or(row);
        let text = text["text"].as_str().expect("a text");
        for (key, max) in [("ids_128", 128), ("ids_256", 256), ("ids_512", 512)] {
            let Some(expected) = row.get(key) else { continue };
            let encoded = tokenizer.encode(text, None, cut(max)).expect("any text");
            assert_eq!(encoded.ids, ids(expected), "text {} at {max}", row["id"]);
            assert_eq!(
                u64::from(encoded.submitted_tokens),
                row["n_full"].as_u64().expect("a count")
            );
            assert!(encoded.type_ids.iter().all(|&segment| segment == 0));
            check_shape(&encoded, text);
        }
    }
}

/// Proves TOK-02, TOK-03. Reference: `expected.json`, ids of the Python library with padding and truncation removed.
#[test]
fn nasty_tokenizers_are_sanitised() {
    let mut files = 0;
    for family in fs::read_dir(fixtures().join("tokenizers/nasty"))
        .expect("lists")
        .flatten()
    {
        let expected = json(&family.path().join("expected.json"));
        let mut digests = Vec::new();
        for file in fs::read_dir(family.path()).expect("lists").flatten() {
            if file.file_name() == "expected.json" {
                continue;
            }
            let tokenizer = load(&file.path(), None).unwrap_or_else(|error| panic!("{:?}: {error}", file.path()));
            for case in expected["texts"].as_array().expect("texts") {
                let text = case["text"].as_str().expect("a text");
                let encoded = tokenizer.encode(text, None, cut(512)).expect("any text");
                assert_eq!(encoded.ids, ids(&case["ids"]), "{:?}: {text:?}", file.path());
                assert!(!encoded.truncated);
                check_shape(&encoded, text);
            }
            digests.push(tokenizer.digest());
            files += 1;
        }
        // What differs is only what sanitising removes, so all variants are one tokenizer; the all-in-one file may
        // name another pad token, which then is a control token of that file.
        digests.sort_unstable();
        digests.dedup();
        assert!(digests.len() <= 2, "{:?}: {digests:?}", family.path());
    }
    assert_eq!(files, 43, "the fixtures are complete");
}

/// Proves TOK-02. Reference: the verdicts of the zoo's manifest.
#[test]
fn bad_tokenizers_meet_their_verdict() {
    let folder = fixtures().join("tokenizers/bad");
    let manifest = json(&folder.join("manifest.json"));
    let entries = manifest.as_array().expect("entries");
    assert_eq!(entries.len(), 15);
    for entry in entries {
        let name = entry["name"].as_str().expect("a name");
        let loaded = load(&folder.join(name).join("tokenizer.json"), Some(40));
        match entry["verdict"].as_str().expect("a verdict") {
            "accept" => {
                let tokenizer = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
                let encoded = tokenizer.encode("hello world", None, cut(16)).expect("any text");
                assert_eq!(encoded.ids, [2, 31, 32, 3]);
            }
            // Where the manifest leaves a choice, this host refuses.
            _ => {
                let error = loaded
                    .err()
                    .unwrap_or_else(|| panic!("{name}: {} was accepted", entry["defect"]));
                assert!(matches!(error, TextError::Refused(_)), "{name}: {error}");
            }
        }
    }
}

/// Proves TOK-01. Reference: the Python library, in the oracles of the shared model zoo (ten families, WordPiece, BPE,
/// Unigram). A text that spells control tokens has its `plain` ids, or, for Unigram, none of a control token: there
/// the library's own switch still gives control ids, which this host does not.
#[test]
fn zoo_ids_equal_the_oracles() {
    let Some(zoo) = shared("data/zoo", "zoo_ids_equal_the_oracles") else {
        return;
    };
    let mut texts = 0;
    for family in fs::read_dir(zoo).expect("lists").flatten() {
        let name = family.file_name().into_string().expect("UTF-8");
        if !name.contains("-embed") {
            continue;
        }
        let oracle = json(&family.path().join("oracle.json"));
        let published = json(&family.path().join("tokenizer.json"));
        let tokenizer = load(&family.path().join("tokenizer.json"), None).unwrap_or_else(|e| panic!("{name}: {e}"));
        let max = oracle["max_tokens"]
            .as_u64()
            .and_then(|max| u32::try_from(max).ok())
            .expect("a limit");
        for item in oracle["items"].as_array().expect("items") {
            let (Some(text), Some(reference)) = (item["text"].as_str(), item.get("input_ids")) else {
                continue;
            };
            let encoded = tokenizer.encode(text, None, cut(max)).expect("any text");
            check_shape(&encoded, text);
            let special = item["cat"] == "special_string" && item.get("plain").is_some();
            if special && published["model"]["type"] == "Unigram" {
                let control: Vec<i64> = published["added_tokens"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .filter(|token| token["special"] == true && token["content"] != "<unk>")
                    .map(|token| token["id"].as_i64().expect("an id"))
                    .collect();
                let content = &encoded.ids[1..encoded.ids.len() - 1];
                assert!(
                    content.iter().all(|&id| !control.contains(&i64::from(id))),
                    "{name}: {text:?} {content:?}"
                );
            } else {
                let reference = if special {
                    &item["plain"]["input_ids"]
                } else {
                    reference
                };
                assert_eq!(encoded.ids, ids(reference), "{name}: {text:?}");
            }
            texts += 1;
        }
    }
    assert!(texts > 400, "{texts} texts");
}

/// Proves API-14.
#[test]
fn truncation_is_disclosed_or_refused() {
    let tokenizer = minilm();
    let text = "word ".repeat(264);
    let encoded = tokenizer.encode(&text, None, cut(256)).expect("is cut");
    assert_eq!(
        (encoded.submitted_tokens, encoded.effective_tokens, encoded.truncated),
        (266, 256, true)
    );
    assert_eq!((encoded.ids[0], encoded.ids[255]), (101, 102), "special tokens stay");

    let refused = tokenizer.encode(
        &text,
        None,
        Limits {
            truncate: false,
            ..cut(256)
        },
    );
    assert_eq!(refused, Err(TextError::TooManyTokens { found: 266, limit: 256 }));

    let exact = "word ".repeat(254);
    let encoded = tokenizer.encode(&exact, None, cut(256)).expect("fits");
    assert_eq!((encoded.submitted_tokens, encoded.truncated), (256, false));

    let empty = tokenizer.encode("", None, cut(256)).expect("its special tokens");
    assert_eq!((empty.ids, empty.offsets), (vec![101, 102], vec![None, None]));
}

#[test]
fn offsets_are_bytes_of_the_callers_text() {
    let tokenizer = minilm();
    let text = "Zürich, naïve!";
    let template = Template::parse("query: {text} ;").expect("parses");
    for template in [None, Some(&template)] {
        let encoded = tokenizer.encode(text, template, cut(256)).expect("encodes");
        let words: Vec<&str> = encoded
            .offsets
            .iter()
            .flatten()
            .map(|&(begin, end)| &text[usize::try_from(begin).expect("fits")..usize::try_from(end).expect("fits")])
            .collect();
        assert_eq!(words, ["Zürich", ",", "naïve", "!"], "{template:?}");
    }
}

/// A template's own tokens survive truncation; only the caller's text is cut.
#[test]
fn templates_are_kept_whole() {
    let tokenizer = minilm();
    let template = Template::parse("query: {text} end").expect("parses");
    let joined = tokenizer
        .encode("query: word word end", None, cut(256))
        .expect("encodes");
    let encoded = tokenizer
        .encode("word word", Some(&template), cut(256))
        .expect("encodes");
    assert_eq!(encoded.ids, joined.ids);

    let long = "word ".repeat(100);
    let encoded = tokenizer
        .encode(long.trim_end(), Some(&template), cut(16))
        .expect("is cut");
    assert_eq!(
        (encoded.ids.len(), encoded.truncated, encoded.submitted_tokens),
        (16, true, 105)
    );
    assert_eq!(encoded.ids[..3], joined.ids[..3], "[CLS] query :");
    assert_eq!(encoded.ids[14..], joined.ids[joined.ids.len() - 2..], "end [SEP]");
    assert_eq!(encoded.offsets.iter().flatten().count(), 11);

    let full = tokenizer.encode("word", Some(&template), cut(4));
    assert!(matches!(full, Err(TextError::Template { .. })), "{full:?}");
}

/// Proves TOK-02. Any valid UTF-8 is a text, and a long one without spaces ends (its bound is the byte cap).
#[test]
fn unusual_texts_are_texts() {
    let tokenizer = minilm();
    let long = [
        "a".repeat(MAX_TEXT_BYTES),
        " ".repeat(MAX_TEXT_BYTES),
        "\u{4f60}".repeat(MAX_TEXT_BYTES / 3),
        "!".repeat(MAX_TEXT_BYTES),
        "e\u{301}".repeat(MAX_TEXT_BYTES / 3),
        "\u{1f468}\u{200d}\u{1f469}".repeat(MAX_TEXT_BYTES / 11),
    ];
    for text in &long {
        let encoded = tokenizer.encode(text, None, cut(256)).expect("any text");
        assert!(encoded.ids.len() <= 256 && encoded.ids.len() >= 2);
    }
    for text in [
        "a\u{0}b",
        "\u{feff}bom",
        "\u{202e}rtl\u{200f}",
        "a\r\nb",
        "\u{fdd0}\u{10ffff}",
        "\u{f8ff}",
    ] {
        check_shape(&tokenizer.encode(text, None, cut(256)).expect("any text"), text);
    }
    let over = tokenizer.encode(&"a".repeat(MAX_TEXT_BYTES + 1), None, cut(256));
    assert!(matches!(over, Err(TextError::TooManyBytes { .. })));
}
