//! The tool as authors meet it: outside this workspace, against packaged crates, without a network.
//!
//! `ground` lays out what all tests share: a local registry that `scripts/registry.py` makes of our crates and cargo's cache,
//! a home for cargo, and one target folder, so that the dependencies of a plugin are built once. A new test goes where its
//! subject is:
//! - `tool`: what the tool says when something is wrong, what packing and installing give;
//! - `kinds`: each kind of project that `new` writes passes its own tests, the conformance kit and the fuzzer;
//! - `fuzz`: a planted fault is found, and found again by its seed;
//! - `book`: the tutorials of docs/book are followed to the letter, up to a served vector.

#![forbid(unsafe_code)]

mod book;
mod fuzz;
mod ground;
mod kinds;
mod tool;
