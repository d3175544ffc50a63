//! Pure-Rust CPU runtime for BERT-family encoders.
