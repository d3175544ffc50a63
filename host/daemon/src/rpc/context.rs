//! What one request carries through the daemon besides its parameters.
//!
//! State: none of its own; the cancellation token belongs to the connection that received the request. Callers:
//! `rpc/dispatch.rs` makes one per request, every operation reads it. Not known here: the connection, JSON.

use std::fmt;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::error::ServiceError;

/// The daemon's own name of a request, for example `7c-000012`: on the reply, in every error detail and on every
/// log line of that request. Unique within one run of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// Names the `sequence`-th request of connection number `connection`.
    #[must_use]
    pub fn new(connection: u64, sequence: u64) -> Self {
        Self(format!("{connection:02x}-{sequence:06}"))
    }

    /// The name as written on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
    /// Fires when the client cancels this request, when the client is gone, or when the daemon stops.
    pub cancel: CancellationToken,
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
        if self.cancel.is_cancelled() {
            return Err(ServiceError::cancelled());
        }
        if self.remaining().is_zero() {
            return Err(ServiceError::deadline_exceeded(
                "the deadline passed before the work began",
            ));
        }
        Ok(())
    }
}
