//! Sanitising a published tokenizer.
