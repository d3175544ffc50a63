//! When a failed call is tried again: a decision, without clock or socket.
//!
//! No state; the client's call loop asks after each failure and does the waiting.

use std::time::Duration;

use synapse_wire::client::{Class, Method};

use crate::error::ClientError;

/// Bounds on trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a call is sent at most, the first time included. 1 never retries.
    pub max_attempts: u32,
    /// How long all attempts and waits of one call may take together before no further one is begun.
    pub max_total: Duration,
    /// The wait where the error names none; doubled with every attempt.
    pub first_wait: Duration,
    /// Whether operations that change something (pull, remove, load, unload, cancel) are tried again too.
    pub retry_changes: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            max_total: Duration::from_secs(30),
            first_wait: Duration::from_millis(50),
            retry_changes: false,
        }
    }
}

impl RetryPolicy {
    /// Never tries again.
    #[must_use]
    pub fn never() -> Self {
        Self {
            max_attempts: 1,
            ..Self::default()
        }
    }

    /// How long to wait before the next attempt, or `None` to give up. `attempt` counts from 1; `elapsed` is the time
    /// since the call began. A name that is no known method is treated as one that changes something.
    pub(crate) fn next_wait(
        &self,
        method: &str,
        attempt: u32,
        elapsed: Duration,
        error: &ClientError,
    ) -> Option<Duration> {
        // Where nobody listened, nothing was sent.
        let unsent = matches!(error, ClientError::NoDaemon { .. });
        if attempt >= self.max_attempts || !(unsent || self.retry_changes || only_reads(method)) {
            return None;
        }
        let asked = match error {
            ClientError::Daemon(object) => {
                let data = &object.data;
                if data.class != Class::Transient || !data.safe_to_retry_same_request {
                    return None;
                }
                data.retry_after_ms.map(Duration::from_millis)
            }
            // The request may or may not have run: harmless to repeat, because it only reads or the policy says so.
            ClientError::Closed { .. } => None,
            // This client was connected before: the daemon may be restarting.
            ClientError::NoDaemon { .. } => None,
            _ => return None,
        };
        let doublings = attempt.saturating_sub(1).min(16);
        let wait = asked.unwrap_or_else(|| self.first_wait.saturating_mul(1 << doublings));
        (elapsed.saturating_add(wait) <= self.max_total).then_some(wait)
    }
}

/// Whether sending an operation twice does nothing twice: it leaves the daemon as it was, or the daemon knows it again.
fn only_reads(method: &str) -> bool {
    match method.parse::<Method>() {
        Ok(
            Method::ServerInfo
            | Method::Health
            | Method::EmbedQuery
            | Method::EmbedBatch
            | Method::RerankScore
            | Method::MicrollmOneshot
            | Method::TextTokenize
            | Method::ModelsList
            | Method::ModelsExplain
            | Method::AliasesList
            | Method::AliasesCheckIndex
            | Method::ModelStatus
            | Method::JobAppend
            | Method::JobSeal
            | Method::JobPages
            | Method::JobStatus
            | Method::JobList
            | Method::ProbeStatus
            | Method::ProbeReport
            | Method::AdmissionStatus
            | Method::PluginsList
            | Method::PluginsRescan,
        ) => true,
        Ok(
            Method::RequestCancel
            | Method::ModelsPull
            | Method::ModelsRemove
            | Method::ModelLoad
            | Method::ModelUnload
            | Method::JobCreate
            | Method::AliasesDeclare
            | Method::AliasesRetract
            | Method::ProbeStart
            | Method::JobCancel,
        )
        | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use synapse_wire::client::{ErrorCode, ErrorData, ErrorObject};

    use super::*;

    fn refusal(class: Class, retry_after_ms: Option<u64>, safe: bool) -> ClientError {
        ClientError::Daemon(Box::new(ErrorObject {
            code: -32_000,
            message: String::new(),
            data: ErrorData {
                code: ErrorCode::QueueFull,
                class,
                retry_after_ms,
                safe_to_retry_same_request: safe,
                module_generation: 1,
                request_id: String::new(),
                detail: None,
            },
        }))
    }

    /// Each row: what failed, at which attempt, after how long, and the wait that follows.
    #[test]
    fn only_safe_transient_errors_are_retried_within_the_bounds() {
        let policy = RetryPolicy {
            max_attempts: 3,
            max_total: Duration::from_millis(1000),
            first_wait: Duration::from_millis(100),
            retry_changes: false,
        };
        let closed = || ClientError::Closed { reason: String::new() };
        let absent = || ClientError::NoDaemon {
            socket: "/s".into(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        let ms = |ms| Some(Duration::from_millis(ms));
        let busy = || refusal(Class::Transient, Some(40), true);
        for (name, method, attempt, elapsed, error, expected) in [
            ("as asked", "embed.query", 1, 0, busy(), ms(40)),
            ("still", "embed.query", 2, 900, busy(), ms(40)),
            ("attempts used up", "embed.query", 3, 0, busy(), None),
            ("time used up", "embed.query", 1, 961, busy(), None),
            (
                "unsafe",
                "embed.query",
                1,
                0,
                refusal(Class::Transient, Some(40), false),
                None,
            ),
            (
                "permanent",
                "embed.query",
                1,
                0,
                refusal(Class::Permanent, None, true),
                None,
            ),
            (
                "no time named",
                "embed.query",
                1,
                0,
                refusal(Class::Transient, None, true),
                ms(100),
            ),
            (
                "doubled",
                "embed.query",
                2,
                0,
                refusal(Class::Transient, None, true),
                ms(200),
            ),
            ("closed, reads", "embed.query", 1, 0, closed(), ms(100)),
            ("closed, changes", "models.remove", 1, 0, closed(), None),
            ("busy, changes", "model.load", 1, 0, busy(), None),
            ("unknown method", "org.example", 1, 0, busy(), None),
            ("restarting", "embed.query", 1, 0, absent(), ms(100)),
            ("restarting, changes", "models.remove", 2, 0, absent(), ms(200)),
            (
                "closed, an append is known again",
                "job.append",
                1,
                0,
                closed(),
                ms(100),
            ),
            ("closed, so is a seal", "job.seal", 1, 0, closed(), ms(100)),
            ("closed, a page is read", "job.result", 1, 0, closed(), ms(100)),
            ("closed, a job may be open", "job.create", 1, 0, closed(), None),
            ("closed, a job may end", "job.cancel", 1, 0, closed(), None),
            ("nonsense", "health", 1, 0, ClientError::Protocol(String::new()), None),
        ] {
            let wait = policy.next_wait(method, attempt, Duration::from_millis(elapsed), &error);
            assert_eq!(wait, expected, "{name}");
        }
        let bold = RetryPolicy {
            retry_changes: true,
            ..policy
        };
        assert_eq!(bold.next_wait("models.remove", 1, Duration::ZERO, &closed()), ms(100));
        assert_eq!(
            RetryPolicy::never().next_wait("health", 1, Duration::ZERO, &busy()),
            None
        );
    }
}
