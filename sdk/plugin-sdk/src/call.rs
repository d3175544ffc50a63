//! One call as the author sees it: budget, deadline, cancellation, checkpoints.
//!
//! Borrows the host's context for the length of the call and owns nothing else.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use crate::{
    api::{CallContext, Flow, call::NO_DEADLINE},
    error::Error,
    host::Host,
};

/// How long [`Pace`] works between two checkpoints. The contract allows 5 ms of CPU work.
const PACE: Duration = Duration::from_millis(2);

/// What accompanies a call. Shared freely with the engine's own threads; see each method's tag.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    context: &'a CallContext<'a>,
    host: Host,
}

impl<'a> Call<'a> {
    /// Wraps a context of the ABI.
    #[must_use]
    pub const fn new(context: &'a CallContext<'a>, host: Host) -> Self {
        Self { context, host }
    }

    /// The request's number, for logs.
    #[must_use]
    pub const fn request_id(&self) -> u64 {
        self.context.request_id()
    }

    /// How many threads this call may use, the calling one included; at least 1.
    #[must_use]
    pub fn threads(&self) -> usize {
        usize::try_from(self.context.threads()).unwrap_or(usize::MAX).max(1)
    }

    /// The host.
    #[must_use]
    pub const fn host(&self) -> Host {
        self.host
    }

    /// `[any]` Time left until the deadline, if there is one; zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        match self.context.deadline_ns() {
            NO_DEADLINE => None,
            deadline => Some(Duration::from_nanos(deadline.saturating_sub(self.host.monotonic_ns()))),
        }
    }

    /// `[any]` Whether the call should end. Never parks: helper threads poll it between blocks of work.
    #[must_use]
    pub fn cancelled(&self) -> bool {
        self.context.cancelled()
    }

    /// Reports completed work and gives way; the host may hold the call here.
    ///
    /// On the calling thread only, with helper threads idle and no lock held that another call needs, at least every
    /// 5 ms of CPU work. `done` never decreases, `total` stays the same.
    ///
    /// # Errors
    /// CANCELLED: return it at once with `?`.
    pub fn checkpoint(&self, done: u64, total: u64) -> Result<(), Error> {
        match self.context.checkpoint(done, total) {
            Flow::CONTINUE => Ok(()),
            _ => Err(Error::cancelled()),
        }
    }

    /// A rate-limited checkpoint for loops whose steps are far shorter than 5 ms.
    #[must_use]
    pub fn pace(&self, total: u64) -> Pace<'a> {
        Pace {
            call: *self,
            done: 0,
            total,
            last: Instant::now(),
        }
    }

    /// Cuts `rows` into blocks of at most `block` rows with a checkpoint after each: the loop
    /// `for rows in call.row_blocks(n, 64) { let rows = rows?; … }` ends with CANCELLED when the host says so.
    pub fn row_blocks(&self, rows: usize, block: usize) -> impl Iterator<Item = Result<Range<usize>, Error>> + use<'a> {
        let (call, block) = (*self, block.max(1));
        let mut start = 0;
        let mut failed = false;
        std::iter::from_fn(move || {
            if start > 0
                && !failed
                && let Err(error) = call.checkpoint(start as u64, rows as u64)
            {
                failed = true;
                return Some(Err(error));
            }
            if failed || start >= rows {
                return None;
            }
            let range = start..rows.min(start + block);
            start = range.end;
            Some(Ok(range))
        })
    }
}

/// A rate-limited checkpoint: [`Pace::advance`] after every small step, the host hears of it every 2 ms.
#[derive(Debug)]
pub struct Pace<'a> {
    call: Call<'a>,
    done: u64,
    total: u64,
    last: Instant,
}

impl Pace<'_> {
    /// Counts completed work and calls the checkpoint when 2 ms have passed since the last one, or all is done.
    ///
    /// # Errors
    /// CANCELLED: return it at once with `?`.
    pub fn advance(&mut self, steps: u64) -> Result<(), Error> {
        self.done = self.done.saturating_add(steps).min(self.total);
        if self.done < self.total && self.last.elapsed() < PACE {
            return Ok(());
        }
        self.call.checkpoint(self.done, self.total)?;
        self.last = Instant::now();
        Ok(())
    }
}
