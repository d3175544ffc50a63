//! The operation behind `embed_batch`.
