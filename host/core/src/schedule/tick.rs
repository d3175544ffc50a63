//! A moment as the host's decisions know it: a number that the caller hands in.
//!
//! State: none. Callers: every decision that depends on time. Not known here: clocks.

/// A moment, in nanoseconds since an origin of the caller's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// The moment `nanos` later, at most the end of time.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The moment `millis` later, at most the end of time.
    #[must_use]
    pub const fn after_ms(self, millis: u64) -> Self {
        self.after(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds from `earlier` to here, 0 if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
