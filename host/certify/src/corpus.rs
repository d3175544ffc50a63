//! The texts that are tried, and the texts that are timed.
//!
//! State: none; the corpus is a file of the catalog, parsed once. Callers: `plan/`, `references.rs` (its digest). The
//! texts are of our own wording: degenerate ones, many scripts, code, long ones. Text for exact lengths and for timing
//! is composed of the corpus' words, each different from all others (CERT-20).

use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use synapse_core::digest::{Sha256Digest, sha256};

/// A query with candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RerankSet {
    /// The query.
    pub query: Arc<str>,
    /// The candidates, one of them about it.
    pub documents: Vec<Arc<str>>,
}

/// The corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// SHA-256 of the file. References are of one corpus.
    pub digest: Sha256Digest,
    /// The texts.
    pub texts: Vec<Arc<str>>,
    /// What is asked of all texts.
    pub queries: Vec<Arc<str>>,
    /// Sets to rerank.
    pub rerank: Vec<RerankSet>,
    /// User messages for generators.
    pub prompts: Vec<Arc<str>>,
    /// The words that texts are composed of.
    words: Vec<Arc<str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    texts: Vec<Group>,
    queries: Items,
    rerank: Vec<Set>,
    prompts: Items,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    category: String,
    items: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Items {
    items: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    query: String,
    documents: Vec<String>,
}

/// The category whose words make up composed texts.
const WORDS_OF: &str = "english";
/// Their longest, in bytes: two words are a query, which has to be short where a byte is a token.
const LONGEST_WORD: usize = 8;
/// How many there have to be, so that two of them number every composed text.
const LEAST_WORDS: usize = 150;

impl Corpus {
    /// The built-in corpus.
    ///
    /// # Panics
    /// If the built-in file does not parse, which a test of this crate excludes.
    #[must_use]
    pub fn builtin() -> &'static Self {
        static BUILTIN: LazyLock<Corpus> =
            LazyLock::new(|| Corpus::parse(synapse_catalog::CORPUS).expect("the built-in corpus parses"));
        &BUILTIN
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.schema != 1 {
            return Err(format!("schema is {}, this version reads 1", file.schema));
        }
        let mut words = Vec::new();
        for group in file.texts.iter().filter(|group| group.category == WORDS_OF) {
            for word in group.items.iter().flat_map(|text| text.split_whitespace()) {
                let plain =
                    (3..=LONGEST_WORD).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase());
                if plain && !words.iter().any(|known: &Arc<str>| **known == *word) {
                    words.push(Arc::from(word));
                }
            }
        }
        if words.len() < LEAST_WORDS {
            return Err(format!(
                "{} words to compose texts of, expected {LEAST_WORDS}",
                words.len()
            ));
        }
        let sets = file.rerank.into_iter().map(|set| RerankSet {
            query: set.query.into(),
            documents: shared(set.documents),
        });
        Ok(Self {
            digest: sha256(text.as_bytes()),
            texts: shared(file.texts.into_iter().flat_map(|group| group.items)),
            queries: shared(file.queries.items),
            rerank: sets.collect(),
            prompts: shared(file.prompts.items),
            words,
        })
    }

    /// A text of `words` words, at least as many tokens. Two numbers give two texts, different in their first two words.
    #[must_use]
    pub fn composed(&self, number: usize, words: usize) -> Arc<str> {
        let many = self.words.len();
        let mut text = String::new();
        let mut state = number.wrapping_mul(0x9e37_79b9).wrapping_add(1);
        for position in 0..words.max(2) {
            let word = match position {
                0 => number % many,
                1 => (number / many) % many,
                _ => {
                    state = state.wrapping_mul(0x5851_f42d).wrapping_add(0x1405_7b7e) & 0xffff_ffff;
                    (state >> 12) % many
                }
            };
            if position > 0 {
                text.push(' ');
            }
            text.push_str(&self.words[word]);
        }
        text.into()
    }
}

fn shared(texts: impl IntoIterator<Item = String>) -> Vec<Arc<str>> {
    texts.into_iter().map(Arc::from).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// At least 200 texts and 50 queries, none twice, of many lengths.
    ///
    /// Proves CERT-02.
    #[test]
    fn the_corpus_is_large_enough_and_repeats_nothing() {
        let corpus = Corpus::builtin();
        assert!(
            corpus.texts.len() >= 200 && corpus.queries.len() >= 50,
            "{}",
            corpus.texts.len()
        );
        let all: BTreeSet<&str> = corpus.texts.iter().chain(&corpus.queries).map(|text| &**text).collect();
        assert_eq!(all.len(), corpus.texts.len() + corpus.queries.len());
        assert!(all.iter().any(|text| text.len() == 1) && all.iter().any(|text| text.len() > 20_000));
        assert_eq!((corpus.rerank.len(), corpus.prompts.len()), (12, 4));
        for set in &corpus.rerank {
            let documents: BTreeSet<_> = set.documents.iter().collect();
            assert_eq!(documents.len(), 8, "{}", set.query);
        }
    }

    #[test]
    fn composed_texts_differ_early_and_have_their_words() {
        let corpus = Corpus::builtin();
        let mut begins = BTreeSet::new();
        for number in 0..5_000 {
            let text = corpus.composed(number, 8);
            assert_eq!(text.split(' ').count(), 8);
            let begin: Vec<&str> = text.split(' ').take(2).collect();
            assert!(begins.insert(begin.join(" ")), "{text}");
        }
        assert_eq!(corpus.composed(7, 600).split(' ').count(), 600);
        assert_eq!(corpus.composed(7, 600), corpus.composed(7, 600));
        assert!(
            begins.iter().all(|begin| begin.len() <= 17),
            "a query of two words has few bytes"
        );
        assert!(
            corpus.words.len().pow(2) > 20_000,
            "two words number every text of a plan"
        );
    }

    #[test]
    fn a_file_of_another_shape_is_refused() {
        for (text, word) in [
            ("schema = 2", "texts"),
            ("", "schema"),
            ("schema = 1\nmore = 1", "more"),
        ] {
            let error = Corpus::parse(text).expect_err(text);
            assert!(error.contains(word), "{error}");
        }
    }
}
