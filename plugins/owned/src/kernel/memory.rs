//! Zeroed memory from the system, aligned to a cache line.
//!
//! A [`Region`] owns it. A large one is mapped, so that no page is touched before it is used, and asks for huge pages: the
//! kernels read weights from end to end, and a load then meets one fault for 2 MiB. Small ones, and all of them on
//! systems without such a call, come from the allocator. Known to `buffer` only.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::buffer::OutOfMemory;

/// Alignment of every region, and what its bytes are a multiple of.
const LINE: usize = 64;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// The least bytes of a mapped region: what rounding up to huge pages adds is little beside them.
const LARGE: usize = 4 * HUGE;

/// Zeroed bytes.
pub struct Region {
    first: NonNull<u8>,
    bytes: usize,
    mapped: bool,
}

// SAFETY: a region is bytes and nothing else; who writes them promises the absence of races.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// At least `bytes` zeros, `bytes` being greater than 0.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn zeroed(bytes: usize) -> Result<Self, OutOfMemory> {
        let refused = OutOfMemory { bytes };
        let unit = if bytes < LARGE { LINE } else { HUGE };
        let bytes = bytes.max(1).checked_next_multiple_of(unit).ok_or(refused)?;
        let mapped = if unit == HUGE { map(bytes) } else { Mapped::NotHere };
        let (first, mapped) = match mapped {
            Mapped::At(first) => (first, true),
            Mapped::Refused => return Err(refused),
            Mapped::NotHere => {
                let layout = Layout::from_size_align(bytes, LINE).map_err(|_| refused)?;
                // SAFETY: the layout has bytes.
                (
                    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(refused)?,
                    false,
                )
            }
        };
        Ok(Self { first, bytes, mapped })
    }

    /// The first byte.
    pub const fn first(&self) -> NonNull<u8> {
        self.first
    }

    /// How many there are.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapped {
            unmap(self.first, self.bytes);
        } else {
            // SAFETY: allocated in `zeroed` with this layout, which was sound there.
            unsafe { std::alloc::dealloc(self.first.as_ptr(), Layout::from_size_align_unchecked(self.bytes, LINE)) };
        }
    }
}

/// What became of a mapping.
enum Mapped {
    At(NonNull<u8>),
    Refused,
    NotHere,
}

/// Maps zeros on a huge page's boundary. `bytes` is a multiple of [`HUGE`].
#[cfg(target_os = "linux")]
fn map(bytes: usize) -> Mapped {
    let Some(whole) = bytes.checked_add(HUGE) else {
        return Mapped::Refused;
    };
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new private mapping without a file touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), whole, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return Mapped::Refused;
    }
    let before = start.addr().next_multiple_of(HUGE) - start.addr();
    // SAFETY: `before` ≤ HUGE, so the parts before and after the aligned bytes are inside the mapping and nobody's; a
    // refused advice changes nothing.
    unsafe {
        let first = start.byte_add(before);
        if before > 0 {
            libc::munmap(start, before);
        }
        if before < HUGE {
            libc::munmap(first.byte_add(bytes), HUGE - before);
        }
        libc::madvise(first, bytes, libc::MADV_HUGEPAGE);
        NonNull::new(first.cast()).map_or(Mapped::Refused, Mapped::At)
    }
}

#[cfg(target_os = "linux")]
fn unmap(first: NonNull<u8>, bytes: usize) {
    // SAFETY: exactly what `map` left mapped.
    unsafe { libc::munmap(first.as_ptr().cast(), bytes) };
}

#[cfg(not(target_os = "linux"))]
const fn map(_bytes: usize) -> Mapped {
    Mapped::NotHere
}

#[cfg(not(target_os = "linux"))]
const fn unmap(_first: NonNull<u8>, _bytes: usize) {}
