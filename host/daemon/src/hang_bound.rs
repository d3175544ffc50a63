//! The bound after which a test counts as hanging. Not a measurement: far beyond what any step takes.
//!
//! State: none. Callers: tests that wait for an event. With tokio's paused time the bound is virtual, and beyond every
//! limit that such a test lets pass.

use std::future::IntoFuture;
use std::time::Duration;

/// Awaits `event`, or fails the test.
pub async fn soon<E: IntoFuture>(event: E) -> E::Output {
    tokio::time::timeout(Duration::from_secs(600), event)
        .await
        .expect("the test hangs")
}
