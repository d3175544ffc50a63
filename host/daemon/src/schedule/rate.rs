//! How fast a lane works: measured nanoseconds per unit of work, and the unit's backlog.
//!
//! State: one running mean. Caller: the executor, under its lock. Units are tokens for embedding engines. Time is an
//! argument.

/// Every new measurement moves the mean by this fraction.
const WEIGHT: f64 = 0.125;
/// What is advised before anything was measured, in milliseconds.
const UNMEASURED_MS: u64 = 100;
/// The shortest and the longest advice, in milliseconds.
const ADVICE_MS: (f64, f64) = (5.0, 60_000.0);
/// Nanoseconds of a millisecond.
const MS: f64 = 1_000_000.0;

/// A lane's measured speed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    nanos_per_unit: Option<f64>,
}

impl Rate {
    /// Takes in a quantum: how much work it was and how long the engine took, time held at checkpoints excluded.
    pub(super) fn measured(&mut self, units: u64, nanos: u64) {
        if units == 0 {
            return;
        }
        let sample = as_f64(nanos) / as_f64(units);
        let mean = self
            .nanos_per_unit
            .map_or(sample, |mean| mean + (sample - mean) * WEIGHT);
        self.nanos_per_unit = Some(mean);
    }

    /// Milliseconds until `units` of work are done by `slots` calls at a time: when a refused caller should be back.
    pub(super) fn advice_ms(self, units: u64, slots: u32) -> u64 {
        let Some(nanos) = self.nanos_per_unit else {
            return UNMEASURED_MS;
        };
        let millis = (nanos * as_f64(units) / f64::from(slots.max(1)) / MS).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 5..=60000 in the line above the cast"
        )]
        let advice = millis.clamp(ADVICE_MS.0, ADVICE_MS.1) as u64;
        advice
    }

    /// How many units fit into `nanos`, `None` before anything was measured.
    pub(super) fn units_in(self, nanos: u64) -> Option<u64> {
        let units = as_f64(nanos) / self.nanos_per_unit?.max(1e-3);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, finite, and capped far below 2^64"
        )]
        let units = units.clamp(1.0, 1e15) as u64;
        Some(units)
    }
}

/// Exact below 2^53, which is 104 days in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "a mean needs no more than 53 bits")]
const fn as_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_the_backlog_over_the_measured_speed() {
        let mut rate = Rate::default();
        assert_eq!(rate.advice_ms(1_000_000, 1), UNMEASURED_MS);
        assert_eq!(rate.units_in(1_000_000), None);
        // 1,000 tokens in 100 ms: 0.1 ms a token.
        rate.measured(1_000, 100_000_000);
        assert_eq!(rate.advice_ms(2_000, 1), 200);
        assert_eq!(rate.advice_ms(2_000, 2), 100);
        assert_eq!(rate.units_in(200_000_000), Some(2_000));
        // Nothing waits, or everything does: the advice stays within its range.
        assert_eq!(rate.advice_ms(0, 1), 5);
        assert_eq!(rate.advice_ms(u64::MAX, 1), 60_000);
    }

    #[test]
    fn the_mean_follows_a_change_of_speed() {
        let mut rate = Rate::default();
        rate.measured(1, 1_000_000);
        for _ in 0..100 {
            rate.measured(1, 4_000_000);
        }
        assert_eq!(rate.advice_ms(100, 1), 400);
        rate.measured(0, 999);
        assert_eq!(rate.advice_ms(100, 1), 400);
    }
}
