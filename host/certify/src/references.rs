//! What should come out of a model, by an implementation that is not ours.
//!
//! State: none; a [`References`] is read from bytes once. Callers: the daemon reads the file that the catalog names, `plan/`
//! compares with it. The scripts in `scripts/references` write such files, and so may a bundle's author: a header of text
//! lines, an empty line, then values.
//!
//! ```text
//! synapse-references 1
//! corpus SHA-256 of the corpus file
//! kind embed | rerank | generate
//! made_by WHO
//! items N
//! dims N          (embed)
//! max_tokens N    (embed, rerank: where texts were cut)
//! normalized yes | no   (embed)
//! ```
//!
//! `embed`: N × dims little-endian f32, texts and then queries in the corpus' order. `rerank`: N little-endian f32, set by
//! set. `generate`: N texts, each followed by a zero byte: how a greedy answer begins, as far as that is clear.

use std::collections::BTreeMap;

use synapse_core::digest::{Sha256Digest, sha256};

use crate::corpus::Corpus;

/// The largest file that is read.
pub const MAX_BYTES: usize = 64 << 20;

/// A model's independent results over the corpus.
#[derive(Clone, Debug, PartialEq)]
pub struct References {
    /// SHA-256 of the file.
    pub digest: Sha256Digest,
    /// Who made it, for people.
    pub made_by: String,
    /// Texts were cut to this many tokens, special tokens included; 0 for generators.
    pub max_tokens: u32,
    /// The results.
    pub values: ReferenceValues,
}

/// Results by kind of work.
#[derive(Clone, Debug, PartialEq)]
pub enum ReferenceValues {
    /// One vector a text, then one a query.
    Vectors {
        /// Length of a vector.
        dims: usize,
        /// The vectors have length 1.
        normalized: bool,
        /// Row by row.
        values: Vec<f32>,
    },
    /// One raw score a pair, set by set.
    Scores(Vec<f32>),
    /// How each answer begins.
    Beginnings(Vec<String>),
}

/// Why a file gives no references.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reference file cannot be used: {0}")]
pub struct BadReferences(String);

impl References {
    /// Reads a file made for the built-in corpus.
    ///
    /// # Errors
    /// [`BadReferences`] names what is wrong: another format or corpus, a length that does not fit, a value that is not
    /// finite.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadReferences> {
        parse(bytes, Corpus::builtin()).map_err(BadReferences)
    }

    /// The vector of an item, where these are vectors.
    pub(crate) fn row(&self, item: usize) -> Option<&[f32]> {
        match &self.values {
            ReferenceValues::Vectors { dims, values, .. } => values.chunks_exact(*dims).nth(item),
            ReferenceValues::Scores(scores) => scores.chunks_exact(1).nth(item),
            ReferenceValues::Beginnings(_) => None,
        }
    }
}

fn parse(bytes: &[u8], corpus: &Corpus) -> Result<References, String> {
    if bytes.len() > MAX_BYTES {
        return Err(format!("{} bytes, expected at most {MAX_BYTES}", bytes.len()));
    }
    let end = bytes.windows(2).take(4_096).position(|pair| pair == b"\n\n");
    let end = end.ok_or("no header that ends in an empty line")?;
    let header = std::str::from_utf8(&bytes[..end]).map_err(|_| "the header is not UTF-8")?;
    let body = &bytes[end + 2..];
    let mut lines = header.lines();
    if lines.next() != Some("synapse-references 1") {
        return Err("the first line is not `synapse-references 1`".to_owned());
    }
    let mut fields = BTreeMap::new();
    for line in lines {
        let (name, value) = line
            .split_once(' ')
            .ok_or_else(|| format!("the line {line:?} has no value"))?;
        if fields.insert(name, value).is_some() {
            return Err(format!("{name} stands twice"));
        }
    }
    let mut take = |name: &str| fields.remove(name).ok_or_else(|| format!("the header has no {name}"));
    let number = |name: &str, text: &str| {
        let value = text.parse::<u32>().ok().filter(|value| (1..=1 << 24).contains(value));
        value.ok_or_else(|| format!("{name} is {text:?}, expected a number"))
    };
    let of = take("corpus")?;
    if of != corpus.digest.to_string() {
        return Err(format!("made for the corpus {of}, this one is {}", corpus.digest));
    }
    let made_by = take("made_by")?.to_owned();
    let items = usize::try_from(number("items", take("items")?)?).map_err(|error| error.to_string())?;
    let expect = |expected: usize| match items == expected {
        true => Ok(()),
        false => Err(format!("{items} items, the corpus has {expected}")),
    };
    let (max_tokens, values) = match take("kind")? {
        "embed" => {
            expect(corpus.texts.len() + corpus.queries.len())?;
            let dims = usize::try_from(number("dims", take("dims")?)?).map_err(|error| error.to_string())?;
            let normalized = match take("normalized")? {
                "yes" => true,
                "no" => false,
                other => return Err(format!("normalized is {other:?}, expected yes or no")),
            };
            let values = floats(body, items.saturating_mul(dims))?;
            let vectors = ReferenceValues::Vectors {
                dims,
                normalized,
                values,
            };
            (number("max_tokens", take("max_tokens")?)?, vectors)
        }
        "rerank" => {
            expect(corpus.rerank.iter().map(|set| set.documents.len()).sum())?;
            let scores = ReferenceValues::Scores(floats(body, items)?);
            (number("max_tokens", take("max_tokens")?)?, scores)
        }
        "generate" => {
            expect(corpus.prompts.len())?;
            let text = std::str::from_utf8(body).map_err(|_| "the beginnings are not UTF-8")?;
            let beginnings: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
            if beginnings.len() != items || beginnings.iter().any(String::is_empty) {
                return Err(format!("{} beginnings, expected {items}, none empty", beginnings.len()));
            }
            (0, ReferenceValues::Beginnings(beginnings))
        }
        other => return Err(format!("kind is {other:?}, expected embed, rerank or generate")),
    };
    if let Some(name) = fields.keys().next() {
        return Err(format!("the header has an unknown field {name}"));
    }
    Ok(References {
        digest: sha256(bytes),
        made_by,
        max_tokens,
        values,
    })
}

fn floats(body: &[u8], count: usize) -> Result<Vec<f32>, String> {
    if count.checked_mul(4) != Some(body.len()) {
        return Err(format!("{} bytes of values, expected {count} of 4 bytes", body.len()));
    }
    let values: Vec<f32> = body
        .as_chunks::<4>()
        .0
        .iter()
        .map(|four| f32::from_le_bytes(*four))
        .collect();
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!("value {at} is not finite")),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(edit: impl Fn(String) -> String, body: &[u8]) -> Vec<u8> {
        let header = format!(
            "synapse-references 1\ncorpus {}\nkind rerank\nmade_by test\nitems 96\nmax_tokens 64",
            Corpus::builtin().digest
        );
        [edit(header).as_bytes(), b"\n\n", body].concat()
    }

    #[test]
    fn a_file_is_read_whole() {
        let body: Vec<u8> = (0..96u8).flat_map(|n| f32::from(n).to_le_bytes()).collect();
        let bytes = file(|header| header, &body);
        let read = References::parse(&bytes).expect("sound");
        assert_eq!((read.max_tokens, read.made_by.as_str()), (64, "test"));
        assert_eq!(read.digest, sha256(&bytes));
        assert_eq!(read.row(95), Some(&[95.0][..]));
        assert_eq!(read.row(96), None);
    }

    /// One edit a mistake, and a word of what is said.
    #[test]
    fn mistakes_are_named() {
        let body = [0; 96 * 4];
        for (from, to, word) in [
            ("references 1", "references 2", "first line"),
            ("corpus ", "corpus 0", "made for the corpus"),
            ("kind rerank", "kind score", "kind is"),
            ("items 96", "items 95", "the corpus has 96"),
            ("items 96", "items 0", "items is"),
            ("items 96", "items 96\nitems 96", "twice"),
            ("max_tokens 64", "max_tokens x", "max_tokens is"),
            ("made_by test\n", "", "no made_by"),
            ("made_by test", "made_by", "no value"),
            ("made_by test", "made_by test\nmore 1", "unknown field more"),
            ("kind rerank", "kind embed", "the corpus has 255"),
            ("kind rerank", "kind generate", "the corpus has 4"),
        ] {
            let error = References::parse(&file(|header| header.replace(from, to), &body)).expect_err(to);
            assert!(error.to_string().contains(word), "{to}: {error}");
        }
        let mut infinite = body;
        infinite[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
        for (body, word) in [(&body[4..], "380 bytes"), (&infinite[..], "value 1 is not finite")] {
            let error = References::parse(&file(|header| header, body)).expect_err(word);
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(References::parse(b"no header").is_err());
    }

    /// Whatever the bytes, there is an answer.
    #[test]
    fn any_prefix_and_any_flipped_byte_is_answered() {
        let sound = file(|header| header, &[0; 96 * 4]);
        for length in 0..sound.len() {
            assert!(References::parse(&sound[..length]).is_err(), "{length}");
        }
        for at in 0..220 {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x15;
            let _ = References::parse(&bytes);
        }
    }
}
