//! A host for an author's own tests: it records what the plugin says and checks how it calls.
//!
//! Owns the records. Engines are opened through [`crate::Plugin::open_embed`] and its sisters, so a test passes
//! through the same shims and trait objects as a real host. State is leaked, since services live as long as the
//! process.

use std::{
    alloc::Layout,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::Instant,
};

use crate::{
    api::{
        ArtifactFile, CallContext, ExtensionRef, Flow, HostServices, LogLevel, MetricKind, RuntimeConfig, TokenSink,
        ValidatedArtifact,
        abi_stable::std_types::{ROption, RSlice, RStr, RString},
        call::NO_DEADLINE,
        host::HostFunctions,
    },
    host::Host,
};

mod model;

pub use model::{Embedding, Generation, Reranking, generate_options};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct HostState {
    started: Instant,
    logs: Mutex<Vec<(LogLevel, String)>>,
    metrics: Mutex<Vec<(MetricKind, String, f64)>>,
    charged: AtomicUsize,
    budget: usize,
    dir: String,
}

/// A host that keeps what it is told. Both folders are the system's folder for temporary files.
#[derive(Clone, Copy, Debug)]
pub struct FakeHost(&'static HostState);

impl FakeHost {
    /// A host with a memory budget of 1 GiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_budget(1 << 30)
    }

    /// A host that refuses allocations beyond `budget` bytes.
    #[must_use]
    pub fn with_budget(budget: usize) -> Self {
        Self::make(budget, &std::env::temp_dir())
    }

    /// A host whose bundle lies in `dir`, for plugins that bring private libraries.
    #[must_use]
    pub fn in_dir(dir: &Path) -> Self {
        Self::make(1 << 30, dir)
    }

    fn make(budget: usize, dir: &Path) -> Self {
        Self(Box::leak(Box::new(HostState {
            started: Instant::now(),
            logs: Mutex::default(),
            metrics: Mutex::default(),
            charged: AtomicUsize::new(0),
            budget,
            dir: dir.to_string_lossy().into_owned(),
        })))
    }

    /// The services as they cross the ABI.
    #[must_use]
    pub fn services(self) -> HostServices {
        let functions = HostFunctions {
            log,
            max_level,
            metric,
            monotonic_ns,
            alloc,
            free,
            bundle_dir: dir,
            scratch_dir: dir,
            extension: no_extension,
        };
        // SAFETY: the state is leaked, and the functions neither unwind nor need a particular thread.
        unsafe { HostServices::new(std::ptr::from_ref(self.0).cast(), functions) }
    }

    /// The services as the author sees them.
    #[must_use]
    pub fn host(self) -> Host {
        Host::new(self.services())
    }

    /// Every log line so far.
    #[must_use]
    pub fn logs(self) -> Vec<(LogLevel, String)> {
        lock(&self.0.logs).clone()
    }

    /// Every metric value so far.
    #[must_use]
    pub fn metrics(self) -> Vec<(MetricKind, String, f64)> {
        lock(&self.0.metrics).clone()
    }

    /// Bytes that are charged now.
    #[must_use]
    pub fn charged(self) -> usize {
        self.0.charged.load(Ordering::Relaxed)
    }
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

/// # Safety
/// `state` is a [`HostState`]; so for all functions below that take one.
unsafe fn host_state<'a>(state: *const ()) -> &'a HostState {
    // SAFETY: `FakeHost::services` passes a leaked state.
    unsafe { &*state.cast::<HostState>() }
}

unsafe extern "C" fn log(state: *const (), level: LogLevel, message: RStr<'_>) {
    // SAFETY: as `host_state`.
    lock(&unsafe { host_state(state) }.logs).push((level, message.as_str().to_owned()));
}

unsafe extern "C" fn max_level(_: *const ()) -> LogLevel {
    LogLevel::TRACE
}

unsafe extern "C" fn metric(state: *const (), kind: MetricKind, name: RStr<'_>, value: f64) {
    // SAFETY: as `host_state`.
    lock(&unsafe { host_state(state) }.metrics).push((kind, name.as_str().to_owned(), value));
}

unsafe extern "C" fn monotonic_ns(state: *const ()) -> u64 {
    // SAFETY: as `host_state`.
    u64::try_from(unsafe { host_state(state) }.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

unsafe extern "C" fn alloc(state: *const (), size: usize, align: usize) -> *mut u8 {
    // SAFETY: as `host_state`.
    let state = unsafe { host_state(state) };
    let Ok(layout) = Layout::from_size_align(size, align) else {
        return std::ptr::null_mut();
    };
    let charge = |now: usize| now.checked_add(size).filter(|&sum| sum <= state.budget);
    if size == 0
        || state
            .charged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge)
            .is_err()
    {
        return std::ptr::null_mut();
    }
    // SAFETY: the size is not 0.
    unsafe { std::alloc::alloc(layout) }
}

unsafe extern "C" fn free(state: *const (), pointer: *mut u8, size: usize, align: usize) {
    let Ok(layout) = Layout::from_size_align(size, align) else {
        return;
    };
    // SAFETY: as `host_state`.
    unsafe { host_state(state) }.charged.fetch_sub(size, Ordering::Relaxed);
    // SAFETY: the plugin gives back what `alloc` gave, with the same size and alignment.
    unsafe { std::alloc::dealloc(pointer, layout) };
}

unsafe extern "C" fn dir(state: *const ()) -> RString {
    // SAFETY: as `host_state`.
    unsafe { host_state(state) }.dir.as_str().into()
}

unsafe extern "C" fn no_extension(_: *const (), _: RStr<'_>) -> ROption<ExtensionRef<'static>> {
    ROption::RNone
}

/// The host's side of one call: counts checkpoints, can cancel, and notes broken rules.
#[derive(Debug)]
pub struct FakeCall {
    caller: ThreadId,
    threads: u32,
    deadline_ns: u64,
    cancel_at: u64,
    cancelled: AtomicBool,
    checkpoints: AtomicU64,
    last: Mutex<(u64, Option<u64>)>,
    violations: Mutex<Vec<String>>,
}

impl FakeCall {
    /// A call of the current thread with a budget of `threads`, without a deadline.
    #[must_use]
    pub fn new(threads: u32) -> Self {
        Self {
            caller: thread::current().id(),
            threads,
            deadline_ns: NO_DEADLINE,
            cancel_at: u64::MAX,
            cancelled: AtomicBool::new(false),
            checkpoints: AtomicU64::new(0),
            last: Mutex::new((0, None)),
            violations: Mutex::default(),
        }
    }

    /// The same that is cancelled at its `nth` checkpoint (from 1).
    #[must_use]
    pub const fn cancel_at(mut self, nth: u64) -> Self {
        self.cancel_at = nth;
        self
    }

    /// The same with a deadline on the host's clock.
    #[must_use]
    pub const fn deadline_ns(mut self, deadline: u64) -> Self {
        self.deadline_ns = deadline;
        self
    }

    /// Cancels the call, from any thread.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// How often the checkpoint was called.
    #[must_use]
    pub fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::Relaxed)
    }

    /// The rules that the plugin broke: work that went back, a total that changed, a wrong thread.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    /// The context as it crosses the ABI.
    #[must_use]
    pub fn context(&self) -> CallContext<'_> {
        // SAFETY: the context borrows `self`; the functions neither unwind nor need a particular thread.
        unsafe {
            CallContext::new(
                1,
                self.threads,
                std::ptr::from_ref(self).cast(),
                call_deadline,
                call_cancelled,
                call_at,
            )
        }
    }

    fn at(&self, done: u64, total: u64) -> Flow {
        let nth = self.checkpoints.fetch_add(1, Ordering::Relaxed) + 1;
        let note = |text: String| lock(&self.violations).push(text);
        if thread::current().id() != self.caller {
            note("checkpoint on a thread that is not the caller's".to_owned());
        }
        let mut last = lock(&self.last);
        if done < last.0 || done > total {
            note(format!("checkpoint({done}, {total}) after done = {}", last.0));
        }
        if last.1.is_some_and(|fixed| fixed != total) {
            note(format!("checkpoint({done}, {total}): the total changed"));
        }
        *last = (done, Some(total));
        if nth >= self.cancel_at {
            self.cancel();
        }
        if self.cancelled.load(Ordering::Acquire) {
            Flow::CANCEL
        } else {
            Flow::CONTINUE
        }
    }
}

/// # Safety
/// `state` is the [`FakeCall`] whose context is used; so for all functions below that take one.
unsafe fn call_state<'a>(state: *const ()) -> &'a FakeCall {
    // SAFETY: `FakeCall::context` passes itself and is borrowed by the context.
    unsafe { &*state.cast::<FakeCall>() }
}

unsafe extern "C" fn call_deadline(state: *const ()) -> u64 {
    // SAFETY: as `call_state`.
    unsafe { call_state(state) }.deadline_ns
}

unsafe extern "C" fn call_cancelled(state: *const ()) -> bool {
    // SAFETY: as `call_state`.
    unsafe { call_state(state) }.cancelled.load(Ordering::Acquire)
}

unsafe extern "C" fn call_at(state: *const (), done: u64, total: u64) -> Flow {
    // SAFETY: as `call_state`.
    unsafe { call_state(state) }.at(done, total)
}

/// Collects what a generation gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// All token ids.
    pub ids: Vec<i32>,
    /// All bytes.
    pub bytes: Vec<u8>,
    /// How often the sink was called.
    pub pushes: usize,
    /// The call at which the sink asks to stop; 0 is never.
    pub cancel_at: usize,
}

impl Collected {
    /// The sink as it crosses the ABI.
    pub fn sink(&mut self) -> TokenSink<'_> {
        // SAFETY: the sink borrows `self` exclusively; `collect` does not unwind.
        unsafe { TokenSink::new(std::ptr::from_mut(self).cast(), collect) }
    }
}

unsafe extern "C" fn collect(state: *mut (), ids: RSlice<'_, i32>, bytes: RSlice<'_, u8>) -> Flow {
    // SAFETY: `Collected::sink` passes itself, borrowed exclusively by the sink.
    let collected = unsafe { &mut *state.cast::<Collected>() };
    collected.ids.extend_from_slice(ids.as_slice());
    collected.bytes.extend_from_slice(bytes.as_slice());
    collected.pushes += 1;
    if collected.pushes == collected.cancel_at {
        Flow::CANCEL
    } else {
        Flow::CONTINUE
    }
}

/// An artifact of files by role. Digests are 64 zeros: this host measures nothing.
///
/// # Errors
/// The system's, when a file cannot be looked at.
pub fn artifact(files: &[(&str, &Path)]) -> std::io::Result<ValidatedArtifact> {
    let file = |&(role, path): &(&str, &Path)| {
        Ok(ArtifactFile {
            role: role.into(),
            path: path.to_string_lossy().into_owned().into(),
            sha256: "0".repeat(64).into(),
            size: path.metadata()?.len(),
        })
    };
    Ok(ValidatedArtifact {
        files: files.iter().map(file).collect::<std::io::Result<Vec<_>>>()?.into(),
    })
}

/// Settings for tests: mean pooling, 512 tokens an item, 64 items and 16,384 tokens a call, 2 threads, no extras.
#[must_use]
pub fn runtime_config(format: &str, dtype: &str) -> RuntimeConfig {
    RuntimeConfig {
        format: format.into(),
        dtype: dtype.into(),
        pooling: "mean".into(),
        max_tokens: 512,
        max_batch: 64,
        max_batch_tokens: 16_384,
        threads: 2,
        extra: Vec::new().into(),
    }
}
