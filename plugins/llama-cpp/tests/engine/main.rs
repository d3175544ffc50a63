//! The engines through the SDK's shims: against oracles that are not ours, at their limits, and on files and grammars
//! that nobody may trust. One binary, because each links llama.cpp.
//!
//! What needs the shared data beside the repository, or the wheel that `make test` fetches, says so when it skips.

mod bad_files;
mod encoding;
mod generation;
mod golden_bits;
mod grammars;
mod ground;
mod parity;
