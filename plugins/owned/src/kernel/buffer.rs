//! Zeroed f32 buffers that start on a cache line.
//!
//! Each buffer owns its memory. Allocation failure is an error, not an abort, because sizes come from files.

use super::lanes::LANES;

/// One cache line of values.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// The buffer could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of memory could not be had; free memory or load a smaller model")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// A fixed-length, 64-byte aligned array of f32.
#[derive(Default)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator refuses or the size overflows.
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        let count = len.div_ceil(LANES);
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| OutOfMemory {
            bytes: len.saturating_mul(size_of::<f32>()),
        })?;
        lines.resize(count, Line([0.0; LANES]));
        Ok(Self { lines, len })
    }

    /// The values.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        // SAFETY: `lines` holds at least `len` initialised f32 back to back (`Line` is `repr(C)` without padding).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// The values, to write.
    #[must_use]
    pub fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `values`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    /// The same memory as 16-bit integers, two to a value.
    #[must_use]
    pub fn integers(&self) -> &[i16] {
        // SAFETY: `lines` holds at least `len` f32, which are twice as many initialised i16 of lesser alignment.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), 2 * self.len) }
    }

    /// The same, to write.
    #[must_use]
    pub fn integers_mut(&mut self) -> &mut [i16] {
        // SAFETY: as in `integers`, every pattern of bits is an f32, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), 2 * self.len) }
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }
}
