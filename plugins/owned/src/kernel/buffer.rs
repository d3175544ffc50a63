//! Zeroed f32 buffers that start on a cache line, and tables of values that may stay in their file.
//!
//! A [`Buffer`] owns its memory, alone or as part of an [`Arena`]'s. Large ones come from the system zeroed and are touched
//! at first use. Failure to get them is an error, not an abort, because sizes come from files.

use std::ptr::NonNull;
use std::sync::Arc;

use super::lanes::LANES;
use super::memory::{Mapping, Region};

/// The memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of memory could not be had; free memory or load a smaller model")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// A fixed-length, 64-byte aligned array of f32.
pub struct Buffer {
    first: NonNull<f32>,
    len: usize,
    /// Keeps the memory; none for a buffer of no values.
    _region: Option<Arc<Region>>,
}

// SAFETY: a buffer is the only way to its part of the region, and f32 may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Buffer {}

impl Default for Buffer {
    fn default() -> Self {
        Self {
            first: NonNull::dangling(),
            len: 0,
            _region: None,
        }
    }
}

/// Bytes of `len` values, in whole cache lines.
fn bytes_of(len: usize) -> Result<usize, OutOfMemory> {
    let bytes = len
        .checked_next_multiple_of(LANES)
        .and_then(|len| len.checked_mul(size_of::<f32>()));
    bytes.ok_or(OutOfMemory { bytes: usize::MAX })
}

impl Buffer {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the system refuses or the size overflows.
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        Arena::default().zeroed(len)
    }

    /// The values.
    #[must_use]
    pub const fn values(&self) -> &[f32] {
        // SAFETY: `first` is the start of `len` initialised f32 that are this buffer's alone, or dangling for none.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    /// The values, to write.
    #[must_use]
    pub const fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `values`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }

    /// The same memory as 16-bit integers, two to a value.
    #[must_use]
    pub const fn integers(&self) -> &[i16] {
        // SAFETY: the same memory holds twice as many initialised i16 of lesser alignment.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr().cast(), 2 * self.len) }
    }

    /// The same, to write.
    #[must_use]
    pub const fn integers_mut(&mut self) -> &mut [i16] {
        // SAFETY: as in `integers`, every pattern of bits is an f32, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr().cast(), 2 * self.len) }
    }

    /// Bytes held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.len.next_multiple_of(LANES) * size_of::<f32>()
    }
}

/// Memory for many buffers, which stand side by side in few regions.
#[derive(Default)]
pub struct Arena {
    region: Option<Arc<Region>>,
    used: usize,
    /// The least bytes of a region.
    step: usize,
}

impl Arena {
    /// An arena for about `values` values. Nothing is touched before a buffer is written.
    #[must_use]
    pub const fn for_values(values: usize) -> Self {
        Self {
            region: None,
            used: 0,
            step: values.saturating_mul(size_of::<f32>()),
        }
    }

    /// `len` zeros.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn zeroed(&mut self, len: usize) -> Result<Buffer, OutOfMemory> {
        if len == 0 {
            return Ok(Buffer::default());
        }
        let bytes = bytes_of(len)?;
        let region = match &self.region {
            Some(region) if region.bytes() - self.used >= bytes => Arc::clone(region),
            _ => {
                let region = Region::zeroed(bytes.max(self.step)).or_else(|_| Region::zeroed(bytes))?;
                self.used = 0;
                Arc::clone(self.region.insert(Arc::new(region)))
            }
        };
        // SAFETY: `used + bytes` is at most the region's bytes, so the address is inside it.
        let first = unsafe { region.first().add(self.used) };
        self.used += bytes;
        Ok(Buffer {
            first: first.cast(),
            len,
            _region: Some(region),
        })
    }
}

/// Values that are only read: held, or where they lie in a mapped file.
pub enum Table {
    /// Held.
    Held(Buffer),
    /// In a file.
    Mapped(MappedValues),
}

/// f32 values of a mapped file.
pub struct MappedValues {
    first: NonNull<f32>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: values that are only read, of a mapping that any thread may read.
unsafe impl Send for MappedValues {}
// SAFETY: as above.
unsafe impl Sync for MappedValues {}

impl MappedValues {
    /// `len` values from that byte on, where the file has them, they are aligned, and this machine reads them as they are.
    #[must_use]
    pub fn of(mapping: &Arc<Mapping>, byte: usize, len: usize) -> Option<Self> {
        let bytes = mapping
            .bytes()
            .get(byte..byte.checked_add(len.checked_mul(size_of::<f32>())?)?)?;
        let first = NonNull::from(bytes).cast::<f32>();
        (first.is_aligned() && cfg!(target_endian = "little")).then(|| Self {
            first,
            len,
            _mapping: Arc::clone(mapping),
        })
    }

    /// The values.
    #[must_use]
    pub const fn values(&self) -> &[f32] {
        // SAFETY: `len` aligned f32 inside the mapping, which lives as long as this; every pattern of bits is one.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl Table {
    /// The values.
    #[must_use]
    pub const fn values(&self) -> &[f32] {
        match self {
            Self::Held(buffer) => buffer.values(),
            Self::Mapped(mapped) => mapped.values(),
        }
    }

    /// Bytes, held or in the file.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Held(buffer) => buffer.bytes(),
            Self::Mapped(mapped) => mapped.len * size_of::<f32>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_an_arena_are_zeros_and_apart() {
        let mut arena = Arena::for_values(100);
        // The last one does not fit beside the others.
        let mut buffers: Vec<Buffer> = [1, 16, 17, 0, 40, 5_000].map(|len| arena.zeroed(len).unwrap()).into();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.first.as_ptr().addr() % 64 * usize::from(buffer.len > 0), 0);
            assert!(buffer.values().iter().all(|&value| value == 0.0));
            buffer.values_mut().fill(number as f32 + 1.0);
        }
        drop(arena);
        for (number, buffer) in buffers.iter().enumerate() {
            assert!(buffer.values().iter().all(|&value| value == number as f32 + 1.0));
        }
        assert_eq!(
            buffers.iter().map(Buffer::bytes).sum::<usize>(),
            64 * (1 + 1 + 2 + 3 + 313)
        );
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert!(Buffer::zeroed(usize::MAX).is_err());
        assert!(Buffer::zeroed(isize::MAX as usize / 8).is_err());
    }
}
