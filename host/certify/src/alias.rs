//! May two lanes' vectors stand in one index (ALIAS-05)?
//!
//! State: none. Callers: the daemon, which keeps the vectors of each certified lane and compares those of a declared pair.

use synapse_core::digest::Sha256Digest;

use crate::corpus::Corpus;
use crate::figures::{RowPair, Scale, count, deviation, mean, overlaps};
use crate::gate::{Bound, Figure, Gate, GateResult, Outcome};

/// The least cosine of one text between two spaces that count as one.
pub const LEAST_COSINE: f64 = 0.9999;
/// The least mean overlap of the queries' nearest ten.
pub const LEAST_OVERLAP: f64 = 0.995;

/// A lane's vectors over the corpus, unit length: texts and then queries, in the corpus' order.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptVectors {
    /// The corpus that they are of.
    pub corpus: Sha256Digest,
    /// Texts are cut to this many tokens.
    pub max_tokens: u32,
    /// Length of a vector.
    pub dims: u32,
    /// `items × dims` values.
    pub values: Vec<f32>,
}

impl KeptVectors {
    /// The stored form: digest, two little-endian u32 (`max_tokens`, `dims`), little-endian f32 values.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.corpus.0.to_vec();
        bytes.extend(self.max_tokens.to_le_bytes());
        bytes.extend(self.dims.to_le_bytes());
        bytes.extend(self.values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    /// Reads the stored form; `None` for bytes that are not one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (digest, rest) = bytes.split_first_chunk::<32>()?;
        let (max_tokens, rest) = rest.split_first_chunk::<4>()?;
        let (dims, rest) = rest.split_first_chunk::<4>()?;
        let (values, tail) = rest.as_chunks::<4>();
        let dims = u32::from_le_bytes(*dims);
        let width = usize::try_from(dims).ok().filter(|width| *width > 0)?;
        if !tail.is_empty() || !values.len().is_multiple_of(width) {
            return None;
        }
        let values: Vec<f32> = values.iter().map(|four| f32::from_le_bytes(*four)).collect();
        values.iter().all(|value| value.is_finite()).then_some(Self {
            corpus: Sha256Digest(*digest),
            max_tokens: u32::from_le_bytes(*max_tokens),
            dims,
            values,
        })
    }

    fn rows(&self) -> Vec<&[f32]> {
        let width = usize::try_from(self.dims).unwrap_or(usize::MAX).max(1);
        self.values.chunks_exact(width).collect()
    }
}

/// Compares two lanes: minimum cosine ≥ 0.9999 and mean top-10 overlap ≥ 0.995 (DECISIONS, "gates"). Vectors of another
/// corpus, length or cut are not comparable, and fail.
#[must_use]
pub fn alias_gate(a: &KeptVectors, b: &KeptVectors) -> GateResult {
    let corpus = Corpus::builtin();
    let items = corpus.texts.len() + corpus.queries.len();
    let fails = |note: String| GateResult::bare(Gate::Alias, Outcome::Failed, note);
    for (name, same) in [
        ("corpora", a.corpus == b.corpus && a.corpus == corpus.digest),
        ("lengths of vectors", a.dims == b.dims),
        ("cuts of long texts", a.max_tokens == b.max_tokens),
    ] {
        if !same {
            return fails(format!("not comparable: of different {name}; probe both lanes again"));
        }
    }
    let (left, right) = (a.rows(), b.rows());
    if left.len() != items || right.len() != items {
        return fails(format!(
            "{} and {} vectors, the corpus has {items}",
            left.len(),
            right.len()
        ));
    }
    let (mut min_cosine, mut max_abs, mut worst) = (1.0_f64, 0.0_f64, 0);
    for (item, (a, b)) in left.iter().zip(&right).enumerate() {
        let found = deviation(a, b, Scale::Unit);
        if found.cosine < min_cosine {
            (min_cosine, worst) = (found.cosine, item);
        }
        max_abs = max_abs.max(found.max_abs);
    }
    let pairs: Vec<RowPair<'_>> = left.iter().zip(&right).map(|(a, b)| (Some(*a), Some(*b))).collect();
    let (texts, queries) = pairs.split_at(corpus.texts.len());
    // Neither side is the better one: both have to find what the other finds.
    let forth = mean(&overlaps(queries, texts));
    let back = mean(&overlaps(&turned(queries), &turned(texts)));
    let figure = |name, value, bound| Figure { name, value, bound };
    let text = corpus
        .texts
        .iter()
        .chain(&corpus.queries)
        .nth(worst)
        .map_or("", |text| text);
    let begin: String = text.chars().take(24).collect();
    GateResult::of(
        Gate::Alias,
        vec![
            figure("min_cosine", min_cosine, Some(Bound::AtLeast(LEAST_COSINE))),
            figure(
                "mean_top10_overlap",
                forth.min(back),
                Some(Bound::AtLeast(LEAST_OVERLAP)),
            ),
            figure("max_abs", max_abs, None),
            figure("texts", count(items), None),
        ],
        format!("farthest: {begin:?}"),
    )
}

fn turned<'a>(pairs: &[RowPair<'a>]) -> Vec<RowPair<'a>> {
    pairs.iter().map(|(a, b)| (*b, *a)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors that point in as many directions as there are texts, each query at a text.
    fn vectors() -> KeptVectors {
        let corpus = Corpus::builtin();
        let items = corpus.texts.len() + corpus.queries.len();
        let mut state = 7_u32;
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).expect("16 bits")) / 32_768.0 - 1.0
        };
        KeptVectors {
            corpus: corpus.digest,
            max_tokens: 64,
            dims: 16,
            values: (0..items * 16).map(|_| value()).collect(),
        }
    }

    /// Proves ALIAS-05.
    #[test]
    fn near_vectors_pass_and_far_ones_do_not() {
        let base = vectors();
        let same = alias_gate(&base, &base);
        assert_eq!(same.outcome, Outcome::Passed, "{same:?}");
        let mut near = base.clone();
        near.values.iter_mut().step_by(3).for_each(|value| *value += 1e-4);
        let result = alias_gate(&base, &near);
        assert_eq!(result.outcome, Outcome::Passed, "{result:?}");
        let mut one = base.clone();
        one.values[16 * 40] += 0.2;
        let result = alias_gate(&base, &one);
        assert_eq!(result.outcome, Outcome::Failed);
        assert!(
            !result.figures[0].holds() && result.figures[1].holds(),
            "one text in 255: {result:?}"
        );
        let mut far = base.clone();
        far.values.iter_mut().step_by(2).for_each(|value| *value += 0.3);
        let result = alias_gate(&base, &far);
        assert!(!result.figures[0].holds() && !result.figures[1].holds(), "{result:?}");
        assert_eq!(
            alias_gate(&far, &base).figures,
            result.figures,
            "neither side comes first"
        );
    }

    #[test]
    fn what_cannot_be_compared_fails_with_words() {
        let base = vectors();
        type Edit = fn(&mut KeptVectors);
        let edits: [(Edit, &str); 4] = [
            (|v| v.corpus = Sha256Digest([0; 32]), "corpora"),
            (|v| v.dims = 8, "lengths"),
            (|v| v.max_tokens = 65, "cuts"),
            (|v| v.values.truncate(16), "vectors"),
        ];
        for (edit, word) in edits {
            let mut other = base.clone();
            edit(&mut other);
            let result = alias_gate(&base, &other);
            assert!(
                result.outcome == Outcome::Failed && result.note.contains(word),
                "{result:?}"
            );
        }
    }

    #[test]
    fn the_stored_form_is_read_back_or_refused() {
        let base = vectors();
        let bytes = base.to_bytes();
        assert_eq!(KeptVectors::from_bytes(&bytes), Some(base));
        for length in [0, 31, 39, bytes.len() - 1, bytes.len() - 4] {
            assert_eq!(KeptVectors::from_bytes(&bytes[..length]), None, "{length}");
        }
        let mut infinite = bytes;
        infinite[40..44].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(KeptVectors::from_bytes(&infinite), None);
    }
}
