//! The only unsafe code of the kit: the function tables that cross the ABI, and memory for the host's allocator.
//!
//! State: none. Callers: `host.rs`, `call.rs`, `bench.rs`. Everything that is handed out points to a value that is leaked
//! for the life of the process, so that a plugin that keeps a pointer too long is noted and not obeyed.

use std::alloc::Layout;

use synapse_plugin_api::abi_stable::std_types::{ROption, RSlice, RStr, RString};
use synapse_plugin_api::ext::environment::{EnvironmentReport, EnvironmentTable};
use synapse_plugin_api::host::HostFunctions;
use synapse_plugin_api::{CallContext, EngineError, ExtensionRef, Flow, HostServices, LogLevel, MetricKind, TokenSink};

use crate::bench::Heard;
use crate::call::Call;
use crate::host::Host;

/// The services of a host, as they cross the ABI.
pub(crate) fn services(host: &'static Host) -> HostServices {
    let functions = HostFunctions {
        log,
        max_level,
        metric,
        monotonic_ns,
        alloc,
        free,
        bundle_dir,
        scratch_dir,
        extension,
    };
    // SAFETY: the state lives for ever, and the functions neither unwind nor need a particular thread.
    unsafe { HostServices::new(std::ptr::from_ref(host).cast(), functions) }
}

/// The context of a call, as it crosses the ABI.
pub(crate) fn context(call: &'static Call) -> CallContext<'static> {
    // SAFETY: the state lives for ever, and the functions neither unwind nor need a particular thread.
    unsafe {
        CallContext::new(
            1,
            call.threads(),
            std::ptr::from_ref(call).cast(),
            deadline,
            cancelled,
            checkpoint,
        )
    }
}

/// The sink of a generation, as it crosses the ABI.
pub(crate) fn sink(heard: &mut Heard) -> TokenSink<'_> {
    // SAFETY: the sink borrows `heard` exclusively; `push` does not unwind.
    unsafe { TokenSink::new(std::ptr::from_mut(heard).cast(), push) }
}

/// # Safety
/// `state` is a [`Host`] that lives for ever; so for all functions below that take one.
unsafe fn host(state: *const ()) -> &'static Host {
    // SAFETY: `services` passes such a reference.
    unsafe { &*state.cast::<Host>() }
}

unsafe extern "C" fn log(state: *const (), level: LogLevel, message: RStr<'_>) {
    // SAFETY: as `host`.
    unsafe { host(state) }.log(level, message.as_str());
}

unsafe extern "C" fn max_level(_: *const ()) -> LogLevel {
    LogLevel::TRACE
}

unsafe extern "C" fn metric(state: *const (), kind: MetricKind, name: RStr<'_>, value: f64) {
    // SAFETY: as `host`.
    unsafe { host(state) }.metric(kind, name.as_str(), value);
}

unsafe extern "C" fn monotonic_ns(state: *const ()) -> u64 {
    // SAFETY: as `host`.
    unsafe { host(state) }.now_ns()
}

unsafe extern "C" fn alloc(state: *const (), size: usize, align: usize) -> *mut u8 {
    // SAFETY: as `host`.
    let host = unsafe { host(state) };
    let Some(layout) = host.wants(size, align) else {
        return std::ptr::null_mut();
    };
    // SAFETY: `wants` gives no layout of size 0.
    let pointer = unsafe { std::alloc::alloc(layout) };
    host.gave(pointer.addr(), layout);
    pointer
}

unsafe extern "C" fn free(state: *const (), pointer: *mut u8, size: usize, align: usize) {
    // SAFETY: as `host`.
    if let Some(layout) = unsafe { host(state) }.takes_back(pointer.addr(), size, align) {
        // SAFETY: `takes_back` gives the layout with which `alloc` got this pointer, once.
        unsafe { std::alloc::dealloc(pointer, layout) };
    }
}

unsafe extern "C" fn bundle_dir(state: *const ()) -> RString {
    // SAFETY: as `host`.
    unsafe { host(state) }.bundle_dir().into()
}

unsafe extern "C" fn scratch_dir(state: *const ()) -> RString {
    // SAFETY: as `host`.
    unsafe { host(state) }.scratch_dir().into()
}

unsafe extern "C" fn extension(state: *const (), id: RStr<'_>) -> ROption<ExtensionRef<'static>> {
    // SAFETY: as `host`.
    unsafe { host(state) }.asked_for_extension(id.as_str());
    ROption::RNone
}

/// # Safety
/// `state` is a [`Call`] that lives for ever; so for all functions below that take one.
unsafe fn call(state: *const ()) -> &'static Call {
    // SAFETY: `context` passes such a reference.
    unsafe { &*state.cast::<Call>() }
}

unsafe extern "C" fn deadline(state: *const ()) -> u64 {
    // SAFETY: as `call`.
    unsafe { call(state) }.read_deadline()
}

unsafe extern "C" fn cancelled(state: *const ()) -> bool {
    // SAFETY: as `call`.
    unsafe { call(state) }.read_cancelled()
}

unsafe extern "C" fn checkpoint(state: *const (), done: u64, total: u64) -> Flow {
    // SAFETY: as `call`.
    unsafe { call(state) }.checkpoint(done, total)
}

unsafe extern "C" fn push(state: *mut (), ids: RSlice<'_, i32>, bytes: RSlice<'_, u8>) -> Flow {
    // SAFETY: `sink` passes such a reference, borrowed exclusively for the call.
    unsafe { &mut *state.cast::<Heard>() }.push(ids.as_slice(), bytes.as_slice())
}

/// A layout, where there is one of this size and alignment; none is of size 0.
pub(crate) fn layout(size: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(size, align)
        .ok()
        .filter(|layout| layout.size() > 0)
}

/// Calls the report of an environment table.
pub(crate) fn environment(table: &EnvironmentTable) -> Result<EnvironmentReport, EngineError> {
    // SAFETY: the table's owner promises that state and function may be used from any thread for the process's life.
    unsafe { (table.report)(table.state) }.into_result()
}
