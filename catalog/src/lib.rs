//! Model records, shape envelopes, and the code that resolves them.
