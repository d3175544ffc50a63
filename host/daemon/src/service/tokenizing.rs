//! Tokenization off the socket's threads, for every operation that takes texts.
//!
//! State: the daemon's permits, one a core. A tokenizer cannot be interrupted: the caller's wait ends at its deadline, the
//! permit when the tokenizer is done. Not known here: what is tokenized.

use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// Whether anybody still waits.
pub(super) struct Caller {
    cancel: CancellationToken,
    deadline: Instant,
}

impl Caller {
    /// Nobody waits any more: what is not tokenized yet need not be.
    pub(super) fn has_left(&self) -> bool {
        self.cancel.is_cancelled() || Instant::now() >= self.deadline
    }
}

/// Runs `work` on the blocking pool, under a permit.
///
/// # Errors
/// The deadline passed first, the request was cancelled, or the daemon stops.
pub(super) async fn on_the_pool<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    work: impl FnOnce(&Caller) -> T + Send + 'static,
) -> Result<T, ServiceError> {
    let late = || ServiceError::deadline_exceeded("the deadline passed before the request was tokenized");
    let permit = tokio::time::timeout_at(ctx.deadline.into(), Arc::clone(&daemon.tokenizing).acquire_owned())
        .await
        .map_err(|_| late())?
        .map_err(|_| ServiceError::shutting_down())?;
    ctx.check()?;
    let caller = Caller {
        cancel: ctx.cancel.clone(),
        deadline: ctx.deadline,
    };
    let tokenizing = daemon.tasks.blocking("tokenize", move || {
        let _permit = permit;
        work(&caller)
    });
    let made = tokio::time::timeout_at(ctx.deadline.into(), tokenizing)
        .await
        .map_err(|_| late())??;
    ctx.check()?;
    Ok(made)
}
