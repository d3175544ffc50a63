//! What this host does for a plugin: logs, metrics, time, memory and folders.
//!
//! State: one [`HostState`] per opened plugin, kept for the life of the process. Callers: foreign code, from any
//! thread; the functions never unwind and never block. Not known here: what the engine does.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use synapse_plugin_api as api;
use synapse_plugin_api::abi_stable::std_types::{ROption, RStr, RString};
use synapse_plugin_api::host::HostFunctions;
use tracing::level_filters::LevelFilter;

use super::convert::clean;

/// The most log lines of one plugin in one second; the rest is counted and dropped.
const LINES_PER_SECOND: u64 = 50;
/// The longest log line in bytes.
const MAX_LINE: usize = 4096;
/// The longest metric name in bytes.
const MAX_NAME: usize = 64;

/// Nanoseconds since the first use of the clock in this process.
pub(super) fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// The host's side of one plugin.
#[derive(Debug)]
pub(crate) struct HostState {
    id: String,
    bundle_dir: PathBuf,
    scratch_dir: PathBuf,
    allocated: AtomicU64,
    budget: AtomicU64,
    limiter: Limiter,
}

impl HostState {
    /// The state of the plugin `id`; without a memory budget.
    pub fn new(id: &str, bundle_dir: &Path, scratch_dir: &Path) -> Self {
        Self {
            id: id.to_owned(),
            bundle_dir: bundle_dir.to_owned(),
            scratch_dir: scratch_dir.to_owned(),
            allocated: AtomicU64::new(0),
            budget: AtomicU64::new(u64::MAX),
            limiter: Limiter::default(),
        }
    }

    /// The services over this state.
    pub fn services(&'static self) -> api::HostServices {
        let address: *const Self = self;
        // SAFETY: the state is `Sync` and lives as long as the process; no function unwinds or blocks.
        unsafe { api::HostServices::new(address.cast(), FUNCTIONS) }
    }

    /// Bytes that the plugin holds through `alloc`.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Bounds what the plugin may hold through `alloc`.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    fn alloc(&self, size: usize, align: usize) -> *mut u8 {
        let layout = match Layout::from_size_align(size, align) {
            Ok(layout) if size > 0 => layout,
            _ => return std::ptr::null_mut(),
        };
        let budget = self.budget.load(Ordering::Relaxed);
        let charge = |held: u64| held.checked_add(size as u64).filter(|held| *held <= budget);
        if self
            .allocated
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge)
            .is_err()
        {
            return std::ptr::null_mut();
        }
        // SAFETY: the layout's size is not 0.
        let pointer = unsafe { std::alloc::alloc(layout) };
        if pointer.is_null() {
            self.allocated.fetch_sub(size as u64, Ordering::Relaxed);
        }
        pointer
    }

    fn log(&self, level: api::LogLevel, message: &str) {
        let Some(dropped) = self.limiter.admit(monotonic_ns() / 1_000_000_000) else {
            return;
        };
        let plugin = self.id.as_str();
        let message = clean(message, MAX_LINE);
        if dropped > 0 {
            tracing::warn!(target: "synapse.worker", plugin, dropped, "the engine logged too much");
        }
        match level {
            api::LogLevel::ERROR => tracing::error!(target: "synapse.worker", plugin, "{message}"),
            api::LogLevel::WARN => tracing::warn!(target: "synapse.worker", plugin, "{message}"),
            api::LogLevel::DEBUG => tracing::debug!(target: "synapse.worker", plugin, "{message}"),
            api::LogLevel::TRACE => tracing::trace!(target: "synapse.worker", plugin, "{message}"),
            _ => tracing::info!(target: "synapse.worker", plugin, "{message}"),
        }
    }

    fn metric(&self, kind: api::MetricKind, name: &str, value: f64) {
        let kind = match kind {
            api::MetricKind::COUNTER => "counter",
            api::MetricKind::GAUGE => "gauge",
            api::MetricKind::HISTOGRAM => "histogram",
            _ => return,
        };
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(known) || !value.is_finite() {
            return;
        }
        tracing::trace!(target: "synapse.perf", plugin = self.id.as_str(), kind, name, value, "metric");
    }
}

/// Counts the lines of the current second.
#[derive(Debug, Default)]
struct Limiter {
    /// The second in the upper 40 bits, its lines in the lower 24.
    window: AtomicU64,
    dropped: AtomicU64,
}

impl Limiter {
    /// Whether a line may pass in `second`; with how many were dropped since the last one that passed.
    fn admit(&self, second: u64) -> Option<u64> {
        let next = |window: u64| {
            let (then, lines) = (window >> 24, window & 0xff_ffff);
            match (then == second, lines < LINES_PER_SECOND) {
                (true, true) => Some(window + 1),
                (true, false) => None,
                (false, _) => Some(second << 24 | 1),
            }
        };
        match self.window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Some(self.dropped.swap(0, Ordering::Relaxed)),
            Err(_) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

const FUNCTIONS: HostFunctions = HostFunctions {
    log,
    max_level,
    metric,
    monotonic_ns: clock,
    alloc,
    free,
    bundle_dir,
    scratch_dir,
    extension,
};

/// # Safety
/// `address` is the one that [`HostState::services`] gave.
unsafe fn state(address: *const ()) -> &'static HostState {
    // SAFETY: the caller's promise; the state is never freed.
    unsafe { &*address.cast::<HostState>() }
}

/// A subscriber of the host that panics must not unwind into foreign code; the line is lost.
fn contained(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

unsafe extern "C" fn log(address: *const (), level: api::LogLevel, message: RStr<'_>) {
    // SAFETY: the plugin passes back what it was given.
    let state = unsafe { state(address) };
    contained(|| state.log(level, message.as_str()));
}

unsafe extern "C" fn max_level(_address: *const ()) -> api::LogLevel {
    let current = LevelFilter::current();
    if current >= LevelFilter::TRACE {
        api::LogLevel::TRACE
    } else if current >= LevelFilter::DEBUG {
        api::LogLevel::DEBUG
    } else if current >= LevelFilter::INFO {
        api::LogLevel::INFO
    } else if current >= LevelFilter::WARN {
        api::LogLevel::WARN
    } else if current >= LevelFilter::ERROR {
        api::LogLevel::ERROR
    } else {
        api::LogLevel(0)
    }
}

unsafe extern "C" fn metric(address: *const (), kind: api::MetricKind, name: RStr<'_>, value: f64) {
    // SAFETY: the plugin passes back what it was given.
    let state = unsafe { state(address) };
    contained(|| state.metric(kind, name.as_str(), value));
}

unsafe extern "C" fn clock(_address: *const ()) -> u64 {
    monotonic_ns()
}

unsafe extern "C" fn alloc(address: *const (), size: usize, align: usize) -> *mut u8 {
    // SAFETY: the plugin passes back what it was given.
    unsafe { state(address) }.alloc(size, align)
}

unsafe extern "C" fn free(address: *const (), pointer: *mut u8, size: usize, align: usize) {
    // SAFETY: the plugin passes back what it was given.
    let state = unsafe { state(address) };
    let Ok(layout) = Layout::from_size_align(size, align) else {
        return;
    };
    if pointer.is_null() || size == 0 {
        return;
    }
    // SAFETY: the contract of `free`: the pointer came from `alloc` with this size and alignment, once.
    unsafe { std::alloc::dealloc(pointer, layout) };
    state.allocated.fetch_sub(size as u64, Ordering::Relaxed);
}

unsafe extern "C" fn bundle_dir(address: *const ()) -> RString {
    // SAFETY: the plugin passes back what it was given.
    unsafe { state(address) }
        .bundle_dir
        .to_string_lossy()
        .into_owned()
        .into()
}

unsafe extern "C" fn scratch_dir(address: *const ()) -> RString {
    // SAFETY: the plugin passes back what it was given.
    unsafe { state(address) }
        .scratch_dir
        .to_string_lossy()
        .into_owned()
        .into()
}

/// This host has no extensions yet.
unsafe extern "C" fn extension(_address: *const (), _id: RStr<'_>) -> ROption<api::ExtensionRef<'static>> {
    ROption::RNone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaked() -> &'static HostState {
        Box::leak(Box::new(HostState::new(
            "toy",
            Path::new("/bundle"),
            Path::new("/scratch"),
        )))
    }

    #[test]
    fn memory_is_aligned_and_charged_up_to_the_budget() {
        let state = leaked();
        let services = state.services();
        state.set_budget(1000);
        let pointer = services.alloc(900, 64);
        assert!(!pointer.is_null() && pointer.addr().is_multiple_of(64));
        assert_eq!(state.allocated(), 900);
        assert!(services.alloc(101, 8).is_null(), "over the budget");
        assert!(services.alloc(0, 8).is_null(), "no bytes");
        assert!(services.alloc(8, 3).is_null(), "no power of two");
        assert!(services.alloc(usize::MAX, 8).is_null(), "no memory");
        assert_eq!(state.allocated(), 900);
        // SAFETY: the pointer came from `alloc` with the same size and alignment.
        unsafe { services.free(pointer, 900, 64) };
        assert_eq!(state.allocated(), 0);
    }

    #[test]
    fn folders_and_clock_are_the_hosts() {
        let services = leaked().services();
        assert_eq!(
            (services.bundle_dir(), services.scratch_dir()),
            ("/bundle".into(), "/scratch".into())
        );
        let first = services.monotonic_ns();
        assert!(services.monotonic_ns() >= first);
        assert!(services.extension("synapse.none/1").is_none());
    }

    #[test]
    fn a_flood_of_lines_is_counted_and_dropped() {
        let limiter = Limiter::default();
        let passed = (0..80).filter(|_| limiter.admit(5).is_some()).count();
        assert_eq!(passed as u64, LINES_PER_SECOND);
        assert_eq!(limiter.admit(6), Some(80 - LINES_PER_SECOND));
        assert_eq!(limiter.admit(6), Some(0));
    }
}
