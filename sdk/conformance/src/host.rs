//! The host that a plugin sees: it serves, and notes what a plugin must not ask for.
//!
//! State: log lines, blocks of memory, notes. Leaked, since services live as long as the process. Callers: `sys.rs` on
//! behalf of the plugin; the checks read what was noted.

use std::alloc::Layout;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use synapse_plugin_api::{LogLevel, MetricKind};

use crate::sys;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one plugin's host knows.
#[derive(Debug)]
pub(crate) struct Host {
    started: Instant,
    bundle_dir: String,
    scratch_dir: String,
    logs: Mutex<Vec<String>>,
    notes: Mutex<Vec<String>>,
    blocks: Mutex<HashMap<usize, Layout>>,
    allocations: AtomicU64,
    /// The allocation, from 1, from which on all are refused.
    refuse_from: AtomicU64,
}

impl Host {
    /// A host for the bundle in `bundle_dir`, with an existing folder for temporary files.
    pub(crate) fn leaked(bundle_dir: &Path, scratch_dir: &Path) -> &'static Self {
        Box::leak(Box::new(Self {
            started: Instant::now(),
            bundle_dir: bundle_dir.to_string_lossy().into_owned(),
            scratch_dir: scratch_dir.to_string_lossy().into_owned(),
            logs: Mutex::default(),
            notes: Mutex::default(),
            blocks: Mutex::default(),
            allocations: AtomicU64::new(0),
            refuse_from: AtomicU64::new(u64::MAX),
        }))
    }

    /// Nanoseconds of the host's clock.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn bundle_dir(&self) -> &str {
        &self.bundle_dir
    }

    pub(crate) fn scratch_dir(&self) -> &str {
        &self.scratch_dir
    }

    /// What the plugin logged.
    pub(crate) fn logs(&self) -> Vec<String> {
        lock(&self.logs).clone()
    }

    /// What the plugin asked of the services that it must not.
    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }

    /// How often memory was asked for.
    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::SeqCst)
    }

    /// Bytes that the plugin holds now.
    pub(crate) fn held(&self) -> usize {
        lock(&self.blocks).values().map(Layout::size).sum()
    }

    /// Refuses all memory from the `nth` request on, counted from now and from 1; 0 refuses none.
    pub(crate) fn refuse_from(&self, nth: u64) {
        let at = if nth == 0 { u64::MAX } else { self.allocations() + nth };
        self.refuse_from.store(at, Ordering::SeqCst);
    }

    fn note(&self, text: String) {
        let mut notes = lock(&self.notes);
        if notes.len() < 20 {
            notes.push(text);
        }
    }

    pub(crate) fn log(&self, level: LogLevel, message: &str) {
        let mut logs = lock(&self.logs);
        if logs.len() < 10_000 {
            logs.push(format!("{} {message}", level.0));
        }
    }

    pub(crate) fn metric(&self, kind: MetricKind, name: &str, value: f64) {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(allowed) {
            self.note(format!("metric {name:?}, expected a name of [a-z0-9_]"));
        }
        if !value.is_finite() {
            self.note(format!(
                "metric {name:?} of kind {} is {value}, expected a finite value",
                kind.0
            ));
        }
    }

    pub(crate) fn asked_for_extension(&self, id: &str) {
        let whole = id.rsplit_once('/').is_some_and(|(name, revision)| {
            name.contains('.') && !revision.is_empty() && revision.bytes().all(|b| b.is_ascii_digit())
        });
        if !whole {
            self.note(format!("extension {id:?} asked of the host, expected NAME/REV"));
        }
    }

    /// The layout to serve a request with; `None`: refused.
    pub(crate) fn wants(&self, size: usize, align: usize) -> Option<Layout> {
        let nth = self.allocations.fetch_add(1, Ordering::SeqCst) + 1;
        let layout = sys::layout(size, align);
        if layout.is_none() {
            self.note(format!(
                "alloc({size}, {align}), expected at least 1 byte and an alignment that is a power of two"
            ));
        }
        layout.filter(|_| nth < self.refuse_from.load(Ordering::SeqCst))
    }

    pub(crate) fn gave(&self, address: usize, layout: Layout) {
        if address != 0 {
            lock(&self.blocks).insert(address, layout);
        }
    }

    /// The layout of a block that comes back; `None` where it is none of ours.
    pub(crate) fn takes_back(&self, address: usize, size: usize, align: usize) -> Option<Layout> {
        let known = lock(&self.blocks).remove(&address);
        match known {
            None => self.note(format!(
                "free of {size} bytes that are not held: given back twice, or never gotten"
            )),
            Some(layout) if (layout.size(), layout.align()) != (size, align) => self.note(format!(
                "free({size}, {align}) of a block of alloc({}, {})",
                layout.size(),
                layout.align()
            )),
            Some(_) => {}
        }
        known
    }
}
