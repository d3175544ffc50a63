//! Benchmarks against named peers.
