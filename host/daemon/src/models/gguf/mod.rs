//! GGUF files: read with bounds and checked before any engine sees them.
//!
//! 1. [`reader`] turns the header's bytes into metadata and a tensor list, every length checked before it is believed.
//! 2. [`check`] compares what the header says with itself and with the file: types, alignment, order, overlap, the
//!    vocabulary and the model's dimensions.
//! 3. [`chat`] finds the chat template that a generator brings.
//! 4. [`vocabulary`] reads the tokenizer that a file may carry.
//! 5. [`weights`] looks through the unquantised tensors for values that are not finite.
//!
//! State: none. Callers: `models::ingest`, and `text` for the vocabulary. Not known here: engines. The format is
//! `docs/gguf.md` of the ggml project.

pub mod chat;
pub mod check;
pub mod reader;
pub mod tensor_type;
pub mod vocabulary;
pub mod weights;

use std::io::{Read, Seek};

pub use reader::{Gguf, Tensor, Value};

/// Why a file is no GGUF file that may be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The system refused.
    #[error("cannot read the file: {0}")]
    Io(#[from] std::io::Error),
    /// The file is not what its format says. The words name the field.
    #[error("{0}")]
    Invalid(String),
}

pub(crate) fn invalid<T>(what: impl Into<String>) -> Result<T, GgufError> {
    Err(GgufError::Invalid(what.into()))
}

/// Reads and checks a whole file of `length` bytes.
///
/// # Errors
/// [`GgufError`] with the first thing that is wrong.
pub fn inspect(file: &mut (impl Read + Seek), length: u64) -> Result<Gguf, GgufError> {
    let gguf = reader::read(file, length)?;
    check::check(&gguf, length)?;
    weights::check_finite(file, &gguf)?;
    Ok(gguf)
}

#[cfg(test)]
mod tests;
