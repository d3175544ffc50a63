//! A barrier for a few threads that are usually microseconds apart.
//!
//! Owns a generation counter. A wait spins for a bounded time and then parks, so a thread whose partners were
//! preempted costs nothing; the time spent parked tells `contention` that the machine is busy. Stopping the barrier
//! releases everybody for good.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Stopped;

/// Spins before a wait parks: some tens of microseconds, what the ranks' parts of a step usually differ by. Parking and
/// waking cost about as much again.
const SPINS: u32 = 4_000;

/// A reusable barrier.
pub struct Barrier {
    ranks: u32,
    arrived: AtomicU32,
    generation: AtomicU32,
    stopped: AtomicBool,
    sleepers: AtomicU32,
    parked_nanos: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Barrier {
    /// A barrier for `ranks` threads.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks: u32::try_from(ranks).unwrap_or(u32::MAX),
            arrived: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            parked_nanos: AtomicU64::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Waits until every rank is here. What any rank wrote before is visible to all after.
    ///
    /// # Errors
    /// [`Stopped`] once [`Self::stop`] was called.
    pub fn wait(&self) -> Result<(), Stopped> {
        if self.ranks <= 1 {
            return Ok(());
        }
        let generation = self.generation.load(Ordering::SeqCst);
        if self.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.ranks {
            self.arrived.store(0, Ordering::SeqCst);
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.wake_sleepers();
            return self.outcome();
        }
        for _ in 0..SPINS {
            if self.released(generation) {
                return self.outcome();
            }
            std::hint::spin_loop();
        }
        let parked = Instant::now();
        // The sleeper announces itself before it looks again, the waker changes the generation before it looks for
        // sleepers: one of them sees the other.
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.released(generation) {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        let nanos = u64::try_from(parked.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.parked_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.outcome()
    }

    /// Releases every present and future wait with [`Stopped`].
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake_sleepers();
    }

    /// Time that ranks spent parked, over all ranks.
    #[must_use]
    pub fn parked(&self) -> Duration {
        Duration::from_nanos(self.parked_nanos.load(Ordering::Relaxed))
    }

    fn released(&self, generation: u32) -> bool {
        self.generation.load(Ordering::SeqCst) != generation || self.stopped.load(Ordering::SeqCst)
    }

    fn outcome(&self) -> Result<(), Stopped> {
        if self.stopped.load(Ordering::SeqCst) {
            return Err(Stopped);
        }
        Ok(())
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Taking the lock puts the notification after the sleeper's wait began.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn no_rank_runs_ahead() {
        let barrier = Barrier::new(3);
        let entered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (barrier, entered) = (&barrier, &entered);
                scope.spawn(move || {
                    for round in 0..2_000 {
                        if (round + rank) % 97 == 0 {
                            std::thread::yield_now();
                        }
                        entered.fetch_add(1, Ordering::SeqCst);
                        barrier.wait().unwrap();
                        assert!(entered.load(Ordering::SeqCst) >= 3 * (round + 1));
                    }
                });
            }
        });
        assert_eq!(entered.load(Ordering::SeqCst), 6_000);
    }

    #[test]
    fn stop_releases_a_parked_rank() {
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| barrier.wait());
            while barrier.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(barrier.parked(), Duration::ZERO, "counted before it ended");
            barrier.stop();
            assert_eq!(waiting.join().unwrap(), Err(Stopped));
        });
        assert!(barrier.parked() > Duration::ZERO);
        assert_eq!(barrier.wait(), Err(Stopped));
    }
}
