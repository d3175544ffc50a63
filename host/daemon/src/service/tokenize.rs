//! The operation behind `tokenize`.
