//! How many of a worker's output lines reach the log.
//!
//! At most so many lines a second, standard output and error together; the next line that is forwarded says how many
//! were left out before it (LOG-06). The ring that keeps a crash's last words is fed whatever this says.

use crate::schedule::Tick;

const SECOND: u64 = 1_000_000_000;

/// One worker's line limit.
#[derive(Clone, Copy, Debug)]
pub struct LineLimit {
    per_second: u32,
    window_start: Tick,
    forwarded: u32,
    dropped: u64,
}

impl LineLimit {
    /// A limit of `per_second` lines; 0 forwards none.
    #[must_use]
    pub const fn new(per_second: u32) -> Self {
        Self {
            per_second,
            window_start: Tick(0),
            forwarded: 0,
            dropped: 0,
        }
    }

    /// Takes one line. `Some(n)`: forward it and say that `n` lines were dropped before it; `None`: drop it.
    pub fn admit(&mut self, now: Tick) -> Option<u64> {
        if now.since(self.window_start) >= SECOND {
            self.window_start = now;
            self.forwarded = 0;
        }
        if self.forwarded >= self.per_second {
            self.dropped += 1;
            return None;
        }
        self.forwarded += 1;
        Some(std::mem::take(&mut self.dropped))
    }

    /// Lines dropped since the last forwarded one.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 500 lines inside a second, then one: what is forwarded and what is counted as dropped add up.
    ///
    /// Proves LOG-06.
    #[test]
    fn forwarded_and_dropped_lines_add_up() {
        let mut limit = LineLimit::new(50);
        let start = 7 * SECOND;
        let mut seen = 0;
        for line in 0..500 {
            if let Some(dropped) = limit.admit(Tick(start + line * 1_000_000)) {
                seen += 1 + dropped;
            }
        }
        assert_eq!(seen, 50);
        assert_eq!(limit.admit(Tick(start + SECOND)), Some(450));
        assert_eq!(limit.dropped(), 0);
    }

    #[test]
    fn a_limit_of_zero_forwards_nothing() {
        let mut limit = LineLimit::new(0);
        assert_eq!(limit.admit(Tick(9 * SECOND)), None);
        assert_eq!(limit.dropped(), 1);
    }
}
