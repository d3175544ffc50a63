//! Memory of the system: zeroed bytes for buffers, and a file's bytes as they lie in the page cache.
//!
//! A [`Region`] or a [`Mapping`] owns its part. Huge pages are not asked for: on a virtual machine that gives free ones
//! back to its host, a load that got them took 110 ms longer for 91 MB.

use std::alloc::Layout;
use std::fs::File;
use std::ptr::NonNull;

use super::buffer::OutOfMemory;

/// What the first byte of a region is aligned to.
const LINE: usize = 64;

/// Zeroed bytes on a cache line.
pub struct Region {
    /// What the allocator gave, with room for the way to the first line.
    start: NonNull<u8>,
    layout: Layout,
    first: NonNull<u8>,
}

// SAFETY: a region is bytes and nothing else; who writes them promises the absence of races.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` zeros.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn zeroed(bytes: usize) -> Result<Self, OutOfMemory> {
        let refused = OutOfMemory { bytes };
        let whole = bytes.checked_add(LINE).ok_or(refused)?;
        // An alignment that every allocation has: for a larger one the standard library writes the zeros itself, which
        // touches every page at once.
        let layout = Layout::from_size_align(whole, align_of::<u128>()).map_err(|_| refused)?;
        // SAFETY: the layout has bytes.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(refused)?;
        let before = start.addr().get().next_multiple_of(LINE) - start.addr().get();
        // SAFETY: `before` < LINE, of which there is room in front of the `bytes`.
        let first = unsafe { start.add(before) };
        Ok(Self { start, layout, first })
    }

    /// The first byte.
    #[must_use]
    pub const fn first(&self) -> NonNull<u8> {
        self.first
    }

    /// How many there are.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.layout.size() - LINE
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A whole file, readable for as long as this lives. Who maps one promises that nobody shortens it meanwhile: the host's
/// lease on the blob is that promise.
pub struct Mapping {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is bytes that are only read.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file of that length, where the system can.
    #[cfg(unix)]
    #[must_use]
    pub fn of(file: &File, bytes: usize) -> Option<Self> {
        use std::os::fd::AsRawFd;
        // SAFETY: a new private mapping that nothing else knows; the descriptor is open.
        let first = unsafe {
            let (access, kind) = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(std::ptr::null_mut(), bytes, access, kind, file.as_raw_fd(), 0)
        };
        let first = (first != libc::MAP_FAILED).then(|| NonNull::new(first.cast()))??;
        Some(Self { first, bytes })
    }

    /// Other systems read.
    #[cfg(not(unix))]
    #[must_use]
    pub const fn of(_file: &File, _bytes: usize) -> Option<Self> {
        None
    }

    /// The file's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading until this is dropped.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.bytes) }
    }

    /// Lets go of the pages: they come back from the page cache when they are read again.
    pub fn forget_pages(&self) {
        #[cfg(unix)]
        // SAFETY: advice about exactly what is mapped; a private mapping that was never written loses nothing.
        unsafe {
            libc::madvise(self.first.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: exactly what `of` mapped.
        unsafe {
            libc::munmap(self.first.as_ptr().cast(), self.bytes);
        }
    }
}
