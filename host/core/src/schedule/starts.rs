//! How a lane did of late: how long its interactive calls waited for their start, which calls came too late, how long its
//! quanta took.
//!
//! State: the last starts, the last miss and the last quanta of one lane. Caller: the lane. Time is an argument. Not known here: why a call
//! waited.

use std::collections::VecDeque;

use super::call::QuantumTimes;
use super::tick::Tick;

/// What is older than this says nothing about now.
const WINDOW_NANOS: u64 = 60_000_000_000;
/// The most starts that are remembered.
const MOST: usize = 64;

/// The lane's record.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// When an interactive call started, and how long it had waited, in nanoseconds; the oldest first.
    delays: VecDeque<(Tick, u64)>,
    last_missed: Option<Tick>,
}

impl Starts {
    /// An interactive call starts after a wait of so many nanoseconds.
    pub(super) fn started(&mut self, now: Tick, waited: u64) {
        if self.delays.len() == MOST {
            self.delays.pop_front();
        }
        self.delays.push_back((now, waited));
    }

    /// A call came too late for its start, or was refused because it would have.
    pub(super) const fn missed(&mut self, now: Tick) {
        self.last_missed = Some(now);
    }

    /// Whether no call has missed its start of late.
    pub(super) fn on_time(&self, now: Tick) -> bool {
        self.last_missed.is_none_or(|missed| now.since(missed) > WINDOW_NANOS)
    }

    /// The median wait of late, in nanoseconds: the lower one of two.
    pub(super) fn median(&self, now: Tick) -> Option<u64> {
        let recent = self.delays.iter().filter(|(at, _)| now.since(*at) <= WINDOW_NANOS);
        let mut waits: Vec<u64> = recent.map(|(_, waited)| *waited).collect();
        waits.sort_unstable();
        waits.get(waits.len().checked_sub(1)? / 2).copied()
    }
}

/// The most quanta that are remembered.
const MOST_QUANTA: usize = 128;

/// How long the last bulk quanta of a lane took in the engine.
#[derive(Debug, Default)]
pub(super) struct Quanta {
    nanos: VecDeque<u64>,
}

impl Quanta {
    pub(super) fn measured(&mut self, nanos: u64) {
        if self.nanos.len() == MOST_QUANTA {
            self.nanos.pop_front();
        }
        self.nanos.push_back(nanos);
    }

    /// What they have in common, where there were any.
    pub(super) fn times(&self) -> Option<QuantumTimes> {
        let mut nanos: Vec<u64> = self.nanos.iter().copied().collect();
        nanos.sort_unstable();
        let last = nanos.len().checked_sub(1)?;
        Some(QuantumTimes {
            p50_nanos: nanos[last / 2],
            p95_nanos: nanos[(last * 95).div_ceil(100)],
            count: nanos.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Proves API-25. What is shown follows what happened, and is forgotten after a minute.
    #[test]
    fn the_record_is_of_the_last_minute() {
        let mut starts = Starts::default();
        assert_eq!((starts.median(Tick(0)), starts.on_time(Tick(0))), (None, true));
        for (second, waited) in [(0, 900), (1, 10), (2, 30), (3, 20)] {
            starts.started(Tick(second * SECOND), waited);
        }
        assert_eq!(starts.median(Tick(3 * SECOND)), Some(20));
        starts.missed(Tick(4 * SECOND));
        assert!(!starts.on_time(Tick(64 * SECOND)));
        assert!(starts.on_time(Tick(64 * SECOND + 1)));
        assert_eq!(starts.median(Tick(62 * SECOND)), Some(20), "two are left");
        assert_eq!(starts.median(Tick(64 * SECOND)), None);
        for waited in 0..1_000 {
            starts.started(Tick(70 * SECOND), waited);
        }
        assert_eq!(starts.median(Tick(70 * SECOND)), Some(967), "of the last 64");
    }

    #[test]
    fn the_times_of_quanta_are_of_the_last_ones() {
        let mut quanta = Quanta::default();
        assert_eq!(quanta.times(), None);
        for nanos in 0..1_000 {
            quanta.measured(nanos);
        }
        let times = QuantumTimes {
            p50_nanos: 935,
            p95_nanos: 993,
            count: 128,
        };
        assert_eq!(quanta.times(), Some(times));
    }
}
