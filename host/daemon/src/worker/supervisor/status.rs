//! What `health` shows of a lane's worker (HEALTH-03, HEALTH-07).
//!
//! State: the last stamp, behind a lock that nobody holds while something is waited for. Callers: [`super`] and
//! [`super::generation`] stamp, `health` reads. Not known here: why a generation ended.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use synapse_loader::process::Child;

use super::lock;
use crate::worker::launch::Worker;
use crate::worker::output::LastWords;

/// What a lane's worker is, for `health`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The current or last generation; 0 before the first.
    pub generation: u64,
    /// The process, while one is believed to live.
    pub pid: Option<u32>,
    /// Generations that died.
    pub deaths: u64,
    /// The crash budget of the lane is used up.
    pub degraded: bool,
    /// Why the last generation ended.
    pub last_fault: Option<String>,
    /// Resident memory in MiB, as of the last PONG.
    pub rss_mb: Option<u64>,
    /// Since when this is known.
    pub stamped: Instant,
}

struct Inner {
    status: Status,
    words: Option<Arc<LastWords>>,
    child: Option<Arc<Mutex<Child>>>,
}

/// The stamped status of one lane's worker.
pub(super) struct Shown(Mutex<Inner>);

impl Shown {
    /// Nothing was started yet.
    pub(super) fn new() -> Self {
        let status = Status {
            generation: 0,
            pid: None,
            deaths: 0,
            degraded: false,
            last_fault: None,
            rss_mb: None,
            stamped: Instant::now(),
        };
        Self(Mutex::new(Inner {
            status,
            words: None,
            child: None,
        }))
    }

    fn stamp(&self) -> MutexGuard<'_, Inner> {
        let mut inner = lock(&self.0);
        inner.status.stamped = Instant::now();
        inner
    }

    /// What is known now. A process whose output ended is gone, whether or not somebody met its end (fault S5).
    pub(super) fn read(&self) -> Status {
        let inner = lock(&self.0);
        let mut status = inner.status.clone();
        if inner.words.as_ref().is_some_and(|words| words.ended()) {
            status.pid = None;
        }
        status
    }

    /// The process, to be killed while its exchange runs.
    pub(super) fn child(&self) -> Option<Arc<Mutex<Child>>> {
        lock(&self.0).child.clone()
    }

    /// A generation runs.
    pub(super) fn started(&self, generation: u64, worker: &Worker) {
        let mut inner = self.stamp();
        inner.status.generation = generation;
        inner.status.pid = Some(worker.pid);
        inner.words = Some(Arc::clone(&worker.words));
        inner.child = Some(Arc::clone(&worker.child));
    }

    /// A generation ended in order.
    pub(super) fn ended(&self) {
        let mut inner = self.stamp();
        inner.status.pid = None;
        inner.words = None;
        inner.child = None;
    }

    /// A generation died, or did not come up.
    pub(super) fn died(&self, degraded: bool, message: &str) {
        let mut inner = self.stamp();
        inner.status.pid = None;
        inner.status.deaths += 1;
        inner.status.degraded = degraded;
        inner.status.last_fault = Some(message.to_owned());
        inner.words = None;
        inner.child = None;
    }

    /// The worker answered a PING.
    pub(super) fn answered(&self, rss_mb: u64) {
        self.stamp().status.rss_mb = Some(rss_mb);
    }

    /// Deaths leave the window as time passes. No stamp: nothing was heard of the worker.
    pub(super) fn set_degraded(&self, degraded: bool) {
        lock(&self.0).status.degraded = degraded;
    }
}
