//! Everything that can go wrong in this engine, as one type.
//!
//! Each message says what was wrong, what was expected and, where that helps, what to do. `plugin` maps the kinds to
//! the contract's error codes.

use std::path::PathBuf;

use crate::kernel::buffer::OutOfMemory;

/// A failed load or call.
#[derive(Debug, thiserror::Error)]
pub enum OwnedError {
    /// A file could not be opened or read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its format demands.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was wrong and what was expected.
        problem: String,
    },
    /// A tensor is missing or not as the config demands.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What was wrong and what was expected.
        problem: String,
    },
    /// A sound file asks for something that this engine does not have.
    #[error("{}: {problem}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is not supported and what is.
        problem: String,
    },
    /// A setting of the load is unknown, out of range or contradicts the files.
    #[error("setting {key}: {problem}")]
    Config {
        /// The setting.
        key: String,
        /// What was wrong and what was expected.
        problem: String,
    },
    /// Memory could not be had.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A call broke the contract: shapes, ranges, an unknown model.
    #[error("{0}")]
    InvalidArgument(String),
    /// An item is longer than the loaded model takes.
    #[error("item {item} has {tokens} tokens, the model takes at most {limit}; shorten or split it")]
    InputTooLong {
        /// The item's index in the batch.
        item: usize,
        /// Its tokens.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// The host asked the call to end.
    #[error("cancelled by the host")]
    Cancelled,
    /// A compute thread panicked: a bug in this engine.
    #[error("a compute thread panicked; the call's results are lost")]
    Panicked,
}

/// What most functions of this crate return.
pub type Result<T> = std::result::Result<T, OwnedError>;
