//! Helper threads that sleep between calls.
//!
//! The pool owns the threads; a [`Team`] borrows some of them for one call and gives them back when it is dropped. A
//! call that is held in a checkpoint keeps its helpers (parked), and another call gets others: the pool grows to
//! `limit` threads, never waits for a busy one, and a call that gets fewer helpers than it asked for computes the same
//! bits more slowly.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::OwnedError;

/// How often the calling thread looks after the host while it waits for its helpers.
const WAIT_SLICE: Duration = Duration::from_millis(2);

/// The work of one call: run once per rank.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// What a helper has before it.
enum Slot {
    Idle,
    Work { work: &'static Work<'static>, rank: usize },
    Running,
    Finished { panicked: bool },
    Closing,
}

struct Helper {
    slot: Mutex<Slot>,
    changed: Condvar,
}

impl Helper {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, slot: Slot) {
        *self.lock() = slot;
        self.changed.notify_all();
    }

    /// The life of a helper thread.
    fn serve(&self) {
        loop {
            let mut slot = self.lock();
            let (work, rank) = loop {
                match *slot {
                    Slot::Work { work, rank } => break (work, rank),
                    Slot::Closing => return,
                    _ => slot = self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner),
                }
            };
            *slot = Slot::Running;
            drop(slot);
            let panicked = catch_unwind(AssertUnwindSafe(|| work(rank))).is_err();
            self.set(Slot::Finished { panicked });
        }
    }
}

#[derive(Default)]
struct Threads {
    idle: Vec<Arc<Helper>>,
    all: Vec<(Arc<Helper>, JoinHandle<()>)>,
    closed: bool,
}

/// The helper threads of an engine.
pub struct Pool {
    threads: Mutex<Threads>,
    limit: usize,
}

impl Pool {
    /// A pool of at most `limit` threads, none of them started yet.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            threads: Mutex::default(),
            limit,
        }
    }

    /// Borrows up to `wanted` helpers, starting threads where none is idle.
    #[must_use]
    pub fn team(&self, wanted: usize) -> Team<'_> {
        let mut threads = self.lock();
        let mut helpers = Vec::with_capacity(wanted);
        while helpers.len() < wanted {
            if let Some(helper) = threads.idle.pop() {
                helpers.push(helper);
                continue;
            }
            if threads.closed || threads.all.len() >= self.limit {
                break;
            }
            let helper = Arc::new(Helper {
                slot: Mutex::new(Slot::Idle),
                changed: Condvar::new(),
            });
            let serving = Arc::clone(&helper);
            let name = format!("owned-{}", threads.all.len());
            // A thread that cannot be had is not an error: the call runs on fewer.
            let Ok(handle) = std::thread::Builder::new().name(name).spawn(move || serving.serve()) else {
                break;
            };
            threads.all.push((Arc::clone(&helper), handle));
            helpers.push(helper);
        }
        Team { pool: self, helpers }
    }

    /// Ends the threads; no call may be running. Later teams have no helpers.
    pub fn close(&self) {
        let all = {
            let mut threads = self.lock();
            threads.idle.clear();
            threads.closed = true;
            std::mem::take(&mut threads.all)
        };
        for (helper, _) in &all {
            helper.set(Slot::Closing);
        }
        for (_, handle) in all {
            // `serve` catches panics of the work, so the thread ends normally.
            let _ = handle.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

/// The threads of one call: the calling one and its helpers.
pub struct Team<'p> {
    pool: &'p Pool,
    helpers: Vec<Arc<Helper>>,
}

impl Team<'_> {
    /// How many ranks there are, the calling thread (rank 0) included.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `work` once per rank below `ranks`, rank 0 on this thread, and returns when all are done. While rank 0
    /// waits for the others it calls `meanwhile` every 2 ms.
    ///
    /// # Errors
    /// [`OwnedError::Panicked`] when a helper panicked.
    ///
    /// # Panics
    /// Goes on with a panic of rank 0, after every helper is done.
    pub fn run(&self, ranks: usize, work: &Work<'_>, mut meanwhile: impl FnMut()) -> Result<(), OwnedError> {
        let helpers = &self.helpers[..self.helpers.len().min(ranks.saturating_sub(1))];
        // SAFETY: the reference is used by the helpers only until they are `Finished`, and this function leaves only
        // after it saw that of each: rank 0's panic is caught and `meanwhile` is called under the same protection.
        let shared: &'static Work<'static> = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        for (index, helper) in helpers.iter().enumerate() {
            helper.set(Slot::Work {
                work: shared,
                rank: index + 1,
            });
        }
        let mut own = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut helper_panicked = false;
        for helper in helpers {
            let mut slot = helper.lock();
            while !matches!(*slot, Slot::Finished { .. }) {
                let (guard, wait) = helper
                    .changed
                    .wait_timeout(slot, WAIT_SLICE)
                    .unwrap_or_else(PoisonError::into_inner);
                slot = guard;
                if wait.timed_out() && own.is_ok() {
                    drop(slot);
                    own = catch_unwind(AssertUnwindSafe(&mut meanwhile));
                    slot = helper.lock();
                }
            }
            helper_panicked |= matches!(*slot, Slot::Finished { panicked: true });
            *slot = Slot::Idle;
        }
        match own {
            Err(panic) => resume_unwind(panic),
            Ok(()) if helper_panicked => Err(OwnedError::Panicked),
            Ok(()) => Ok(()),
        }
    }
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        self.pool.lock().idle.append(&mut self.helpers);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_rank_runs_once_and_threads_are_reused() {
        let pool = Pool::new(3);
        for _ in 0..200 {
            let team = pool.team(3);
            assert_eq!(team.ranks(), 4);
            let seen: [AtomicUsize; 4] = std::array::from_fn(|_| AtomicUsize::new(0));
            team.run(4, &|rank| _ = seen[rank].fetch_add(1, Ordering::SeqCst), || {})
                .unwrap();
            assert!(seen.iter().all(|count| count.load(Ordering::SeqCst) == 1));
        }
        assert_eq!(pool.lock().all.len(), 3);
    }

    #[test]
    fn a_second_team_never_waits_for_the_first() {
        let pool = Pool::new(2);
        let first = pool.team(1);
        let second = pool.team(2);
        assert_eq!((first.ranks(), second.ranks()), (2, 2));
        drop(first);
        assert_eq!(pool.team(2).ranks(), 2);
    }

    #[test]
    fn panics_are_reported_after_everybody_is_done() {
        let pool = Pool::new(1);
        let team = pool.team(1);
        let outcome = team.run(2, &|rank| assert!(rank == 0, "injected"), || {});
        assert!(matches!(outcome, Err(OwnedError::Panicked)));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            team.run(2, &|rank| assert!(rank == 1, "injected"), || {})
        }));
        assert!(outcome.is_err());
        let ran = AtomicUsize::new(0);
        team.run(2, &|_| _ = ran.fetch_add(1, Ordering::SeqCst), || {}).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 2);
    }
}
