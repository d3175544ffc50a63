//! How fast a lane works, as measured, and what follows from it: the size of a quantum, the time of a wait.
//!
//! State: one running mean per class of a lane. Caller: the scheduler. Units are tokens for embedding engines. Time is
//! an argument. Not known here: clocks, engines.

/// Every new measurement moves the mean by this fraction.
const WEIGHT: f64 = 0.125;
/// A quantum grows by this factor at most from one measurement to the next: one quick answer proves little.
const GROWTH: u64 = 2;
/// What is advised before anything was measured, in milliseconds.
const UNMEASURED_MS: u64 = 100;
/// The shortest and the longest advice, in milliseconds.
const ADVICE_MS: (u64, u64) = (5, 60_000);
/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// A measured speed: the mean time of a call over its mean work. So one short call, which is mostly overhead, says
/// little about a long one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    mean: Option<Mean>,
}

#[derive(Clone, Copy, Debug)]
struct Mean {
    units: f64,
    nanos: f64,
}

impl Speed {
    /// Takes in an engine call: how much work it was and how long it took, time held at checkpoints excluded.
    pub(super) fn measured(&mut self, units: u64, nanos: u64) {
        if units == 0 {
            return;
        }
        let (units, nanos) = (as_f64(units), as_f64(nanos));
        let mean = self.mean.map_or(Mean { units, nanos }, |mean| Mean {
            units: mean.units + (units - mean.units) * WEIGHT,
            nanos: mean.nanos + (nanos - mean.nanos) * WEIGHT,
        });
        self.mean = Some(mean);
    }

    /// Nanoseconds that `units` of work take; `None` before anything was measured.
    pub(super) fn nanos(self, units: u64) -> Option<u64> {
        Some(as_u64(self.nanos_per_unit()? * as_f64(units)))
    }

    /// How many units fit into `nanos`, at least 1; `None` before anything was measured.
    pub(super) fn units_in(self, nanos: u64) -> Option<u64> {
        let per_unit = self.nanos_per_unit()?.max(1e-3);
        Some(as_u64(as_f64(nanos) / per_unit).max(1))
    }

    fn nanos_per_unit(self) -> Option<f64> {
        self.mean.map(|mean| mean.nanos / mean.units)
    }
}

/// The size of one lane's next quantum, in units of work (SCHED-04).
#[derive(Clone, Copy, Debug)]
pub(super) struct QuantumSize {
    units: u64,
    target_nanos: u64,
}

impl QuantumSize {
    pub(super) fn new(first: u64, target_nanos: u64) -> Self {
        Self {
            units: first.max(1),
            target_nanos,
        }
    }

    /// Follows the measured speed: down at once, up by a factor of two at most.
    pub(super) fn follow(&mut self, speed: Speed) {
        if let Some(units) = speed.units_in(self.target_nanos) {
            self.units = units.min(self.units.saturating_mul(GROWTH));
        }
    }

    pub(super) const fn units(self) -> u64 {
        self.units
    }
}

/// `nanos` as advice to a refused caller, in milliseconds, rounded up and kept within 5 ms and one minute; `None`
/// stands for work that was never measured.
pub(super) fn advice_ms(nanos: Option<u64>) -> u64 {
    let millis = nanos.map_or(UNMEASURED_MS, |nanos| nanos.div_ceil(MS));
    millis.clamp(ADVICE_MS.0, ADVICE_MS.1)
}

/// Exact below 2^53, which is 104 days in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "a mean needs no more than 53 bits")]
const fn as_f64(value: u64) -> f64 {
    value as f64
}

/// Rounded down; what is not a number or negative becomes 0, what is too large the largest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and NaN becomes 0"
)]
const fn as_u64(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_and_sizes_follow_the_measured_speed() {
        let mut speed = Speed::default();
        assert_eq!((speed.nanos(7), speed.units_in(7)), (None, None));
        assert_eq!(advice_ms(speed.nanos(7)), UNMEASURED_MS);
        // 1,000 tokens in 100 ms: 0.1 ms a token.
        speed.measured(1_000, 100 * MS);
        assert_eq!(speed.nanos(2_000), Some(200 * MS));
        assert_eq!(speed.units_in(200 * MS), Some(2_000));
        speed.measured(0, 999);
        assert_eq!(
            speed.nanos(1),
            Some(100_000),
            "a failed call says nothing about the speed"
        );
        for _ in 0..200 {
            speed.measured(1, 400_000);
        }
        assert_eq!(advice_ms(speed.nanos(100)), 40);
        assert_eq!((advice_ms(Some(0)), advice_ms(Some(u64::MAX))), (5, 60_000));
    }

    /// Proves SCHED-04.
    #[test]
    fn a_quantum_follows_the_measured_speed() {
        let mut speed = Speed::default();
        let mut size = QuantumSize::new(3_072, 200 * MS);
        size.follow(speed);
        assert_eq!(size.units(), 3_072);
        // A slow lane: 1 ms a token, so 200 tokens.
        speed.measured(3_072, 3_072 * MS);
        size.follow(speed);
        assert_eq!(size.units(), 200);
        // The lane is freed of its load: each quantum grows, until it takes its time again.
        let mut sizes = Vec::new();
        for _ in 0..60 {
            let units = size.units();
            speed.measured(units, units * 1_000);
            size.follow(speed);
            sizes.push(size.units());
        }
        assert!(sizes.is_sorted(), "{sizes:?}");
        assert!((198_000..=200_000).contains(&sizes[59]), "{sizes:?}");
        // One quick answer at the start proves little.
        let (mut speed, mut size) = (Speed::default(), QuantumSize::new(3_072, 200 * MS));
        speed.measured(3_072, 3_072);
        size.follow(speed);
        assert_eq!(size.units(), 6_144);
    }
}
