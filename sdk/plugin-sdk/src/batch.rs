//! Ragged batches as plain slices, checked before the author sees them.
//!
//! Owns no state. The shims check every batch with [`TokenBatch::check`], so an author may index without fear.

use crate::{api, error::Error};

/// A ragged batch of token ids: item `i` is `ids[offsets[i]..offsets[i + 1]]`.
///
/// Checked: `offsets` has `n + 1` ascending entries from 0 to `ids.len()`, no item is empty, and `type_ids` is empty
/// (all segments 0) or as long as `ids`.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// Every item's token ids, back to back, special tokens included.
    pub ids: &'a [i32],
    /// `n + 1` ascending offsets into `ids`.
    pub offsets: &'a [u32],
    /// One segment id per token, or empty when all are 0.
    pub type_ids: &'a [i32],
}

/// One item of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its token ids; at least one.
    pub ids: &'a [i32],
    /// Its segment ids, or empty when all are 0.
    pub type_ids: &'a [i32],
}

impl<'a> TokenBatch<'a> {
    /// The number of items.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether the batch has no item.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Item `i`.
    ///
    /// # Panics
    /// When `i` is not smaller than [`TokenBatch::len`].
    #[must_use]
    pub fn item(&self, i: usize) -> Item<'a> {
        let range = self.offsets[i] as usize..self.offsets[i + 1] as usize;
        let type_ids = if self.type_ids.is_empty() {
            &[]
        } else {
            &self.type_ids[range.clone()]
        };
        Item {
            ids: &self.ids[range],
            type_ids,
        }
    }

    /// The items in order.
    pub fn items(&self) -> impl ExactSizeIterator<Item = Item<'a>> + use<'a> {
        let batch = *self;
        (0..batch.len()).map(move |i| batch.item(i))
    }

    /// Checks a batch of the ABI and borrows it.
    pub(crate) fn check(batch: &api::TokenBatch<'a>, max_tokens: u32) -> Result<Self, Error> {
        let batch = Self {
            ids: batch.ids.as_slice(),
            offsets: batch.offsets.as_slice(),
            type_ids: batch.type_ids.as_slice(),
        };
        let (Some(&first), Some(&last)) = (batch.offsets.first(), batch.offsets.last()) else {
            return Err(Error::invalid_argument("offsets: empty, expected n + 1 entries"));
        };
        if first != 0 || usize::try_from(last) != Ok(batch.ids.len()) {
            let len = batch.ids.len();
            return Err(Error::invalid_argument(format!(
                "offsets: from {first} to {last}, expected 0 to {len}"
            )));
        }
        for (i, pair) in batch.offsets.windows(2).enumerate() {
            match pair[1].checked_sub(pair[0]) {
                None | Some(0) => {
                    return Err(Error::invalid_argument(format!(
                        "offsets: item {i} has no token, expected at least 1"
                    )));
                }
                Some(tokens) if tokens > max_tokens => {
                    return Err(Error::input_too_long(format!(
                        "item {i} has {tokens} tokens, the loaded model takes {max_tokens}"
                    )));
                }
                Some(_) => {}
            }
        }
        if !batch.type_ids.is_empty() && batch.type_ids.len() != batch.ids.len() {
            let (types, ids) = (batch.type_ids.len(), batch.ids.len());
            return Err(Error::invalid_argument(format!(
                "type_ids: {types} entries, expected 0 or {ids}"
            )));
        }
        Ok(batch)
    }
}

/// A ragged batch of query and document pairs.
#[derive(Clone, Copy, Debug)]
pub struct PairBatch<'a> {
    /// The pairs, special tokens included.
    pub tokens: TokenBatch<'a>,
    /// For each item the position, inside that item, of the document's first token; at most the item's length.
    pub doc_starts: &'a [u32],
}

impl<'a> PairBatch<'a> {
    /// Checks a pair batch of the ABI and borrows it.
    pub(crate) fn check(batch: &api::PairBatch<'a>, max_tokens: u32) -> Result<Self, Error> {
        let tokens = TokenBatch::check(&batch.tokens, max_tokens)?;
        let doc_starts = batch.doc_starts.as_slice();
        if doc_starts.len() != tokens.len() {
            let (starts, items) = (doc_starts.len(), tokens.len());
            return Err(Error::invalid_argument(format!(
                "doc_starts: {starts} entries, expected {items}"
            )));
        }
        for (i, (&start, item)) in doc_starts.iter().zip(tokens.items()).enumerate() {
            if start as usize > item.ids.len() {
                let len = item.ids.len();
                return Err(Error::invalid_argument(format!(
                    "doc_starts: item {i}: {start}, expected at most {len}"
                )));
            }
        }
        Ok(Self { tokens, doc_starts })
    }
}
