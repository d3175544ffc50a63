//! The rules of docs/ARCHITECTURE.md as tests.
