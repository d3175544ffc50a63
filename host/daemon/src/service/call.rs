//! Giving work to an admitted lane and waiting for it: class, bounds, waits, and what a failure leaves behind.
//!
//! State: none. Callers: the embedding path, `rerank.score`, `microllm.oneshot`. Not known here: what the work is; the
//! order of calls (`schedule`).

use std::sync::Arc;
use std::time::Instant;

use synapse_core::engine::EngineErrorCode;
use synapse_core::schedule::Class;

use super::admission::Admitted;
use super::{RequestContext, ServiceError};
use crate::lane::load;
use crate::schedule::{CallError, CallSpec, Flow, QuantumBounds, Work};
use crate::state::Daemon;

/// Runs `work`, which holds `bytes` until the request's reply is written; as a part of `flow`, where it is one call of several.
///
/// # Errors
/// It was not admitted, did not start or end in time, was cancelled, or the engine failed; a model that the engine gave
/// up is then unloaded.
pub(super) async fn run<W: Work>(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    admitted: &Admitted,
    class: Class,
    bytes: u64,
    flow: Option<&Flow>,
    work: W,
) -> Result<W::Output, ServiceError> {
    let spec = CallSpec {
        request: ctx.request_id.number(),
        class,
        start_by: start_by(ctx, class, admitted.names_queue),
        deadline: ctx.deadline,
        bytes,
        flow: flow.map(Flow::id),
    };
    let outcome = admitted.loaded.executor.submit(spec, work)?.outcome(&ctx.cancel).await;
    admitted.lane.touch();
    let error = match outcome {
        Ok((output, bytes)) => {
            if let Some(bytes) = bytes {
                ctx.holds.add(bytes);
            }
            return Ok(output);
        }
        Err(error) => error,
    };
    if let CallError::Engine(error) = &error {
        load::after_failure(daemon, &admitted.lane, error);
        // The engine can see the deadline a moment before the caller's own clock does.
        let nobody_cancelled = error.code == EngineErrorCode::Cancelled && !ctx.cancel.is_cancelled();
        if nobody_cancelled && ctx.remaining().is_zero() {
            return Err(CallError::Deadline.into());
        }
    }
    Err(error.into())
}

/// What one engine call may hold at most: the envelope's bounds.
pub(super) fn envelope(admitted: &Admitted) -> QuantumBounds {
    let bounds = admitted.lane.row.bounds;
    let certified = admitted.class.as_ref().map_or(u32::MAX, |class| class.max_items);
    QuantumBounds {
        max_items: bounds.max_batch.min(bounds.max_sequences).min(certified),
        max_tokens: u64::from(bounds.max_batch_tokens),
    }
}

/// The last moment to start: interactive work within its `max_queue_ms`, bulk work within its deadline, unless the request
/// itself names a wait (SCHED-03).
fn start_by(ctx: &RequestContext, class: Class, names_queue: bool) -> Instant {
    match class {
        Class::Bulk | Class::Control if !names_queue => ctx.deadline,
        _ => (ctx.received + ctx.max_queue).min(ctx.deadline),
    }
}
