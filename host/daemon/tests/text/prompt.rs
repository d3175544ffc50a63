//! Prompts against other implementations: llama.cpp's prompt ids, transformers' ids, and what must hold of any.

use synapse_daemon::models::gguf;
use synapse_daemon::text::{ChatMessage, ChatRole, ChatTemplate, MAX_TEXT_BYTES, Piece, TextError, Tokenizer};

use crate::support::{carried, header, ids, json, json_lines, load, shared, smollm2, text};

fn content(text: &str) -> Vec<Piece> {
    vec![Piece::Content(text.to_owned())]
}

fn encode(tokenizer: &Tokenizer, pieces: &[Piece]) -> Vec<i32> {
    tokenizer.encode_prompt(pieces, 8192).expect("encodes")
}

/// Proves TOK-01. SmolLM2 has no tokenizer.json: its GGUF's vocabulary and template give the prompt. Reference:
/// llama.cpp's prompt ids, thirty plain prompts and six through the chat template.
#[test]
fn smollm2_prompts_equal_the_oracle() {
    let name = "smollm2_prompts_equal_the_oracle";
    let (Some(model), Some(oracle)) = (
        smollm2(name),
        shared("data/oracle/gen.smollm2-135m-instruct-q4_1.jsonl", name),
    ) else {
        return;
    };
    let header = header(&model);
    let tokenizer = carried(&header).expect("a good vocabulary");
    let source = gguf::chat::template(&header).expect("a text").expect("a template");
    let (bos, eos) = gguf::vocabulary::chat_tokens(&header);
    assert_eq!((bos.as_str(), eos.as_str()), ("<|im_start|>", "<|im_end|>"));
    let template = ChatTemplate::compile(source, &bos, &eos).expect("a good template");
    let items = json_lines(&oracle);
    assert_eq!(items.len(), 36);
    for item in &items {
        let pieces = if text(item, "kind") == "chat" {
            let message = ChatMessage {
                role: ChatRole::User,
                content: text(item, "source").to_owned(),
            };
            template.render(&[message]).expect("renders")
        } else {
            content(text(item, "source"))
        };
        let written: String = pieces.iter().map(Piece::text).collect();
        assert_eq!(written, text(item, "prompt"));
        assert_eq!(encode(&tokenizer, &pieces), ids(&item["prompt_ids"]), "{}", item["id"]);
    }
}

/// A vocabulary that puts a space before a text. Reference: llama.cpp's prompt ids.
#[test]
fn tiny_llama_prompts_equal_the_oracle() {
    let name = "tiny_llama_prompts_equal_the_oracle";
    let (Some(model), Some(oracle)) = (
        shared("data/generate/tiny-random-llama-f32.gguf", name),
        shared("data/oracle/gen.tiny-random-llama-f32.jsonl", name),
    ) else {
        return;
    };
    let tokenizer = carried(&header(&model)).expect("a good vocabulary");
    let items = json_lines(&oracle);
    assert_eq!(items.len(), 30);
    for item in &items {
        let prompt = text(item, "prompt");
        assert_eq!(
            encode(&tokenizer, &content(prompt)),
            ids(&item["prompt_ids"]),
            "{prompt:?}"
        );
    }
    // In the middle of a prompt no space is put: two pieces are the ids of the one text where no token spans the cut.
    let whole = encode(&tokenizer, &content("one\ntwo"));
    let pieces = [
        Piece::Template(String::from("one\n")),
        Piece::Content(String::from("two")),
    ];
    assert_eq!(encode(&tokenizer, &pieces), whole);
    // After a control token one is, as at the begin.
    let pieces = [
        Piece::Template(String::from("<s>")),
        Piece::Content(String::from("one\ntwo")),
    ];
    assert_eq!(encode(&tokenizer, &pieces), whole);
}

/// Proves TOK-01. Reference: transformers' ids in the zoo's generators; where a prompt spells a control token, the
/// oracle's ids are what a template may write and a content may not.
#[test]
fn zoo_prompts_equal_the_oracles() {
    let Some(zoo) = shared("data/zoo", "zoo_prompts_equal_the_oracles") else {
        return;
    };
    let (mut prompts, mut special) = (0, 0);
    for family in [
        "llama-generate",
        "llama3rope-generate",
        "qwen3-generate",
        "gemma3-generate",
    ] {
        let published = load(&zoo.join(family).join("tokenizer.json"), None).expect("loads");
        let header = header(&zoo.join(family).join("model.gguf"));
        let carried = carried(&header).expect("a good vocabulary");
        for item in json(&zoo.join(family).join("oracle.json"))["items"]
            .as_array()
            .expect("items")
        {
            let (prompt, expected) = (text(item, "text"), ids(&item["input_ids"]));
            for tokenizer in [&published, &carried] {
                let ours = encode(tokenizer, &content(prompt));
                if text(item, "cat") == "special_string" {
                    assert_ne!(ours, expected, "{family}: {prompt:?}");
                    let written = encode(tokenizer, &[Piece::Template(prompt.to_owned())]);
                    assert_eq!(written, expected, "{family}: {prompt:?}");
                    special += 1;
                } else {
                    assert_eq!(ours, expected, "{family}: {prompt:?}");
                }
                prompts += 1;
            }
        }
    }
    assert!(prompts >= 114 && special >= 6, "{prompts} prompts, {special} special");
}

/// The shapes of Llama 3 and Gemma through their own templates in the zoo's GGUF files: one begin token although both
/// the template and the vocabulary want it, and trimmed contents. Reference: the published ids of the whole text.
#[test]
fn a_begin_token_is_not_doubled() {
    let Some(zoo) = shared("data/zoo", "a_begin_token_is_not_doubled") else {
        return;
    };
    for (family, begin, expected) in [
        (
            "llama-generate",
            860,
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello world.<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "gemma3-generate",
            2,
            "<bos><start_of_turn>user\nHello world.<end_of_turn>\n<start_of_turn>model\n",
        ),
    ] {
        let header = header(&zoo.join(family).join("model.gguf"));
        let tokenizer = carried(&header).expect("a good vocabulary");
        let (bos, eos) = gguf::vocabulary::chat_tokens(&header);
        let source = gguf::chat::template(&header).expect("a text").expect("a template");
        let message = ChatMessage {
            role: ChatRole::User,
            content: String::from(" Hello world.\n"),
        };
        let pieces = ChatTemplate::compile(source, &bos, &eos)
            .and_then(|template| template.render(&[message]))
            .expect("renders");
        let written: String = pieces.iter().map(Piece::text).collect();
        assert_eq!(written, expected, "{family}");
        let encoded = encode(&tokenizer, &pieces);
        let published = load(&zoo.join(family).join("tokenizer.json"), None).expect("loads");
        assert_eq!(encoded, encode(&published, &[Piece::Template(written)]), "{family}");
        assert_eq!(encoded.iter().filter(|&&id| id == begin).count(), 1, "{family}");
        assert_eq!(encoded[0], begin, "{family}");
        // Without a template the frame gives it, and a content that spells it does not count as one.
        let spelled = encode(&tokenizer, &content(&bos));
        assert!(
            spelled.len() > 2 && spelled[0] == begin && !spelled[1..].contains(&begin),
            "{family}: {spelled:?}"
        );
    }
}

/// The end token of a frame would tell the model that nothing follows.
#[test]
fn no_end_token_is_added() {
    let Some(zoo) = shared("data/zoo", "no_end_token_is_added") else {
        return;
    };
    for (family, end) in [("qwen3-embed", 860), ("embeddinggemma-embed", 1)] {
        let tokenizer = load(&zoo.join(family).join("tokenizer.json"), None).expect("loads");
        let ids = encode(&tokenizer, &content("hello"));
        assert!(!ids.contains(&end) && ids.len() > 1, "{family}: {ids:?}");
    }
}

/// Every control token of every family: a template writes it as one id, a content never does.
#[test]
fn only_templates_write_control_tokens() {
    let Some(zoo) = shared("data/zoo", "only_templates_write_control_tokens") else {
        return;
    };
    let mut seen = 0;
    for folder in std::fs::read_dir(&zoo).expect("lists").flatten() {
        let path = folder.path().join("tokenizer.json");
        if !path.is_file() || folder.file_name() == "bad" {
            continue;
        }
        let published = json(&path);
        let tokenizer = load(&path, None).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let unknown = published["model"]["unk_token"].as_str().or_else(|| {
            let at = usize::try_from(published["model"]["unk_id"].as_u64()?).ok()?;
            published["model"]["vocab"][at][0].as_str()
        });
        for token in published["added_tokens"].as_array().expect("a list") {
            let surface = text(token, "content");
            if token["special"] != true || Some(surface) == unknown {
                continue;
            }
            let id = i32::try_from(token["id"].as_i64().expect("an id")).expect("fits");
            let place = format!("{}: {surface}", path.display());
            let written = encode(&tokenizer, &[Piece::Template(format!("a{surface}b"))]);
            let begin = encode(&tokenizer, &[]);
            let count = |ids: &[i32]| ids.iter().filter(|&&found| found == id).count();
            assert_eq!(count(&written), 1 + count(&begin), "{place}: {written:?}");
            for spelled in [surface.to_owned(), format!("a{surface}b"), format!(" {surface} ")] {
                let ids = encode(&tokenizer, &content(&spelled));
                assert_eq!(count(&ids), count(&begin), "{place}: {ids:?}");
                // Not across pieces either: half of it from the template, half from a content.
                let (left, right) = surface.split_at(surface.char_indices().nth(1).expect("two characters").0);
                let halves = [Piece::Template(left.to_owned()), Piece::Content(right.to_owned())];
                assert_eq!(count(&encode(&tokenizer, &halves)), count(&begin), "{place}");
            }
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen} tokens");
}

/// A tokenizer of six entries; `normalizer` and `pre_tokenizer` are JSON.
fn small(space: &str, normalizer: &str, pre_tokenizer: &str) -> Tokenizer {
    let added = [("<|e|>", 4, false, true), ("<|e|>>", 5, true, false)]
        .map(|(surface, id, lstrip, rstrip)| {
            format!(
                r#"{{"id": {id}, "content": "{surface}", "single_word": false, "lstrip": {lstrip}, "rstrip": {rstrip},
                    "normalized": false, "special": true}}"#
            )
        })
        .join(", ");
    let file = format!(
        r#"{{"added_tokens": [{added}], "normalizer": {normalizer}, "pre_tokenizer": {pre_tokenizer}, "post_processor": null,
            "model": {{"type": "BPE", "vocab": {{"a": 0, "{space}": 1, "{space}a": 2, "\u010a": 3, "<|e|>": 4, "<|e|>>": 5}},
                       "merges": [["{space}", "a"]]}}}}"#
    );
    let sanitised = synapse_daemon::text::sanitise::sanitise(file.as_bytes(), None).expect("a good file");
    Tokenizer::from_sanitised(&sanitised.bytes).expect("loads")
}

/// Where a space is put before a text: at the begin of the prompt and after a control token, or at the begin only, and
/// never in the middle. By hand from what Hugging Face documents of `Prepend`, `Metaspace` and `ByteLevel`.
#[test]
fn a_space_is_put_where_a_text_begins() {
    const MARK: &str = "\u{2581}";
    let metaspace = |scheme: &str| {
        format!(r#"{{"type": "Metaspace", "replacement": "{MARK}", "prepend_scheme": "{scheme}", "split": true}}"#)
    };
    let bytes = |prefix: bool| {
        format!(r#"{{"type": "ByteLevel", "add_prefix_space": {prefix}, "trim_offsets": true, "use_regex": true}}"#)
    };
    let prepend = format!(
        r#"{{"type": "Sequence", "normalizers": [{{"type": "Prepend", "prepend": "{MARK}"}},
            {{"type": "Replace", "pattern": {{"String": " "}}, "content": "{MARK}"}}]}}"#
    );
    let pieces = [
        Piece::Content(String::from("a")),
        Piece::Template(String::from("a<|e|>a")),
        Piece::Content(String::from("a a")),
    ];
    for (name, tokenizer, expected) in [
        ("always", small(MARK, "null", &metaspace("always")), [2, 0, 4, 2, 0, 2]),
        ("first", small(MARK, "null", &metaspace("first")), [2, 0, 4, 0, 0, 2]),
        ("never", small(MARK, "null", &metaspace("never")), [0, 0, 4, 0, 0, 2]),
        ("prepend", small(MARK, &prepend, "null"), [2, 0, 4, 2, 0, 2]),
        ("bytes", small("\u{120}", "null", &bytes(true)), [2, 0, 4, 2, 0, 2]),
        (
            "plain bytes",
            small("\u{120}", "null", &bytes(false)),
            [0, 0, 4, 0, 0, 2],
        ),
    ] {
        assert_eq!(encode(&tokenizer, &pieces), expected, "{name}");
    }
}

/// The longest control token wins, and one may swallow white space on a side; in a content it is text.
#[test]
fn a_control_token_is_the_longest_and_may_swallow_white_space() {
    let bytes = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}"#;
    let tokenizer = small("\u{120}", "null", bytes);
    let template = |text: &str| encode(&tokenizer, &[Piece::Template(text.to_owned())]);
    assert_eq!(template("a<|e|>>a"), [0, 5, 0]);
    assert_eq!(template("a<|e|> \n a"), [0, 4, 0], "swallowed after");
    assert_eq!(template("a \n<|e|>>\na"), [0, 5, 3, 0], "swallowed before");
    assert_eq!(template("\n<|e|>\n<|e|>\n"), [3, 4, 4]);
    let across = [
        Piece::Template(String::from("a<|e|>")),
        Piece::Content(String::from("\na")),
    ];
    assert_eq!(encode(&tokenizer, &across), [0, 4, 3, 0], "a content keeps its own");
}

#[test]
fn a_prompt_has_limits() {
    let Some(zoo) = shared("data/zoo", "a_prompt_has_limits") else {
        return;
    };
    let tokenizer = load(&zoo.join("qwen3-generate/tokenizer.json"), None).expect("loads");
    let pieces = content("1234567890");
    assert_eq!(tokenizer.encode_prompt(&pieces, 10).map(|ids| ids.len()), Ok(10));
    let refused = tokenizer.encode_prompt(&pieces, 9);
    assert_eq!(refused, Err(TextError::TooManyTokens { found: 10, limit: 9 }));
    let half = "a".repeat(MAX_TEXT_BYTES / 2 + 1);
    let refused = tokenizer.encode_prompt(&[Piece::Template(half.clone()), Piece::Content(half)], 9);
    assert!(matches!(refused, Err(TextError::TooManyBytes { .. })), "{refused:?}");
    assert_eq!(tokenizer.encode_prompt(&[], 0), Ok(Vec::new()));
}
