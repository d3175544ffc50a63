//! Pairs: a query and a document as one sequence, for cross-encoders (API-15).
//!
//! State: none beyond the tokenizer's. Callers: `rerank.score`, once for each candidate. Not known here: scores,
//! candidates, engines.
//!
//! The frame is the tokenizer's own: `[CLS] q [SEP] d [SEP]` with segments 0 and 1, `<s> q </s></s> d </s>`, or what
//! else its post-processor makes of two texts. Only the document is cut, from its end: a shortened query would be
//! another question, and scores of one request would no longer be comparable.

use super::tokenizer::{Encoded, Limits, Tokenizer, count};
use super::{TextError, frame::PairFrame};

/// A query and a document as one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedPair {
    /// The sequence. Offsets are bytes of the document; the query's tokens have none.
    pub encoded: Encoded,
    /// The position in the sequence of the document's first token; where the document has no tokens, the position
    /// where it would begin. At most the sequence's length.
    pub doc_start: u32,
}

impl Tokenizer {
    /// Whether this tokenizer knows how to frame pairs; where it does not, its model cannot rerank.
    #[must_use]
    pub const fn has_pairs(&self) -> bool {
        self.pair_frame().is_some()
    }

    /// Encodes a query and a document as one sequence in the tokenizer's own pair frame (API-15). Control-token
    /// spellings in either stay text. `limits.max_tokens` bounds the whole sequence; with `limits.truncate` the
    /// document is cut from its end and that is disclosed, without it a sequence that is too long is refused. A query
    /// that alone fills the limit is its own error in both cases: no document could be scored with it.
    /// `limits.max_bytes` bounds each of the two texts. Takes time in proportion to both texts: run it off the
    /// socket's threads.
    ///
    /// # Errors
    /// [`TextError::NoPairs`], [`TextError::TooManyBytes`], [`TextError::QueryTooLong`] when no document token would
    /// fit although the document has some, [`TextError::TooManyTokens`], [`TextError::Failed`].
    pub fn encode_pair(&self, query: &str, document: &str, limits: Limits) -> Result<EncodedPair, TextError> {
        let frame = self.pair_frame().ok_or(TextError::NoPairs)?;
        let query = self.content(query, limits.max_bytes)?;
        let document = self.content(document, limits.max_bytes)?;
        let fixed = frame.tokens() + query.len();
        let submitted = count(fixed + document.len());
        let limit = usize::try_from(limits.max_tokens).unwrap_or(usize::MAX);
        let kept = if submitted <= limits.max_tokens {
            document.len()
        } else if fixed >= limit {
            // At least one token of the document must fit, or the score would be that of an empty one.
            return Err(TextError::QueryTooLong {
                found: count(fixed),
                limit: limits.max_tokens,
            });
        } else if limits.truncate {
            limit - fixed
        } else {
            return Err(TextError::TooManyTokens {
                found: submitted,
                limit: limits.max_tokens,
            });
        };
        assemble(frame, &query, &document, kept, submitted)
    }
}

fn assemble(
    frame: &PairFrame,
    query: &tokenizers::Encoding,
    document: &tokenizers::Encoding,
    kept: usize,
    submitted: u32,
) -> Result<EncodedPair, TextError> {
    let mut encoded = Encoded {
        submitted_tokens: submitted,
        ..Encoded::default()
    };
    encoded.push_specials(&frame.before);
    for &id in query.get_ids() {
        encoded.push(id, frame.query_segment, None)?;
    }
    encoded.push_specials(&frame.between);
    let doc_start = count(encoded.ids.len());
    for (&id, &(begin, end)) in document.get_ids().iter().zip(document.get_offsets()).take(kept) {
        let place = u32::try_from(begin).ok().zip(u32::try_from(end).ok());
        encoded.push(id, frame.document_segment, place)?;
    }
    encoded.push_specials(&frame.after);
    encoded.close();
    Ok(EncodedPair { encoded, doc_start })
}
