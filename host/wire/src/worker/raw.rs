//! Raw payloads: arrays of little-endian `i32` token ids or `f32` values, back to back (WPROTO-07).

/// A raw payload that is not what its header declared: a protocol fault, never a partial result (WPROTO-27).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("raw frame of {found} bytes, its header declares {expected}")]
pub struct RawLength {
    /// Bytes that the header declares.
    pub expected: u64,
    /// Bytes that came.
    pub found: u64,
}

/// Checks a raw payload against the number of 4-byte values that its header declares.
///
/// # Errors
/// [`RawLength`] with both lengths in bytes.
pub fn check(payload: &[u8], values: u64) -> Result<(), RawLength> {
    let expected = values.saturating_mul(4);
    let found = payload.len() as u64;
    if found == expected {
        Ok(())
    } else {
        Err(RawLength { expected, found })
    }
}

/// Appends token ids.
pub fn put_i32(values: &[i32], out: &mut Vec<u8>) {
    out.reserve(values.len() * 4);
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Appends vector or score values, bit for bit.
pub fn put_f32(values: &[f32], out: &mut Vec<u8>) {
    out.reserve(values.len() * 4);
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Reads exactly `values` token ids.
///
/// # Errors
/// [`RawLength`] when the payload has any other length.
pub fn get_i32(payload: &[u8], values: u64) -> Result<Vec<i32>, RawLength> {
    check(payload, values)?;
    Ok(payload
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| i32::from_le_bytes(*bytes))
        .collect())
}

/// Reads exactly `out.len()` values, bit for bit.
///
/// # Errors
/// [`RawLength`] when the payload has any other length; `out` is then untouched.
pub fn get_f32(payload: &[u8], out: &mut [f32]) -> Result<(), RawLength> {
    check(payload, out.len() as u64)?;
    for (slot, bytes) in out.iter_mut().zip(payload.as_chunks::<4>().0) {
        *slot = f32::from_le_bytes(*bytes);
    }
    Ok(())
}
