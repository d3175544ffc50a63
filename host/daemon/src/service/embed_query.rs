//! The operation behind `embed_query`.
