//! Tokenization, the host's own.
