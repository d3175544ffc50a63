//! What should come out of a model, by an implementation that is not ours.
//!
//! State: none; a [`References`] is read from bytes once. Callers: the daemon reads the file that the catalog names,
//! `plan/` compares with it.

use synapse_core::digest::Sha256Digest;

/// A model's independent results over the corpus.
#[derive(Clone, Debug, PartialEq)]
pub struct References {
    /// SHA-256 of the file.
    pub digest: Sha256Digest,
}
