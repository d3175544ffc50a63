//! The host as the author sees it: log, metrics, clock, charged memory, folders.
//!
//! [`Host`] is a copy of the ABI's services; a [`HostBuffer`] owns bytes that are charged to the plugin's lane until
//! it is dropped.

use std::{fmt, path::PathBuf};

use crate::{
    api::{ExtensionRef, HostServices, LogLevel, MetricKind},
    error::Error,
};

/// Alignment of every [`HostBuffer`]: a cache line, and enough for any vector register.
const ALIGN: usize = 64;

/// The host's services. Freely copied; valid for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Host(HostServices);

impl Host {
    /// Wraps services of the ABI.
    #[must_use]
    pub const fn new(services: HostServices) -> Self {
        Self(services)
    }

    /// `[any]` Writes one log line when its level is wanted; see [`crate::info!`] and its sisters. Never input text.
    pub fn log(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        if self.0.log_enabled(level) {
            match message.as_str() {
                Some(text) => self.0.log(level, text),
                None => self.0.log(level, &message.to_string()),
            }
        }
    }

    /// `[any]` Whether a line of this level is wanted at all.
    #[must_use]
    pub fn log_enabled(&self, level: LogLevel) -> bool {
        self.0.log_enabled(level)
    }

    /// `[any]` Adds to a counter.
    pub fn count(&self, name: &str, value: f64) {
        self.0.metric(MetricKind::COUNTER, name, value);
    }

    /// `[any]` Sets a gauge.
    pub fn gauge(&self, name: &str, value: f64) {
        self.0.metric(MetricKind::GAUGE, name, value);
    }

    /// `[any]` Gives one observation to a histogram.
    pub fn observe(&self, name: &str, value: f64) {
        self.0.metric(MetricKind::HISTOGRAM, name, value);
    }

    /// `[any]` Nanoseconds of the host's monotonic clock.
    #[must_use]
    pub fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }

    /// `[any]` The folder that the bundle was loaded from: read-only.
    #[must_use]
    pub fn bundle_dir(&self) -> PathBuf {
        self.0.bundle_dir().into()
    }

    /// `[any]` A private folder for temporary files.
    #[must_use]
    pub fn scratch_dir(&self) -> PathBuf {
        self.0.scratch_dir().into()
    }

    /// `[any]` A host extension by id, if this host has it.
    #[must_use]
    pub fn extension(&self, id: &str) -> Option<ExtensionRef<'static>> {
        self.0.extension(id)
    }

    /// `[any]` Gets `len` zeroed floats, 64-byte aligned and charged to the plugin's lane.
    ///
    /// # Errors
    /// OUT_OF_MEMORY when the lane's budget or the memory is used up.
    pub fn buffer(&self, len: usize) -> Result<HostBuffer, Error> {
        let refused = || Error::out_of_memory(format!("{len} floats of scratch memory could not be had"));
        let bytes = len
            .checked_mul(size_of::<f32>())
            .filter(|&b| isize::try_from(b).is_ok())
            .ok_or_else(refused)?;
        let pointer = self.0.alloc(bytes.max(1), ALIGN).cast::<f32>();
        if pointer.is_null() || !pointer.cast::<u8>().addr().is_multiple_of(ALIGN) {
            return Err(refused());
        }
        // SAFETY: the host gave at least `bytes` bytes for us alone.
        unsafe { pointer.write_bytes(0, len) };
        Ok(HostBuffer {
            host: *self,
            pointer,
            len,
        })
    }
}

/// Floats charged to the plugin's lane, given back on drop. Dereferences to `[f32]`.
pub struct HostBuffer {
    host: Host,
    pointer: *mut f32,
    len: usize,
}

// SAFETY: the buffer is the only owner of its bytes, and the host frees from any thread.
unsafe impl Send for HostBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for HostBuffer {}

impl std::ops::Deref for HostBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: `Host::buffer` got and zeroed `len` floats.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl std::ops::DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<f32>();
        // SAFETY: `Host::buffer` got the pointer with this size and alignment; it is given back once.
        unsafe { self.host.0.free(self.pointer.cast(), bytes.max(1), ALIGN) };
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Logs an error line: `error!(host, "…", …)`.
#[macro_export]
macro_rules! error {
    ($host:expr, $($message:tt)+) => { $host.log($crate::api::LogLevel::ERROR, ::core::format_args!($($message)+)) };
}

/// Logs a warning: `warn!(host, "…", …)`.
#[macro_export]
macro_rules! warn {
    ($host:expr, $($message:tt)+) => { $host.log($crate::api::LogLevel::WARN, ::core::format_args!($($message)+)) };
}

/// Logs a line for operators: `info!(host, "…", …)`.
#[macro_export]
macro_rules! info {
    ($host:expr, $($message:tt)+) => { $host.log($crate::api::LogLevel::INFO, ::core::format_args!($($message)+)) };
}

/// Logs a line for authors: `debug!(host, "…", …)`.
#[macro_export]
macro_rules! debug {
    ($host:expr, $($message:tt)+) => { $host.log($crate::api::LogLevel::DEBUG, ::core::format_args!($($message)+)) };
}
