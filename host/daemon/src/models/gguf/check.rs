//! What a header says, against itself and against the file.
//!
//! State: none. Callers: [`super::inspect`]. Architectures are an allow-list: one that nobody here has served is
//! refused by name.

use super::reader::{Gguf, Tensor, Value};
use super::tensor_type::{self, TensorType};
use super::{GgufError, invalid};

/// Architectures that may be handed to an engine.
const ARCHITECTURES: [&str; 10] = [
    "llama",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma-embedding",
    "bert",
    "nomic-bert",
    "modern-bert",
];

/// The alignment of tensor data where the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest alignment that makes sense.
const MAX_ALIGNMENT: u64 = 64 * 1024;

/// Where a file's tensor data begins.
///
/// # Errors
/// [`GgufError`] for an alignment that is none.
pub fn data_start(gguf: &Gguf) -> Result<u64, GgufError> {
    Ok(gguf.header_bytes.next_multiple_of(alignment(gguf)?))
}

/// Bytes of a tensor, and its type.
///
/// # Errors
/// [`GgufError`] for an unknown type, an empty dimension, a row that is not whole blocks, or a size that overflows.
pub fn size(tensor: &Tensor) -> Result<(u64, TensorType), GgufError> {
    let name = &tensor.name;
    let Some(kind) = tensor_type::of(tensor.kind) else {
        return invalid(format!("tensor {name}: unknown type {}", tensor.kind));
    };
    if tensor.dims.contains(&0) {
        return invalid(format!("tensor {name}: dimensions {:?} hold a zero", tensor.dims));
    }
    if tensor.dims.first().is_some_and(|row| row % kind.block != 0) {
        return invalid(format!(
            "tensor {name}: a row of {} is not whole {} blocks",
            tensor.dims[0], kind.name
        ));
    }
    let values = tensor
        .dims
        .iter()
        .try_fold(1u64, |values, dim| values.checked_mul(*dim));
    match values.and_then(|values| (values / kind.block).checked_mul(kind.bytes)) {
        Some(bytes) => Ok((bytes, kind)),
        None => invalid(format!("tensor {name}: dimensions {:?} overflow", tensor.dims)),
    }
}

/// Checks a header against a file of `length` bytes.
///
/// # Errors
/// [`GgufError`] with the first thing that is wrong.
pub fn check(gguf: &Gguf, length: u64) -> Result<(), GgufError> {
    check_model(gguf)?;
    check_vocabulary(gguf)?;
    check_tensors(gguf, length)
}

fn alignment(gguf: &Gguf) -> Result<u64, GgufError> {
    let found = match gguf.metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::Unsigned(value)) => *value,
        Some(other) => return invalid(format!("general.alignment is {other:?}, expected an unsigned integer")),
    };
    if found.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&found) {
        Ok(found)
    } else {
        invalid(format!(
            "general.alignment {found}, expected a power of two from 8 to {MAX_ALIGNMENT}"
        ))
    }
}

/// Checks that the model has the context that its record promises.
///
/// # Errors
/// [`GgufError`] with both numbers.
pub fn check_context(gguf: &Gguf, promised: u32) -> Result<(), GgufError> {
    let architecture = gguf.text("general.architecture").unwrap_or_default();
    match gguf.unsigned(&format!("{architecture}.context_length")) {
        Some(found) if found >= u64::from(promised) => Ok(()),
        found => invalid(format!(
            "{architecture}.context_length is {}, the record's context is {promised}",
            found.map_or_else(|| "no number".to_owned(), |found| found.to_string())
        )),
    }
}

fn check_model(gguf: &Gguf) -> Result<(), GgufError> {
    let Some(architecture) = gguf.text("general.architecture") else {
        return invalid("general.architecture is missing or no text");
    };
    if !ARCHITECTURES.contains(&architecture) {
        let shown: String = architecture.chars().take(40).collect();
        return invalid(format!(
            "unknown architecture {shown:?}; known are {}",
            ARCHITECTURES.join(", ")
        ));
    }
    let required = |name: &str| {
        let key = format!("{architecture}.{name}");
        match (gguf.unsigned(&key), gguf.metadata.get(&key)) {
            (Some(value), _) if value > 0 => Ok(value),
            (_, Some(Value::Integers(list))) if !list.is_empty() && list.iter().all(|value| *value > 0) => {
                Ok(u64::try_from(list[0]).unwrap_or(0))
            }
            (_, None) => invalid(format!("{key} is missing")),
            (_, Some(found)) => invalid(format!("{key} is {found:?}, expected a positive integer")),
        }
    };
    let (width, heads) = (required("embedding_length")?, required("attention.head_count")?);
    let (layers, _) = (required("block_count")?, required("context_length")?);
    if width > 1 << 20 || layers > 1 << 12 || heads > width {
        return invalid(format!(
            "{layers} layers of width {width} with {heads} heads is no model"
        ));
    }
    Ok(())
}

fn check_vocabulary(gguf: &Gguf) -> Result<(), GgufError> {
    let tokens = match gguf.metadata.get("tokenizer.ggml.tokens") {
        None => return Ok(()),
        Some(Value::Strings(tokens)) => tokens.len() as u64,
        Some(_) => return invalid("tokenizer.ggml.tokens is no array of strings"),
    };
    for (key, found) in [("scores", "a score"), ("token_type", "a type")] {
        let count = match gguf.metadata.get(&format!("tokenizer.ggml.{key}")) {
            None => continue,
            Some(Value::Integers(list)) => list.len() as u64,
            Some(Value::Floats(list)) => list.len() as u64,
            Some(_) => return invalid(format!("tokenizer.ggml.{key} is no array of numbers")),
        };
        if count != tokens {
            return invalid(format!("{tokens} tokens, but {count} have {found}"));
        }
    }
    let special = gguf.metadata.iter().filter(|(key, _)| {
        key.strip_prefix("tokenizer.ggml.")
            .is_some_and(|key| key.ends_with("_token_id"))
    });
    for (key, value) in special {
        let id = match value {
            Value::Unsigned(id) => *id,
            Value::Signed(id) => u64::try_from(*id).unwrap_or(u64::MAX),
            other => return invalid(format!("{key} is {other:?}, expected a token id")),
        };
        if id >= tokens {
            return invalid(format!("{key} {id}, but there are {tokens} tokens"));
        }
    }
    for table in ["token_embd.weight", "output.weight"] {
        let Some(tensor) = gguf.tensor(table) else { continue };
        let rows = tensor.dims.get(1).copied().unwrap_or(1);
        if rows != tokens {
            return invalid(format!("{table} has {rows} rows, but there are {tokens} tokens"));
        }
    }
    Ok(())
}

fn check_tensors(gguf: &Gguf, length: u64) -> Result<(), GgufError> {
    if gguf.tensors.is_empty() {
        return invalid("the file holds no tensors");
    }
    let (alignment, start) = (alignment(gguf)?, data_start(gguf)?);
    let mut expected = 0u64;
    for tensor in &gguf.tensors {
        let (bytes, _) = size(tensor)?;
        // Tensors follow each other without holes: so none overlaps another, and nothing hides between them.
        if tensor.offset != expected {
            return invalid(format!(
                "tensor {} begins at {}, expected {expected}",
                tensor.name, tensor.offset
            ));
        }
        let end = tensor
            .offset
            .checked_add(bytes)
            .and_then(|end| Some((end, start.checked_add(end)?)));
        match end {
            Some((end, in_file)) if in_file <= length => {
                expected = end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
            }
            _ => {
                let at = tensor.offset;
                return invalid(format!(
                    "tensor {}: {bytes} bytes at {at} end after the file",
                    tensor.name
                ));
            }
        }
    }
    Ok(())
}
