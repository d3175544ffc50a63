//! Ragged batches and the host's output buffers.
//!
//! Owns no state: everything is borrowed for one call. Padding never crosses this boundary.

use abi_stable::{
    StableAbi,
    std_types::{RSlice, RSliceMut},
};

/// A ragged batch of token ids.
///
/// For `n` items `offsets` has `n + 1` entries, ascending, the first 0 and the last `ids.len()`; item `i` is
/// `ids[offsets[i]..offsets[i + 1]]`. Every item has at least one token. `type_ids` has one segment id per token, or
/// is empty when all are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct TokenBatch<'a> {
    /// Every item's token ids, back to back, special tokens included.
    pub ids: RSlice<'a, i32>,
    /// `n + 1` ascending offsets into `ids`.
    pub offsets: RSlice<'a, u32>,
    /// One segment id per token, or empty when all are 0.
    pub type_ids: RSlice<'a, i32>,
}

impl<'a> TokenBatch<'a> {
    /// Borrows a batch from slices. Checks nothing: the SDK's shim does, on the plugin's side.
    #[must_use]
    pub fn new(ids: &'a [i32], offsets: &'a [u32], type_ids: &'a [i32]) -> Self {
        Self {
            ids: RSlice::from_slice(ids),
            offsets: RSlice::from_slice(offsets),
            type_ids: RSlice::from_slice(type_ids),
        }
    }
}

/// A ragged batch of query and document pairs. The host builds the pairs, special tokens included.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct PairBatch<'a> {
    /// The pairs.
    pub tokens: TokenBatch<'a>,
    /// For each item the position, inside that item, of the document's first token; at most the item's length.
    pub doc_starts: RSlice<'a, u32>,
}

impl<'a> PairBatch<'a> {
    /// Borrows pairs from a batch and the documents' starts.
    #[must_use]
    pub fn new(tokens: TokenBatch<'a>, doc_starts: &'a [u32]) -> Self {
        Self {
            tokens,
            doc_starts: RSlice::from_slice(doc_starts),
        }
    }
}

/// Where vectors go: the host's buffer, row-major `n × dims`, fully written on Ok, undefined on Err.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct VectorsOut<'a> {
    /// `n × dims` values.
    pub values: RSliceMut<'a, f32>,
    /// The length of a row: [`crate::LoadedModel::dims`].
    pub dims: u32,
}

impl<'a> VectorsOut<'a> {
    /// Lends a buffer of rows.
    #[must_use]
    pub fn new(values: &'a mut [f32], dims: u32) -> Self {
        Self {
            values: RSliceMut::from_mut_slice(values),
            dims,
        }
    }
}

/// Where scores go: the host's buffer, one raw value per pair in input order, fully written on Ok.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct ScoresOut<'a> {
    /// `n` values.
    pub values: RSliceMut<'a, f32>,
}

impl<'a> ScoresOut<'a> {
    /// Lends a buffer of scores.
    #[must_use]
    pub fn new(values: &'a mut [f32]) -> Self {
        Self {
            values: RSliceMut::from_mut_slice(values),
        }
    }
}
