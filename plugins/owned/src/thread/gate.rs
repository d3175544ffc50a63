//! The engine's side of a checkpoint: who may compute now, and how much is done.
//!
//! Owns a flag and a counter per call. The calling thread closes the gate before it enters the host's checkpoint and
//! opens it after; the other ranks look at it after each block of work (about a millisecond) and park while it is
//! closed. So a held call leaves the CPUs, and a checkpoint that returns at once costs two stores.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Stopped;

const OPEN: u32 = 0;
const CLOSED: u32 = 1;
const STOPPED: u32 = 2;

/// One call's gate.
pub struct Gate {
    state: AtomicU32,
    done: AtomicU64,
    held_nanos: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            state: AtomicU32::new(OPEN),
            done: AtomicU64::new(0),
            held_nanos: AtomicU64::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }
}

impl Gate {
    /// Counts completed work.
    pub fn add_done(&self, work: u64) {
        self.done.fetch_add(work, Ordering::Relaxed);
    }

    /// Work completed so far, by all ranks.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Time that the host's checkpoints took so far.
    #[must_use]
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.held_nanos.load(Ordering::Relaxed))
    }

    /// Runs the host's checkpoint with the gate closed. `keep_going` says what the host decided.
    ///
    /// # Errors
    /// [`Stopped`] when the host cancelled or the call was stopped meanwhile.
    pub fn while_closed(&self, keep_going: impl FnOnce() -> bool) -> Result<(), Stopped> {
        if self
            .state
            .compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            return Err(Stopped);
        }
        let entered = Instant::now();
        let keep_going = keep_going();
        let nanos = u64::try_from(entered.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.held_nanos.fetch_add(nanos, Ordering::Relaxed);
        if !keep_going {
            self.stop();
            return Err(Stopped);
        }
        let opened = self
            .state
            .compare_exchange(CLOSED, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        self.wake();
        opened.map(drop).map_err(|_| Stopped)
    }

    /// For the ranks that do not call checkpoints: parks while the gate is closed.
    ///
    /// # Errors
    /// [`Stopped`] when the call was stopped.
    pub fn pass(&self) -> Result<(), Stopped> {
        if self.state.load(Ordering::SeqCst) == CLOSED {
            let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            while self.state.load(Ordering::SeqCst) == CLOSED {
                guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if self.state.load(Ordering::SeqCst) == STOPPED {
            return Err(Stopped);
        }
        Ok(())
    }

    /// Ends the call on every rank.
    pub fn stop(&self) {
        self.state.store(STOPPED, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_rank_waits_while_the_host_holds_the_call() {
        let gate = Gate::default();
        let passed = AtomicBool::new(false);
        let (started, starting) = mpsc::channel();
        std::thread::scope(|scope| {
            gate.while_closed(|| {
                scope.spawn(|| {
                    started.send(()).unwrap();
                    gate.pass().unwrap();
                    passed.store(true, Ordering::SeqCst);
                });
                starting.recv().unwrap();
                for _ in 0..1_000 {
                    std::thread::yield_now();
                }
                assert!(
                    !passed.load(Ordering::SeqCst),
                    "a rank computed while the call was held"
                );
                true
            })
            .unwrap();
        });
        assert!(passed.load(Ordering::SeqCst));
    }

    #[test]
    fn a_cancelled_checkpoint_stops_every_rank() {
        let gate = Gate::default();
        assert_eq!(gate.while_closed(|| false), Err(Stopped));
        assert_eq!(gate.pass(), Err(Stopped));
        assert_eq!(gate.while_closed(|| true), Err(Stopped));
    }
}
