//! What one request carries through the daemon besides its parameters.
//!
//! State: none of its own; the cancellation token belongs to the connection that received the request, and what the
//! request holds goes with its reply. Callers:
//! `rpc/dispatch.rs` makes one per request, every operation reads it. Not known here: the connection, JSON.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use synapse_core::schedule::Reservation;
use tokio_util::sync::CancellationToken;

use super::error::ServiceError;

/// The daemon's own name of a request, for example `7c-000012`: on the reply, in every error detail and on every
/// log line of that request. Unique within one run of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    connection: u64,
    sequence: u64,
}

impl RequestId {
    /// Names the `sequence`-th request of connection number `connection`.
    #[must_use]
    pub const fn new(connection: u64, sequence: u64) -> Self {
        Self { connection, sequence }
    }

    /// The name as one number, for engines, whose calls carry a `u64`: it repeats only after 2^24 requests of one
    /// connection.
    #[must_use]
    pub const fn number(&self) -> u64 {
        (self.connection << 24) | (self.sequence & 0xff_ffff)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}-{:06}", self.connection, self.sequence)
    }
}

/// What is held for a request until its reply is written: the bytes of its results in the lanes' budgets (SCHED-13). Every
/// clone is the same; what is held is given back when the last one is gone.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    bytes: Arc<Mutex<Vec<Reservation>>>,
}

impl Holds {
    /// Holds these bytes too.
    pub fn add(&self, bytes: Reservation) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
    }
}

/// One request's identity, times and cancellation.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// The daemon's own name of the request.
    pub request_id: RequestId,
    /// When the last byte of the request's line was read; every time counts from here (OQ-28).
    pub received: Instant,
    /// When the answer is no longer of use: `received` + `deadline_ms`.
    pub deadline: Instant,
    /// How long interactive work may wait for its start (`max_queue_ms`, never more than the deadline).
    pub max_queue: Duration,
    /// Fires when the client cancels this request or is gone, when the deadline passes, or when the daemon stops.
    pub cancel: CancellationToken,
    /// What is held until the reply is written.
    pub holds: Holds,
}

impl RequestContext {
    /// The time left until the deadline; zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Refuses to go on when the request was cancelled or its deadline has passed.
    ///
    /// # Errors
    /// `cancelled` or `deadline_exceeded`.
    pub fn check(&self) -> Result<(), ServiceError> {
        if self.remaining().is_zero() {
            return Err(ServiceError::deadline_exceeded(
                "the deadline passed before the work began",
            ));
        }
        if self.cancel.is_cancelled() {
            return Err(ServiceError::cancelled());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_name_in_two_forms() {
        let id = RequestId::new(0x7c, 12);
        assert_eq!((id.to_string().as_str(), id.number()), ("7c-000012", 0x7c00_000c));
    }

    #[test]
    fn a_late_or_cancelled_request_does_not_go_on() {
        let context = |deadline| RequestContext {
            request_id: RequestId::new(1, 1),
            received: Instant::now(),
            deadline,
            max_queue: Duration::from_secs(1),
            cancel: CancellationToken::new(),
            holds: Holds::default(),
        };
        let ahead = context(Instant::now() + Duration::from_secs(3_600));
        assert_eq!(ahead.check(), Ok(()));
        ahead.cancel.cancel();
        assert_eq!(ahead.check().unwrap_err().code().as_str(), "cancelled");
        assert_eq!(
            context(Instant::now()).check().unwrap_err().code().as_str(),
            "deadline_exceeded"
        );
    }
}
