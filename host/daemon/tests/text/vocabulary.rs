//! Tokenizers made of GGUF vocabularies against the published tokenizers of the same models.

use synapse_daemon::text::sanitise::sanitise;
use synapse_daemon::text::vocabulary::{Entry, EntryKind, Vocabulary, tokenizer_json};
use synapse_daemon::text::{TextError, Tokenizer};

use crate::support::{carried, cut, fixtures, header, ids, json, json_lines, load, shared, text};

fn compare(published: &Tokenizer, carried: &Tokenizer, texts: &[String], place: &str) {
    for text in texts {
        let expected = published.encode(text, None, cut(u32::MAX)).expect("any text");
        let found = carried.encode(text, None, cut(u32::MAX)).expect("any text");
        assert_eq!(found.ids, expected.ids, "{place}: {text:?}");
        assert_eq!(found.type_ids, expected.type_ids, "{place}: {text:?}");
    }
}

/// Proves TOK-01. Every GGUF of the zoo whose family is supported. Reference: the `tokenizer.json` beside it, whose own
/// ids are compared with transformers in `oracle.rs` and `prompt.rs`.
#[test]
fn zoo_vocabularies_equal_the_published_tokenizers() {
    let name = "zoo_vocabularies_equal_the_published_tokenizers";
    let (Some(zoo), Some(corpus)) = (shared("data/zoo", name), shared("data/oracle/corpus.jsonl", name)) else {
        return;
    };
    let corpus: Vec<String> = json_lines(&corpus)
        .iter()
        .map(|line| text(line, "text").to_owned())
        .collect();
    let mut rules = Vec::new();
    for folder in std::fs::read_dir(&zoo).expect("lists").flatten() {
        let place = folder.file_name().into_string().expect("UTF-8");
        let model = folder.path().join("model.gguf");
        if !model.is_file() {
            continue;
        }
        let header = header(&model);
        let family = header.text("tokenizer.ggml.model").expect("a family").to_owned();
        let rule = header.text("tokenizer.ggml.pre").unwrap_or_default();
        let made = carried(&header);
        if family == "t5" {
            assert!(matches!(made, Err(TextError::Refused(_))), "{place}");
            continue;
        }
        let made = made.unwrap_or_else(|error| panic!("{place}: {error}"));
        let published = load(&folder.path().join("tokenizer.json"), None).expect("loads");
        let oracle = json(&folder.path().join("oracle.json"));
        let own = oracle["items"].as_array().expect("items").iter();
        let own = own.flat_map(|item| ["text", "query", "document"].map(|key| item[key].as_str().map(str::to_owned)));
        let texts: Vec<String> = corpus.iter().cloned().chain(own.flatten()).collect();
        compare(&published, &made, &texts, &place);
        // A decoder's published file frames pairs with begin tokens only; its models do not rerank.
        assert_eq!(made.has_pairs(), family == "bert", "{place}");
        rules.push(if family == "gpt2" {
            format!("gpt2/{rule}")
        } else {
            family
        });
    }
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(
        rules,
        [
            "bert",
            "gpt2/llama-bpe",
            "gpt2/modern-bert",
            "gpt2/qwen2",
            "gpt2/roberta-bpe",
            "llama"
        ],
        "each is compared"
    );
}

/// Proves TOK-01. MiniLM's GGUF. Reference: transformers' ids of the corpus with the published tokenizer.
#[test]
fn minilms_vocabulary_equals_the_oracle() {
    let Some(model) = shared(
        "data/minilm/all-MiniLM-L6-v2-f16.gguf",
        "minilms_vocabulary_equals_the_oracle",
    ) else {
        return;
    };
    let tokenizer = carried(&header(&model)).expect("a good vocabulary");
    let folder = fixtures().join("minilm");
    let plain = json_lines(&folder.join("plain_text_specials.jsonl"));
    let rows = json_lines(&folder.join("tokens.jsonl"));
    for (line, row) in json_lines(&folder.join("corpus.jsonl")).iter().zip(&rows) {
        let row = plain.iter().find(|special| special["id"] == row["id"]).unwrap_or(row);
        let encoded = tokenizer.encode(text(line, "text"), None, cut(256)).expect("any text");
        assert_eq!(encoded.ids, ids(&row["ids_256"]), "text {}", row["id"]);
    }
}

fn normal(text: &str) -> Entry {
    Entry {
        text: text.to_owned(),
        score: 0.0,
        kind: EntryKind::Normal,
    }
}

fn small() -> Vocabulary {
    Vocabulary {
        model: String::from("gpt2"),
        pre: Some(String::from("gpt-2")),
        entries: ["a", "b", "ab", "<|end|>"].map(normal).to_vec(),
        merges: vec![String::from("a b")],
        ..Vocabulary::default()
    }
}

#[test]
fn what_a_vocabulary_must_say() {
    let refused = |change: &dyn Fn(&mut Vocabulary)| {
        let mut vocabulary = small();
        change(&mut vocabulary);
        match tokenizer_json(&vocabulary) {
            Err(TextError::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    let bytes = tokenizer_json(&small()).expect("a small one is good");
    let written = String::from_utf8(bytes).expect("UTF-8");
    // A chat marker that the file holds as an ordinary entry steers the model all the same.
    assert!(
        written.contains(r#""content":"<|end|>","id":3"#) && written.contains(r#""special":true"#),
        "{written}"
    );

    // What stands for nothing is nothing: a text that spells it is text, and an empty entry is no fault.
    let mut padded = small();
    for text in ["[PAD4]", "", ""] {
        padded.entries.push(Entry {
            kind: EntryKind::Unused,
            ..normal(text)
        });
    }
    assert_eq!(tokenizer_json(&padded).map(String::from_utf8), Ok(Ok(written)));

    type Change = fn(&mut Vocabulary);
    let cases: [(Change, &str); 11] = [
        (|v| v.model = String::from("t5"), "gpt2, llama and bert are supported"),
        (|v| v.pre = None, "known are gpt-2"),
        (
            |v| v.pre = Some(String::from("default")),
            "\"default\" is unknown; known are",
        ),
        (|v| v.pre = Some("x".repeat(1000)), "is unknown"),
        (|v| v.entries.clear(), "0 entries"),
        (
            |v| v.entries[1].text = String::from("a"),
            "the entries 0 and 1 are both \"a\"",
        ),
        (|v| v.merges = vec![String::from("a b c")], "not two parts"),
        (|v| v.add_bos = Some(true), "names none"),
        (|v| v.bos = Some(4), "id 4, which no entry has"),
        (|v| v.entries[0].kind = EntryKind::Byte, "a byte token"),
        (|v| v.model = String::from("llama"), "unknown_token_id"),
    ];
    for (change, words) in cases {
        let reason = refused(&change);
        assert!(reason.contains(words), "{words}: {reason}");
    }
}

/// What each rule does with digits, and with a word that is an entry but not made by merges. By hand from the published
/// tokenizers: SmolLM splits digits, Llama 3 takes up to three and whole entries, Qwen 2 takes one.
#[test]
fn each_rule_cuts_words_its_own_way() {
    for (rule, digits, word) in [
        ("gpt-2", [7, 2].as_slice(), [0, 1].as_slice()),
        ("roberta-bpe", &[7, 2], &[0, 1]),
        ("modern-bert", &[7, 2], &[0, 1]),
        ("smollm", &[3, 4, 3, 4, 2], &[0, 1]),
        ("llama-bpe", &[5, 3, 4, 2], &[6]),
        ("llama3", &[5, 3, 4, 2], &[6]),
        ("qwen2", &[3, 4, 3, 4, 2], &[0, 1]),
    ] {
        let mut vocabulary = small();
        vocabulary.pre = Some(rule.to_owned());
        vocabulary.add_bos = Some(false);
        vocabulary.merges = vec![String::from("1 2"), String::from("12 12")];
        let texts = ["a", "b", "!", "1", "2", "12", "ab", "1212"];
        vocabulary.entries = texts.map(normal).to_vec();
        let bytes = tokenizer_json(&vocabulary)
            .and_then(|bytes| sanitise(&bytes, None))
            .expect("good");
        let tokenizer = Tokenizer::from_sanitised(&bytes.bytes).expect("loads");
        let encode = |text: &str| tokenizer.encode(text, None, cut(64)).expect("any text").ids;
        assert_eq!(encode("1212!"), digits, "{rule}");
        assert_eq!(encode("ab"), word, "{rule}");
    }
}

/// A merge whose result the vocabulary lacks, and an id that the model's table has not: sanitising refuses both.
#[test]
fn a_made_tokenizer_passes_the_same_checks_as_a_published_one() {
    let mut torn = small();
    torn.merges.push(String::from("b a"));
    let refused = sanitise(&tokenizer_json(&torn).expect("is written"), None);
    assert!(matches!(refused, Err(TextError::Refused(_))), "{refused:?}");
    let bytes = tokenizer_json(&small()).expect("is written");
    assert!(sanitise(&bytes, Some(4)).is_ok());
    assert!(matches!(sanitise(&bytes, Some(3)), Err(TextError::Refused(_))));
}
