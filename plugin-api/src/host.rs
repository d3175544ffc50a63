//! What the host does for a plugin.
//!
//! Holds function pointers and an opaque state that live as long as the process. The host makes it once per plugin;
//! every service is `[any]` and none blocks.

use abi_stable::{
    StableAbi,
    std_types::{ROption, RStr, RString},
};

use crate::ext::ExtensionRef;

/// How grave a log line is. An open integer: an unknown value is logged as [`LogLevel::INFO`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, StableAbi)]
pub struct LogLevel(pub u32);

impl LogLevel {
    /// Something failed.
    pub const ERROR: Self = Self(1);
    /// Something is not as it should be, work goes on.
    pub const WARN: Self = Self(2);
    /// An operator wants to know.
    pub const INFO: Self = Self(3);
    /// An author wants to know.
    pub const DEBUG: Self = Self(4);
    /// Every step.
    pub const TRACE: Self = Self(5);
}

/// How values of a metric add up. An open integer: an unknown kind is dropped.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct MetricKind(pub u32);

impl MetricKind {
    /// The value is added.
    pub const COUNTER: Self = Self(1);
    /// The value replaces the last one.
    pub const GAUGE: Self = Self(2);
    /// The value is one observation.
    pub const HISTOGRAM: Self = Self(3);
}

/// The functions behind [`HostServices`], in one table. For hosts.
#[repr(C)]
#[derive(Clone, Copy, StableAbi)]
pub struct HostFunctions {
    /// Takes one log line: level, message. The host adds the plugin's id, caps the length and limits the rate.
    pub log: for<'a> unsafe extern "C" fn(*const (), LogLevel, RStr<'a>),
    /// The gravest level number that is wanted: lines with a larger one may be left out.
    pub max_level: unsafe extern "C" fn(*const ()) -> LogLevel,
    /// Takes one metric value: kind, name (`[a-z0-9_]`), value.
    pub metric: for<'a> unsafe extern "C" fn(*const (), MetricKind, RStr<'a>, f64),
    /// Nanoseconds of the host's monotonic clock.
    pub monotonic_ns: unsafe extern "C" fn(*const ()) -> u64,
    /// Gets `size` bytes aligned to `align`, charged to the plugin's lane, or null when the lane's budget or the
    /// memory is used up. Content undefined.
    pub alloc: unsafe extern "C" fn(*const (), usize, usize) -> *mut u8,
    /// Gives back what `alloc` gave: pointer, size, align.
    pub free: unsafe extern "C" fn(*const (), *mut u8, usize, usize),
    /// The folder that the bundle was loaded from: absolute, read-only.
    pub bundle_dir: unsafe extern "C" fn(*const ()) -> RString,
    /// A private folder for temporary files: absolute, exists, may be emptied between starts.
    pub scratch_dir: unsafe extern "C" fn(*const ()) -> RString,
    /// A host extension by id (`synapse.NAME/REV`), valid for the life of the process.
    pub extension: for<'a> unsafe extern "C" fn(*const (), RStr<'a>) -> ROption<ExtensionRef<'static>>,
}

/// What the host does for a plugin. Freely copied; valid for the life of the process.
#[repr(C)]
#[derive(Clone, Copy, StableAbi)]
pub struct HostServices {
    state: *const (),
    functions: HostFunctions,
}

// SAFETY: `new` demands a state and functions that any thread may use at once.
unsafe impl Send for HostServices {}
// SAFETY: as above.
unsafe impl Sync for HostServices {}

impl HostServices {
    /// Makes the services. For hosts.
    ///
    /// # Safety
    /// `state` must be valid for the functions for the life of the process, from any thread, several at once. The
    /// functions must not unwind or block.
    #[must_use]
    pub const unsafe fn new(state: *const (), functions: HostFunctions) -> Self {
        Self { state, functions }
    }

    /// `[any]` Writes one log line. Never input text.
    pub fn log(&self, level: LogLevel, message: &str) {
        // SAFETY: `new`'s contract: state and functions are valid for the life of the process.
        unsafe { (self.functions.log)(self.state, level, RStr::from_str(message)) }
    }

    /// `[any]` Whether a line of this level is wanted at all.
    #[must_use]
    pub fn log_enabled(&self, level: LogLevel) -> bool {
        // SAFETY: as in `log`.
        level <= unsafe { (self.functions.max_level)(self.state) }
    }

    /// `[any]` Gives one metric value.
    pub fn metric(&self, kind: MetricKind, name: &str, value: f64) {
        // SAFETY: as in `log`.
        unsafe { (self.functions.metric)(self.state, kind, RStr::from_str(name), value) }
    }

    /// `[any]` Nanoseconds of the host's monotonic clock, the one that deadlines are given in.
    #[must_use]
    pub fn monotonic_ns(&self) -> u64 {
        // SAFETY: as in `log`.
        unsafe { (self.functions.monotonic_ns)(self.state) }
    }

    /// `[any]` Gets `size` bytes (at least 1) aligned to `align` (a power of two), charged to the plugin's lane. Null
    /// when there is none to be had: answer [`crate::ErrorCode::OUT_OF_MEMORY`]. The content is undefined.
    #[must_use]
    pub fn alloc(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: as in `log`; the host checks size and alignment.
        unsafe { (self.functions.alloc)(self.state, size, align) }
    }

    /// `[any]` Gives back what [`HostServices::alloc`] gave.
    ///
    /// # Safety
    /// `pointer` must come from `alloc` with the same `size` and `align`, be given back once, and not be used after.
    pub unsafe fn free(&self, pointer: *mut u8, size: usize, align: usize) {
        // SAFETY: the caller's promise, and as in `log`.
        unsafe { (self.functions.free)(self.state, pointer, size, align) }
    }

    /// `[any]` The folder that the bundle was loaded from: absolute, read-only. Private libraries and data lie there.
    #[must_use]
    pub fn bundle_dir(&self) -> String {
        // SAFETY: as in `log`.
        unsafe { (self.functions.bundle_dir)(self.state) }.into_string()
    }

    /// `[any]` A private folder for temporary files: absolute, exists, may be emptied between starts.
    #[must_use]
    pub fn scratch_dir(&self) -> String {
        // SAFETY: as in `log`.
        unsafe { (self.functions.scratch_dir)(self.state) }.into_string()
    }

    /// `[any]` A host extension by id, if this host has it.
    #[must_use]
    pub fn extension(&self, id: &str) -> Option<ExtensionRef<'static>> {
        // SAFETY: as in `log`.
        unsafe { (self.functions.extension)(self.state, RStr::from_str(id)) }.into_option()
    }
}

impl std::fmt::Debug for HostServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostServices").finish_non_exhaustive()
    }
}
