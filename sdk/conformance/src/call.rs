//! The host's side of one call: it counts, can cancel and hold, and notes broken rules.
//!
//! State: the counts. Leaked, so that whoever uses a context after its call returned is noted and not obeyed. Callers:
//! `sys.rs` on behalf of the plugin; the checks read what was noted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use synapse_plugin_api::Flow;
use synapse_plugin_api::call::NO_DEADLINE;

use crate::host::lock;

/// What happens at a checkpoint, given its number from 1.
type Hook = Box<dyn Fn(&Call, u64) + Send + Sync>;

/// One call.
pub(crate) struct Call {
    caller: ThreadId,
    threads: u32,
    deadline: AtomicU64,
    flow: u32,
    cancel_at: u64,
    cancelled: AtomicBool,
    returned: AtomicBool,
    seen: Mutex<Seen>,
    hook: Option<Hook>,
}

/// What a call noted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Checkpoints so far.
    pub(crate) checkpoints: u64,
    /// Checkpoints after the one that said cancel.
    pub(crate) after_cancel: u64,
    /// Checkpoints of a thread that is not the caller's.
    pub(crate) wrong_thread: u64,
    /// Work that went back, passed its total, or whose total changed.
    pub(crate) progress: Option<String>,
    /// Uses of the context after the call returned.
    pub(crate) late: u64,
    /// How often the deadline was asked for.
    pub(crate) deadlines: u64,
    /// The most processor time of the calling thread between two checkpoints, start and end included.
    pub(crate) longest: Duration,
    last: (u64, Option<u64>),
    cpu: Duration,
}

/// The processor time of this thread.
pub(crate) fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

/// The processor time of this process, threads that ended included.
pub(crate) fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Call {
    /// A call of this thread on so many threads, without a deadline.
    pub(crate) fn new(threads: u32) -> Self {
        Self {
            caller: thread::current().id(),
            threads,
            deadline: AtomicU64::new(NO_DEADLINE),
            flow: Flow::CANCEL.0,
            cancel_at: u64::MAX,
            cancelled: AtomicBool::new(false),
            returned: AtomicBool::new(false),
            seen: Mutex::new(Seen {
                cpu: thread_cpu(),
                ..Seen::default()
            }),
            hook: None,
        }
    }

    /// The same, told to end at its `nth` checkpoint by this flow value.
    pub(crate) fn cancel_at(mut self, nth: u64, flow: u32) -> Self {
        (self.cancel_at, self.flow) = (nth, flow);
        self
    }

    /// The same with a deadline on the host's clock.
    pub(crate) fn deadline(self, ns: u64) -> Self {
        self.deadline.store(ns, Ordering::SeqCst);
        self
    }

    /// The same, with something that happens at each checkpoint.
    pub(crate) fn hook(mut self, hook: impl Fn(&Self, u64) + Send + Sync + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// Leaks it, to be lent to a plugin.
    pub(crate) fn leaked(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    pub(crate) const fn threads(&self) -> u32 {
        self.threads
    }

    /// Moves the deadline.
    pub(crate) fn move_deadline(&self, ns: u64) {
        self.deadline.store(ns, Ordering::SeqCst);
    }

    /// Says that the call returned; what comes later is late. The time since the last checkpoint counts too.
    pub(crate) fn finish(&self) {
        let mut seen = lock(&self.seen);
        if thread::current().id() == self.caller {
            seen.longest = seen.longest.max(thread_cpu().saturating_sub(seen.cpu));
        }
        self.returned.store(true, Ordering::SeqCst);
    }

    /// What was noted so far.
    pub(crate) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }

    fn is_late(&self, seen: &mut Seen) {
        if self.returned.load(Ordering::SeqCst) {
            seen.late += 1;
        }
    }

    pub(crate) fn read_deadline(&self) -> u64 {
        let mut seen = lock(&self.seen);
        seen.deadlines += 1;
        self.is_late(&mut seen);
        self.deadline.load(Ordering::SeqCst)
    }

    pub(crate) fn read_cancelled(&self) -> bool {
        self.is_late(&mut lock(&self.seen));
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn checkpoint(&self, done: u64, total: u64) -> Flow {
        let mut seen = lock(&self.seen);
        self.is_late(&mut seen);
        seen.checkpoints += 1;
        let nth = seen.checkpoints;
        if thread::current().id() == self.caller {
            let cpu = thread_cpu();
            seen.longest = seen.longest.max(cpu.saturating_sub(seen.cpu));
        } else {
            seen.wrong_thread += 1;
        }
        let (last, fixed) = seen.last;
        if done < last || done > total || fixed.is_some_and(|fixed| fixed != total) {
            let before = fixed.map_or_else(String::new, |fixed| format!(" after ({last}, {fixed})"));
            seen.progress
                .get_or_insert(format!("checkpoint({done}, {total}){before}"));
        }
        seen.last = (done, Some(total));
        if self.cancelled.load(Ordering::SeqCst) {
            seen.after_cancel += 1;
        }
        drop(seen);
        if let Some(hook) = &self.hook {
            hook(self, nth);
        }
        if nth >= self.cancel_at {
            self.cancelled.store(true, Ordering::SeqCst);
        }
        if thread::current().id() == self.caller {
            lock(&self.seen).cpu = thread_cpu();
        }
        if self.cancelled.load(Ordering::SeqCst) {
            Flow(self.flow)
        } else {
            Flow::CONTINUE
        }
    }
}
