//! Pairs against other implementations: transformers' ids of the shared cross-encoders, one pair at a time.

use serde_json::Value;
use synapse_daemon::text::{EncodedPair, Limits, TextError, Tokenizer};

use crate::oracle::check_shape;
use crate::support::{cut, fixtures, ids, json, json_lines, load, shared, text};

fn encode(tokenizer: &Tokenizer, item: &Value, max: u32) -> Result<EncodedPair, TextError> {
    tokenizer.encode_pair(text(item, "query"), text(item, "document"), cut(max))
}

/// How many tokens of the query and what is around it stand before the document: where the segments change, or, where
/// there is only one, what encoding the query and the document alone says.
fn expected_start(tokenizer: &Tokenizer, item: &Value, segments: &[i32]) -> usize {
    segments.iter().position(|&segment| segment == 1).unwrap_or_else(|| {
        let query = tokenizer
            .encode(text(item, "query"), None, cut(u32::MAX))
            .expect("a query");
        let document = tokenizer
            .encode(text(item, "document"), None, cut(u32::MAX))
            .expect("a document");
        let whole = usize::try_from(item["n_tokens_untruncated"].as_u64().expect("a count")).expect("fits");
        let content = document.ids.len() - tokenizer.special_tokens();
        assert!(query.ids.len() <= whole - content);
        // Every such frame ends with one token after the document.
        whole - content - 1
    })
}

/// Proves TOK-06. Reference: transformers, in the zoo's cross-encoders. Where the oracle cut the query as well, ours
/// keeps it; a Unigram oracle's special strings are control ids and therefore no reference.
#[test]
fn zoo_pairs_equal_the_oracles() {
    let Some(zoo) = shared("data/zoo", "zoo_pairs_equal_the_oracles") else {
        return;
    };
    let mut compared = 0;
    for family in ["bert-cross-encoder", "xlm-roberta-cross-encoder", "modernbert-reranker"] {
        let oracle = json(&zoo.join(family).join("oracle.json"));
        let tokenizer = load(&zoo.join(family).join("tokenizer.json"), None).expect("loads");
        let max = u32::try_from(oracle["max_tokens"].as_u64().expect("a limit")).expect("fits");
        for item in oracle["items"].as_array().expect("items") {
            let pair = encode(&tokenizer, item, max).unwrap_or_else(|error| panic!("{family} {item}: {error}"));
            check_shape(&pair.encoded, text(item, "document"));
            let category = text(item, "cat");
            if category == "both_long_over_max" {
                assert!(
                    pair.encoded.truncated && pair.encoded.effective_tokens == max,
                    "{family}"
                );
                continue;
            }
            if category == "special_string" && family.starts_with("xlm") {
                assert_eq!(
                    pair.encoded.ids.iter().filter(|&&id| id <= 2).count(),
                    4,
                    "{family}: {item}"
                );
                continue;
            }
            let reference = item.get("plain").unwrap_or(item);
            assert_eq!(pair.encoded.ids, ids(&reference["input_ids"]), "{family}: {item}");
            let segments = ids(&reference["type_ids"]);
            assert_eq!(pair.encoded.type_ids, segments, "{family}: {item}");
            if category != "special_string" {
                let submitted = u64::from(pair.encoded.submitted_tokens);
                assert_eq!(submitted, item["n_tokens_untruncated"].as_u64().expect("a count"));
                let start = usize::try_from(pair.doc_start).expect("fits");
                let empty = text(item, "document").is_empty();
                assert!(
                    empty || start == expected_start(&tokenizer, item, &segments),
                    "{family}: {item}"
                );
            }
            compared += 1;
        }
    }
    assert!(compared >= 76, "{compared} pairs");
}

/// Proves TOK-06, API-14. Reference: transformers' ids for a cross-encoder with MiniLM's tokenizer, documents up to 1,379
/// tokens against a limit of 512.
#[test]
fn minilm_pairs_equal_the_oracle() {
    let Some(oracle) = shared(
        "data/oracle/rerank.reranker-random-tiny.jsonl",
        "minilm_pairs_equal_the_oracle",
    ) else {
        return;
    };
    let tokenizer = load(&fixtures().join("minilm/tokenizer.json"), Some(30_522)).expect("loads");
    let (mut cut_documents, mut compared) = (0, 0);
    for item in json_lines(&oracle) {
        let pair = match encode(&tokenizer, &item, 512) {
            Ok(pair) => pair,
            Err(error) => {
                assert!(
                    matches!(error, TextError::QueryTooLong { found: 603, limit: 512 }),
                    "{error}"
                );
                assert_eq!(item["id"], 51, "only this query fills the limit");
                continue;
            }
        };
        let reference = ids(&item["input_ids"]);
        let start = usize::try_from(item["n_type0"].as_u64().expect("a count")).expect("fits");
        // The oracle also cuts the one long query, and reads the one control token that a document spells.
        if item["id"] == 50 || text(&item, "document").contains("[SEP]") {
            continue;
        }
        assert_eq!(pair.encoded.ids, reference, "{}", item["id"]);
        assert_eq!(usize::try_from(pair.doc_start).expect("fits"), start);
        assert!(pair.encoded.type_ids[..start].iter().all(|&segment| segment == 0));
        assert!(pair.encoded.type_ids[start..].iter().all(|&segment| segment == 1));
        let submitted = item["n_full"].as_u64().expect("a count");
        assert_eq!(u64::from(pair.encoded.submitted_tokens), submitted);
        assert_eq!(pair.encoded.truncated, submitted > 512);
        cut_documents += usize::from(pair.encoded.truncated);
        compared += 1;
    }
    assert!(
        compared >= 49 && cut_documents >= 5,
        "{compared} pairs, {cut_documents} cut"
    );
}

/// Proves TOK-06. RoBERTa's own post-processor, `<s> q </s></s> d </s>` in one segment. Reference: the file's ids of
/// those tokens and its own ids of each text.
#[test]
fn roberta_pairs_have_its_own_frame() {
    let Some(zoo) = shared("data/zoo", "roberta_pairs_have_its_own_frame") else {
        return;
    };
    let tokenizer = load(&zoo.join("roberta-embed/tokenizer.json"), None).expect("loads");
    let pair = tokenizer
        .encode_pair("two words", "and a document", cut(64))
        .expect("fits");
    let alone = |text: &str| tokenizer.encode(text, None, cut(64)).expect("fits").ids;
    let (query, document) = (alone("two words"), alone("and a document"));
    let expected = [&query[..], &[2], &document[1..]].concat();
    assert_eq!(pair.encoded.ids, expected);
    assert_eq!(usize::try_from(pair.doc_start).expect("fits"), query.len() + 1);
    assert!(pair.encoded.type_ids.iter().all(|&segment| segment == 0));
}

/// Proves API-14. Only the document is cut, and no limit makes the query shorter.
#[test]
fn only_the_document_is_cut() {
    let tokenizer = load(&fixtures().join("minilm/tokenizer.json"), Some(30_522)).expect("loads");
    let (query, document) = ("one two three four", "five six seven eight nine ten");
    let whole = tokenizer.encode_pair(query, document, cut(64)).expect("fits");
    assert_eq!(
        (whole.encoded.ids.len(), whole.doc_start, whole.encoded.truncated),
        (13, 6, false)
    );
    for max in 8..13 {
        let pair = tokenizer.encode_pair(query, document, cut(max)).expect("is cut");
        let kept = usize::try_from(max).expect("fits");
        assert_eq!(pair.encoded.ids[..kept - 1], whole.encoded.ids[..kept - 1], "at {max}");
        assert_eq!(pair.encoded.ids[kept - 1], 102, "the frame stays");
        let counts = (
            pair.encoded.submitted_tokens,
            pair.encoded.effective_tokens,
            pair.encoded.truncated,
        );
        assert_eq!(counts, (13, max, true));
        let last = pair.encoded.offsets[kept - 2].expect("a document token");
        assert_eq!(last, whole.encoded.offsets[kept - 2].expect("a document token"));
    }
    // Four words, [CLS] and two [SEP]: at seven nothing of the document would be left.
    for truncate in [true, false] {
        let limits = Limits { truncate, ..cut(7) };
        let refused = tokenizer.encode_pair(query, document, limits);
        assert_eq!(refused, Err(TextError::QueryTooLong { found: 7, limit: 7 }));
    }
    let empty = tokenizer.encode_pair(query, "", cut(7)).expect("nothing is lost");
    assert_eq!(
        (empty.encoded.ids.len(), empty.doc_start, empty.encoded.truncated),
        (7, 6, false)
    );

    let uncut = Limits {
        truncate: false,
        ..cut(12)
    };
    let refused = tokenizer.encode_pair(query, document, uncut);
    assert_eq!(refused, Err(TextError::TooManyTokens { found: 13, limit: 12 }));
    let long = Limits {
        max_bytes: 20,
        ..cut(64)
    };
    let refused = tokenizer.encode_pair(query, document, long);
    assert_eq!(refused, Err(TextError::TooManyBytes { found: 29, limit: 20 }));
}

/// A decoder's tokenizer puts nothing between two texts, so its model cannot tell them apart.
#[test]
fn without_a_pair_frame_there_are_no_pairs() {
    let Some(zoo) = shared("data/zoo", "without_a_pair_frame_there_are_no_pairs") else {
        return;
    };
    for (family, pairs) in [("qwen3-embed", false), ("qwen3-generate", false), ("bert-embed", true)] {
        let tokenizer = load(&zoo.join(family).join("tokenizer.json"), None).expect("loads");
        assert_eq!(tokenizer.has_pairs(), pairs, "{family}");
        let encoded = tokenizer.encode_pair("a", "b", cut(64));
        assert_eq!(encoded == Err(TextError::NoPairs), !pairs, "{family}");
    }
}
