//! Golden layout of the ABI, and plugins built elsewhere: what the tests of this crate share.
//!
//! Owns the fixtures that it builds under cargo's folder for temporary test files. Used by `tests/` only. The frozen
//! source of plugin-api is vendored in `fixtures/plugin-api-1.0.0`; a fixture is a workspace of its own made of a copy
//! of it, a plugin that is written against it alone, and this repository's lock file, so that it builds offline.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod fixture;
pub mod golden;
pub mod public_api;
