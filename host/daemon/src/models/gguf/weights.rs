//! Weights that are not numbers: found at ingest, because engines load and serve them.
//!
//! State: none. Callers: [`super::inspect`]. Only unquantised tensors are looked through; a quantised block's scale is
//! not.

use std::io::{Read, Seek, SeekFrom};

use super::reader::Gguf;
use super::{GgufError, check, invalid};

/// Read at once, in bytes; a multiple of every value's size.
const CHUNK: usize = 1 << 20;

/// Looks through the f32, f16 and bf16 tensors.
///
/// # Errors
/// [`GgufError`] naming the tensor.
pub fn check_finite(file: &mut (impl Read + Seek), gguf: &Gguf) -> Result<(), GgufError> {
    let start = check::data_start(gguf)?;
    let mut chunk = vec![0u8; CHUNK];
    for tensor in &gguf.tensors {
        let (mut left, kind) = check::size(tensor)?;
        let finite: fn(&[u8]) -> bool = match kind.name {
            "f32" => |bytes| {
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .all(|value| f32::from_le_bytes(*value).is_finite())
            },
            "f16" => |bytes| {
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .all(|value| u16::from_le_bytes(*value) & 0x7c00 != 0x7c00)
            },
            "bf16" => |bytes| {
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .all(|value| u16::from_le_bytes(*value) & 0x7f80 != 0x7f80)
            },
            _ => continue,
        };
        file.seek(SeekFrom::Start(start + tensor.offset))?;
        while left > 0 {
            let count = usize::try_from(left.min(CHUNK as u64)).unwrap_or(CHUNK);
            file.read_exact(&mut chunk[..count])?;
            if !finite(&chunk[..count]) {
                return invalid(format!("tensor {} holds values that are not finite", tensor.name));
            }
            left -= count as u64;
        }
    }
    Ok(())
}
